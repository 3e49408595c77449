// SPDX-License-Identifier: Apache-2.0
// Exclusive tiers (CacheConfig::exclusive_tiers): what must not be lost though device and host have different pages.
#include <gtest/gtest.h>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

HarnessOptions exclusive_options(bool has_storage) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.storage = has_storage;
  o.config.eviction_policy = EvictionPolicy::kLru;
  o.config.exclusive_tiers = true;
  return o;
}

// With write_through_selective what enters the host does so when it leaves the device: also once the host is full.
TEST(Exclusive, TheHostTakesNewPagesUnderEachWritePolicy) {
  for (const WritePolicy write :
       {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective, WritePolicy::kWriteBack}) {
    HarnessOptions o = exclusive_options(false);
    o.device = {24, 0, 0};
    o.host_slots = 48;
    o.config.write_policy = write;
    o.config.selective_hits = 1;
    Harness h(o);
    for (TokenId phase = 0; phase < 2; ++phase) {
      std::uint64_t from_host = 0;
      for (int round = 0; round < 4; ++round) {
        for (TokenId i = 0; i < 4; ++i) {
          for (int twice = 0; twice < 2; ++twice) {
            from_host += h.run(prompt_of(41, phase * 500 + i * 60), 1).host;
            h.settle();
          }
        }
      }
      EXPECT_GT(from_host, 300u) << write_policy_name(write) << ", phase " << phase;
    }
  }
}

// The head of all prompts stays on the device, and must come to storage all the same: a prompt that was stored without
// it would be lost with the process.
TEST(Exclusive, AHeadThatNeverLeavesTheDeviceIsStored) {
  HarnessOptions o = exclusive_options(true);
  o.device = {30, 0, 0};
  o.host_slots = 40;
  Harness h(o);
  const auto prompt = [](TokenId head, TokenId tail) {
    std::vector<TokenId> tokens = prompt_of(40, head);
    const std::vector<TokenId> rest = prompt_of(21, 1000 + tail * 60);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  };
  for (TokenId i = 0; i < 20; ++i) {
    (void)h.run(prompt(500, i), 1);
    h.settle();
  }
  for (TokenId i = 0; i < 200; ++i) {
    (void)h.run(prompt(7, i), 1);
    h.settle();
  }
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt(7, 190), 1).storage, 60u);
}

}  // namespace
}  // namespace larder::test
