// SPDX-License-Identifier: Apache-2.0
// `larder serve --model x.gguf`: llama.cpp in this process, and an orderly stop.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_system.h"
#include "cli/commands.h"
#include "engine/text_file.h"
#ifdef LARDER_HAS_LLAMA
#include "base/metrics.h"
#include "cli/front_options.h"
#include "cli/orderly_stop.h"
#include "cli/real_log_option.h"
#include "cli/real_signals.h"
#include "cli/tls_options.h"
#include "server/auth.h"
#include "server/command_line.h"
#include "server/key_file.h"
#include "server/llama/libllama/llama_service.h"
#include "server/tls_context.h"
#include "server/version.h"
#endif

namespace larder {

bool is_for_llama(int argc, char** argv) {
  std::string_view model;  // as with other options, the last one counts
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--model" || word == "-m") model = i + 1 < argc ? argv[i + 1] : "";
    if (word.starts_with("--model=")) model = word.substr(8);
  }
  return model.ends_with(".gguf") || is_gguf_file(real_file_system(), std::string(model));
}

#ifndef LARDER_HAS_LLAMA

int serve_llama_command(int, char**) {
  std::fprintf(stderr,
               "larder serve: this larder was built without llama.cpp, and cannot serve a GGUF file by itself.\n"
               "Build it with llama.cpp (tools/llama_env.sh; cmake --preset release -DLARDER_LLAMA=ON), or put\n"
               "`larder proxy` before a llama-server: docs/llama_cpp.md.\n");
  return 2;
}

#else

namespace {

using llama::LlamaService;
using llama::ServeSettings;

struct LlamaOptions {
  ServeSettings settings;
  CacheOptions cache;
  std::string key_file, template_file;
  bool allows_no_key = false;
  StopOptions stop;
  LogOptions log;
};

void add_llama_model_options(CLI::App& app, LlamaOptions& o) {
  ServeSettings& s = o.settings;
  app.add_option("-m,--model", s.model_path, "the model's file")->required()->type_name("GGUF");
  app.add_option("-c,--ctx-size", s.context_tokens, "context of all requests together, in tokens")
      ->check(whole_number(64, 1u << 30))
      ->capture_default_str()
      ->type_name("TOKENS");
  app.add_option("-p,--parallel", s.slots, "answers at once")->check(whole_number(1, 255))->capture_default_str();
  app.add_option("-b,--batch-size", s.batch_tokens, "tokens that are computed at once")
      ->check(whole_number(16, 65536))
      ->capture_default_str()
      ->type_name("TOKENS");
  app.add_option("-t,--threads", s.threads, "threads that compute; 0: one less than there are processors")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  app.add_option("--gpu-layers", s.gpu_layers, "layers on a GPU, where llama.cpp was built for one")
      ->check(whole_number(0, 100000))
      ->capture_default_str();
  app.add_option("--cache-type-k", s.cache_type_k, "type of cached keys: f16, q8_0, ...")->capture_default_str();
  app.add_option("--cache-type-v", s.cache_type_v, "type of cached values")->capture_default_str();
  app.add_option("--alias", s.alias, "the model's name in answers; else its file's name")->type_name("NAME");
  app.add_option("--chat-template-file", o.template_file, "chat template, Jinja; else the model's own")
      ->type_name("FILE");
}

void add_llama_server_options(CLI::App& app, LlamaOptions& o) {
  ServeSettings& s = o.settings;
  s.listen.port = 8080;
  app.add_option("--host", s.listen.host, "address to listen on")->capture_default_str();
  app.add_option("--port", s.listen.port, "port to listen on; 0: any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  app.add_option("--api-key-file", o.key_file, "holds the key that requests must bring; or LARDER_API_KEY")
      ->type_name("FILE");
  add_tls_options(app, s.listen.tls);
  app.add_flag("--allow-no-key", o.allows_no_key, "other machines may use the model without a key");
  app.add_option("--max-requests", s.workers,
                 "requests at once, those that wait for a slot included; as many again wait for their turn, further "
                 "ones get 503")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  app.add_option("--max-connections", s.listen.max_connections,
                 "connections at once; then one that waits is closed, or a new one gets 503")
      ->check(whole_number(1, 65535))
      ->capture_default_str();
  add_stop_options(app, o.stop);
  add_log_options(app, o.log);
}

Status fill_settings(LlamaOptions& o) {
  ServeSettings& settings = o.settings;
  LARDER_ASSIGN_OR_RETURN(settings.store, store_options(o.cache));
  settings.saves = o.cache.saves;
  settings.trace = o.cache.trace;
  settings.hashes_data = o.cache.hashes_data;
  LARDER_RETURN_IF_ERROR(
      fill_key(settings.api_key, o.key_file, {"--api-key", "LARDER_API_KEY"}, EmptyVariable::kRefused));
  LARDER_RETURN_IF_ERROR(check_exposure(settings.listen.host, !settings.api_key.empty(), o.allows_no_key));
  LARDER_RETURN_IF_ERROR(TlsContext::check(settings.listen.tls));
  if (o.template_file.empty()) return Status::ok();
  Result<std::string> text = read_text_file(real_file_system(), o.template_file);
  if (!text.is_ok()) return with_option("--chat-template-file", text.status());
  settings.chat_template = std::move(*text);
  return Status::ok();
}

int fail(const Status& status) { return fail_server("larder serve", status); }

int run_llama(const ServeSettings& settings, const StopOptions& stop) {
  StopSignals signals;  // before any thread that takes signals
  StartWatch start;
  MetricsRegistry metrics;
  auto service = LlamaService::create(settings, real_file_system(), metrics);
  if (!service.is_ok()) return fail(service.status());
  start.end();
  tell_people(fmt::format("larder {} serve on {}\n{}\n", kLarderVersion, (*service)->url(), (*service)->summary()));

  run_until_stopped(std::move(*service), signals, stop, "serve");
  tell_people("stopped\n");
  return 0;
}

}  // namespace

int serve_llama_command(int argc, char** argv) {
  CLI::App app(
      "Serves a GGUF model by llama.cpp in this process, with the routes of llama-server: hybrid models, and sliding\n"
      "windows, resume where any earlier request has been, also after a restart.",
      "larder serve");
  app.get_formatter()->column_width(34);
  LlamaOptions options;
  add_llama_model_options(app, options);
  add_llama_server_options(app, options);
  add_cache_options(app, options.cache);
  app.footer(
      "\nExample:\n"
      "  larder serve --model model.gguf --store /var/tmp/larder\n"
      "Exit codes: 0 stopped; 1 the model cannot be cached, or a store that hangs was left behind; 2 wrong arguments.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  Status status = set_log_options(options.log);
  if (status.is_ok()) status = fill_settings(options);
  if (!status.is_ok()) return fail(status);
  return run_llama(options.settings, options.stop);
}

#endif

}  // namespace larder
