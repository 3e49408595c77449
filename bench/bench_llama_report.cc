// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "bench/bench_llama.h"
#include "server/text_table.h"
#include "server/version.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostPagesShort = 2;
constexpr double kMostSlowdown = 1.1;
constexpr double kLeastSpeedup = 10;
// A model that computes the whole of a prompt faster than this says nothing about speed-ups: what is saved is hardly
// more than what a request costs.
constexpr double kLargeSeconds = 2;
constexpr std::array<std::string_view, 3> kNoSlower = {"1", "2", "8"};
constexpr std::array<std::string_view, 3> kMuchFaster = {"9", "11", "11b"};

template <class Field>
Spread spread_by(const std::vector<LlamaSample>& samples, Field field) {
  std::vector<double> values;
  for (const LlamaSample& sample : samples) values.push_back(static_cast<double>(field(sample)));
  return spread_of(std::move(values));
}
Spread reused_of(const std::vector<LlamaSample>& samples) {
  return spread_by(samples, [](const LlamaSample& sample) { return sample.reused; });
}
Spread wall_seconds_of(const std::vector<LlamaSample>& samples) {
  return spread_by(samples, [](const LlamaSample& sample) { return sample.seconds; });
}
Spread cpu_seconds_of(const std::vector<LlamaSample>& samples) {
  return spread_by(samples, [](const LlamaSample& sample) { return sample.cpu_seconds; });
}

std::string spread_text(const Spread& spread, int digits) {
  if (spread.low == spread.high) return fmt::format("{:.{}f}", spread.median, digits);
  return fmt::format("{:.{}f} [{:.{}f}..{:.{}f}]", spread.median, digits, spread.low, digits, spread.high, digits);
}

double speedup_of(const LlamaCell& cell, LlamaSetup front) {
  const double ours = wall_seconds_of(cell.of(front)).median;
  return ours > 0 ? wall_seconds_of(cell.of(LlamaSetup::kPlain)).median / ours : 0;
}

std::vector<const LlamaCell*> shown_cells(const LlamaBenchOptions& options, const LlamaModelResult& result) {
  const LlamaRowChoice choice = choose_llama_rows(options.rows);
  std::vector<const LlamaCell*> shown;
  for (const LlamaCell& cell : result.cells) {
    const auto has_run = [&](LlamaSetup setup) { return !cell.of(setup).empty(); };
    const bool is_whole = has_run(LlamaSetup::kPlain) && std::ranges::all_of(options.fronts, has_run);
    if (choice.is_shown[cell.row] && is_whole) shown.push_back(&cell);
  }
  return shown;
}

// Why speed-ups of this model are not judged; empty: they are.
std::string why_not_judged(const LlamaModelResult& result) {
  double prompt = 0;  // the slowest: one that llama-server computed as a whole
  for (const LlamaCell& cell : result.cells)
    prompt = std::max(prompt, wall_seconds_of(cell.of(LlamaSetup::kPlain)).median);
  if (prompt < kLargeSeconds) return fmt::format("a small model: it computes a prompt in {:.2f} s", prompt);
  return result.has_checkpoints ? "" : "full attention: llama-server goes on from any token itself";
}

// Gathers what single rows say about one bar.
class BarMaker {
 public:
  void add(std::string text, bool is_met) {
    if (!rows_.empty()) rows_ += ", ";
    rows_ += text;
    is_met_ = is_met_ && is_met;
  }
  void end(std::string_view what, std::vector<LlamaBar>& bars, std::string_view not_judged = {}) const {
    if (rows_.empty()) return;
    LlamaVerdict verdict = is_met_ ? LlamaVerdict::kMet : LlamaVerdict::kMissed;
    if (!not_judged.empty()) verdict = LlamaVerdict::kNotJudged;
    std::string text = fmt::format("{}: {}", what, rows_);
    if (!not_judged.empty()) text += fmt::format(" ({})", not_judged);
    bars.push_back({std::move(text), verdict});
  }

 private:
  std::string rows_;
  bool is_met_ = true;
};

bool is_among(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

std::string_view verdict_name(LlamaVerdict verdict) {
  constexpr std::array<std::string_view, 3> kNames = {"met", "missed", "not judged"};
  return kNames[static_cast<std::size_t>(verdict)];
}

Json cell_json(const LlamaBenchOptions& options, const LlamaCell& cell) {
  const LlamaRow& row = llama_rows()[cell.row];
  Json one = {{"row", row.name}, {"what", row.what}};
  const auto add = [&](const char* name, LlamaSetup setup) {
    const std::vector<LlamaSample>& samples = cell.of(setup);
    one[name] = {{"reused_tokens", spread_json(reused_of(samples))},
                 {"seconds", spread_json(wall_seconds_of(samples))},
                 {"cpu_seconds", spread_json(cpu_seconds_of(samples))}};
    if (setup != LlamaSetup::kPlain) one[name]["speedup"] = speedup_of(cell, setup);
  };
  add("llama_server", LlamaSetup::kPlain);
  for (const LlamaSetup front : options.fronts) add(front == LlamaSetup::kProxy ? "proxy" : "serve", front);
  return one;
}

// Those that --server-args has changed.
std::vector<LlamaSetup> setups_with_arguments(const LlamaBenchOptions& options) {
  std::vector<LlamaSetup> setups;
  if (options.server_arguments.empty()) return setups;
  setups.push_back(LlamaSetup::kPlain);
  if (std::ranges::count(options.fronts, LlamaSetup::kProxy) > 0) setups.push_back(LlamaSetup::kProxy);
  return setups;
}

}  // namespace

