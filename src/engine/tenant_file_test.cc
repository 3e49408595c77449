// SPDX-License-Identifier: Apache-2.0
#include "engine/tenant_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "key/sha256.h"

namespace larder {
namespace {

Result<TenantLimits> read(const std::string& json) {
  LARDER_ASSIGN_OR_RETURN(const Tree tree, parse_json_tree(json, "limits.json"));
  return read_tenant_limits(tree, "limits.json");
}

// A tenant with these members beside its name and salt.
Result<TenantLimits> one(const std::string& more) {
  return read(R"({"tenants": [{"name": "a", "salt": "s", )" + more + "}]}");
}

TEST(TenantFile, TiersSayMoreThanWhatCountsForBoth) {
  const Result<TenantLimits> limits = read(R"({
    "tenants": [{"name": "a", "salt": "s", "floor": "10%", "ceiling": "40%", "host": {"floor": "2GiB"}},
                {"name": "b", "salt_prefix": "trial-", "device": {"ceiling": "12.5%"}}],
    "others": {"ceiling": "30%"}})");
  ASSERT_TRUE(limits.is_ok()) << limits.status().to_string();
  const TierBounds& a = limits->tenants[0].bounds;
  EXPECT_DOUBLE_EQ(a[0].floor->share, 0.1);
  EXPECT_EQ(a[1].floor->bytes, std::uint64_t{2} << 30);
  EXPECT_DOUBLE_EQ(a[1].ceiling->share, 0.4);
  const TierBounds& b = limits->tenants[1].bounds;
  EXPECT_DOUBLE_EQ(b[0].ceiling->share, 0.125);
  EXPECT_FALSE(b[1].ceiling || b[1].floor);
  EXPECT_DOUBLE_EQ(limits->others[1].ceiling->share, 0.3);
  EXPECT_FALSE(limits->empty());
  EXPECT_TRUE(read("{}")->empty());
}

TEST(TenantFile, ATenantIsKnownByItsSaltOrItsHashOrItsBeginning) {
  const std::string hash = sha256(std::string_view("secret")).hex();
  const Result<TenantLimits> limits = read(R"({"tenants": [
    {"name": "a", "salt": "s"}, {"name": "b", "salt_sha256": ")" +
                                           hash + R"("}, {"name": "c", "salt_prefix": "t-"},
    {"name": "none", "salt": ""}]})");
  ASSERT_TRUE(limits.is_ok()) << limits.status().to_string();
  const auto who = [&](std::string_view salt) {
    for (const TenantRule& rule : limits->tenants) {
      if (rule.fits(salt)) return rule.name;
    }
    return std::string("nobody");
  };
  EXPECT_EQ(who("s"), "a");
  EXPECT_EQ(who("secret"), "b");
  EXPECT_EQ(who("t-17"), "c");
  EXPECT_EQ(who("t"), "nobody");
  EXPECT_EQ(who(""), "none");
}

TEST(TenantFile, WhatIsWrongIsNamed) {
  const std::pair<Result<TenantLimits>, const char*> cases[] = {
      {read("[]"), "must be an object"},
      {read(R"({"tenant": []})"), "there is no \"tenant\" here; known are tenants, others"},
      {read(R"({"tenants": {}})"), "tenants must be a list"},
      {read(R"({"tenants": [7]})"), "tenants[0] must be an object"},
      {read(R"({"tenants": [{"name": "a"}]})"), "tenants[0] (a) needs one of salt, salt_sha256 and salt_prefix"},
      {read(R"({"tenants": [{"name": "a", "salt": "x", "salt_prefix": "y"}]})"), "and has 2"},
      {read(R"({"tenants": [{"name": "a", "salt": 7}]})"), "\"salt\" must be text"},
      {read(R"({"tenants": [{"name": "a", "salt_sha256": "12"}]})"), "64 hexadecimal digits"},
      {read(R"({"tenants": [{"name": "a b", "salt": ""}]})"), "\"a b\" is no name"},
      {read(R"({"tenants": [{"salt": ""}]})"), "\"\" is no name"},
      {read(R"({"tenants": [{"name": "a", "salt": "x"}, {"name": "a", "salt": "y"}]})"), "two tenants have the name a"},
      {one(R"("flor": "1%")"), "there is no \"flor\" here; known are name, salt"},
      {one(R"("floor": 10)"), "\"floor\" must be text"},
      {one(R"("floor": "10")"), "\"10\" is no part of a tier"},
      {one(R"("floor": "101%")"), "\"101%\" is no part of a tier"},
      {one(R"("floor": "-1%")"), "is no part of a tier"},
      {one(R"("floor": "1e400%")"), "is no part of a tier"},
      {one(R"("floor": "9999999999TiB")"), "is no part of a tier"},
      {one(R"("device": "10%")"), "tenants[0].device must be an object"},
      {one(R"("device": {"roof": "10%"})"), "tenants[0].device: there is no \"roof\" here"},
      {one(R"("floor": "50%", "ceiling": "40%")"), "a: the floor on the device is above the ceiling"},
      {one(R"("host": {"floor": "2GiB", "ceiling": "1GiB"})"), "a: the floor on the host is above the ceiling"},
      {read(R"({"others": {"floor": "10%"}})"), "others have no floor"},
      {read(R"({"others": {"salt": "10%"}})"), "others: there is no \"salt\" here"},
      {read(R"({"tenants": [{"name": "a", "salt": "x", "floor": "60%"}, {"name": "b", "salt": "y", "floor": "41%"}]})"),
       "the floors on the device are 101.0 % of it together"},
  };
  for (const auto& [limits, what] : cases) {
    EXPECT_EQ(limits.status().code(), StatusCode::kInvalidArgument) << what;
    EXPECT_NE(limits.status().message().find(what), std::string::npos) << limits.status().to_string() << "\n" << what;
    EXPECT_TRUE(limits.status().message().starts_with("limits.json")) << limits.status().to_string();
  }
}

TEST(TenantFile, FloorsInBytesAreHeldAgainstTheTier) {
  const Result<TenantLimits> limits = one(R"("floor": "3GiB")");
  ASSERT_TRUE(limits.is_ok());
  EXPECT_TRUE(check_tenant_limits(*limits, {std::uint64_t{4} << 30, std::uint64_t{4} << 30}).is_ok());
  const Status small = check_tenant_limits(*limits, {std::uint64_t{4} << 30, std::uint64_t{2} << 30});
  EXPECT_NE(small.message().find("the floor on the host is 3221225472 bytes, and the tier has 2147483648"),
            std::string::npos)
      << small.to_string();
}

}  // namespace
}  // namespace larder
