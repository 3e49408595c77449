// SPDX-License-Identifier: Apache-2.0
// `larder proxy`: options, a llama-server of our own or of somebody else's, and an orderly stop.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/http_client.h"
#include "cli/commands.h"
#include "cli/front_options.h"
#include "cli/orderly_stop.h"
#include "cli/real_llama_server.h"
#include "cli/real_log_option.h"
#include "cli/real_signals.h"
#include "cli/tls_options.h"
#include "server/auth.h"
#include "server/command_line.h"
#include "server/key_file.h"
#include "server/llama/llama_command.h"
#include "server/llama/llama_proxy.h"
#include "server/metadata_server.h"
#include "server/tls_context.h"
#include "server/version.h"

namespace larder {
namespace {

// Longer than llama-server is given for the answer to a question whether it is ready; then the folder goes in order.
constexpr Nanos kStartGrace = std::chrono::seconds(12);

using llama::caps_slots;
using llama::control_vectors;
using llama::has_full_windows;
using llama::key_of;
using llama::LlamaProxy;
using llama::numeric_options;
using llama::ProxySettings;
using llama::shifts_context;

struct ProxyOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  std::string upstream, slot_directory, model, identity, key_file, upstream_ca;
  TlsFiles tls;
  std::uint32_t requests = 64, max_connections = 768;
  bool shifts_context = false, caps_slots = false, has_full_windows = false;
  CacheOptions cache;
  StopOptions stop;
  LogOptions log;
  std::vector<std::string> command;
};

void add_proxy_server_options(CLI::App& app, ProxyOptions& o) {
  app.add_option("--host", o.host, "address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "port to listen on; 0: any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  add_tls_options(app, o.tls);
  app.add_option("--upstream", o.upstream, "a llama-server that runs already; else the command behind -- is started")
      ->type_name("URL");
  app.add_option("--upstream-key-file", o.key_file,
                 "holds the key for what the proxy asks llama-server by itself; else the first that is behind --")
      ->type_name("FILE");
  app.add_option("--upstream-cacert", o.upstream_ca,
                 "with an https:// URL: the authorities that may have issued its certificate, PEM; else the system's")
      ->type_name("FILE");
  app.add_option("--slot-dir", o.slot_directory,
                 "where slot files lie for a moment; with --upstream the folder of its --slot-save-path. In memory is "
                 "fastest: a fresh folder in /dev/shm, if nothing is given")
      ->type_name("DIR");
  app.add_option("--max-requests", o.requests,
                 "requests at once, those that wait for a slot included; as many again wait for their turn, further "
                 "ones get 503")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  app.add_option("--max-connections", o.max_connections,
                 "connections at once; then one that waits is closed, or a new one gets 503")
      ->check(whole_number(1, 65535))
      ->capture_default_str();
  add_stop_options(app, o.stop);
  add_log_options(app, o.log);
}

void add_proxy_model_options(CLI::App& app, ProxyOptions& o) {
  app.add_option("--model", o.model, "the model's file, if llama-server knows it by a path that is not of this machine")
      ->type_name("GGUF");
  app.add_flag("--context-shift", o.shifts_context, "with --upstream: it was started with --context-shift");
  app.add_flag("--kv-unified-per-slot", o.caps_slots, "with --upstream: it was started with --kv-unified-per-slot");
  app.add_flag("--swa-full", o.has_full_windows, "with --upstream: it was started with --swa-full");
  app.add_option("--identity", o.identity,
                 "with --upstream: what changes its numbers beside the model: RoPE, control vectors, LoRA")
      ->type_name("TEXT");
}

// A folder for slot files that goes when this does. In memory, if there is such a file system: each restore and each
// save writes and reads all of a slot.
class SlotFolder {
 public:
  [[nodiscard]] Status make() {
    const bool has_memory = real_file_system().stat(kMemory).is_ok();
    if (has_memory) remove_stale();
    LARDER_ASSIGN_OR_RETURN(path_, make_temporary_directory(kPrefix, has_memory ? kMemory : ""));
    return Status::ok();
  }
  SlotFolder() = default;
  ~SlotFolder() {
    if (!path_.empty()) remove_directory_tree(path_);
  }
  SlotFolder(const SlotFolder&) = delete;
  SlotFolder& operator=(const SlotFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static constexpr const char *kMemory = "/dev/shm", *kPrefix = "larder-proxy-";
  // Of proxies that were killed: nobody holds their lock. One that is just being made has no such file yet.
  static void remove_stale() {
    const auto names = real_file_system().list(kMemory);
    if (!names.is_ok()) return;
    for (const std::string& name : *names) {
      if (!name.starts_with(kPrefix)) continue;
      const std::string folder = join_path(kMemory, name), lock = join_path(folder, llama::kProxyLockName);
      if (!real_file_system().stat(lock).is_ok()) continue;
      if (real_file_system().lock(lock).is_ok()) remove_directory_tree(folder);
    }
  }

  std::string path_;
};

Status check_upstream(const ProxyOptions& o) {
  if (o.upstream.find_first_of(":@") == std::string::npos) {
    return invalid_argument("--upstream: '" + o.upstream + "' has no port; write http://host:port");
  }
  return with_option("--upstream", parse_http_url(o.upstream, o.upstream_ca).status());
}

Result<std::string> upstream_key(const ProxyOptions& o) {
  if (o.key_file.empty()) return o.command.empty() ? std::string() : key_of(o.command);
  Result<std::string> key = read_bearer_file(o.key_file);
  if (!key.is_ok()) return with_option("--upstream-key-file", key.status());
  return key;
}

Result<ProxySettings> settings_of(const ProxyOptions& o) {
  if (o.upstream.empty() == o.command.empty()) {
    return invalid_argument("give --upstream URL, or a llama-server to start behind --");
  }
  if (!o.upstream.empty()) LARDER_RETURN_IF_ERROR(check_upstream(o));
  if (!o.upstream.empty() && o.slot_directory.empty()) {
    return invalid_argument("--upstream needs --slot-dir: the folder of its --slot-save-path");
  }
  if (!o.command.empty() && !o.identity.empty()) {
    return invalid_argument("--identity is for --upstream; the options behind -- are known");
  }
  LARDER_RETURN_IF_ERROR(TlsContext::check(o.tls));
  ProxySettings settings;
  settings.listen.tls = o.tls;
  settings.upstream_ca = o.upstream_ca;
  settings.listen.host = o.host;
  settings.listen.port = o.port;
  settings.listen.max_connections = o.max_connections;
  settings.upstream = o.upstream;
  settings.slot_directory = o.slot_directory;
  settings.model_path = o.model;
  settings.hashes_data = o.cache.hashes_data;
  settings.identity = o.command.empty() ? o.identity : numeric_options(o.command);
  settings.control_vectors = control_vectors(o.command);
  settings.shifts_context = o.shifts_context || (!o.command.empty() && shifts_context(o.command));
  settings.caps_slots = o.caps_slots || (!o.command.empty() && caps_slots(o.command));
  settings.has_full_windows = o.has_full_windows || (!o.command.empty() && has_full_windows(o.command));
  settings.saves = o.cache.saves;
  settings.trace = o.cache.trace;
  settings.workers = o.requests;
  LARDER_ASSIGN_OR_RETURN(settings.store, store_options(o.cache));
  LARDER_ASSIGN_OR_RETURN(settings.upstream_key, upstream_key(o));
  return settings;
}

int fail_proxy(const Status& status) { return fail_server("larder proxy", status); }

int run_proxy(const ProxyOptions& options, ProxySettings settings) {
  StopSignals signals;  // before any thread that takes signals
  StartWatch start(kStartGrace);
  SlotFolder folder;
  if (settings.slot_directory.empty()) {
    const Status made = folder.make();
    if (!made.is_ok()) return fail_proxy(made);
    settings.slot_directory = folder.path();
  }
  LlamaServerProcess server([&signals] { signals.wake(); });
  settings.check_wait = [&] { return signals.is_pending() ? cancelled("a signal came") : server.check_start(); };
  if (!options.command.empty()) {
    const Status made = real_file_system().make_dirs(settings.slot_directory);
    const Status started = made.is_ok() ? server.start(options.command, settings.slot_directory) : made;
    if (!started.is_ok()) return fail_proxy(started);
    settings.upstream = server.url();
    settings.starts = [&server] { return server.starts(); };
  }
  MetricsRegistry metrics;
  auto proxy = LlamaProxy::create(settings, real_file_system(), real_clock(), metrics);
  start.end();
  if (!proxy.is_ok()) return signals.is_pending() ? 0 : fail_proxy(proxy.status());
  server.has_served();
  tell_people(fmt::format("larder {} proxy on {} before {}\n{}\n", kLarderVersion, (*proxy)->url(), settings.upstream,
                          (*proxy)->summary()));

  run_until_stopped(std::move(*proxy), signals, options.stop, "proxy");
  server.stop();
  if (server.has_given_up()) return 1;  // the log has said why; whoever watches this process may start both anew
  tell_people("stopped\n");
  return 0;
}

}  // namespace

int proxy_command(int argc, char** argv) {
  CLI::App app(
      "A reverse proxy before an unmodified llama-server: hybrid models, and sliding windows, resume where any "
      "earlier\n"
      "request has been, also after a restart.",
      "larder proxy");
  app.get_formatter()->column_width(34);
  ProxyOptions options;
  add_proxy_server_options(app, options);
  add_cache_options(app, options.cache);
  add_proxy_model_options(app, options);
  app.add_option("command", options.command, "llama-server and its options, behind --")->type_name("");
  app.footer(
      "\nExamples:\n"
      "  larder proxy --store /var/tmp/larder -- llama-server -m model.gguf -c 32768 -np 4 -fa on\n"
      "  mkdir -p /dev/shm/slots\n"
      "  llama-server -m model.gguf -fa on --port 8081 --slot-save-path /dev/shm/slots --cache-ram 0 &\n"
      "  larder proxy --upstream http://127.0.0.1:8081 --slot-dir /dev/shm/slots --store /var/tmp/larder\n"
      "Exit codes: 0 stopped; 1 llama-server or its model cannot be cached, or a store that hangs was left behind;\n"
      "2 wrong arguments.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Status status = set_log_options(options.log);
  if (!status.is_ok()) return fail_proxy(status);
  Result<ProxySettings> settings = settings_of(options);
  if (!settings.is_ok()) return fail_proxy(settings.status());
  return run_proxy(options, std::move(*settings));
}

}  // namespace larder
