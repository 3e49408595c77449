// SPDX-License-Identifier: Apache-2.0
#include "cli/front_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "base/parse_number.h"
#include "cli/real_log_option.h"
#include "cli/real_service_notify.h"
#include "engine/tenant_file.h"
#include "server/command_line.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr Nanos kStorageLimit = std::chrono::seconds(60);  // for what storage has yet to take

void add_trace_options(CLI::App& app, CacheOptions& o) {
  app.add_option("--record-trace", o.trace.path, "write the requests, hashed, as a trace for larder replay")
      ->type_name("FILE");
  app.add_option("--record-trace-key", o.trace.key_file,
                 "holds the key of its hashes, so that files can be joined; none: a key is drawn at the start")
      ->type_name("FILE");
  app.add_option("--record-trace-block", o.trace.block_tokens, "tokens that one hash of the trace stands for")
      ->check(whole_number(1, 1u << 20))
      ->capture_default_str()
      ->type_name("TOKENS");
  app.add_option("--record-trace-max-size", o.trace.max_size,
                 "most bytes of the trace, also with Ki, Mi, Gi; recording ends there")
      ->capture_default_str()
      ->type_name("SIZE");
}

Result<std::uint64_t> host_bytes_of(const std::string& text) {
  const Result<std::uint64_t> bytes = parse_size_bytes(text);
  if (!bytes.is_ok() || *bytes == 0 || *bytes == kUnlimitedBytes) {
    return invalid_argument("--host-memory: '" + text + "' is no size; write 64Mi or 200G");
  }
  LARDER_RETURN_IF_ERROR(check_host_bytes("--host-memory", static_cast<double>(*bytes)));
  return bytes;
}

// As the file store reads it.
Status check_store_size(const std::string& text) {
  if (!text.ends_with('%')) return with_option("--store-size", parse_size_bytes(text).status());
  const auto percent = parse_number<std::uint64_t>(std::string_view(text).substr(0, text.size() - 1));
  if (percent && *percent >= 1 && *percent <= 100) return Status::ok();
  return invalid_argument("--store-size: '" + text + "' is no share from 1% to 100%");
}

}  // namespace

Status with_option(const char* option, const Status& status) {
  return status.is_ok() ? status : Status(status.code(), fmt::format("{}: {}", option, status.message()));
}

Status check_host_bytes(const char* option, double bytes) {
  const auto mib = [](double size) { return static_cast<std::uint64_t>(size / (1 << 20)); };
  const double machine = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes <= machine) return Status::ok();
  return invalid_argument(
      fmt::format("{}: asked for {} MiB of memory; this machine has {} MiB", option, mib(bytes), mib(machine)));
}

void add_cache_options(CLI::App& app, CacheOptions& o) {
  app.add_option("--host-memory", o.host_memory, "host memory for prefixes: bytes, also with Ki, Mi, Gi")
      ->capture_default_str()
      ->type_name("SIZE");
  CLI::Option* const store =
      app.add_option("--store", o.store, "a folder in which prefixes survive restarts; none: host memory only")
          ->type_name("DIR");
  app.add_option("--store-size", o.store_size,
                 "most bytes of the store, or a share of its disk; when it is full, what was used longest ago goes")
      ->capture_default_str()
      ->type_name("SIZE")
      ->needs(store);
  app.add_option("--kv-events-config", o.kv_events_config,
                 "tell routers of pages on the host: {\"publisher\":\"zmq\", ...}; none: nobody is told")
      ->type_name("JSON");
  app.add_option("--tenant-limits", o.tenant_limits,
                 "floors and ceilings of tenants on the host, JSON or TOML; none: no limits")
      ->type_name("FILE");
  const auto tokens = [&](const char* name, auto& value, const char* help, std::uint64_t least, std::uint64_t most) {
    app.add_option(name, value, help)->check(whole_number(least, most))->capture_default_str()->type_name("TOKENS");
  };
  tokens("--page-size", o.saves.page_size, "tokens in a page", 2, 65536);
  tokens("--checkpoint-grid", o.saves.grid,
         "a restore point after so many tokens, where nothing else asks for one; 0: none", 0, 1u << 30);
  tokens("--checkpoint-spacing", o.saves.spacing, "restore points are at least so many tokens from each other", 1,
         1u << 30);
  app.add_flag("--hash-model", o.hashes_data,
               "read all of the model for its identity, not only its head and 2,048 samples");
  add_trace_options(app, o);
}

Result<llama::PrefixStoreOptions> store_options(const CacheOptions& o) {
  llama::PrefixStoreOptions options;
  LARDER_RETURN_IF_ERROR(check_trace_options(o.trace));
  LARDER_ASSIGN_OR_RETURN(options.host_bytes, host_bytes_of(o.host_memory));
  LARDER_ASSIGN_OR_RETURN(options.events, parse_kv_event_config(o.kv_events_config));
  if (!o.tenant_limits.empty()) {
    Result<TenantLimits> limits = load_tenant_limits(o.tenant_limits);
    if (!limits.is_ok()) return with_option("--tenant-limits", limits.status());
    options.tenant_limits = std::move(*limits);
  }
  LARDER_RETURN_IF_ERROR(check_store_size(o.store_size));
  if (o.store.empty()) return options;
  options.storage = "file";
  options.storage_config = nlohmann::json{{"directory", o.store}, {"max_size", o.store_size}}.dump();
  return options;
}

void run_until_stopped(std::unique_ptr<llama::CompletionFront> front, StopSignals& signals, const StopOptions& options,
                       const char* component) {
  tell_service_is_ready();
  wait_for_stop(signals, options, fmt::format(", storage {} s", whole_seconds(kStorageLimit)),
                [&front] { front->announce_stop(); });
  end_open_requests(*front, options, component);
  const Status stored = llama::close_front(std::move(front), {kStorageLimit, kCloseLimit},
                                           [component](const std::string& what) { leave_behind(component, what); });
  if (!stored.is_ok()) log_warning(component, "storage: " + stored.message());
}

}  // namespace larder
