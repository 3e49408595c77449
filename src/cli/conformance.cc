// SPDX-License-Identifier: Apache-2.0
// `larder conformance`: the checks of storage/conformance against any backend.

#include <fmt/format.h>
#include <openssl/rand.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "door/register_backends.h"
#include "engine/options.h"
#include "metadata/open_metadata.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "storage/conformance/checks.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using conformance::Check;
using conformance::CheckOutcome;
using conformance::Verdict;
using Json = nlohmann::ordered_json;
using Opened = Result<std::unique_ptr<StorageBackend>>;

constexpr std::size_t kThreads = 4, kQueue = 16'384;
constexpr int kOk = 0, kFailedChecks = 1, kUsage = 2, kNotOpened = 3;
constexpr std::string_view kOwnConfigOption = "--hicache-storage-backend-extra-config: ";
constexpr const char* kFooter =
    "\nEach check says what a storage backend must do (--list). A check that needs what the backend has not is "
    "skipped,\n"
    "and says why; so do parts of checks (in brackets).\n"
    "\n"
    "What it does to a store that is in use: it writes some megabytes under namespaces of its own, made from the "
    "seed,\n"
    "and drops them when it is done; a store that is full evicts other pages for them, as it would for any. It never\n"
    "clears the whole store, makes it smaller or counts its pages unless --destructive says that nothing in it is "
    "worth\n"
    "keeping. (The memory backend is always its own.)\n"
    "\n"
    "examples:\n"
    "  larder conformance --backend memory\n"
    "  larder conformance --backend file --directory /var/tmp/new_store --destructive\n"
    "  larder conformance --backend plugin --extra library=/usr/lib/libmy_backend.so --extra key=value\n"
    "\n"
    "Exit codes: 0 every check that could run is ok; 1 a check failed; 2 wrong arguments, or options "
    "that the backend refuses; 3 the backend cannot be "
    "opened.";

struct ConformanceOptions {
  std::string backend, directory, config, filter;
  std::vector<std::string> extra;
  bool is_destructive = false, as_json = false, is_list = false;
  std::uint64_t seed = 0;
  unsigned timeout_seconds = 60;
};

// A backend of this build, by name, with real files, threads and clock.
class NamedHarness final : public conformance::StorageHarness {
 public:
  NamedHarness(const ConformanceOptions& o, BackendOptions options)
      : name_(o.backend),
        options_(std::move(options)),
        is_own_(o.is_destructive || o.backend == "memory"),
        answer_limit_(o.timeout_seconds) {}
  // Opens the store for the first check. kDeadlineExceeded: that has not come back; then nothing can be destroyed.
  [[nodiscard]] Status prepare() {
    LARDER_RETURN_IF_ERROR(register_backends(factory_));
    const std::vector<BackendOptionHelp>* const known = factory_.options_of(name_);
    is_bounded_ = options_.contains("max_size");  // it is taken, or the backend will not open
    for (std::size_t i = 0; known != nullptr && i < known->size(); ++i) {
      is_bounded_ = is_bounded_ || (*known)[i].key == "max_size";
    }
    const auto opened = std::make_shared<Opened>(internal_error("not opened"));
    if (!conformance::returns_within(answer_limit_, [this, opened] { *opened = create({}); })) {
      return deadline_exceeded("the backend has not opened within " + std::to_string(answer_limit_.count()) +
                               " s (--timeout)");
    }
    if (opened->is_ok()) first_ = std::move(*opened).value();
    return opened->status();
  }
  [[nodiscard]] Opened open(const BackendOptions& extra) override {
    return first_ && extra.empty() ? Opened(std::move(first_)) : create(extra);
  }
  void drain() override {}
  [[nodiscard]] bool is_manual() const override { return false; }
  [[nodiscard]] bool is_own_store() const override { return is_own_; }
  [[nodiscard]] bool is_bounded() const override { return is_bounded_; }
  [[nodiscard]] std::chrono::seconds answer_limit() const override { return answer_limit_; }
  [[nodiscard]] bool evicts_whole_groups() const override { return name_ != "hf3fs"; }  // each pool has its own files

