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

inline MultiturnOptions few_conversations(const std::string& url) {
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

// One life of an engine: all conversations from their beginning. storage: the extra configuration of `backend`; empty:
// none is attached. Returns when storage has what is to be written.
inline MultiturnResult talk(const std::string& model, const std::string& backend, const nlohmann::json& storage) {
  Options options;
  options.model = model;
  options.port = 0;
  options.threads = 1;
  options.max_total_tokens = 8192;
  options.max_mamba_cache_size = 32;
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
  auto result = run_multiturn(few_conversations((*api)->url()));
  EXPECT_TRUE(result.is_ok()) << result.status().to_string();
  const Status written = (*scheduler)->quiesce(std::chrono::seconds(60));
  EXPECT_TRUE(written.is_ok()) << written.to_string();
  return result.is_ok() ? std::move(*result) : MultiturnResult{};
}

}  // namespace larder::support
