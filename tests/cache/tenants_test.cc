// SPDX-License-Identifier: Apache-2.0
// Floors and ceilings of tenants through the whole cache: who still hits after a flood, and who still gets an answer.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "controller/connector.h"
#include "tests/cache/harness.h"

namespace larder::test {
namespace {

TenantRule rule_for(const std::string& salt, double floor, double ceiling) {
  TenantRule rule;
  rule.name = salt;
  rule.salt = salt;
  for (TenantBounds& tier : rule.bounds) {
    tier.floor = TierShare{.share = floor};
    tier.ceiling = TierShare{.share = ceiling};
  }
  return rule;
}

// 64 pages on the device, and as many on the host.
HarnessOptions bounded(std::vector<TenantRule> rules, Shape shape = Shape::kFull) {
  HarnessOptions o = eager_options(shape);
  o.storage = false;
  o.host_slots = 64;
  o.config.eviction_policy = EvictionPolicy::kLru;
  o.config.tenant_limits.tenants = std::move(rules);
  return o;
}

std::uint64_t device_pages(const Harness& h, std::uint32_t rule) {
  return h.cache->tree().tenants().held(TenantId(rule + 1), 0);
}

// `count` prompts that nobody repeats, each of another tenant if `salts`.
void flood(Harness& h, int count, bool salts = true) {
  for (int i = 0; i < count; ++i) {
    (void)h.run(prompt_of(40, static_cast<TokenId>(1000 + i)), 4, salts ? "flood " + std::to_string(i) : "flood");
    h.settle();
  }
}

TEST(Tenants, AFloorOutlivesAFlood) {
  for (const Shape shape : {Shape::kFull, Shape::kFullMamba, Shape::kAll}) {
    for (const bool has_floor : {true, false}) {
      Harness h(bounded({rule_for("gold", has_floor ? 0.5 : 0, 1)}, shape));
      (void)h.run(prompt_of(64), 4, "gold");
      h.settle();
      flood(h, 40);
      const std::uint64_t cached = h.run(prompt_of(64), 4, "gold").cached();
      if (has_floor) {
        EXPECT_GE(cached, 56u) << shape_name(shape);
        EXPECT_EQ(h.cache->counters().floors_broken, 0u);
      } else {
        EXPECT_EQ(cached, 0u) << shape_name(shape) << ": so the floor is what keeps it";
      }
      EXPECT_EQ(h.check_settled(), "");
    }
  }
}

TEST(Tenants, ACeilingGivesRoomOnlyToOthers) {
  Harness h(bounded({rule_for("flood", 0, 0.25)}));
  flood(h, 20, false);
  EXPECT_GT(device_pages(h, 0), 40u) << "nobody else wants the room";
  for (int i = 0; i < 4; ++i) (void)h.run(prompt_of(40, static_cast<TokenId>(i)), 4, "good " + std::to_string(i));
  h.settle();
  EXPECT_LE(device_pages(h, 0), 28u);
  flood(h, 20, false);
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(h.run(prompt_of(40, static_cast<TokenId>(i)), 4, "good " + std::to_string(i)).device, 36u) << i;
  }
  EXPECT_EQ(h.check_settled(), "");
}

TEST(Tenants, ACeilingOfOthersIsForEachOfThem) {
  HarnessOptions o = bounded({});
  for (TenantBounds& tier : o.config.tenant_limits.others) tier.ceiling = TierShare{.share = 0.25};
  Harness h(o);
  for (int i = 0; i < 2; ++i) (void)h.run(prompt_of(40, static_cast<TokenId>(i)), 4, "good " + std::to_string(i));
  h.settle();
  flood(h, 20, false);
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(h.run(prompt_of(40, static_cast<TokenId>(i)), 4, "good " + std::to_string(i)).device, 36u) << i;
  }
  EXPECT_EQ(h.check_settled(), "");
}

