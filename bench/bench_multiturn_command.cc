// SPDX-License-Identifier: Apache-2.0
// `larder bench multiturn`: options in, table or JSON out.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/file_system.h"
#include "bench/bench_multiturn.h"
#include "bench/report_file.h"
#include "engine/text_file.h"
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

constexpr std::uint64_t kMostSavedBytes = std::uint64_t{1} << 30;

Result<nlohmann::json> read_json(const std::string& path) {
  LARDER_ASSIGN_OR_RETURN(const std::string text, read_text_file(real_file_system(), path, kMostSavedBytes));
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return invalid_argument(path + " is not JSON");
  return document;
}

int fail_multiturn(const Status& status) { return fail_command("larder bench multiturn", status); }

struct OutputFiles {
  std::unique_ptr<ReportFile> save;        // may be nullptr
  std::optional<nlohmann::json> compared;  // with these; nothing: with none
};

Result<OutputFiles> open_output_files(const CommandOptions& o) {
  OutputFiles files;
  if (!o.compare_outputs.empty()) {
    LARDER_ASSIGN_OR_RETURN(files.compared, read_json(o.compare_outputs));
  }
  if (o.save_outputs.empty()) return files;
  const std::array<std::string, 3> read = {o.compare_outputs, o.key_file, o.run.ca_file};
  LARDER_ASSIGN_OR_RETURN(files.save, ReportFile::open("--save-outputs", o.save_outputs, read));
  return files;
}

int run_multiturn(CommandOptions o, bool has_url) {
  o.run.order = o.order == "random" ? TurnOrder::kRandom : TurnOrder::kFifo;
  const Status filled = fill_key(o.run.api_key, o.key_file, {"--api-key", "LARDER_API_KEY"}, EmptyVariable::kNoKey);
  if (!filled.is_ok()) return fail_multiturn(filled);
  const Result<OutputFiles> files = open_output_files(o);
  if (!files.is_ok()) return fail_multiturn(files.status());
  const Result<MultiturnResult> result = run_multiturn(o.run);
  if (!result.is_ok()) return fail_multiturn(has_url ? result.status() : with_url_hint(result.status(), ""));
  if (o.as_json) {
    std::printf("%s\n", dump_json(multiturn_json(o.run, *result), 2).c_str());
  } else {
    std::printf("%s\n%s\n", multiturn_table(*result).c_str(), multiturn_total_line(*result).c_str());
  }
  int code = 0;
  if (files->save) {
    const Status status = files->save->write(dump_json(outputs_json(*result)));
    if (!status.is_ok()) code = fail_multiturn(status);
  }
  if (!files->compared) return code;
  const std::string found = first_difference(*result, *files->compared);
  std::fprintf(stderr, "outputs: %s\n", found.empty() ? "identical" : found.c_str());
  return found.empty() ? code : 1;
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
