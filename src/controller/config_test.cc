// SPDX-License-Identifier: Apache-2.0
#include "controller/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

namespace larder {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(CacheConfig, PolicyNamesGoBothWays) {
  for (const WritePolicy p :
       {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective, WritePolicy::kWriteBack}) {
    EXPECT_EQ(parse_write_policy(write_policy_name(p)), p);
  }
  for (const PrefetchPolicy p :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    EXPECT_EQ(parse_prefetch_policy(prefetch_policy_name(p)), p);
  }
  EXPECT_EQ(write_policy_name(WritePolicy::kWriteThroughSelective), "write_through_selective");
  EXPECT_EQ(prefetch_policy_name(PrefetchPolicy::kBestEffort), "best_effort");
  EXPECT_FALSE(parse_write_policy("writethrough"));
  EXPECT_FALSE(parse_prefetch_policy(""));
}

TEST(CacheConfig, ValuesThatNoTypeHasAreRefused) {
  const auto refusal = [](auto CacheConfig::*field) {
    CacheConfig config;
    config.*field = static_cast<std::remove_reference_t<decltype(config.*field)>>(99);
    return validate_config(config).message();
  };
  EXPECT_NE(refusal(&CacheConfig::write_policy).find("write_policy"), std::string::npos);
  EXPECT_NE(refusal(&CacheConfig::prefetch_policy).find("prefetch_policy"), std::string::npos);
  EXPECT_NE(refusal(&CacheConfig::eviction_policy).find("eviction_policy"), std::string::npos);
}

TEST(NamespaceScope, RanksAreBelowTheirSizes) {
  EXPECT_TRUE(validate_scope({}));
  EXPECT_TRUE(validate_scope({.tp_rank = 3, .tp_size = 4}));
  const Status refused = validate_scope({.tp_rank = 7, .tp_size = 1});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("tp_rank is 7 of 1"), std::string::npos) << refused.message();
  EXPECT_FALSE(validate_scope({.pp_rank = 0, .pp_size = 0}));
  EXPECT_FALSE(validate_scope({.cp_rank = 1, .cp_size = 1}));
}

TEST(CacheConfig, DefaultsAreValid) { EXPECT_TRUE(validate_config(CacheConfig{})); }

void expect_refused(const CacheConfig& config, const std::string& field) {
  const Status status = validate_config(config);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
}

TEST(CacheConfig, RefusalNamesTheFieldAndItsRange) {
  CacheConfig c;
  c.selective_hits = 0;
  expect_refused(c, "selective_hits is 0, must be 1 to");
  c = {};
  for (const double share : {0.0, -1.0, 1.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    c.prefetch_capacity = share;
    expect_refused(c, "prefetch_capacity");
  }
  c = {};
  c.prefetch_timeout_base = seconds(-1);
  expect_refused(c, "prefetch_timeout_base");
  c = {};
  c.prefetch_timeout_max = milliseconds(10);  // below the base
  expect_refused(c, "prefetch_timeout_max is 0.01 s, must be 1 to");
  c = {};
  c.chunked_prefill_tokens = 0;
  expect_refused(c, "chunked_prefill_tokens");
  c = {};
  c.max_operations = 1;
  expect_refused(c, "max_operations is 1, must be 4 to");
  c = {};
  c.max_requests = 0;
  expect_refused(c, "max_requests");
  c = {};
  c.backup_retries = 1000;
  expect_refused(c, "backup_retries");
}

TEST(CacheConfig, PrefetchWaitGrowsWithTokensUpToTheMaximum) {
  CacheConfig c;
  EXPECT_EQ(prefetch_deadline(c, 0), seconds(1));
  EXPECT_EQ(prefetch_deadline(c, 1024), milliseconds(1250));
  EXPECT_EQ(prefetch_deadline(c, 512), milliseconds(1125));
  EXPECT_EQ(prefetch_deadline(c, 1'000'000'000), seconds(30));
  EXPECT_EQ(prefetch_deadline(c, ~std::uint64_t{0}), seconds(30));
  c.prefetch_policy = PrefetchPolicy::kBestEffort;
  EXPECT_EQ(prefetch_deadline(c, 1024), Nanos{0});
  c.prefetch_policy = PrefetchPolicy::kWaitComplete;
  EXPECT_EQ(prefetch_deadline(c, 1024), Nanos::max());
}

}  // namespace
}  // namespace larder
