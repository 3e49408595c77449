// SPDX-License-Identifier: Apache-2.0
// `larder bench llama`: options in, tables or JSON out.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/file_system.h"
#include "bench/bench_llama.h"
#include "bench/bench_llama_server.h"
#include "bench/real_storage_machine.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/real_child_process.h"

namespace larder {
namespace {

struct Words {
  std::string server_arguments;
  std::vector<std::string> fronts;
};

void add_llama_options(CLI::App& app, LlamaBenchOptions& o, Words& words) {
  app.add_option("--model", o.models, "GGUF file; may be given several times")
      ->type_name("FILE")
      ->required()
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--llama-server", o.llama_server, "the executable (of tools/llama_env.sh, or in PATH)")
      ->type_name("PATH");
  app.add_option(
         "--server-args", words.server_arguments,
         "more options of llama-server, alone and behind proxy, in one word: \"-b 512 --ctx-checkpoints 8\"; serve "
         "takes none of them")
      ->type_name("OPTIONS");
  app.add_option("--rows", o.rows, "these rows of the table only, and what they build on: 9,11")
      ->type_name("ROW,ROW")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(0, 11));
  app.add_option("--fronts", words.fronts, "what is measured beside llama-server: proxy,serve")
      ->type_name("FRONT,FRONT")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"proxy", "serve"}));
  const auto number = [&](const char* flag, auto& value, const char* unit, const char* help, std::uint64_t least,
                          std::uint64_t most) {
    app.add_option(flag, value, help)->type_name(unit)->check(whole_number(least, most))->capture_default_str();
  };
  number("--repeats", o.repeats, "TIMES", "of the whole sequence, on fresh servers", 1, 100);
  number("--threads", o.threads, "THREADS", "of llama-server", 1, 1024);
  number("--page-size", o.page_size, "TOKENS", "in a page of ours", 2, 2048);
  app.add_option("--host-memory", o.host_memory, "of ours")->type_name("SIZE")->capture_default_str();
  number("--seed", o.seed, "NUMBER", "of the random tokens", 0, ~std::uint64_t{0});
  app.add_flag("--json", o.as_json, "print JSON");
  app.footer(
      "\nOur stores lie in $TMPDIR or /tmp while they run, slot files in /dev/shm.\n"
      "Exit codes: 0 done, whatever the bars at the end say; 1 failed; 2 wrong arguments.");
}

Status choose_fronts(LlamaBenchOptions& o, const std::vector<std::string>& names) {
  o.fronts = llama_fronts();
  if (names.empty()) return Status::ok();
  std::erase_if(o.fronts,
                [&](LlamaSetup front) { return std::ranges::find(names, llama_setup_name(front)) == names.end(); });
  if (o.fronts.size() == names.size()) return Status::ok();
  return invalid_argument("--fronts: this build has not all of these; serve needs -DLARDER_LLAMA=ON");
}

int fail(const Status& status) { return fail_command("larder bench llama", status); }

Status complete(LlamaBenchOptions& o, const Words& given) {
  std::istringstream words(given.server_arguments);
  for (std::string word; words >> word;) o.server_arguments.push_back(word);
  for (const std::string& model : o.models) {  // before the first one runs for hours
    const Status found = real_file_system().stat(model).status();
    if (!found.is_ok()) return Status(found.code(), "--model: " + found.message());
  }
  LARDER_RETURN_IF_ERROR(choose_fronts(o, given.fronts));
  if (o.llama_server.empty()) {
    Result<std::string> found = find_llama_server();
    if (!found.is_ok()) return found.status();
    o.llama_server = std::move(*found);
  }
  Result<std::string> own = own_executable_path();
  if (!own.is_ok()) return own.status();
  o.larder = std::move(*own);
  return Status::ok();
}

}  // namespace

int bench_llama(int argc, char** argv) {
  CLI::App app(
      "An unmodified llama-server beside larder proxy before the same llama-server, and beside larder serve of the\n"
      "same model: reused tokens and times.",
      "larder bench llama");
  app.get_formatter()->column_width(34);
  LlamaBenchOptions options;
  Words words;
  add_llama_options(app, options, words);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Status status = complete(options, words);
  if (!status.is_ok()) return fail(status);
  // The servers take them over, and would ask for keys that our requests do not bring.
  for (const char* key : {"LARDER_API_KEY", "LARDER_ADMIN_API_KEY", "LLAMA_API_KEY"}) (void)::unsetenv(key);
  const MachineInfo machine = machine_info(".");
  const LlamaBenchStop stop;
  std::vector<LlamaModelResult> results;
  Status failed;
  for (const std::string& model : options.models) {
    Result<LlamaModelResult> result = run_llama_model(options, model);
    failed = result.status();
    if (!failed.is_ok()) break;  // what other models had is not lost
    if (!options.as_json) {
      if (results.empty()) std::printf("%s", llama_header(options, machine).c_str());
      std::printf("%s", llama_table(options, *result).c_str());
      std::fflush(stdout);
    }
    results.push_back(std::move(*result));
  }
  if (options.as_json && !results.empty()) {
    nlohmann::ordered_json out = llama_json(options, machine, results);
    if (!failed.is_ok()) out["error"] = failed.message();
    std::printf("%s\n", dump_json(out, 2).c_str());
  }
  if (failed.is_ok()) return 0;
  const int code = fail(failed);
  return results.empty() ? code : 1;
}

}  // namespace larder
