// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_proxy.h"
#include "server/auth.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/http_client.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/llama/gguf_file.h"
#include "engine/llama/gguf_geometry.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/json_reader.h"
#include "server/llama/completion_relay.h"
#include "server/llama/prefix_explanation.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/server_identity.h"
#include "server/llama/slot_probe.h"
#include "server/llama/slot_saver.h"
#include "server/llama/slot_table.h"
#include "server/reply_stream.h"

namespace larder::llama {
namespace {

constexpr Nanos kHealthLook = std::chrono::milliseconds(200);
constexpr Nanos kHealthLimit = std::chrono::seconds(10);  // without a byte; then a stop is looked for
constexpr Nanos kFirstLine = std::chrono::seconds(2), kLineEvery = std::chrono::minutes(1);  // of the log, meanwhile
constexpr Nanos kAskLimit = std::chrono::seconds(60);
constexpr std::string_view kBearer = "Bearer ", kKeyField = "X-Api-Key";

std::string bearer_of(const HttpRequest& request) {
  const std::string_view text = request.authorization;
  if (text.starts_with(kBearer)) return std::string(text.substr(kBearer.size()));
  const std::string* key = find_field(request.fields, kKeyField);  // as Anthropic's clients do
  return text.empty() && key != nullptr ? *key : std::string();
}

class Explained final : public ExplainedServer {
 public:
  Explained(HttpClient& client, const SlotTable& slots) : upstream_(client), slots_(slots) {}
  Result<std::string> apply_template(std::string_view body) override { return upstream_.apply_template(body); }
  Result<std::vector<TokenId>> tokenize(std::string_view text) override { return upstream_.tokenize(text); }
  SlotHit best_slot(std::span<const TokenId> prompt, const std::string& owner) override {
    return slots_.best(prompt, owner);
  }

 private:
  LlamaUpstream upstream_;
  const SlotTable& slots_;
};

class Proxy final : public LlamaProxy {
 public:
  Proxy(const ProxySettings& settings, FileSystem& files, Clock& clock, MetricsRegistry& registry)
      : settings_(settings), files_(files), clock_(clock), metrics_(registry) {}
  ~Proxy() override;

  [[nodiscard]] Status start();
  std::string url() const override { return listener_->url(); }
  std::string summary() const override;
  void stop_accepting() override { listener_->stop_accepting(); }
  bool wait_drained(Nanos limit) override { return listener_->wait_drained(limit); }
  Status drain_storage(Nanos limit) override {
    saver_->wait_idle();
    return store_->drain(limit);
  }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;

  [[nodiscard]] Status take_folder();
  [[nodiscard]] Status wait_for_server();
  [[nodiscard]] Result<SlotProbeResult> prove(LlamaUpstream& upstream, const UpstreamFacts& facts);
  [[nodiscard]] Status prove_again(LlamaUpstream& upstream, const UpstreamFacts& facts);
  // Its adapters, each with what its file has: another one may have had the same path.
  [[nodiscard]] Result<std::string> adapters_of(LlamaUpstream& upstream);

  void handle(HttpRequest request, const Exchange& exchange);
  void carry(const HttpRequest& request, const Exchange& exchange);
  void relay(const HttpRequest& request, HttpClient& client, ReplyStream& reply);
  // Ok: llama-server is the one that is known, and lets the client in.
  [[nodiscard]] Result<std::uint64_t> check(const HttpRequest& request);
  [[nodiscard]] HttpResponse answer_own(const HttpRequest& request);
  [[nodiscard]] HttpResponse explain(const HttpRequest& request);
  [[nodiscard]] HttpResponse status();
  [[nodiscard]] HttpResponse metrics(const HttpRequest& request);