std::vector<LlamaBar> llama_bars(const LlamaBenchOptions& options, const LlamaModelResult& result, LlamaSetup front) {
  const std::string not_judged = why_not_judged(result);
  const std::string_view name = llama_setup_name(front);
  BarMaker reuse, no_slower;
  std::vector<LlamaBar> faster;
  for (const LlamaCell* cell : shown_cells(options, result)) {
    const LlamaRow& row = llama_rows()[cell->row];
    if (row.dense_reused > 0) {
      const auto least = static_cast<std::uint64_t>(reused_of(cell->of(front)).low);
      reuse.add(fmt::format("row {} {} of {}", row.name, least, row.dense_reused),
                least + kMostPagesShort * options.page_size >= row.dense_reused);
    }
    const double speedup = speedup_of(*cell, front);
    if (is_among(row.name, kNoSlower)) {
      const double times = speedup > 0 ? 1 / speedup : std::numeric_limits<double>::infinity();
      no_slower.add(fmt::format("row {} {:.2f} x", row.name, times), times <= kMostSlowdown);
    }
    if (is_among(row.name, kMuchFaster)) {
      BarMaker one;
      one.add(fmt::format("row {} {:.1f} x", row.name, speedup), speedup >= kLeastSpeedup);
      one.end(fmt::format("{}: at least {:.0f} x faster than llama-server", name, kLeastSpeedup), faster, not_judged);
    }
  }
  std::vector<LlamaBar> bars;
  reuse.end(fmt::format("{}: reuse within {} pages of full attention's", name, kMostPagesShort), bars);
  no_slower.end(fmt::format("{}: at most {} x llama-server's seconds", name, kMostSlowdown), bars);
  std::ranges::move(faster, std::back_inserter(bars));
  return bars;
}

std::string llama_header(const LlamaBenchOptions& options, const MachineInfo& machine) {
  std::string more;
  for (const std::string& word : options.server_arguments) more += " " + word;
  const bool has_serve = std::ranges::count(options.fronts, LlamaSetup::kServe) > 0;
  const std::string_view without =
      has_serve && !more.empty() ? "\nserve runs without the options of --server-args" : "";
  return fmt::format(
      "larder {} bench llama, {} UTC\n{}, {} cores; {}\n{} -c 8192 -np 1 -ub 512 -t {}{}{}\nours: pages of {} tokens, "
      "{} of host memory, a store; {} repeats; seed {}\nreused tokens, seconds to the answer, CPU seconds of all "
      "processes: median [least..most] of the repeats\n",
      kLarderVersion, machine.date, machine.cpu, machine.cores, machine.kernel, options.llama_server, options.threads,
      more, without, options.page_size, options.host_memory, options.repeats, options.seed);
}

std::string llama_table(const LlamaBenchOptions& options, const LlamaModelResult& result) {
  std::vector<std::string> heads = {"row", "llama-server reused", "s", "CPU s"};
  for (const LlamaSetup front : options.fronts) {
    heads.insert(heads.end(), {fmt::format("{} reused", llama_setup_name(front)), "s", "CPU s", "times as fast"});
  }
  TextTable table(std::move(heads));
  for (const LlamaCell* cell : shown_cells(options, result)) {
    const LlamaRow& row = llama_rows()[cell->row];
    std::vector<std::string> cells = {fmt::format("{:<3} {}", row.name, row.what)};
    const auto add = [&](LlamaSetup setup) {
      const std::vector<LlamaSample>& samples = cell->of(setup);
      cells.push_back(spread_text(reused_of(samples), 0));
      cells.push_back(spread_text(wall_seconds_of(samples), 3));
      cells.push_back(spread_text(cpu_seconds_of(samples), 2));
      if (setup != LlamaSetup::kPlain) cells.push_back(fmt::format("{:.2f}", speedup_of(*cell, setup)));
    };
    add(LlamaSetup::kPlain);
    for (const LlamaSetup front : options.fronts) add(front);
    table.add_row(std::move(cells));
  }
  std::string text = fmt::format("\n{}; {}\n{}", result.model, result.summary, table.text());
  for (const LlamaSetup front : options.fronts) {
    for (const LlamaBar& bar : llama_bars(options, result, front)) {
      text += fmt::format("{}: {}\n", bar.text, verdict_name(bar.verdict));
    }
  }
  return text;
}

Json llama_json(const LlamaBenchOptions& options, const MachineInfo& machine,
                const std::vector<LlamaModelResult>& results) {
  Json models = Json::array(), with_arguments = Json::array();
  for (const LlamaSetup setup : setups_with_arguments(options)) with_arguments.push_back(llama_setup_name(setup));
  for (const LlamaModelResult& result : results) {
    Json rows = Json::array(), bars = Json::array();
    for (const LlamaCell* cell : shown_cells(options, result)) rows.push_back(cell_json(options, *cell));
    for (const LlamaSetup front : options.fronts) {
      for (const LlamaBar& bar : llama_bars(options, result, front)) {
        bars.push_back({{"bar", bar.text}, {"verdict", verdict_name(bar.verdict)}});
      }
    }
    models.push_back({{"model", result.model}, {"summary", result.summary}, {"rows", rows}, {"bars", bars}});
  }
  return {
      {"benchmark", "llama"},
      {"version", kLarderVersion},
      {"machine", {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}, {"date", machine.date}}},
      {"llama_server", options.llama_server},
      {"server_arguments", options.server_arguments},
      {"server_arguments_of", with_arguments},
      {"threads", options.threads},
      {"page_size", options.page_size},
      {"host_memory", options.host_memory},
      {"repeats", options.repeats},
      {"seed", options.seed},
      {"models", models}};
}

}  // namespace larder