 private:
  [[nodiscard]] Opened create(const BackendOptions& extra) {
    BackendOptions options = options_;
    for (const auto& [key, value] : extra) options[key] = value;
    BackendEnvironment environment;
    environment.files = &real_file_system();
    environment.clock = &real_clock();
    environment.executor = &threads_;
    environment.open_metadata = [](const MetadataOptions& wanted) { return open_metadata(wanted, real_clock()); };
    return factory_.create(name_, options, environment);
  }

  const std::string name_;
  const BackendOptions options_;
  const bool is_own_;
  const std::chrono::seconds answer_limit_;
  bool is_bounded_ = false;
  BackendFactory factory_;
  ThreadPoolExecutor threads_{"storage", kThreads, kQueue};
  std::unique_ptr<StorageBackend> first_;
};

Result<BackendOptions> backend_options(const ConformanceOptions& o) {
  BackendOptions out;
  if (!o.config.empty()) {
    const bool is_inline = o.config[0] == '{' || o.config[0] == '@';
    const Result<ExtraConfig> config = parse_extra_config(is_inline ? o.config : '@' + o.config);
    if (!config.is_ok()) {
      std::string message = config.status().message();
      if (message.starts_with(kOwnConfigOption)) message.erase(0, kOwnConfigOption.size());
      return Status(config.status().code(), "--config: " + message);
    }
    out = config->backend;
  }
  if (!o.directory.empty()) out["directory"] = o.directory;
  LARDER_RETURN_IF_ERROR(add_options("--extra", o.extra, out));
  return out;
}

Result<std::vector<const Check*>> chosen_checks(const std::string& filter) {
  std::vector<const Check*> out;
  for (const Check& check : conformance::all_checks()) {
    if (std::string_view(check.name).find(filter) != std::string_view::npos) out.push_back(&check);
  }
  if (out.empty()) return invalid_argument("--filter: no check has '" + filter + "' in its name; --list names them");
  return out;
}

int list_checks(const ConformanceOptions& o, const std::vector<const Check*>& checks) {
  Json document = Json::array();
  for (const Check* check : checks) {
    if (!o.as_json) std::printf("%-36s %s\n", check->name, check->about);
    document.push_back({{"name", check->name}, {"about", check->about}});
  }
  if (o.as_json) std::printf("%s\n", dump_json(document, 2).c_str());
  return kOk;
}

const char* word_of(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kFailed ? "FAILED" : "skipped";
}

struct Totals {
  std::uint64_t ok = 0, failed = 0, skipped = 0;
};

void print_outcome(const Check& check, const CheckOutcome& outcome) {
  std::string notes = outcome.skipped_because;
  for (const std::string& part : outcome.left_out) notes += (notes.empty() ? "without " : "; without ") + part;
  std::printf("%-8s %s%s\n", word_of(outcome.verdict), check.name, notes.empty() ? "" : ("  (" + notes + ")").c_str());
  for (const std::string& failure : outcome.failures) std::printf("           %s\n", failure.c_str());
  std::fflush(stdout);
}

Json outcome_json(const Check& check, const CheckOutcome& outcome) {
  std::string verdict = word_of(outcome.verdict);
  if (outcome.verdict == Verdict::kFailed) verdict = "failed";
  return {{"name", check.name},
          {"verdict", verdict},
          {"skipped_because", outcome.skipped_because},
          {"failures", outcome.failures},
          {"left_out", outcome.left_out}};
}

