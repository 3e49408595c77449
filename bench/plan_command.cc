// SPDX-License-Identifier: Apache-2.0
// `larder plan`: options in, tables, JSON, CSV and pictures out.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/plan.h"
#include "engine/llama/blob_geometry.h"
#include "server/command_line.h"

namespace larder {
namespace {

void add_source_options(CLI::App& app, PlanOptions& o) {
  PlanSource& s = o.source;
  app.add_option("--model", s.preset, "a preset: gdn-real, say")->type_name("NAME");
  app.add_option("--model-file", s.model_file, "a model file: JSON or TOML")->type_name("FILE");
  app.add_option("--gguf", s.gguf, "the model's file (of several the first); its head is read, its data not")
      ->type_name("FILE");
  app.add_option("--hf-config", s.hf_config, "a config.json of Hugging Face")->type_name("FILE");
  app.add_option("--page-size", o.page_size,
                 "tokens in a page (64; with a trace as many as its blocks have; or the model's least multiple of it)")
      ->check(whole_number(1, llama::kPageTokensMax))
      ->type_name("TOKENS");
  app.add_option("--kv-dtype", o.kv_dtype, "type of keys and values: f32, bf16, f16, fp8_e4m3 (the model's)")
      ->type_name("TYPE");
  app.add_option("--cache-type-k", s.keys, "type of a GGUF model's keys, as llama-server has it")
      ->capture_default_str()
      ->type_name("TYPE");
  app.add_option("--cache-type-v", s.values, "type of its values")->capture_default_str()->type_name("TYPE");
}

void add_size_options(CLI::App& app, PlanSweepOptions& o, CLI::Option* trace) {
  const auto sizes = [&](const char* flag, std::vector<double>& value, const char* help, double least) {
    app.add_option(flag, value, help)->type_name("GIB,...")->delimiter(',')->check(number_in(least, 1e6))->needs(trace);
  };
  sizes("--device", o.gib[kPlanDevice], "sizes to try (what the requests at once need, and four times as much)", 1e-6);
  sizes("--host", o.gib[kPlanHost], "sizes to try; 0: no host (doublings, up to where everything fits)", 0);
  sizes("--storage", o.gib[kPlanStorage], "sizes to try; 0: none (none, where everything fits, and a quarter of that)",
        0);
  app.add_option("--requests", o.limit, "take only so many of the trace's first requests (all)")
      ->type_name("NUMBER")
      ->check(whole_number(1))
      ->needs(trace);
  app.add_option("--block-tokens", o.block_tokens, "tokens that one hash id of the trace stands for")
      ->type_name("TOKENS")
      ->check(whole_number(1, llama::kPageTokensMax))
      ->capture_default_str()
      ->needs(trace);
  app.add_option("--policy", o.policy, "who leaves a tier")->type_name("NAME")->capture_default_str()->needs(trace);
  app.add_option("--write-policy", o.write_policy, "when the host gets a copy")
      ->type_name("NAME")
      ->capture_default_str()
      ->needs(trace);
  app.add_flag("--exclusive-tiers", o.is_exclusive, "what the device has, too, is the first to leave the host")
      ->needs(trace);
}

void add_rate_options(CLI::App& app, PlanSweepOptions& o, CLI::Option* trace) {
  app.add_option("--at-once", o.at_once, "requests that run at a time; 0: chosen, half as many again as on average")
      ->type_name("REQUESTS")
      ->check(whole_number(0, 4096))
      ->capture_default_str()
      ->needs(trace);
  const auto rate = [&](const char* flag, double& value, const char* help, const char* unit, double least) {
    app.add_option(flag, value, help)
        ->type_name(unit)
        ->check(number_in(least, 1e12))
        ->capture_default_str()
        ->needs(trace);
  };
  rate("--prefill-rate", o.prefill_rate,
       "prompt tokens that the engine computes in a second, all requests together; 0: chosen, so that prompts take 70% "
       "of the trace's time if nothing is reused",
       "TOKENS/S", 0);
  rate("--decode-rate", o.decode_rate, "tokens that each answer grows by in a second", "TOKENS/S", 1e-3);
  rate("--link", o.link_gbps, "speed of copies between device and host, each way", "GB/S", 1e-3);
  rate("--storage-speed", o.storage_gbps, "speed of storage, each way", "GB/S", 1e-3);
}

void add_answer_options(CLI::App& app, PlanOptions& o, CLI::Option* trace) {
  const auto price = [&](const char* flag, double& value, const char* help) {
    app.add_option(flag, value, help)->type_name("MONEY")->check(number_in(0, 1e9))->needs(trace);
  };
  price("--price-device", o.sweep.price[kPlanDevice],
        "price of a GiB of device memory; prints what a point of hit rate costs (none)");
  price("--price-host", o.sweep.price[kPlanHost], "price of a GiB of host memory (none)");
  price("--price-storage", o.sweep.price[kPlanStorage], "price of a GiB of storage (none)");
  app.add_option("--knee-points", o.sweep.knee_points,
                 "points of hit rate: the knee is where a doubling of the size gains less")
      ->type_name("POINTS")
      ->check(number_in(0.001, 100))
      ->capture_default_str()
      ->needs(trace);
  app.add_option("--threads", o.sweep.threads, "replays at a time; 0: one for each processor")
      ->type_name("NUMBER")
      ->check(whole_number(0, 256))
      ->capture_default_str()
      ->needs(trace);
  app.add_option("--csv", o.csv, "a line for each size goes there (none)")->type_name("FILE")->needs(trace);
  app.add_option("--plot", o.plots, "a picture goes there, .svg or .png; may be given again")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->needs(trace);
  app.add_flag("--json", o.as_json, "print JSON");
}

}  // namespace

int plan_command(int argc, char** argv) {
  PlanOptions options;
  CLI::App app{
      "What it costs to keep prefixes of a model: bytes of a page and of a restore point, tokens in a GiB.\n"
      "With a trace: what each size of device, host and storage would hit, and how soon the first token comes.",
      "larder plan"};
  app.get_formatter()->column_width(34);
  add_source_options(app, options);
  CLI::Option* const trace =
      app.add_option("--trace", options.sweep.trace, "Mooncake's JSONL, as larder replay reads it")->type_name("FILE");
  add_size_options(app, options.sweep, trace);
  add_rate_options(app, options.sweep, trace);
  add_answer_options(app, options, trace);
  app.footer(
      "\nA hybrid model resumes only where all of its layers can: at a restore point, which has a state of the\n"
      "recurrent layers and the window of the sliding ones beside the pages before it. docs/sizing.md reads the\n"
      "tables and pictures with you.\n"
      "Exit codes: 0 done; 1 failed; 2 wrong arguments, or a file that is not what it should be.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Result<PlanOutput> output = run_plan(options);
  if (!output.is_ok()) return fail_command("larder plan", output.status());
  std::printf("%s", output->text.c_str());
  return output->written.is_ok() ? 0 : fail_command("larder plan", output->written);
}

}  // namespace larder
