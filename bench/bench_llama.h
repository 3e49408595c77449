// SPDX-License-Identifier: Apache-2.0
// `larder bench llama`: an unmodified llama-server beside `larder proxy` before the same llama-server, and beside
// `larder serve` of the same model.
//
// For each model, `repeats` times, by turns so that noise hits all (the order turns round every second time): servers
// and folders of their own, then the requests of llama_rows() in order, each one answer of one token. Where they are
// restarted, llama-server alone was asked to save its slot, is killed, started, and asked to restore what it saved at
// the first restart; the others are killed (the proxy with its llama-server) and started on the same store. None of
// that is timed.
//
// Seconds: from the request to the end of its answer. The next request waits until ours have put away what they
// save, and CPU seconds have that work in them; they are those of all processes of the set-up.
// Reused tokens are what the server says of itself: timings.cache_n, or X-Larder-Reused-Tokens.
//
// Threads: confined. A run has one server at a time; it ends with the run, and when this process dies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "bench/bench_storage.h"

namespace larder {

enum class LlamaSetup : std::uint8_t { kPlain, kProxy, kServe };
inline constexpr std::size_t kLlamaSetups = 3;
// "llama-server", "proxy", "serve".
[[nodiscard]] std::string_view llama_setup_name(LlamaSetup setup);
// Those that this build has.
[[nodiscard]] std::vector<LlamaSetup> llama_fronts();

struct LlamaBenchOptions {
  std::vector<std::string> models;            // GGUF files
  std::string llama_server;                   // the executable's path; empty: as find_llama_server()
  std::string larder;                         // the `larder` that is the proxy; empty: this executable
  std::vector<std::string> server_arguments;  // behind llama-server's others, alone and behind the proxy
  std::string host_memory = "4Gi";            // of the proxy
  std::vector<std::uint32_t> rows;            // numbers; empty: all
  std::uint32_t repeats = 3, threads = 1, page_size = 64;
  std::uint64_t seed = 1;
  std::vector<LlamaSetup> fronts;  // beside llama-server, in the table's order
  bool as_json = false;
  bool shows_progress = true;  // lines on standard error
};

// --- the table's rows (bench_llama_rows.cc)

struct LlamaRow {
  std::string_view name;  // "10b"
  std::uint32_t number = 0;
  std::string_view what;
  std::uint32_t needs = 0;         // bits: rows that this one builds on
  std::uint64_t dense_reused = 0;  // what a model with full attention would reuse; 0: nothing is asked of this row
  bool comes_after_restart = false;
};
inline constexpr std::size_t kLlamaRows = 15;
[[nodiscard]] std::span<const LlamaRow, kLlamaRows> llama_rows();

// One flag per row: those of the numbers (all, if there are none), and what they build on.
struct LlamaRowChoice {
  std::vector<bool> is_run, is_shown;
};
[[nodiscard]] LlamaRowChoice choose_llama_rows(std::span<const std::uint32_t> numbers);

// Random tokens below 256 of a seed, in stretches that the rows' prompts share.
class LlamaPrompts {
 public:
  explicit LlamaPrompts(std::uint64_t seed);
  [[nodiscard]] std::vector<TokenId> of_row(std::size_t row) const;

 private:
  std::vector<std::vector<TokenId>> stretches_;
};

// --- runs (bench_llama.cc)

struct LlamaSample {
  std::uint64_t reused = 0;
  double seconds = 0, cpu_seconds = 0;
};
struct LlamaCell {
  std::size_t row = 0;
  std::array<std::vector<LlamaSample>, kLlamaSetups> samples;  // by set-up; one per repeat
  [[nodiscard]] const std::vector<LlamaSample>& of(LlamaSetup setup) const {
    return samples[static_cast<std::size_t>(setup)];
  }
  [[nodiscard]] std::vector<LlamaSample>& of(LlamaSetup setup) { return samples[static_cast<std::size_t>(setup)]; }
};
struct LlamaModelResult {
  std::string model;    // the file's name
  std::string summary;  // what our first front says of it
  // It resumes where somebody kept its window or its state, not at any page.
  bool has_checkpoints = false;
  std::vector<LlamaCell> cells;
};

// Beside this build, then in PATH. kNotFound: neither; names tools/llama_env.sh.
[[nodiscard]] Result<std::string> find_llama_server();
// options.llama_server and larder are set. kInvalidArgument: no such model; kUnavailable: a server did not start or
// answer, with the end of what it wrote; kCancelled: a signal came.
[[nodiscard]] Result<LlamaModelResult> run_llama_model(const LlamaBenchOptions& options, const std::string& model);

// --- report (bench_llama_report.cc)

enum class LlamaVerdict : std::uint8_t { kMet, kMissed, kNotJudged };
struct LlamaBar {
  std::string text;
  LlamaVerdict verdict = LlamaVerdict::kNotJudged;
};
// What was asked for, as far as these rows tell.
[[nodiscard]] std::vector<LlamaBar> llama_bars(const LlamaBenchOptions& options, const LlamaModelResult& result,
                                               LlamaSetup front);
[[nodiscard]] std::string llama_header(const LlamaBenchOptions& options, const MachineInfo& machine);
[[nodiscard]] std::string llama_table(const LlamaBenchOptions& options, const LlamaModelResult& result);
[[nodiscard]] nlohmann::ordered_json llama_json(const LlamaBenchOptions& options, const MachineInfo& machine,
                                                const std::vector<LlamaModelResult>& results);

// argv[0] is the command's name. 0: done, whatever the bars; 1: failed; 2: usage.
int bench_llama(int argc, char** argv);

}  // namespace larder
