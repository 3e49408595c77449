// SPDX-License-Identifier: Apache-2.0
// `larder serve`: options, scheduler, HTTP; and an orderly stop.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/file_system.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/front_options.h"
#include "cli/orderly_stop.h"
#include "cli/real_log_option.h"
#include "cli/real_service_notify.h"
#include "cli/real_signals.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "engine/sglang_options.h"
#include "server/api_info.h"
#include "server/api_server.h"
#include "server/auth.h"
#include "server/command_line.h"
#include "server/key_file.h"
#include "server/real_time_limit.h"
#include "server/text_table.h"
#include "server/tls_context.h"
#include "server/trace/trace_recorder.h"
#include "server/version.h"

namespace larder {
namespace {

constexpr Nanos kAdminCallLimit = std::chrono::seconds(10);  // for an attach or a detach that is under way
constexpr Nanos kBackupLimit = std::chrono::seconds(60);     // for what is not in storage yet

// Headings of --help; options that are not named here come under "Other".
std::string group_of(std::string_view name) {
  static const std::map<std::string_view, const char*, std::less<>> kGroups = {
      {"model", "Model"},
      {"page-size", "Model"},
      {"context-length", "Model"},
      {"max-running-requests", "Engine"},
      {"max-queued-requests", "Engine"},
      {"chunked-prefill-size", "Engine"},
      {"num-reserved-decode-tokens", "Engine"},
      {"threads", "Engine"},
      {"random-seed", "Engine"},
      {"max-total-tokens", "Device tier (L1)"},
      {"max-mamba-cache-size", "Device tier (L1)"},
      {"swa-full-tokens-ratio", "Device tier (L1)"},
      {"checkpoint-grid", "Device tier (L1)"},
      {"radix-eviction-policy", "Device tier (L1)"},
      {"tenant-limits", "Device tier (L1)"},
      {"disable-radix-cache", "Device tier (L1)"},
      {"device", "Device tier (L1)"},
      {"enable-hierarchical-cache", "Host tier (L2)"},
      {"exclusive-tiers", "Host tier (L2)"},
      {"disable-hierarchical-cache", "Host tier (L2)"},
      {"hicache-ratio", "Host tier (L2)"},
      {"hicache-size", "Host tier (L2)"},
      {"hicache-write-policy", "Host tier (L2)"},
      {"hicache-mem-layout", "Host tier (L2)"},
      {"hicache-storage-backend", "Storage tier (L3)"},
      {"hicache-storage-prefetch-policy", "Storage tier (L3)"},
      {"hicache-storage-backend-extra-config", "Storage tier (L3)"},
      {"host", "Server"},
      {"port", "Server"},
      {"max-connections", "Server"},
      {"api-key", "Server"},
      {"admin-api-key", "Server"},
      {"api-key-file", "Server"},
      {"admin-api-key-file", "Server"},
      {"ssl-certfile", "Server"},
      {"ssl-keyfile", "Server"},
      {"ssl-ca-certs", "Server"},
      {"allow-no-key", "Server"},
      {"enable-get-state-changes", "Server"},
      {"allow-storage-library", "Storage tier (L3)"},
      {"kv-events-config", "Server"},
      {"stop-wait", "Server"},
      {"stop-delay", "Server"},
      {"record-trace", "Trace"},
      {"record-trace-key", "Trace"},
      {"record-trace-block", "Trace"},
      {"record-trace-max-size", "Trace"},
      {"served-model-name", "Server"},
      {"log-level", "Server"},
      {"log-format", "Server"},
      {"hicache-state-on-device-only", "Control runs (what is a tier worth?)"},
      {"hicache-kv-on-device-only", "Control runs (what is a tier worth?)"},
  };
  const auto found = kGroups.find(name);
  return found == kGroups.end() ? "Other" : found->second;
}

struct CommandLine {
  std::vector<GivenOption> given;        // in the order of the command line's parser
  std::map<std::string, bool> switches;  // all that there are
  std::string config_path;
};

void add_serve_options(CLI::App& app, CommandLine& line) {
  app.add_option("--config", line.config_path, "options from a .toml, .yaml or .json file; the command line wins")
      ->type_name("FILE");
  for (const OptionInfo& info : option_infos()) {
    const std::string name(info.name);
    const std::string help(info.help);
    if (info.value.empty()) {
      app.add_flag("--" + name, line.switches[name], help)->group(group_of(info.name));
    } else {
      app.add_option_function<std::string>(
             "--" + name,
             [&line, name](const std::string& text) {
               line.given.push_back({name, text});
             },
             help)
          ->type_name(std::string(info.value))
          ->group(group_of(info.name))
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

// Options of SGLang, which --help does not list: set_option() has an answer to each.
void add_sglang_options(CLI::App& app, CommandLine& line) {
  for (const SglangOption& option : sglang_options()) {
    std::string_view names = option.names;
    while (!names.empty()) {
      const std::string name(names.substr(0, names.find(", ")));
      names.remove_prefix(std::min(names.size(), name.size() + 2));
      if (option.value.empty()) {
        app.add_flag("--" + name, line.switches[name])->group("");
      } else {
        app.add_option_function<std::string>("--" + name,
                                             [&line, name](const std::string& text) {
                                               line.given.push_back({name, text});
                                             })
            ->group("")
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
    }
  }
}

// Those that are there, with what they are set to.
void take_switches(const CLI::App& app, CommandLine& line) {
  for (const auto& [name, is_on] : line.switches) {
    if (app.count("--" + name) > 0) line.given.push_back({name, is_on ? "true" : "false"});
  }
}

TraceOptions trace_options(const Options& options) {
  return {options.record_trace, options.record_trace_key, options.record_trace_block, options.record_trace_max_size};
}

// The file first, then the command line.
Status fill_options(const CommandLine& line, Options& options) {
  if (!line.config_path.empty()) LARDER_RETURN_IF_ERROR(set_options_from_file(options, line.config_path));
  return set_options(options, line.given);
}

Status fill_keys_and_check(Options& options) {
  LARDER_RETURN_IF_ERROR(
      fill_key(options.api_key, options.api_key_file, {"--api-key", "LARDER_API_KEY"}, EmptyVariable::kRefused));
  LARDER_RETURN_IF_ERROR(fill_key(options.admin_api_key, options.admin_api_key_file,
                                  {"--admin-api-key", "LARDER_ADMIN_API_KEY"}, EmptyVariable::kRefused));
  LARDER_RETURN_IF_ERROR(check_exposure(options.host, !options.api_key.empty(), options.allow_no_key));
  LARDER_RETURN_IF_ERROR(TlsContext::check(tls_files(options)));
  LARDER_RETURN_IF_ERROR(check_trace_options(trace_options(options)));
  LARDER_RETURN_IF_ERROR(check_host_bytes("--hicache-size", options.hicache_size_gb * 1e9));
  return validate_options(options);
}

std::string capacity_table(const SchedulerStats& stats) {
  TextTable table({"tier", "component", "slots", "capacity"});
  for (const TierUsage& tier : stats.tiers) {
    if (tier.tier == "storage") continue;
    table.add_row({tier.tier, tier.component, count_text(tier.capacity), bytes_text(tier.capacity_bytes)});
  }
  if (stats.storage) {  // no fixed size: what is there already
    table.add_row({"storage", "", count_text(stats.storage->pages) + " pages found",
                   bytes_text(stats.storage->physical_bytes) + " used"});
  }
  return table.text(2);
}

int fail_serve(const Status& status) { return fail_server("larder serve", status); }

// A storage that hangs keeps neither the backups of the others nor the process: each step has a limit.
void stop(std::unique_ptr<ApiServer> api, std::unique_ptr<Scheduler> scheduler, std::unique_ptr<TraceRecorder> trace,
          const StopOptions& options) {
  end_open_requests(*api, options, "serve");
  Status calls = api->end(kAdminCallLimit);
  if (!calls.is_ok()) log_warning("serve", calls.message() + ": the stop goes on");
  const Status backups = scheduler->quiesce(kBackupLimit);
  if (!backups.is_ok()) log_warning("serve", "backups: " + backups.to_string());
  const TimeLimit limit(kCloseLimit, [] {
    leave_behind("serve", fmt::format("a storage has not closed within {} s", whole_seconds(kCloseLimit)));
  });
  trace.reset();
  if (!calls.is_ok()) {
    // What is attached closes in order.
    if (!scheduler->storage().backend.empty()) (void)scheduler->detach_storage(kAdminCallLimit);
    calls = api->end(Nanos{0});
    if (!calls.is_ok()) leave_behind("serve", calls.message());
  }
  api.reset();
  scheduler.reset();
}

int serve(const Options& options) {
  StopSignals signals;  // before any thread that takes signals
  StartWatch start;
  MetricsRegistry metrics;
  auto trace = TraceRecorder::open(trace_options(options), real_file_system(), real_clock(), metrics);
  if (!trace.is_ok()) return fail_serve(trace.status());
  auto scheduler = Scheduler::create(options, real_file_system(), real_clock(), metrics);
  if (!scheduler.is_ok()) return fail_serve(scheduler.status());
  const std::string warning = reuse_warning((*scheduler)->model());
  if (!warning.empty()) log_warning("serve", warning);
  auto api = ApiServer::create({scheduler->get(), &real_clock(), &metrics, {}, trace->get()});
  if (!api.is_ok()) return fail_serve(api.status());
  start.end();

  const ModelSpec& model = (*scheduler)->model();
  tell_people(fmt::format("larder {} listening on {} (model {}, page {} tokens, context {} tokens)\n{}", kLarderVersion,
                          (*api)->url(), served_name(options, model), model.page_size, model.context_length,
                          capacity_table((*scheduler)->stats())));

  tell_service_is_ready();
  const StopOptions stopping{options.stop_wait, options.stop_delay};
  wait_for_stop(signals, stopping, fmt::format(", backups {} s", whole_seconds(kBackupLimit)),
                [&api] { (*api)->announce_stop(); });
  stop(std::move(*api), std::move(*scheduler), std::move(*trace), stopping);
  tell_people("stopped\n");
  return 0;
}

}  // namespace

int serve_command(int argc, char** argv) {
  if (is_for_llama(argc, argv)) return serve_llama_command(argc, argv);
  CLI::App app(
      "Serves a model over HTTP: /generate, /v1/completions, /v1/chat/completions, /v1/models, /server_info,\n"
      "/metrics, /health, /flush_cache, /quiesce, /explain. Defaults stand in (parentheses). A GGUF file is served by\n"
      "llama.cpp, with other options: larder serve --model x.gguf --help.",
      "larder serve");
  app.get_formatter()->column_width(56);
  CommandLine line;
  add_serve_options(app, line);
  add_sglang_options(app, line);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  take_switches(app, line);
  Options options;
  Status status = fill_options(line, options);
  if (status.is_ok()) {
    const Status logs = set_log_options({options.log_level, options.log_format});  // before anything logs
    if (!logs.is_ok()) return fail_serve(logs);
    status = fill_keys_and_check(options);
  }
  if (!status.is_ok()) {
    (void)fail_serve(status);
    return 2;  // a file that cannot be read, too
  }
  for (const std::string& name : options.without_effect) {
    log_warning("serve", about_sglang_option(*find_sglang_option(name), name));
  }
  return serve(options);
}

}  // namespace larder