int run_checks(const ConformanceOptions& o, const std::vector<const Check*>& checks, NamedHarness& harness) {
  if (!o.as_json) std::printf("backend %s, seed %llu\n", o.backend.c_str(), static_cast<unsigned long long>(o.seed));
  Totals totals;
  Json list = Json::array();
  bool is_stuck = false;
  for (const Check* check : checks) {
    const CheckOutcome outcome = conformance::run_check(*check, harness, o.seed);
    ++(outcome.verdict == Verdict::kOk       ? totals.ok
       : outcome.verdict == Verdict::kFailed ? totals.failed
                                             : totals.skipped);
    if (o.as_json) list.push_back(outcome_json(*check, outcome));
    if (!o.as_json) print_outcome(*check, outcome);
    is_stuck = outcome.is_stuck;
    if (is_stuck) break;
  }
  if (o.as_json) {
    const Json document = {{"backend", o.backend}, {"seed", o.seed},          {"is_stuck", is_stuck},
                           {"ok", totals.ok},      {"failed", totals.failed}, {"skipped", totals.skipped},
                           {"checks", list}};
    std::printf("%s\n", dump_json(document, 2).c_str());
  } else {
    std::printf("%llu ok, %llu failed, %llu skipped\n", static_cast<unsigned long long>(totals.ok),
                static_cast<unsigned long long>(totals.failed), static_cast<unsigned long long>(totals.skipped));
    if (is_stuck) std::printf("stopped: a call was never answered, so nothing can be closed or freed any more\n");
    if (totals.failed > 0) std::printf("again: --seed %llu\n", static_cast<unsigned long long>(o.seed));
  }
  std::fflush(stdout);
  if (is_stuck) std::_Exit(kFailedChecks);  // threads are in the backend; nothing can wait for them
  return totals.failed > 0 ? kFailedChecks : kOk;
}

int failure(const Status& status, int exit_code) {
  std::fprintf(stderr, "larder conformance: %s\n", status.message().c_str());
  return status.code() == StatusCode::kInvalidArgument ? kUsage : exit_code;
}

int run_conformance(ConformanceOptions o, bool has_seed) {
  const Result<std::vector<const Check*>> checks = chosen_checks(o.filter);
  if (!checks.is_ok()) return failure(checks.status(), kUsage);
  if (o.is_list) return list_checks(o, *checks);
  if (o.backend.empty()) {
    return failure(invalid_argument("--backend is missing: memory, file, hf3fs, mooncake, plugin"), kUsage);
  }
  Result<BackendOptions> options = backend_options(o);
  if (!options.is_ok()) return failure(options.status(), kUsage);
  if (!has_seed && ::RAND_bytes(reinterpret_cast<unsigned char*>(&o.seed), sizeof o.seed) != 1) {
    return failure(unavailable("no random numbers from the system; give --seed"), kUsage);
  }
  set_log_level(LogLevel::kWarning);  // a backend tells of each opening, into the middle of the report
  NamedHarness harness(o, std::move(*options));
  const Status prepared = harness.prepare();
  if (prepared.is_ok()) return run_checks(o, *checks, harness);
  const int exit_code = failure(prepared, kNotOpened);
  if (prepared.code() == StatusCode::kDeadlineExceeded) std::_Exit(exit_code);  // standard error has no buffer
  return exit_code;
}

}  // namespace

int conformance_command(int argc, char** argv) {
  CLI::App app("Checks whether a storage backend does what the storage port promises.", "larder conformance");
  app.get_formatter()->column_width(30);
  ConformanceOptions o;
  app.add_option("--backend", o.backend, "name of the backend: memory, file, hf3fs, mooncake, plugin")
      ->type_name("NAME");
  app.add_option("--config", o.config, "its options: a JSON object, or a .json, .toml or .yaml file")
      ->type_name("JSON|FILE");
  app.add_option("--directory", o.directory, "short for --extra directory=PATH")->type_name("PATH");
  app.add_option("--extra", o.extra, "an option of the backend; may be given again")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--destructive", o.is_destructive,
               "nothing in the store is worth keeping: clear it, fill it, shrink it");
  app.add_option("--filter", o.filter, "only checks with this text in their names")->type_name("TEXT");
  app.add_flag("--list", o.is_list, "only name the checks");
  app.add_flag("--json", o.as_json, "print JSON");
  app.add_option("--timeout", o.timeout_seconds, "after so long without an answer the backend is stuck")
      ->type_name("SECONDS")
      ->check(whole_number(1, 3600))
      ->capture_default_str();
  const CLI::Option* const seed = app.add_option("--seed", o.seed, "of keys, namespaces and sizes (random)")
                                      ->type_name("NUMBER")
                                      ->check(whole_number());
  app.footer(kFooter);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_conformance(std::move(o), seed->count() > 0);
}

}  // namespace larder
