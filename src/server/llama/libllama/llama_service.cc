// SPDX-License-Identifier: Apache-2.0
#include "server/llama/libllama/llama_service.h"

#include <build-info.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/http_field.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/llama/gguf_file.h"
#include "engine/llama/libllama/llama_host.h"
#include "engine/llama/model_pools.h"
#include "engine/llama/self_probe.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/llama/libllama/llama_calls.h"
#include "server/llama/libllama/llama_texts.h"
#include "server/llama/server_identity.h"
#include "server/metrics_json.h"
#include "server/text_table.h"

namespace larder::llama {
namespace {

constexpr std::uint32_t kSavesWaiting = 4;
constexpr std::uint32_t kProbePage = 16, kProbePages = 4;

// Where completions are asked for.
std::optional<CallKind> call_kind(std::string_view path) {
  static constexpr std::pair<std::string_view, CallKind> kRoutes[] = {
      {"/completion", CallKind::kCompletion},
      {"/completions", CallKind::kCompletion},
      {"/v1/completions", CallKind::kOpenAiCompletion},
      {"/chat/completions", CallKind::kChat},
      {"/v1/chat/completions", CallKind::kChat},
      {"/api/chat", CallKind::kChat},
      {"/responses", CallKind::kResponses},
      {"/v1/responses", CallKind::kResponses},
      {"/v1/messages", CallKind::kMessages},
      {"/infill", CallKind::kInfill},
  };
  const auto* found = std::ranges::find(kRoutes, path, &std::pair<std::string_view, CallKind>::first);
  return found == std::end(kRoutes) ? std::nullopt : std::optional(found->second);
}

class Service final : public LlamaService {
 public:
  Service(ServeSettings settings, FileSystem& files, MetricsRegistry& registry)
      : settings_(std::move(settings)), files_(files), registry_(registry), metrics_(registry) {}
  ~Service() override {
    end_requests();
    engine_.reset();
    saver_.reset();
  }

  [[nodiscard]] Status start();
  [[nodiscard]] std::string summary() const override;
  void cut_off() override { engine_->end_requests(); }

