// SPDX-License-Identifier: Apache-2.0
// Conversations through the whole server: engine, cache, a storage backend and HTTP, for tests that compare what is
// said with a storage, without one, and after a restart.
//
// Threads: one test's; the server has its own. Errors: expectations that fail, and an empty result.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/metrics.h"
#include "bench/bench_multiturn.h"
#include "engine/scheduler.h"
#include "server/api_server.h"

namespace larder::support {

struct Talks {
  MultiturnOptions conversations;  // without its url
  std::uint32_t device_tokens = 8192, device_states = 32;
  std::uint32_t page_size = 0;  // tokens; 0: the model's
};

inline Talks few_talks() {
  Talks talks;
  talks.conversations.num_clients = 3;
  talks.conversations.num_rounds = 4;
  talks.conversations.request_length = 100;
  talks.conversations.output_length = 40;
  talks.conversations.max_parallel = 2;
  talks.conversations.show_progress = false;
  return talks;
}

// The published job, as `larder quickstart` has it: 10 clients, 12 rounds, on tiers that are too small.
inline Talks published_talks() {
  Talks talks;
  talks.conversations.num_clients = 10;
  talks.conversations.num_rounds = 12;
  talks.conversations.request_length = 256;
  talks.conversations.output_length = 256;
  talks.conversations.max_parallel = 4;
  talks.conversations.show_progress = false;
  talks.device_tokens = 15'360;
  talks.device_states = 16;
  return talks;
}

// One life of an engine: all conversations from their beginning. storage: the extra configuration of `backend`; empty:
// none is attached. Returns when storage has what is to be written.
inline MultiturnResult talk(const std::string& model, const std::string& backend, const nlohmann::json& storage,
                            Talks talks = few_talks()) {
  Options options;
  options.model = model;
  options.port = 0;
  options.threads = 1;
  if (talks.page_size != 0) options.page_size = talks.page_size;
  options.max_total_tokens = talks.device_tokens;
  options.max_mamba_cache_size = talks.device_states;
  options.max_running_requests = 4;
  if (!storage.empty()) {
    options.hicache_storage_backend = backend;
    options.hicache_storage_prefetch_policy = "wait_complete";
    options.hicache_storage_backend_extra_config = storage.dump();
  }
  MetricsRegistry metrics;
  auto scheduler = Scheduler::create(options, real_file_system(), real_clock(), metrics);
  EXPECT_TRUE(scheduler.is_ok()) << scheduler.status().to_string();
  if (!scheduler.is_ok()) return {};
  auto api = ApiServer::create({scheduler->get(), &real_clock(), &metrics, {}});
  EXPECT_TRUE(api.is_ok()) << api.status().to_string();
  if (!api.is_ok()) return {};
  talks.conversations.url = (*api)->url();
  auto result = run_multiturn(talks.conversations);
  EXPECT_TRUE(result.is_ok()) << result.status().to_string();
  const Status written = (*scheduler)->quiesce(std::chrono::seconds(60));
  EXPECT_TRUE(written.is_ok()) << written.to_string();
  return result.is_ok() ? std::move(*result) : MultiturnResult{};
}

}  // namespace larder::support