// A prompt of 28 pages, where the device has 64 and the floors of others hold 60.
TEST(Tenants, FloorsNeverKeepARequestFromItsAnswer) {
  HarnessOptions o = bounded({rule_for("a", 0.5, 1), rule_for("b", 0.5, 1)});
  Harness h(o);
  for (const std::string tenant : {"a", "b"}) {
    (void)h.run(prompt_of(120), 1, tenant);
    h.settle();
  }
  EXPECT_EQ(device_pages(h, 0) + device_pages(h, 1), 60u);
  Harness::Job guest = h.begin(prompt_of(112, 7), 1, "guest");
  Harness::Job busy = h.begin(prompt_of(8, 9), 9, "a");
  h.settle();
  ASSERT_TRUE(h.advance(busy, 8)) << h.refusal;
  EXPECT_FALSE(h.advance(guest, 16)) << "a request that will end runs";
  EXPECT_EQ(h.cache->counters().floors_broken, 0u);
  while (!h.done(busy)) {
    ASSERT_TRUE(h.advance(busy, 8)) << h.refusal;
    (void)h.run_background(100);
  }
  h.finish(busy);
  h.settle();
  for (int i = 0; i < 1000 && !h.done(guest); ++i) {
    (void)h.advance(guest, 16);
    (void)h.run_background(100);
  }
  EXPECT_TRUE(h.done(guest));
  EXPECT_GT(h.cache->counters().floors_broken, 20u);
  h.finish(guest);
  h.settle();
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.check_clean(), "");
}

// One that runs is not stopped by a floor.
TEST(Tenants, ARunningRequestGrowsPastFloors) {
  HarnessOptions o = bounded({rule_for("a", 0.9, 1)});
  o.config.decode_headroom_tokens = 4;  // a page
  Harness h(o);
  (void)h.run(prompt_of(224), 1, "a");
  h.settle();
  ASSERT_EQ(device_pages(h, 0), 56u);
  Harness::Job guest = h.begin(prompt_of(8, 7), 60, "guest");
  for (int i = 0; i < 1000 && !h.done(guest); ++i) {
    (void)h.advance(guest, 4);
    (void)h.run_background(100);
  }
  EXPECT_TRUE(h.done(guest));
  EXPECT_GT(h.cache->counters().floors_broken, 0u);
  h.finish(guest);
  EXPECT_EQ(h.check_settled(), "");
}

TEST(Tenants, NewNamespacesDoNotCloseThoseOfAFloor) {
  HarnessOptions o = bounded({rule_for("gold", 0.5, 1)});
  o.config.max_namespaces = 3;
  Harness h(o);
  (void)h.run(prompt_of(40), 4, "gold");
  h.settle();
  flood(h, 8);
  EXPECT_GE(h.run(prompt_of(40), 4, "gold").cached(), 36u);
  h.settle();
  o.config.max_namespaces = 1;
  Harness one(o);
  (void)one.run(prompt_of(40), 4, "gold");
  one.settle();
  EXPECT_EQ(one.run(prompt_of(40), 4, "other").cached(), 0u) << "but a request is not refused for it";
  one.settle();
  EXPECT_EQ(one.failure, "");
  EXPECT_EQ(one.check_clean(), "");
}

// Tenants without a rule are forgotten with their namespaces.
TEST(Tenants, OthersComeAndGo) {
  HarnessOptions o = bounded({});
  o.config.max_namespaces = 4;
  for (TenantBounds& tier : o.config.tenant_limits.others) tier.ceiling = TierShare{.share = 0.1};
  Harness h(o);
  flood(h, 40);
  EXPECT_FALSE(h.cache->tree().tenants().is_known(TenantId(6))) << "ids are used again";
  EXPECT_EQ(h.failure, "");
  EXPECT_EQ(h.check_clean(), "");
}

TEST(Tenants, WhatCannotBeKeptIsRefusedAtTheStart) {
  HarnessOptions o = bounded({});
  Harness h(o);
  CacheConfig config = o.config;
  config.tenant_limits.tenants = {rule_for("a", 0.6, 1), rule_for("b", 0.5, 1)};
  CacheParts parts;
  parts.model = &h.model;
  parts.device = h.device.get();
  parts.host = h.host.get();
  parts.transfer = h.transfer.get();
  parts.clock = &h.clock;
  const auto create = [&] { return Cache::create(config, parts).status(); };
  EXPECT_NE(create().message().find("the floors on the device are 110.0 % of it together"), std::string::npos)
      << create().to_string();
  config.tenant_limits.tenants = {rule_for("a", 0, 1)};
  config.tenant_limits.tenants[0].bounds[1].floor = TierShare{.bytes = std::uint64_t{1} << 40};
  EXPECT_NE(create().message().find("a: the floor on the host is 1099511627776 bytes, and the tier has"),
            std::string::npos)
      << create().to_string();
  config.tenant_limits.tenants[0].bounds[1].floor = TierShare{.bytes = 4096};
  EXPECT_TRUE(create().is_ok()) << create().to_string();
}

}  // namespace
}  // namespace larder::test
