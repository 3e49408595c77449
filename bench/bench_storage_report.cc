// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "bench/bench_storage.h"
#include "server/text_table.h"
#include "server/version.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

std::vector<double> speeds_of(const std::vector<StorageRun>& runs) {
  std::vector<double> out;
  for (const StorageRun& run : runs) out.push_back(run.bytes_per_second);
  return out;
}
std::vector<double> cpu_of(const std::vector<StorageRun>& runs) {
  std::vector<double> out;
  for (const StorageRun& run : runs) out.push_back(run.cpu_us_per_page);
  return out;
}

std::string speed_text(const Spread& speed) {
  return fmt::format("{:.0f} [{:.0f}..{:.0f}]", speed.median / kMiB, speed.low / kMiB, speed.high / kMiB);
}

Json runs_json(const std::vector<StorageRun>& runs) {
  Json out = Json::array();
  for (const StorageRun& run : runs) {
    out.push_back(
        {{"bytes_per_second", run.bytes_per_second}, {"cpu_us_per_page", run.cpu_us_per_page}, {"pages", run.pages}});
  }
  return out;
}

bool has_others(const std::vector<StorageCell>& cells) {
  return std::any_of(cells.begin(), cells.end(), [](const StorageCell& cell) { return !cell.other.empty(); });
}

}  // namespace

Json spread_json(const Spread& spread) {
  return {{"low", spread.low}, {"median", spread.median}, {"high", spread.high}};
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {values.front(), median, values.back()};
}

Spread ratio_of(const StorageCell& cell) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(cell.own.size(), cell.other.size()); ++i) {
    if (cell.other[i].bytes_per_second > 0) {
      ratios.push_back(cell.own[i].bytes_per_second / cell.other[i].bytes_per_second);
    }
  }
  return spread_of(std::move(ratios));
}

double best_ratio(const StorageCell& cell) {
  const double other = spread_of(speeds_of(cell.other)).high;
  return other > 0 ? spread_of(speeds_of(cell.own)).high / other : 0;
}

std::vector<Throughput> throughput_of(const std::vector<StorageCell>& cells) {
  std::vector<Throughput> out;
  for (const StorageCell& cell : cells) {
    const auto same = [&cell](const Throughput& t) {
      return t.operation == cell.operation && t.page_bytes == cell.page_bytes;
    };
    auto at = std::find_if(out.begin(), out.end(), same);
    if (at == out.end()) at = out.insert(out.end(), {cell.operation, cell.page_bytes, 0, 0, 0, 0});
    const double own = spread_of(speeds_of(cell.own)).median;
    const double other = spread_of(speeds_of(cell.other)).median;
    if (own > at->own) std::tie(at->own, at->own_depth) = std::pair(own, cell.depth);
    if (other > at->other) std::tie(at->other, at->other_depth) = std::pair(other, cell.depth);
  }
  return out;
}

std::string storage_header(const StorageBenchOptions& options, const MachineInfo& machine, const std::string& other) {
  std::string extra;
  for (const std::string& text : options.extra) extra += " " + text;
  return fmt::format(
      "larder {} bench storage, {} UTC\n{}, {} cores; {}; {}\nbackend {}{}; runs of {} or {} s, {} of each; seed {}\n"
      "cold reads: the files are taken out of the page cache before each run (posix_fadvise), and the store is opened "
      "again\nbeside: {}\n",
      kLarderVersion, machine.date, machine.cpu, machine.cores, machine.kernel, machine.file_system, options.backend,
      extra, bytes_text(options.bytes), options.seconds, options.repeat, options.seed, other);
}

