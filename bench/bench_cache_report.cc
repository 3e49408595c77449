// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "bench/bench_cache.h"
#include "server/text_table.h"
#include "server/version.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

// Where there was no call there is no figure, and a bar is neither met nor missed.
std::string_view verdict_of(const CacheBenchRow& row) {
  if (row.calls == 0) return "not measured";
  return row.figure() <= row.bar ? "met" : "missed";
}

std::string us_text(const Spread& us) { return fmt::format("{:.1f} [{:.1f}..{:.1f}]", us.median, us.low, us.high); }

}  // namespace

std::string cache_bench_header(const CacheBenchOptions& options, const MachineInfo& machine) {
  return fmt::format(
      "larder {} bench cache, {} UTC\n{}, {} cores; {}\ntiers down to {}{}; {} requests at once, {} nodes, {} tokens, "
      "pages of {}; {} repeats; seed {}\nmicroseconds of the cache's thread: median [least..most] of the repeats\n",
      kLarderVersion, machine.date, machine.cpu, machine.cores, machine.kernel, options.tiers,
      options.has_events ? ", a router is told" : "", count_text(options.requests), count_text(options.nodes),
      count_text(options.tokens), options.page_size, options.repeats, options.seed);
}

std::string cache_bench_table(const CacheBenchResult& result) {
  TextTable table({"model", "load", "call", "calls", "p50", "p99", "p99.9", "most", "bar", ""});
  std::string last;
  for (const CacheBenchRow& row : result.rows) {
    if (!last.empty() && last != row.model + row.load) table.add_rule();
    last = row.model + row.load;
    std::vector<std::string> cells = {row.model, row.load, row.call, count_text(row.calls)};
    for (const Spread& us : {row.p50, row.p99, row.p999, row.most}) {
      cells.push_back(row.calls == 0 ? "-" : us_text(us));
    }
    if (row.bar > 0) {
      cells.push_back(fmt::format("{} <= {:.0f}", row.bar_of, row.bar));
      cells.emplace_back(verdict_of(row));
    }
    table.add_row(std::move(cells));
  }
  std::string text = table.text();
  for (const std::string& note : result.notes) text += note + "\n";
  return text;
}

Json cache_bench_json(const CacheBenchOptions& options, const MachineInfo& machine, const CacheBenchResult& result) {
  Json rows = Json::array();
  for (const CacheBenchRow& row : result.rows) {
    Json one = {{"model", row.model},
                {"load", row.load},
                {"call", row.call},
                {"calls", row.calls},
                {"p50_us", spread_json(row.p50)},
                {"p99_us", spread_json(row.p99)},
                {"p999_us", spread_json(row.p999)},
                {"most_us", spread_json(row.most)}};
    if (row.bar > 0) {
      one["bar"] = {{"figure", row.bar_of}, {"us", row.bar}};
      one["bar"]["met"] = row.calls == 0 ? Json() : Json(row.figure() <= row.bar);  // null: not measured
    }
    rows.push_back(std::move(one));
  }
  return {
      {"benchmark", "cache"},
      {"version", kLarderVersion},
      {"machine", {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}, {"date", machine.date}}},
      {"tiers", options.tiers},
      {"events", options.has_events},
      {"requests", options.requests},
      {"nodes", options.nodes},
      {"tokens", options.tokens},
      {"page_size", options.page_size},
      {"repeats", options.repeats},
      {"seed", options.seed},
      {"results", rows},
      {"notes", result.notes}};
}

}  // namespace larder
