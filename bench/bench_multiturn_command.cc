// SPDX-License-Identifier: Apache-2.0
// `larder bench multiturn`: options in, table or JSON out.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/file_system.h"
#include "bench/bench_multiturn.h"
#include "server/answer_hint.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/key_file.h"

namespace larder {
namespace {

struct CommandOptions {
  MultiturnOptions run;
  std::string order = "fifo";
  bool as_json = false;
  std::string key_file, save_outputs, compare_outputs;
};

void add_multiturn_options(CLI::App& app, CommandOptions& o) {
  app.add_option("--url", o.run.url, "server to talk to")->type_name("URL")->capture_default_str();
  app.add_option("--api-key", o.run.api_key, "bearer key, if the server wants one")->type_name("KEY");
  app.add_option("--api-key-file", o.key_file, "holds that key; or the variable LARDER_API_KEY")->type_name("FILE");
  app.add_option("--cacert", o.run.ca_file, "to an https:// URL: who may have issued the certificate, PEM")
      ->type_name("FILE");
  const std::string load = "Conversations";
  const auto number = [&](const char* flag, std::uint32_t& value, const char* unit, const char* help) {
    app.add_option(flag, value, help)->type_name(unit)->check(whole_number())->capture_default_str()->group(load);
  };
  number("--num-clients", o.run.num_clients, "CLIENTS", "conversations");
  number("--num-rounds", o.run.num_rounds, "ROUNDS", "turns of each conversation");
  number("--request-length", o.run.request_length, "TOKENS", "new prompt tokens of a turn");
  number("--output-length", o.run.output_length, "TOKENS", "tokens of an answer");
  number("--max-parallel", o.run.max_parallel, "REQUESTS", "turns under way at once");
  app.add_option("--order", o.order, "which waiting turn goes next: fifo (round after round) or random")
      ->type_name("ORDER")
      ->check(CLI::IsMember({"fifo", "random"}))
      ->capture_default_str()
      ->group(load);
  app.add_option("--seed", o.run.seed, "of the random prompt tokens, and of the order")
      ->type_name("NUMBER")
      ->check(whole_number())
      ->capture_default_str()
      ->group(load);
  number("--vocab-size", o.run.vocab_size, "TOKENS", "random tokens are below it; 0: ask the server");
  number("--page-size", o.run.page_size, "TOKENS", "granularity of the ideal; 0: ask the server");
  app.add_option("--timeout", o.run.timeout_seconds, "give up after this long without a byte")
      ->type_name("SECONDS")
      ->capture_default_str();
  const std::string output = "Output";
  app.add_flag("--json", o.as_json, "print JSON instead of the table")->group(output);
  app.add_option("--save-outputs", o.save_outputs, "write all output tokens there, as JSON")
      ->type_name("FILE")
      ->group(output);
  app.add_option("--compare-outputs", o.compare_outputs, "fail unless the output tokens equal those of this file")
      ->type_name("FILE")
      ->group(output);
}

Status write_file(const std::string& path, const std::string& text) {
  auto file = real_file_system().open(path, {.write = true, .create = true, .truncate = true});
  if (!file.is_ok()) return file.status();
  return write_fully(**file, std::as_bytes(std::span(text.data(), text.size())), 0);
}

Result<nlohmann::json> read_json(const std::string& path) {
  auto file = real_file_system().open(path, {});
  if (!file.is_ok()) return file.status();
  const Result<std::uint64_t> size = (*file)->size_bytes();
  if (!size.is_ok()) return size.status();
  std::string text(static_cast<std::size_t>(*size), '\0');
  LARDER_RETURN_IF_ERROR(read_exactly(**file, std::as_writable_bytes(std::span(text)), 0));
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return invalid_argument(path + " is not JSON");
  return document;
}

int fail_multiturn(const Status& status) { return fail_command("larder bench multiturn", status); }

int run_multiturn(CommandOptions o, bool has_url) {
  o.run.order = o.order == "random" ? TurnOrder::kRandom : TurnOrder::kFifo;
  const Status filled = fill_key(o.run.api_key, o.key_file, {"--api-key", "LARDER_API_KEY"}, EmptyVariable::kNoKey);
  if (!filled.is_ok()) return fail_multiturn(filled);
  Result<nlohmann::json> saved = nlohmann::json();
  if (!o.compare_outputs.empty()) {
    saved = read_json(o.compare_outputs);
    if (!saved.is_ok()) return fail_multiturn(saved.status());
  }
  const Result<MultiturnResult> result = run_multiturn(o.run);
  if (!result.is_ok()) return fail_multiturn(has_url ? result.status() : with_url_hint(result.status(), ""));
  if (o.as_json) {
    std::printf("%s\n", dump_json(multiturn_json(o.run, *result), 2).c_str());
  } else {
    std::printf("%s\n%s\n", multiturn_table(*result).c_str(), multiturn_total_line(*result).c_str());
  }
  if (!o.save_outputs.empty()) {
    const Status status = write_file(o.save_outputs, dump_json(outputs_json(*result)));
    if (!status.is_ok()) return fail_multiturn(status);
  }
  if (o.compare_outputs.empty()) return 0;
  const std::string found = first_difference(*result, *saved);
  std::fprintf(stderr, "outputs: %s\n", found.empty() ? "identical" : found.c_str());
  return found.empty() ? 0 : 1;
}

}  // namespace

int bench_multiturn(int argc, char** argv) {
  CLI::App app("Conversations through HTTP: hit rate and time to first token, per round, beside the ideal.",
               "larder bench multiturn");
  app.get_formatter()->column_width(34);
  CommandOptions options;
  add_multiturn_options(app, options);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_multiturn(options, app.count("--url") > 0);
}

}  // namespace larder
