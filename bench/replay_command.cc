// SPDX-License-Identifier: Apache-2.0
// `larder replay`: options in, table, JSON or CSV out.

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

#include "bench/replay.h"
#include "bench/report_file.h"
#include "engine/options.h"
#include "server/command_line.h"
#include "server/json_reader.h"

namespace larder {
namespace {

void add_model_options(CLI::App& app, ReplayOptions& o) {
  CLI::Option* const preset =
      app.add_option("--model", o.model, "a preset, gdn-real say, for its sizes; instead of the next three")
          ->type_name("NAME");
  CLI::Option* const file =
      app.add_option("--model-file", o.model_file, "a model file, for its sizes; instead of the next two")
          ->type_name("FILE")
          ->excludes(preset);
  app.add_option("--kv-bytes", o.kv_bytes, "bytes of full attention's KV for a token")
      ->type_name("BYTES")
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str()
      ->excludes(preset)
      ->excludes(file);
  app.add_option("--state-bytes", o.state_bytes, "bytes of a checkpoint of recurrent state; 0: none")
      ->type_name("BYTES")
      ->check(whole_number(0, std::uint64_t{1} << 31))
      ->capture_default_str()
      ->excludes(preset)
      ->excludes(file);
  app.add_option("--page-size", o.page_size, "tokens in a page of the cache")
      ->type_name("TOKENS")
      ->check(whole_number(1, 8192))
      ->capture_default_str();
}

void add_tier_options(CLI::App& app, ReplayOptions& o) {
  const auto gib = [&](const char* flag, double& value, const char* help) {
    app.add_option(flag, value, help)->type_name("GIB")->check(number_in(0, 1e6))->capture_default_str();
  };
  gib("--device", o.device_gib, "device memory; 0: as much as the requests at once need");
  app.add_option("--device-states", o.device_states,
                 "checkpoints on the device; 0: a quarter of --device, or all of it where nothing else has bytes; "
                 "without --device 16 for each request at once")
      ->type_name("NUMBER")
      ->check(whole_number(0, 1 << 24))
      ->capture_default_str();
  gib("--host", o.host_gib, "host memory; 0: no host tier");
  gib("--storage", o.storage_gib, "storage; 0: none");
  app.add_option("--policy", o.policy, "who leaves a tier: " + option_words("radix-eviction-policy"))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--write-policy", o.write_policy, "when the host gets a copy: " + option_words("hicache-write-policy"))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--hints", o.hints, "each request says whether it has a next turn, so many rightly (no hints)")
      ->type_name("PERCENT")
      ->check(number_in(0, 100));
  app.add_flag("--exclusive-tiers", o.is_exclusive, "what the device has, too, is the first to leave the host");
  app.add_option("--tenant-limits", o.tenant_limits, "floors and ceilings of the trace's tenants, JSON or TOML (none)")
      ->type_name("FILE");
  app.add_option("--checkpoint-grid", o.grid, "a weak checkpoint every so many tokens; 0: none")
      ->type_name("TOKENS")
      ->check(whole_number(0, 1u << 30))
      ->capture_default_str();
}

void add_time_options(CLI::App& app, ReplayOptions& o) {
  app.add_option("--at-once", o.at_once, "requests that run at a time")
      ->type_name("REQUESTS")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  const auto rate = [&](const char* flag, double& value, const char* unit, const char* help) {
    app.add_option(flag, value, help)->type_name(unit)->check(number_in(0, 1e12))->capture_default_str();
  };
  rate("--prefill-rate", o.prefill_rate, "TOKENS/S",
       "prompt tokens that the engine computes in a second, all requests together; 0: they take no time");
  rate("--decode-rate", o.decode_rate, "TOKENS/S", "tokens that each answer grows by in a second; 0: it takes no time");
  rate("--link", o.link_gbps, "GB/S", "speed of copies between device and host, each way; 0: copies take no time");
  rate("--storage-speed", o.storage_gbps, "GB/S", "speed of storage, each way; 0: it takes no time");
}

int replay_and_print(const ReplayOptions& o, bool has_sensitivity) {
  std::unique_ptr<ReportFile> csv;
  if (!o.csv.empty()) {
    const std::array<std::string, 3> read = {o.trace, o.model_file, o.tenant_limits};
    Result<std::unique_ptr<ReportFile>> opened = ReportFile::open("--csv", o.csv, read);
    if (!opened.is_ok()) return fail_command("larder replay", opened.status());
    csv = std::move(*opened);
  }
  const Result<ReplayResult> result = run_replay(o);
  if (!result.is_ok()) return fail_command("larder replay", result.status());
  const Status written = csv ? csv->write(replay_csv(*result)) : Status::ok();
  Result<std::vector<ReplaySensitivity>> rows = std::vector<ReplaySensitivity>{};
  if (has_sensitivity) rows = replay_sensitivity(o);
  if (!rows.is_ok()) return fail_command("larder replay", rows.status());
  const std::string text = o.as_json ? dump_json(replay_json(o, *result, *rows), 2) : replay_text(o, *result);
  std::printf("%s\n", text.c_str());
  if (has_sensitivity && !o.as_json) std::printf("%s", sensitivity_text(result->hit_rate(), *rows).c_str());
  return written.is_ok() ? 0 : fail_command("larder replay", written);
}

}  // namespace

int replay_command(int argc, char** argv) {
  CLI::App app("A recorded trace through the cache, in simulated time and without bytes: what would it hit?",
               "larder replay");
  app.get_formatter()->column_width(34);
  ReplayOptions o;
  app.add_option("trace", o.trace, "Mooncake's JSONL: timestamp, input_length, output_length, hash_ids")
      ->type_name("FILE")
      ->required();
  app.add_option("--block-tokens", o.block_tokens, "tokens that one hash id of the trace stands for")
      ->type_name("TOKENS")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--requests", o.limit, "take only so many of the trace's first requests (all)")
      ->type_name("NUMBER")
      ->check(whole_number(1));
  add_model_options(app, o);
  add_tier_options(app, o);
  add_time_options(app, o);
  app.add_option("--csv", o.csv, "a line for each request goes there")->type_name("FILE");
  bool has_sensitivity = false;
  app.add_flag("--sensitivity", has_sensitivity, "and again with each parameter of policy value halved, and doubled");
  app.add_flag("--json", o.as_json, "print JSON");
  app.footer("\nExit codes: 0 done; 1 failed; 2 wrong arguments, or a file that is not what it should be.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  if (has_sensitivity && o.policy != "value") {
    std::fprintf(stderr, "larder replay: --sensitivity is of --policy value; %s has no parameters\n", o.policy.c_str());
    return 2;
  }
  return replay_and_print(o, has_sensitivity);
}

}  // namespace larder