std::string storage_table(const std::vector<StorageCell>& cells, const std::string& other) {
  const bool has_other = has_others(cells);
  std::vector<std::string> heads = {"operation", "page", "depth", "MiB/s [spread]", "CPU us/page"};
  if (has_other) {
    heads.insert(heads.end(), {other + " MiB/s [spread]", other + " CPU us/page", "ratio [spread]", "best/best"});
  }
  TextTable table(heads);
  std::string last;
  for (const StorageCell& cell : cells) {
    if (!last.empty() && last != cell.operation + bytes_text(cell.page_bytes)) table.add_rule();
    last = cell.operation + bytes_text(cell.page_bytes);
    std::vector<std::string> row = {cell.operation, bytes_text(cell.page_bytes), std::to_string(cell.depth),
                                    speed_text(spread_of(speeds_of(cell.own))),
                                    fmt::format("{:.1f}", spread_of(cpu_of(cell.own)).median)};
    if (has_other) {
      const Spread ratio = ratio_of(cell);
      row.push_back(speed_text(spread_of(speeds_of(cell.other))));
      row.push_back(fmt::format("{:.1f}", spread_of(cpu_of(cell.other)).median));
      row.push_back(fmt::format("{:.3f} [{:.3f}..{:.3f}]", ratio.median, ratio.low, ratio.high));
      row.push_back(fmt::format("{:.3f}", best_ratio(cell)));
    }
    table.add_row(std::move(row));
  }
  return table.text();
}

std::string throughput_table(const std::vector<StorageCell>& cells, const std::string& other) {
  const bool has_other = has_others(cells);
  std::vector<std::string> heads = {"operation", "page", "MiB/s", "at depth"};
  if (has_other) heads.insert(heads.end(), {other + " MiB/s", "at depth", "ratio"});
  TextTable table(heads);
  for (const Throughput& t : throughput_of(cells)) {
    std::vector<std::string> row = {t.operation, bytes_text(t.page_bytes), fmt::format("{:.0f}", t.own / kMiB),
                                    std::to_string(t.own_depth)};
    if (has_other) {
      row.push_back(fmt::format("{:.0f}", t.other / kMiB));
      row.push_back(std::to_string(t.other_depth));
      row.push_back(t.other > 0 ? fmt::format("{:.3f}", t.own / t.other) : "-");
    }
    table.add_row(std::move(row));
  }
  return "throughput of each page size: the median at its best depth\n" + table.text();
}

std::string exists_text(const ExistsFigures& figures) {
  return fmt::format(
      "existence of {} keys (hits and misses mixed) among {} stored pages, {} queries: p50 {:.1f} us, p99 {:.1f} us, "
      "max {:.1f} us\n{:.0f} small pages stored per second\n",
      figures.keys, count_text(figures.pages), count_text(figures.queries), figures.p50_us, figures.p99_us,
      figures.max_us, figures.writes_per_second);
}

Json storage_json(const StorageBenchOptions& options, const MachineInfo& machine, const std::string& other,
                  const std::vector<StorageCell>& cells, const ExistsFigures* exists) {
  Json out = {{"benchmark", "storage"},
              {"version", kLarderVersion},
              {"date", machine.date},
              {"machine",
               {{"cpu", machine.cpu},
                {"cores", machine.cores},
                {"kernel", machine.kernel},
                {"file_system", machine.file_system}}},
              {"settings",
               {{"backend", options.backend},
                {"extra", options.extra},
                {"bytes", options.bytes},
                {"seconds", options.seconds},
                {"repeat", options.repeat},
                {"pages_per_request", options.pages_per_request},
                {"seed", options.seed},
                {"beside", has_others(cells) ? options.beside : "none"},
                {"beside_extra", options.beside_extra},
                {"beside_how", other}}},
              {"cells", Json::array()}};
  for (const StorageCell& cell : cells) {
    Json entry = {{"operation", cell.operation},
                  {"page_bytes", cell.page_bytes},
                  {"depth", cell.depth},
                  {"own", runs_json(cell.own)},
                  {"other", runs_json(cell.other)}};
    if (!cell.other.empty()) {
      entry["ratio"] = spread_json(ratio_of(cell));
      entry["best_ratio"] = best_ratio(cell);
    }
    out["cells"].push_back(std::move(entry));
  }
  if (exists != nullptr) {
    out["exists"] = {{"pages", exists->pages},
                     {"keys", exists->keys},
                     {"queries", exists->queries},
                     {"p50_us", exists->p50_us},
                     {"p99_us", exists->p99_us},
                     {"max_us", exists->max_us},
                     {"writes_per_second", exists->writes_per_second}};
  }
  return out;
}

}  // namespace larder