 private:
  // ---- the start
  [[nodiscard]] Status load();
  [[nodiscard]] Status prove(const GgufModel& gguf);
  [[nodiscard]] Result<ModelSettings> identity(const GgufModel& gguf) const;
  [[nodiscard]] Result<HostSettings> host_settings(std::uint32_t sequences) const;
  [[nodiscard]] bool keep(std::vector<TokenId> tokens, SequenceExport pages, const std::string& owner);
  // ---- requests
  void carry(const HttpRequest& request, const Exchange& exchange) override;
  [[nodiscard]] bool is_allowed(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse answer(const HttpRequest& request);
  void wait_saved() override { saver_->wait_idle(); }
  CachedTokens totals() const override { return totals_of(metrics_); }
  std::string model_name() const override { return model_->name; }
  nlohmann::ordered_json slots_json() override;
  HttpResponse explain(const HttpRequest& request) override;
  [[nodiscard]] HttpResponse metrics(const HttpRequest& request);

  const ServeSettings settings_;
  FileSystem& files_;
  MetricsRegistry& registry_;
  ServeMetrics metrics_;
  std::string file_name_;
  ModelHandle loaded_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<ThreadPoolExecutor> saver_;
  std::unique_ptr<LlamaHost> host_;
  std::unique_ptr<LlamaEngine> engine_;
  std::unique_ptr<CallParts> parts_;
};

// ---- the start

Status Service::start() {
  LARDER_ASSIGN_OR_RETURN(const GgufModel gguf, read_gguf(files_, settings_.model_path));
  LARDER_ASSIGN_OR_RETURN(trace_, TraceRecorder::open(settings_.trace, files_, real_clock(), registry_));
  // What is wrong with it is said before a model of minutes is loaded.
  LARDER_ASSIGN_OR_RETURN(auto storage, PrefixStore::open_storage(settings_.store));
  LARDER_RETURN_IF_ERROR(load());
  LARDER_RETURN_IF_ERROR(prove(gguf));
  LARDER_ASSIGN_OR_RETURN(store_, PrefixStore::open(format_, settings_.store, std::move(storage)));
  saver_ = std::make_unique<ThreadPoolExecutor>("saver", 1, kSavesWaiting);
  LARDER_ASSIGN_OR_RETURN(const HostSettings wanted, host_settings(settings_.slots + 1));
  LARDER_ASSIGN_OR_RETURN(host_, LlamaHost::open(*loaded_, wanted));
  const EngineSettings engine{settings_.slots, settings_.workers, settings_.saves};
  engine_ = std::make_unique<LlamaEngine>(
      *host_, format_, engine, [this](std::vector<TokenId> tokens, SequenceExport pages, const std::string& owner) {
        return keep(std::move(tokens), std::move(pages), owner);
      });
  parts_ = std::unique_ptr<CallParts>(new CallParts{*model_, *engine_, *store_, metrics_, recent_, trace_.get(),
                                                    settings_.context_tokens, settings_.slots, settings_.batch_tokens,
                                                    settings_.ask_storage_tokens});
  return listen(settings_.listen, "serve", settings_.workers, registry_);
}

Status Service::load() {
  file_name_ = settings_.model_path.substr(settings_.model_path.rfind('/') + 1);
  start_libllama();
  LARDER_ASSIGN_OR_RETURN(loaded_, load_model(settings_.model_path, static_cast<int>(settings_.gpu_layers)));
  try {
    model_ = std::make_unique<LlamaModel>(*loaded_, settings_.alias.empty() ? file_name_ : settings_.alias,
                                          settings_.chat_template, settings_.slots);
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("the chat template is wrong: {}", error.what()));
  }
  return Status::ok();
}

Result<HostSettings> Service::host_settings(std::uint32_t sequences) const {
  HostSettings host;
  host.context_tokens = settings_.context_tokens;
  host.batch_tokens = settings_.batch_tokens;
  host.sequences = sequences;
  const Result<CacheType> keys = cache_type(settings_.cache_type_k), values = cache_type(settings_.cache_type_v);
  if (!keys.is_ok()) return invalid_argument("--cache-type-k: " + keys.status().message());
  if (!values.is_ok()) return invalid_argument("--cache-type-v: " + values.status().message());
  host.keys = *keys;
  host.values = *values;
  const std::uint32_t processors = std::max(1U, std::thread::hardware_concurrency());
  host.threads = static_cast<int>(settings_.threads > 0 ? settings_.threads : std::max(1U, processors - 1));
  return host;
}

// Another build of llama.cpp may compute other numbers. What else would change them is no option of this server.
Result<ModelSettings> Service::identity(const GgufModel& gguf) const {
  ModelSettings model;
  model.model = gguf.identity;
  LARDER_ASSIGN_OR_RETURN(model.data, settings_.hashes_data ? hash_gguf(files_, gguf) : sample_gguf(files_, gguf));
  model.overrides = fmt::format("libllama {}; layers on a GPU {}{}{}", llama_build_info(), settings_.gpu_layers,
                                context_identity(gguf, settings_.context_tokens), environment_identity());
  model.page_size = settings_.saves.page_size;
  return model;
}

Status Service::prove(const GgufModel& gguf) {
  const std::uint32_t window = sliding_window_of(gguf.first);
  LARDER_ASSIGN_OR_RETURN(HostSettings small, host_settings(3));
  ProbeSettings probe;
  probe.model = file_name_;
  probe.page_size = kProbePage;
  probe.pages = std::max(kProbePages, std::min(window / kProbePage + 2, 16U));
  probe.window_tokens = window;
  probe.tolerance = settings_.gpu_layers > 0 ? 0.02F : 0;  // kernels of GPUs do not add in one order
  small.batch_tokens = kProbePage;
  small.context_tokens = 4 * probe.pages * kProbePage;
  LARDER_ASSIGN_OR_RETURN(auto host, LlamaHost::open(*loaded_, small));
  LARDER_ASSIGN_OR_RETURN(const ProbeReport report, probe_model(*host, probe));
  format_.geometry = report.geometry;
  format_.is_in_process = true;
  LARDER_ASSIGN_OR_RETURN(const ModelSettings model, identity(gguf));
  LARDER_ASSIGN_OR_RETURN(format_.pools, model_pools(format_.geometry, model));
  return Status::ok();
}

// On the engine's thread: the rest is the saver's work. When that is behind, this prefix is not kept.
bool Service::keep(std::vector<TokenId> tokens, SequenceExport pages, const std::string& owner) {
  const auto slot = SavedSlot::of_export(format_, std::move(tokens), std::move(pages));
  metrics_.saves_begun.increment();
  const Status posted = saver_->post([this, slot, owner] {
    const Status kept = store_->save(slot, slot->end(), owner).status();
    metrics_.saves.increment();
    if (kept.is_ok()) return;
    metrics_.saves_failed.increment();
    log_warning("serve", "a sequence was not kept: " + kept.to_string());
  });
  if (posted.is_ok()) return true;
  metrics_.saves.increment();
  metrics_.saves_failed.increment();
  return false;
}

std::string Service::summary() const {
  return fmt::format("{}: {}, {} tokens of context, {}", model_->name, counted_text(settings_.slots, "slot"),
                     settings_.context_tokens, describe_pages(format_));
}

// ---- requests

void Service::carry(const HttpRequest& request, const Exchange& exchange) {
  if (!is_allowed(request)) return exchange->respond(error_response(401, "a key is missing, or is not this server's"));
  const std::optional<CallKind> kind = call_kind(request.path);
  if (!kind) return exchange->respond(answer(request));
  if (request.method != "POST") return exchange->respond(error_response(405, request.path + " is for POST"));
  ReplyStream reply(exchange);
  CompletionCall(*parts_, *kind, reply, request).run();
}

bool Service::is_allowed(const HttpRequest& request) const {
  if (settings_.api_key.empty() || request.path == "/health" || request.path == "/v1/health") return true;
  if (request.path == "/larder/ui" || request.path.starts_with("/larder/ui/")) return true;  // it asks for the key
  const std::string* key = find_field(request.fields, "X-Api-Key");  // as Anthropic's clients do
  const bool is_second = request.authorization.empty() && key != nullptr;
  return is_bearer_of(settings_.api_key, is_second ? "Bearer " + *key : request.authorization);
}

HttpResponse Service::answer(const HttpRequest& request) {
  if (request.path.starts_with("/larder/")) return answer_own(request);
  const bool is_get = request.method == "GET";
  if (is_get && (request.path == "/health" || request.path == "/v1/health")) return json_response(R"({"status":"ok"})");
  if (is_get && request.path == "/metrics") return metrics(request);
  if (std::optional<HttpResponse> text = answer_text(*parts_, request)) return std::move(*text);
  return error_response(404, "no such route: " + request.path);
}

HttpResponse Service::explain(const HttpRequest& request) {
  ExplainedModel model(*parts_);
  return explained(model, settings_.ask_storage_tokens, request);
}

nlohmann::ordered_json Service::slots_json() {
  const LlamaEngine::Use use = engine_->use();
  return {{"all", use.slots}, {"busy", use.busy}, {"waiting", use.waiting}, {"set_back", use.set_back}};
}

HttpResponse Service::metrics(const HttpRequest& request) {
  const LlamaEngine::Use use = engine_->use();
  const auto set = [&](const char* name, const char* help, std::uint64_t value) {
    registry_.gauge(name, help).set(static_cast<double>(value));
  };
  set("larder_serve_slots_busy", "Slots that have a request.", use.busy);
  set("larder_serve_requests_waiting", "Requests that wait for a slot.", use.waiting);
  registry_.counter("larder_serve_requests_set_back_total", "Requests that made room for others.")
      .rise_to(use.set_back);
  registry_.counter("larder_serve_batches_total", "Batches that were computed.").rise_to(use.batches);
  const std::string storage = export_tiers(registry_, "larder_serve");
  if (wants_json(request)) return larder::metrics_response(request, registry_);
  return metrics_response(registry_.render() + storage);
}

}  // namespace

Result<std::unique_ptr<LlamaService>> LlamaService::create(const ServeSettings& settings, FileSystem& files,
                                                           MetricsRegistry& registry) {
  auto service = std::make_unique<Service>(settings, files, registry);
  LARDER_RETURN_IF_ERROR(service->start());
  return std::unique_ptr<LlamaService>(std::move(service));
}

}  // namespace larder::llama
