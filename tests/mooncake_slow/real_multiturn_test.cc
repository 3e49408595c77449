// SPDX-License-Identifier: Apache-2.0
// Conversations through the whole server with backend `mooncake` on the real package: what they say does not depend on
// storage, and a new engine finds what the first one left.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/metrics.h"
#include "bench/bench_multiturn.h"
#include "engine/scheduler.h"
#include "server/api_server.h"
#include "tests/mooncake_slow/real_store.h"

namespace larder::mooncake_test {
namespace {

MultiturnOptions talk_options(const std::string& url) {
  MultiturnOptions options;
  options.url = url;
  options.num_clients = 3;
  options.num_rounds = 4;
  options.request_length = 100;
  options.output_length = 40;
  options.max_parallel = 2;
  options.show_progress = false;
  return options;
}

// One life of an engine: all conversations from their beginning. No storage: none is attached.
MultiturnResult one_life(const std::string& model, const BackendOptions& storage) {
  Options options;
  options.model = model;
  options.port = 0;
  options.threads = 1;
  options.max_total_tokens = 8192;
  options.max_mamba_cache_size = 32;
  options.max_running_requests = 4;
  if (!storage.empty()) {
    nlohmann::json extra = storage;
    extra["prefetch_threshold"] = 64;
    options.hicache_storage_backend = "mooncake";
    options.hicache_storage_prefetch_policy = "wait_complete";
    options.hicache_storage_backend_extra_config = extra.dump();
  }
  MetricsRegistry metrics;
  auto scheduler = Scheduler::create(options, real_file_system(), real_clock(), metrics);
  EXPECT_TRUE(scheduler.is_ok()) << scheduler.status().to_string();
  if (!scheduler.is_ok()) return {};
  auto api = ApiServer::create({scheduler->get(), &real_clock(), &metrics, {}});
  EXPECT_TRUE(api.is_ok()) << api.status().to_string();
  if (!api.is_ok()) return {};
  auto result = run_multiturn(talk_options((*api)->url()));
  EXPECT_TRUE(result.is_ok()) << result.status().to_string();
  const Status written = (*scheduler)->quiesce(std::chrono::seconds(60));
  EXPECT_TRUE(written.is_ok()) << written.to_string();
  return result.is_ok() ? std::move(*result) : MultiturnResult{};
}

class RealMooncakeTalk : public testing::TestWithParam<const char*> {};

TEST_P(RealMooncakeTalk, SaysWhatItWouldAndFindsItAgainAfterARestart) {
  const std::string reason = RealStore::why_not_here();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const RealStore store(256);
  const MultiturnResult truth = one_life(GetParam(), {});
  const RoundSummary alone = summarize(truth, -1);
  const MultiturnResult first = one_life(GetParam(), store.options());
  EXPECT_EQ(first_difference(first, truth), "") << "storage changes what the model says";
  EXPECT_EQ(summarize(first, -1).storage, 0u) << "there was nothing yet";
  const MultiturnResult second = one_life(GetParam(), store.options());
  EXPECT_EQ(first_difference(second, truth), "") << "storage changes what the model says";
  const RoundSummary found = summarize(second, -1);
  EXPECT_GT(found.storage, 0u);
  EXPECT_GT(found.hit_rate(), alone.hit_rate());
}

std::string name_of_model(const testing::TestParamInfo<const char*>& model) {
  std::string name = model.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, RealMooncakeTalk, testing::Values("gdn-tiny", "dsv4-tiny"), name_of_model);

}  // namespace
}  // namespace larder::mooncake_test