  const ProxySettings settings_;
  FileSystem& files_;
  Clock& clock_;
  ProxyMetrics metrics_;
  HttpUrl upstream_;
  std::unique_ptr<FileLock> folder_;
  Digest256 model_{};  // identity of the GGUF at the start
  SlotFormat format_;
  std::string model_name_;
  std::unique_ptr<PrefixStore> store_;
  std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<SlotTable> slots_;
  std::unique_ptr<SlotSaver> saver_;
  std::unique_ptr<ServerIdentity> identity_;
  std::unique_ptr<RelayParts> parts_;
  std::unique_ptr<ThreadPoolExecutor> workers_;
  std::unique_ptr<HttpListener> listener_;  // last: its handler uses the rest
};

Proxy::~Proxy() {
  listener_.reset();  // clients are gone: their requests end
  workers_.reset();
  saver_.reset();
}

// ---- the start

Status Proxy::start() {
  const Result<HttpUrl> url = parse_http_url(settings_.upstream, settings_.upstream_ca);
  if (!url.is_ok()) return url.status();
  upstream_ = *url;
  auto trace = TraceRecorder::open(settings_.trace, files_, clock_, metrics_.registry());
  if (!trace.is_ok()) return trace.status();
  trace_ = std::move(*trace);
  LARDER_RETURN_IF_ERROR(take_folder());
  // What is wrong with it is said before llama-server loads a model of minutes.
  auto storage = PrefixStore::open_storage(settings_.store);
  if (!storage.is_ok()) return storage.status();
  LARDER_RETURN_IF_ERROR(wait_for_server());
  HttpClient client(upstream_, settings_.quiet_limit, settings_.upstream_key);
  LlamaUpstream upstream(client);
  const Result<UpstreamFacts> facts = upstream.facts();
  if (!facts.is_ok()) return facts.status();
  Result<SlotProbeResult> proven = prove(upstream, *facts);
  if (!proven.is_ok()) return proven.status();
  format_ = std::move(proven->format);
  auto store = PrefixStore::open(format_, settings_.store, std::move(*storage));
  if (!store.is_ok()) return store.status();
  store_ = std::move(*store);
  slots_ = std::make_unique<SlotTable>(facts->slots, settings_.workers, clock_);
  slots_->set_habits(proven->habits);
  saver_ = std::make_unique<SlotSaver>(
      SlotSaver::Parts{format_, *store_, files_, metrics_, settings_.slot_directory, 2 * facts->slots + 4});
  identity_ = std::make_unique<ServerIdentity>(
      *facts, *slots_, metrics_,
      [this](LlamaUpstream& again, const UpstreamFacts& now) { return prove_again(again, now); });
  parts_ = std::unique_ptr<RelayParts>(new RelayParts{format_,
                                                      *store_,
                                                      *slots_,
                                                      *saver_,
                                                      files_,
                                                      clock_,
                                                      metrics_,
                                                      *identity_,
                                                      settings_.slot_directory,
                                                      settings_.saves,
                                                      facts->slot_context,
                                                      settings_.shifts_context,
                                                      {trace_.get(), model_name_}});
  workers_ = std::make_unique<ThreadPoolExecutor>("proxy", settings_.workers, settings_.workers);
  auto listener = HttpListener::create(
      settings_.listen, [this](HttpRequest request, const Exchange& exchange) { handle(std::move(request), exchange); },
      metrics_.registry());
  if (!listener.is_ok()) return listener.status();
  listener_ = std::move(*listener);
  return Status::ok();
}

// Nobody else composes files there; what an earlier proxy has left behind goes.
Status Proxy::take_folder() {
  LARDER_RETURN_IF_ERROR(files_.make_dirs(settings_.slot_directory));
  auto lock = files_.lock(join_path(settings_.slot_directory, kProxyLockName));
  if (!lock.is_ok()) return lock.status();
  folder_ = std::move(*lock);
  const auto names = files_.list(settings_.slot_directory);
  if (!names.is_ok()) return names.status();
  for (const std::string& name : *names) {
    if (!name.starts_with("larder-") || !name.ends_with(".slot")) continue;
    LARDER_RETURN_IF_ERROR(files_.remove(join_path(settings_.slot_directory, name)));
  }
  return Status::ok();
}

Status Proxy::wait_for_server() {
  HttpClient client(upstream_, kHealthLimit, settings_.upstream_key);
  LlamaUpstream upstream(client);
  TimePoint next_line = clock_.now() + kFirstLine;
  const TimePoint end = clock_.now() + settings_.start_limit;
  RankedMutex mutex(LockRank::kServer);
  RankedCondition never;
  for (;;) {
    const Status health = upstream.check_health();
    if (health.is_ok()) return health;
    const bool is_loading = health.code() == StatusCode::kOverloaded;
    const bool may_come =
        is_loading || health.code() == StatusCode::kUnavailable || health.code() == StatusCode::kDeadlineExceeded;
    if (!may_come) return health;
    if (settings_.check_wait) LARDER_RETURN_IF_ERROR(settings_.check_wait());
    const TimePoint now = clock_.now();
    if (now >= end) return unavailable("llama-server did not become ready: " + health.message());
    if (now >= next_line) {
      log_line(is_loading ? LogLevel::kInfo : LogLevel::kWarning, "proxy",
               fmt::format("waiting for llama-server at {}: {} (up to {} min)", settings_.upstream, health.message(),
                           std::chrono::duration_cast<std::chrono::minutes>(settings_.start_limit).count()));
      next_line = now + kLineEvery;
    }
    LockGuard guard(mutex);
    never.wait_for(mutex, kHealthLook);
  }
}

Result<SlotProbeResult> Proxy::prove(LlamaUpstream& upstream, const UpstreamFacts& facts) {
  const std::string& path = settings_.model_path.empty() ? facts.model_path : settings_.model_path;
  const Result<GgufModel> gguf = read_gguf(files_, path);
  if (!gguf.is_ok()) {
    return Status(gguf.status().code(), fmt::format("the model's file cannot be read ({}): give its path with --model",
                                                    gguf.status().message()));
  }
  SlotProbeSettings probe;
  probe.model = gguf->first.text("general.name").value_or(path);
  if (store_ == nullptr) model_name_ = probe.model;  // at the start: later on others read it
  probe.directory = settings_.slot_directory;
  probe.window_tokens = sliding_window_of(gguf->first);
  probe.pools.model = gguf->identity;
  const Result<Digest256> data = settings_.hashes_data ? hash_gguf(files_, *gguf) : sample_gguf(files_, *gguf);
  if (!data.is_ok()) return data.status();
  probe.pools.data = *data;
  const Result<std::string> adapters = adapters_of(upstream);
  if (!adapters.is_ok()) return adapters.status();
  probe.pools.overrides = fmt::format("llama.cpp {}; adapters {}; {}{}", facts.build, *adapters, settings_.identity,
                                      context_identity(gguf->first, facts.slot_context));
  probe.pools.page_size = settings_.saves.page_size;
  return probe_slots(upstream, files_, probe);
}

Result<std::string> Proxy::adapters_of(LlamaUpstream& upstream) {
  Result<std::string> text = upstream.adapters();
  if (!text.is_ok()) return text;
  for (const nlohmann::json& adapter : nlohmann::json::parse(*text, nullptr, false)) {
    const auto path = adapter.is_object() ? adapter.find("path") : adapter.end();
    if (path == adapter.end() || !path->is_string()) continue;
    const Result<GgufModel> file = read_gguf(files_, path->get<std::string>());
    const Result<Digest256> data = file.is_ok() ? hash_gguf(files_, *file) : file.status();
    if (data.is_ok()) {
      *text += " " + data->hex();
    } else {
      log_warning("proxy", fmt::format("an adapter cannot be read here ({}): it is known by its path alone, so give it "
                                       "another path when you change it",
                                       data.status().message()));
    }
  }
  return text;
}

Status Proxy::prove_again(LlamaUpstream& upstream, const UpstreamFacts& facts) {
  const Result<SlotProbeResult> again = prove(upstream, facts);
  if (!again.is_ok()) return again.status();
  const SpaceDescription &now = again->format.pools.space, &then = format_.pools.space;
  const bool is_same = now.identity == then.identity && again->format.geometry == format_.geometry;
  return is_same ? Status::ok()
                 : unsupported("its model, its build, or the types of its cache differ from those at the start");
}

std::string Proxy::summary() const {
  return fmt::format("{}: {} slots, {}", model_name_, slots_->size(), describe_pages(format_));
}

// ---- requests

void Proxy::handle(HttpRequest request, const Exchange& exchange) {
  const Status posted = workers_->post(
      [this, request = std::make_shared<HttpRequest>(std::move(request)), exchange] { carry(*request, exchange); });
  if (posted.is_ok()) return;
  HttpResponse busy = error_response(503, "larder proxy: too many requests are under way; try again");
  busy.headers.emplace_back("Retry-After", "1");
  exchange->respond(std::move(busy));
}

void Proxy::carry(const HttpRequest& request, const Exchange& exchange) {
  const bool is_own = request.path.starts_with("/larder/") || (request.path == "/metrics" && request.method == "GET");
  if (is_own) return exchange->respond(answer_own(request));
  HttpClient client(upstream_, settings_.quiet_limit, bearer_of(request));
  ReplyStream reply(exchange);
  reply.on_gone([&client] { client.cancel(); });
  relay(request, client, reply);
}

Result<std::uint64_t> Proxy::check(const HttpRequest& request) {
  if (route_use(request.method, request.path) == RouteUse::kNone) return unsupported("it uses no slot");
  HttpClient theirs(upstream_, kAskLimit, bearer_of(request));
  HttpClient ours(upstream_, kAskLimit, settings_.upstream_key.empty() ? bearer_of(request) : settings_.upstream_key);
  LlamaUpstream client(theirs), own(ours);
  return identity_->check(client, own);
}

void Proxy::relay(const HttpRequest& request, HttpClient& client, ReplyStream& reply) {
  const bool is_post = request.method == "POST";
  const bool changes_adapters = is_post && request.path == "/lora-adapters";
  const bool changes_slots = is_post && request.path.starts_with("/slots/");
  CompletionRelay one(*parts_, client, reply, request);
  Status status;
  if (changes_adapters) identity_->begin_change();
  if (const Result<std::uint64_t> checked = check(request); checked.is_ok()) {
    status = one.run(*checked);
  } else {
    status = one.run_as_it_is();
  }
  const bool was_let_in = one.http_status() != 401;
  if (changes_adapters) identity_->end_change(was_let_in);
  if (changes_slots && was_let_in) slots_->forget_all();
  if (!status.is_ok()) log_warning("proxy", fmt::format("{}: {}", request.path, status.to_string()));
}

// ---- our own routes

HttpResponse Proxy::answer_own(const HttpRequest& request) {
  if (request.path == "/metrics") return metrics(request);
  if (!request.is_loopback) {
    log_audit(request, 403);
    return error_response(403, kOnlyFromHere);
  }
  const bool is_get = request.method == "GET", is_post = request.method == "POST";
  if (request.path == "/larder/status" && is_get) return status();
  if (request.path == "/larder/explain" && is_post) return explain(request);
  if (request.path == "/larder/flush" && is_post) {
    store_->flush();
    log_audit(request, 200);
    return json_response(R"({"status":"ok"})");
  }
  return error_response(404, "no such route: GET /larder/status, POST /larder/explain, POST /larder/flush");
}

HttpResponse Proxy::explain(const HttpRequest& request) {
  HttpClient client(upstream_, kAskLimit, settings_.upstream_key.empty() ? bearer_of(request) : settings_.upstream_key);
  Explained server(client, *slots_);
  const Result<std::string> body = explain_prefix({format_, *store_, parts_->ask_storage_tokens}, server, request.body);
  if (!body.is_ok()) return error_response(body.status());
  return json_response(*body);
}

HttpResponse Proxy::status() {
  const SlotTable::Use use = slots_->use();
  nlohmann::ordered_json out = {{"model", model_name_},
                                {"page_size", format_.page_size()},
                                {"slots", {{"all", slots_->size()}, {"busy", use.busy}, {"waiting", use.waiting}}}};
  add_tiers(out, store_->counters());
  return json_response(dump_json(out));
}

HttpResponse Proxy::metrics(const HttpRequest& request) {
  std::string text;
  HttpClient client(upstream_, kAskLimit, bearer_of(request));
  const Result<HttpReply> theirs = client.request("GET", "/metrics");
  if (theirs.is_ok() && theirs->status == 200) text = theirs->body;
  if (!text.empty() && text.back() != '\n') text += '\n';
  const SlotTable::Use use = slots_->use();
  MetricsRegistry& registry = metrics_.registry();
  registry.gauge("larder_proxy_slots_busy", "Slots that a request has.").set(use.busy);
  registry.gauge("larder_proxy_requests_waiting", "Requests that wait for a slot.").set(use.waiting);
  const PrefixStoreCounters counters = store_->counters();
  export_tiers(registry, "larder_proxy", counters);
  HttpResponse response;
  response.content_type = std::string(MetricsRegistry::content_type());
  response.body = text + registry.render() + storage_metrics(counters);
  return response;
}

}  // namespace

Result<std::unique_ptr<LlamaProxy>> LlamaProxy::create(const ProxySettings& settings, FileSystem& files, Clock& clock,
                                                       MetricsRegistry& registry) {
  auto proxy = std::make_unique<Proxy>(settings, files, clock, registry);
  LARDER_RETURN_IF_ERROR(proxy->start());
  return std::unique_ptr<LlamaProxy>(std::move(proxy));
}

}  // namespace larder::llama
