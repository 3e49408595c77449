// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_metadata.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/real_storage_machine.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/text_table.h"
#include "server/version.h"

namespace larder {
namespace {

std::string header(const MetadataBenchOptions& options, const MachineInfo& machine) {
  return fmt::format(
      "larder {} bench metadata, {} UTC\n{}, {} cores; {}; journal on {}\nin this process, one client; keys of 64 "
      "bytes "
      "in chains of 128; a full namespace: each reservation evicts\n{} runs of {} s of each; seed {}\n",
      kLarderVersion, machine.date, machine.cpu, machine.cores, machine.kernel, machine.file_system, options.repeat,
      options.seconds, options.seed);
}

std::string table_of(const std::vector<MetadataCell>& cells) {
  TextTable table({"operation", "journal", "keys", "stored", "keys/s [spread]", "p50 us [spread]", "p99 us [spread]"});
  std::string last;
  for (const MetadataCell& cell : cells) {
    const std::string block = cell.operation + cell.journal + std::to_string(cell.keys);
    if (!last.empty() && last != block) table.add_rule();
    last = block;
    const Spread speed = spread_of(cell.keys_per_second), p50 = spread_of(cell.p50_us), p99 = spread_of(cell.p99_us);
    table.add_row({cell.operation, cell.journal, std::to_string(cell.keys), count_text(cell.stored),
                   fmt::format("{} [{}..{}]", count_text(static_cast<std::uint64_t>(speed.median)),
                               count_text(static_cast<std::uint64_t>(speed.low)),
                               count_text(static_cast<std::uint64_t>(speed.high))),
                   fmt::format("{:.2f} [{:.2f}..{:.2f}]", p50.median, p50.low, p50.high),
                   fmt::format("{:.2f} [{:.2f}..{:.2f}]", p99.median, p99.low, p99.high)});
  }
  return table.text();
}

nlohmann::ordered_json json_of(const MetadataBenchOptions& options, const MachineInfo& machine,
                               const MetadataFigures& figures) {
  nlohmann::ordered_json out = {
      {"benchmark", "metadata"},
      {"version", kLarderVersion},
      {"date", machine.date},
      {"machine",
       {{"cpu", machine.cpu},
        {"cores", machine.cores},
        {"kernel", machine.kernel},
        {"file_system", machine.file_system}}},
      {"settings", {{"seconds", options.seconds}, {"repeat", options.repeat}, {"seed", options.seed}}},
      {"cells", nlohmann::ordered_json::array()},
      {"recoveries", nlohmann::ordered_json::array()}};
  for (const MetadataCell& cell : figures.cells) {
    out["cells"].push_back({{"operation", cell.operation},
                            {"journal", cell.journal},
                            {"keys", cell.keys},
                            {"stored", cell.stored},
                            {"keys_per_second", cell.keys_per_second},
                            {"p50_us", cell.p50_us},
                            {"p99_us", cell.p99_us}});
  }
  for (const MetadataRecovery& recovery : figures.recoveries) {
    out["recoveries"].push_back(
        {{"journal", recovery.journal}, {"stored", recovery.stored}, {"seconds", recovery.seconds}});
  }
  return out;
}

void add_metadata_options(CLI::App& app, MetadataBenchOptions& o, bool& is_quick) {
  app.add_option("--directory", o.directory, "where the RocksDB journal goes; a folder is made there and removed")
      ->type_name("PATH")
      ->capture_default_str();
  app.add_option("--stored", o.stored, "stored pages, multiples of 128 or cut to one")
      ->type_name("NUMBERS")
      ->check(whole_number())
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--keys", o.keys, "keys per request, 1 to 128")
      ->type_name("NUMBERS")
      ->check(whole_number())
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--journals", o.journals, "none, rocksdb")->type_name("NAMES")->delimiter(',')->capture_default_str();
  app.add_option("--seconds", o.seconds, "of one run")->type_name("SECONDS")->capture_default_str();
  app.add_option("--repeat", o.repeat, "runs of each kind")
      ->type_name("TIMES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of keys and order")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str();
  app.add_flag("--quick", is_quick, "10,000 stored pages, short runs");
  app.add_flag("--json", o.as_json, "print JSON");
}

Status check(const MetadataBenchOptions& o) {
  const auto is_bad = [](std::uint64_t pages) { return pages < 256 || pages > 100'000'000; };
  if (o.stored.empty() || std::any_of(o.stored.begin(), o.stored.end(), is_bad)) {
    return invalid_argument("--stored: from 256 to 100,000,000");
  }
  if (o.keys.empty() || std::any_of(o.keys.begin(), o.keys.end(), [](auto n) { return n == 0 || n > 128; })) {
    return invalid_argument("--keys: from 1 to 128");
  }
  const auto is_unknown = [](const std::string& name) { return name != "none" && name != "rocksdb"; };
  if (o.journals.empty() || std::any_of(o.journals.begin(), o.journals.end(), is_unknown)) {
    return invalid_argument("--journals: none, rocksdb");
  }
  if (!(o.seconds > 0 && o.seconds <= 3600)) return invalid_argument("--seconds: above 0, at most 3600");
  if (o.repeat == 0 || o.repeat > 1000) return invalid_argument("--repeat: from 1 to 1000");
  return Status::ok();
}

Status run(const MetadataBenchOptions& options) {
  LARDER_RETURN_IF_ERROR(check(options));
  const MachineInfo machine = machine_info(options.directory);
  if (!options.as_json) std::printf("%s\n", header(options, machine).c_str());
  std::fflush(stdout);
  const Result<MetadataFigures> figures = run_metadata_bench(options);
  if (!figures) return figures.status();
  if (options.as_json) {
    std::printf("%s\n", dump_json(json_of(options, machine, *figures), 2).c_str());
    return Status::ok();
  }
  std::printf("%s\n", table_of(figures->cells).c_str());
  for (const MetadataRecovery& recovery : figures->recoveries) {
    std::printf("recovery of %s pages from %s: %.2f s\n", count_text(recovery.stored).c_str(), recovery.journal.c_str(),
                recovery.seconds);
  }
  return Status::ok();
}

}  // namespace

int bench_metadata(int argc, char** argv) {
  CLI::App app("Keys per second and latency of the page-index service, in this process.", "larder bench metadata");
  app.get_formatter()->column_width(34);
  MetadataBenchOptions options;
  bool is_quick = false;
  add_metadata_options(app, options, is_quick);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (is_quick) {
    options.stored = {10'000};
    options.seconds = std::min(options.seconds, 0.02);
  }
  const Status status = run(options);
  return status.is_ok() ? 0 : fail_command("larder bench metadata", status);
}

}  // namespace larder
