// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(Auth, WithoutAKeyAdminRoutesAreForThisMachineOnly) {
  Options options;
  EXPECT_TRUE(is_for_loopback_only(options, AuthLevel::kAdminOptional, false));
  EXPECT_TRUE(is_for_loopback_only(options, AuthLevel::kAdminOptional, true));
  EXPECT_FALSE(is_for_loopback_only(options, AuthLevel::kNormal, false));
  EXPECT_FALSE(is_for_loopback_only(options, AuthLevel::kOpen, false));
  options.api_key = "user";
  EXPECT_FALSE(is_for_loopback_only(options, AuthLevel::kAdminOptional, false)) << "the api key does";
  EXPECT_TRUE(is_for_loopback_only(options, AuthLevel::kAdminOptional, true)) << "but not for storage";
  options.admin_api_key = "admin";
  EXPECT_FALSE(is_for_loopback_only(options, AuthLevel::kAdminOptional, true));
}

TEST(Auth, OtherMachinesNeedAKeyUnlessTheOperatorSaysOtherwise) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"}) {
    EXPECT_TRUE(check_exposure(host, false, false).is_ok()) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.7", "127.0.0.1.example.org", "127.evil", "host.example.org", "no address"}) {
    const Status refused = check_exposure(host, false, false);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << host;
    EXPECT_NE(refused.message().find("--api-key-file"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("is no loopback address"), std::string::npos) << refused.message();
    EXPECT_TRUE(check_exposure(host, true, false).is_ok()) << host;
    EXPECT_TRUE(check_exposure(host, false, true).is_ok()) << host;
  }
}

}  // namespace
}  // namespace larder
