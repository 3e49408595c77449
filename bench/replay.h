// SPDX-License-Identifier: Apache-2.0
// `larder replay`: a recorded trace through the production cache, in simulated time and without bytes.
//
//   trace ─► engine (begin, start, prompt, answer, finish) ─► Cache ─► device slots, host blocks, storage's index
//                                                                      none of them has memory behind it
//
// What is real: the cache with its tree, policies, checkpoints, pools' bookkeeping, page keys and storage plans, with
// the model's true sizes. What is simulated: the engine's computing, copies and storage, each of which takes the time
// that its bandwidth gives (or none), on a clock that jumps from event to event.
//
// Threads: confined; run_replay() starts none. Same options, same result, but for the times of the processor.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/replay_trace.h"
#include "controller/config.h"
#include "controller/miss.h"
#include "model/model_spec.h"

namespace larder {

inline constexpr std::uint32_t kReplayChunkTokens = 8192;  // of a prompt in one step

struct ReplayOptions {
  std::string trace;
  std::uint64_t block_tokens = 512;  // of the trace
  std::uint64_t limit = ~std::uint64_t{0};
  // The model: a preset's name, or a model file (config/model_file.h), or so many bytes of KV for a token and of state
  // for a checkpoint (0: no state).
  std::string model, model_file;
  std::uint64_t kv_bytes = 16384, state_bytes = 0;
  std::uint32_t page_size = 512;
  // Tiers, in GiB. device 0: as many pages as the longest request, for each of those at once, and 16 states for each.
  // Of device_gib states have their part, and the rest is pages and windows in the proportion of `larder serve`.
  double device_gib = 0, host_gib = 64, storage_gib = 0;
  // 0: a quarter of device_gib, and all of it if nothing else has bytes; without device_gib 16 for each at once.
  std::uint32_t device_states = 0;
  std::string policy = "value", write_policy = "write_through";
  bool is_exclusive = false;  // CacheConfig::exclusive_tiers
  std::string tenant_limits;  // a file (engine/tenant_file.h); empty: none
  double hints = -1;  // each request says whether it has a next turn, so many percent of them rightly; less than 0: not
  std::uint32_t grid = 8192;
  std::uint32_t at_once = 1;                 // requests
  double prefill_rate = 0, decode_rate = 0;  // tokens a second: of all prompts together, of each answer; 0: no time
  double link_gbps = 0, storage_gbps = 0;    // 10^9 bytes a second, each way; 0: no time
  bool as_json = false;
  std::string csv;         // a line for each request goes there; empty: nowhere
  EvictionOrderPtr order;  // instead of `policy`; null: none
};

// One request, as it went.
struct ReplayLine {
  double arrival_s = 0, first_token_s = 0;  // since the trace began; the first token: since it arrived
  std::uint64_t prompt = 0, output = 0;
  std::uint64_t device = 0, host = 0, storage = 0;  // tokens that were reused from there
  Miss miss;
  std::string tenant;   // whose it is, as in the trace
  double cache_us = 0;  // of the processor: calls of the cache for it
};

struct ReplayResult {
  std::vector<ReplayLine> lines;
  std::string model;
  std::uint64_t page_bytes = 0, checkpoint_bytes = 0;
  std::array<std::uint64_t, 3> tier_bytes{};   // device, host, storage
  std::uint64_t moved_down = 0, moved_up = 0;  // bytes between device and host
  std::uint64_t stored = 0, fetched = 0;       // bytes between host and storage
  std::uint64_t floors_broken = 0;             // CacheCounters
  std::uint64_t waits = 0, retracts = 0;       // calls that found no room yet, requests that were retracted
  double poll_us = 0, seconds = 0;             // of the processor: all polls; the whole replay
  [[nodiscard]] std::uint64_t prompt_tokens() const;
  [[nodiscard]] double hit_rate() const;  // cached / prompt tokens
  // By tenants of the trace; "" is nobody's.
  [[nodiscard]] std::map<std::string, double> hit_rates_of_tenants() const;
};

// What a device has beside pages of KV, of a model with windows; 0: it has none. Window pages for so many requests at
// once, and for each page of KV (as `larder serve` has them, if nobody says otherwise).
[[nodiscard]] std::uint64_t window_pages_for(const ModelSpec& model, std::uint32_t at_once);
[[nodiscard]] double window_pages_each(const ModelSpec& model);

// kInvalidArgument: words that are none, sizes that contradict each other. What run_replay() begins with.
[[nodiscard]] Status check_replay(const ReplayOptions& options);

// The model that the options name, with their page size. May read a file. kNotFound, kInvalidArgument.
[[nodiscard]] Result<ModelSpec> replay_model(const ReplayOptions& options);

// kNotFound, kInvalidArgument: the trace, the model or sizes that no pools can have. kInternal: a call of the cache
// failed that must not, or its books do not balance at the end.
[[nodiscard]] Result<ReplayResult> run_replay(const ReplayOptions& options);
// The same, of a trace and a model that are there already: what the options say of these two is not looked at. Several
// may run at a time, each on a thread of its own. Errors: as above, but for kNotFound.
[[nodiscard]] Result<ReplayResult> run_replay(const ReplayOptions& options, const ReplayTrace& trace,
                                              const ModelSpec& model);

// The parameters of policy value, each halved and doubled. Errors: as run_replay().
struct ReplaySensitivity {
  std::string parameter;
  double halved = 0, doubled = 0;  // hit rates
};
[[nodiscard]] Result<std::vector<ReplaySensitivity>> replay_sensitivity(const ReplayOptions& options);

// The model of a file that --model-file names. kInvalidArgument: its name ends in neither .json nor .toml, or as
// load_model_file(); others as read_text_file().
[[nodiscard]] Result<ModelSpec> model_of_named_file(const std::string& path);

// --- report (replay_report.cc)
[[nodiscard]] std::string replay_text(const ReplayOptions& options, const ReplayResult& result);
// rows: of replay_sensitivity(), if it was asked.
[[nodiscard]] nlohmann::ordered_json replay_json(const ReplayOptions& options, const ReplayResult& result,
                                                 std::span<const ReplaySensitivity> rows = {});
[[nodiscard]] std::string sensitivity_text(double hit_rate, const std::vector<ReplaySensitivity>& rows);
// A line for each request.
[[nodiscard]] std::string replay_csv(const ReplayResult& result);

// argv[0] is the command's name. 0: done; 1: failed; 2: usage.
int replay_command(int argc, char** argv);

}  // namespace larder
