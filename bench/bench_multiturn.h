// SPDX-License-Identifier: Apache-2.0
// Conversations through HTTP: clients that send history + new tokens, turn after turn, and what the cache gave them.
//
// A turn's prompt is the turn before it (prompt and answer) and `request_length` fresh random tokens; the answer has
// `output_length` tokens. A ready queue hands turns to at most `max_parallel` connections. First come, first served:
// between two turns of one client all others had theirs, which is the worst order for an LRU cache. Random, drawn by
// the seed: some clients come back at once and others late, so requests meet in the queue what others push out. Random
// tokens depend on (seed, client, round) only, so two runs of one seed send the same conversations exactly if the
// server answers the same.
//
// The ideal at page granularity: a prompt of n tokens follows one of m; m + output_length - 1 tokens have been computed
// (the last output token was never fed back), so floor((m + output_length - 1) / page) pages can be reused.
//
// Threads: run_multiturn() and run_prompts() use max_parallel threads of their own and return when they have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/strong.h"

namespace larder {

enum class TurnOrder : std::uint8_t { kFifo, kRandom };

struct MultiturnOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string ca_file{};  // of an https URL: who may have issued the certificate; empty: as the system says
  std::string api_key;
  std::uint32_t num_clients = 10;
  std::uint32_t num_rounds = 12;
  std::uint32_t request_length = 256;  // new tokens of a turn
  std::uint32_t output_length = 256;
  std::uint32_t max_parallel = 4;
  TurnOrder order = TurnOrder::kFifo;
  std::uint64_t seed = 1;
  std::uint32_t vocab_size = 0;  // random tokens are below it; 0: the server's, or 256
  std::uint32_t page_size = 0;   // of the ideal; 0: the server's
  double timeout_seconds = 600;  // without a byte from the server
  bool show_progress = true;     // a bar on standard error, if that is a terminal
  std::string label;             // in front of the bar
};

// One request and its answer. Times in seconds.
struct TurnRecord {
  std::uint32_t client = 0, round = 0;
  std::uint32_t sent = 0;  // turns that were sent before it
  std::uint64_t prompt_tokens = 0, completion_tokens = 0;
  std::uint64_t cached = 0, device = 0, host = 0, storage = 0;
  std::uint64_t ideal_cached = 0;
  double ttft = 0, latency = 0;
  std::string stop;  // why not more was cached, as the server says it; may be empty
  std::vector<TokenId> output;
};

struct MultiturnResult {
  std::vector<TurnRecord> turns;                   // by round, then client
  std::vector<std::vector<TokenId>> last_prompts;  // per client
  std::uint32_t page_size = 0;
  double wall_seconds = 0;
};

// Tokens of turn `round` that can come from the cache, and tokens of its prompt.
[[nodiscard]] std::uint64_t ideal_cached_tokens(const MultiturnOptions& options, std::uint32_t page_size,
                                                std::uint32_t round);
[[nodiscard]] std::uint64_t prompt_tokens_of(const MultiturnOptions& options, std::uint32_t round);

// What an option may be at most.
inline constexpr std::uint32_t kMostConversations = 10'000;  // clients, and rounds of each
inline constexpr std::uint32_t kMostTurnTokens = 1'000'000;

// kInvalidArgument: an option, by name. kUnavailable and others: the first request that failed, with client and round.
[[nodiscard]] Result<MultiturnResult> run_multiturn(const MultiturnOptions& options);
// Sends each prompt once, as client i, round `round`; ideal_cached is left 0.
[[nodiscard]] Result<MultiturnResult> run_prompts(const MultiturnOptions& options,
                                                  const std::vector<std::vector<TokenId>>& prompts,
                                                  std::uint32_t round);

// --- report (bench_multiturn_report.cc) ---

struct RoundSummary {
  std::uint64_t prompt_tokens = 0, cached = 0, device = 0, host = 0, storage = 0, ideal_cached = 0;
  std::uint64_t most_short = 0;  // tokens that one turn got less than its ideal, at most
  double ttft_p50 = 0, ttft_p99 = 0, ttft_mean = 0;
  std::size_t turns = 0;
  [[nodiscard]] double hit_rate() const;
  [[nodiscard]] double ideal_rate() const;
};
// Of the turns of one round; round < 0: of all.
[[nodiscard]] RoundSummary summarize(const MultiturnResult& result, int round);
// One line per round and a total, for people.
[[nodiscard]] std::string multiturn_table(const MultiturnResult& result);
// "hit rate 0.897569, ideal 0.897569 (517/576 pages), no turn more than 0 tokens short; ..."
[[nodiscard]] std::string multiturn_total_line(const MultiturnResult& result);
[[nodiscard]] nlohmann::ordered_json multiturn_json(const MultiturnOptions& options, const MultiturnResult& result);

// The outputs as JSON, for --save-outputs; and the first difference between two runs, "" if there is none.
[[nodiscard]] nlohmann::ordered_json outputs_json(const MultiturnResult& result);
[[nodiscard]] std::string first_difference(const MultiturnResult& result, const nlohmann::json& saved);
[[nodiscard]] std::string first_difference(const MultiturnResult& a, const MultiturnResult& b);

// `larder bench multiturn ...`: argv[0] is the command's name. 0: done; 1: failed or outputs differ; 2: usage.
int bench_multiturn(int argc, char** argv);

}  // namespace larder
