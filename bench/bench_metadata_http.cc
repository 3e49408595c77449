// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_metadata_http.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/bench_storage.h"
#include "bench/real_storage_machine.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/text_table.h"
#include "server/version.h"

namespace larder {
namespace {

template <class Value>
Spread spread_over(const MetadataHttpCell& cell, Value value) {
  std::vector<double> values;
  values.reserve(cell.runs.size());
  for (const MetadataHttpRun& run : cell.runs) values.push_back(value(run));
  return spread_of(std::move(values));
}

Spread ratio_of(const MetadataHttpCell& cell) {
  return spread_over(cell, [](const MetadataHttpRun& run) {
    return run.floor_per_second > 0 ? run.requests_per_second / run.floor_per_second : 0;
  });
}

std::string http_header(const MetadataHttpBenchOptions& o, const MachineInfo& machine) {
  return fmt::format(
      "larder {} bench metadata --http, {} UTC\n{}, {} cores; {}\nserver ({} I/O threads) and clients in this process, "
      "over loopback; {} pages, all stored; no journal\nfloor: GET /health of the same server, in turn with each run; "
      "{} runs of {} s; seed {}\nstore: reserve, then confirm; a request is one of the two\n",
      kLarderVersion, machine.date, machine.cpu, machine.cores, machine.kernel, o.io_threads, count_text(o.stored),
      o.repeat, o.seconds, o.seed);
}

std::string http_table_of(const std::vector<MetadataHttpCell>& cells) {
  TextTable table({"call", "form", "keys", "connections", "requests/s", "keys/s", "p50 us", "p99 us", "floor/s",
                   "of the floor [spread]"});
  std::string last;
  for (const MetadataHttpCell& cell : cells) {
    const std::string block = cell.call + cell.form;
    if (!last.empty() && last != block) table.add_rule();
    last = block;
    const Spread speed = spread_over(cell, [](const auto& run) { return run.requests_per_second; });
    const Spread floor = spread_over(cell, [](const auto& run) { return run.floor_per_second; });
    const Spread p50 = spread_over(cell, [](const auto& run) { return run.p50_us; });
    const Spread p99 = spread_over(cell, [](const auto& run) { return run.p99_us; });
    const Spread ratio = ratio_of(cell);
    const double keys = speed.median * cell.keys / (cell.call == "store" ? 2 : 1);
    table.add_row({cell.call, cell.form, std::to_string(cell.keys), std::to_string(cell.connections),
                   count_text(static_cast<std::uint64_t>(speed.median)), count_text(static_cast<std::uint64_t>(keys)),
                   fmt::format("{:.1f}", p50.median), fmt::format("{:.1f}", p99.median),
                   count_text(static_cast<std::uint64_t>(floor.median)),
                   fmt::format("{:.0f} % [{:.0f}..{:.0f}]", 100 * ratio.median, 100 * ratio.low, 100 * ratio.high)});
  }
  return table.text();
}

nlohmann::ordered_json http_json_of(const MetadataHttpBenchOptions& o, const MachineInfo& machine,
                                    const std::vector<MetadataHttpCell>& cells) {
  nlohmann::ordered_json out = {
      {"benchmark", "metadata_http"},
      {"version", kLarderVersion},
      {"date", machine.date},
      {"machine", {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}}},
      {"settings",
       {{"stored", o.stored},
        {"seconds", o.seconds},
        {"repeat", o.repeat},
        {"io_threads", o.io_threads},
        {"seed", o.seed}}},
      {"cells", nlohmann::ordered_json::array()}};
  for (const MetadataHttpCell& cell : cells) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const MetadataHttpRun& run : cell.runs) {
      runs.push_back({{"requests_per_second", run.requests_per_second},
                      {"floor_per_second", run.floor_per_second},
                      {"p50_us", run.p50_us},
                      {"p99_us", run.p99_us}});
    }
    out["cells"].push_back({{"call", cell.call},
                            {"form", cell.form},
                            {"connections", cell.connections},
                            {"keys", cell.keys},
                            {"ratio", ratio_of(cell).median},
                            {"runs", std::move(runs)}});
  }
  return out;
}

void add_http_options(CLI::App& app, MetadataHttpBenchOptions& o, bool& is_http, bool& is_quick) {
  app.add_flag("--http", is_http, "this benchmark");
  app.add_option("--connections", o.connections, "open at a time, each with a thread")
      ->type_name("NUMBERS")
      ->check(whole_number())
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--keys", o.keys, "keys per request, 1 to 128")
      ->type_name("NUMBERS")
      ->check(whole_number())
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--stored", o.stored, "stored pages")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--seconds", o.seconds, "of one run")->type_name("SECONDS")->capture_default_str();
  app.add_option("--repeat", o.repeat, "runs of each kind")
      ->type_name("TIMES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--io-threads", o.io_threads, "of the server")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the keys asked for")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_flag("--quick", is_quick, "10,000 stored pages, short runs");
  app.add_flag("--json", o.as_json, "print JSON");
}

}  // namespace

int bench_metadata_http(int argc, char** argv) {
  CLI::App app("The metadata server through HTTP, beside a static answer of the same server.",
               "larder bench metadata --http");
  app.get_formatter()->column_width(34);
  MetadataHttpBenchOptions options;
  bool is_http = false;
  bool is_quick = false;
  add_http_options(app, options, is_http, is_quick);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (is_quick) {
    options.stored = 10'000;
    options.seconds = std::min(options.seconds, 0.02);
  }
  const MachineInfo machine = machine_info(".");
  if (!options.as_json) std::printf("%s\n", http_header(options, machine).c_str());
  std::fflush(stdout);
  const auto cells = run_metadata_http_bench(options);
  if (!cells.is_ok()) return fail_command("larder bench metadata --http", cells.status());
  std::printf("%s\n", options.as_json ? dump_json(http_json_of(options, machine, *cells), 2).c_str()
                                      : http_table_of(*cells).c_str());
  return 0;
}

}  // namespace larder
