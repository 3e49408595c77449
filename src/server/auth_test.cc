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

}  // namespace
}  // namespace larder
