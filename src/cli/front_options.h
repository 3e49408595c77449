// SPDX-License-Identifier: Apache-2.0
// What the commands `larder proxy` and `larder serve --model x.gguf` have in common: options of the cache, checks that
// `larder serve` makes, too, and an orderly stop.
//
// Threads: main()'s.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "cli/orderly_stop.h"
#include "cli/real_signals.h"
#include "server/llama/completion_front.h"
#include "server/llama/save_points.h"
#include "server/trace/trace_recorder.h"

namespace CLI {
class App;
}

namespace larder {

struct CacheOptions {
  std::string host_memory = "4Gi", store, store_size = "80%", kv_events_config, tenant_limits;
  bool hashes_data = false;
  llama::SavePolicy saves;
  TraceOptions trace;
};

// `options` outlives the parsing.
void add_cache_options(CLI::App& app, CacheOptions& options);
// kInvalidArgument names the option.
[[nodiscard]] Result<llama::PrefixStoreOptions> store_options(const CacheOptions& options);

// `status`, with the option in front of its message, if it is an error.
[[nodiscard]] Status with_option(const char* option, const Status& status);
// kInvalidArgument: more than this machine's memory, which no later start would find either.
[[nodiscard]] Status check_host_bytes(const char* option, double bytes);

// Tells systemd that the port listens, waits for a signal, and stops `front` in order: open requests have the time of
// `options`, the store 60 s, and its close 30 s more. What hangs longer, or has left a write behind, ends the
// process with code 1. component: of the log, "proxy".
void run_until_stopped(std::unique_ptr<llama::CompletionFront> front, StopSignals& signals, const StopOptions& options,
                       const char* component);

}  // namespace larder
