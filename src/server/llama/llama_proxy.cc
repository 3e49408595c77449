// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_proxy.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/http_client.h"
#include "base/log.h"
#include "base/ranked_mutex.h"
#include "engine/llama/gguf_file.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/llama/kept_gguf_hash.h"
#include "server/llama/completion_relay.h"
#include "server/llama/prefix_explanation.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/server_identity.h"
#include "server/llama/slot_probe.h"
#include "server/llama/slot_saver.h"
#include "server/llama/slot_table.h"
#include "server/metrics_json.h"
#include "server/reply_stream.h"
#include "server/text_table.h"

namespace larder::llama {
namespace {

constexpr Nanos kHealthLook = std::chrono::milliseconds(200);
constexpr Nanos kHealthLimit = std::chrono::seconds(10);  // without a byte; then a stop is looked for
constexpr Nanos kFirstLine = std::chrono::seconds(2), kLineEvery = std::chrono::minutes(1);  // of the log, meanwhile
// llama-server answers between two batches; then whoever scrapes is still there, and has ours.
constexpr Nanos kMetricsLimit = std::chrono::seconds(3);
constexpr std::string_view kBearer = "Bearer ", kKeyField = "X-Api-Key";

// As llama-server finds it: the scheme may be missing, and the second field counts where the first one is empty.
std::string key_of(const HttpRequest& request) {
  std::string_view text = request.authorization;
  const std::string* key = find_field(request.fields, kKeyField);  // as Anthropic's clients do
  if (text.empty() && key != nullptr) text = *key;
  if (text.starts_with(kBearer)) text.remove_prefix(kBearer.size());
  return std::string(text);
}

// The clients of proofs: these go on when the request that began one has left, and end with the proxy.
class ProofClients {
 public:
  // For as long as it lives.
  class Entry {
   public:
    Entry(ProofClients& all, HttpClient& client) : all_(all), client_(client) {
      LockGuard guard(all_.mutex_);
      all_.clients_.insert(&client_);
      if (all_.is_over_) client_.cancel();
    }
    ~Entry() {
      LockGuard guard(all_.mutex_);
      all_.clients_.erase(&client_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    ProofClients& all_;
    HttpClient& client_;
  };

  void end() {
    LockGuard guard(mutex_);
    is_over_ = true;
    for (HttpClient* client : clients_) client->cancel();
  }
  [[nodiscard]] bool is_over() {
    LockGuard guard(mutex_);
    return is_over_;
  }

 private:
  RankedMutex mutex_{LockRank::kServer};
  std::set<HttpClient*> clients_ LARDER_GUARDED_BY(mutex_);  // as many as requests run
  bool is_over_ LARDER_GUARDED_BY(mutex_) = false;
};

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
      : settings_(settings), files_(files), clock_(clock), metrics_(registry), whole_hash_(clock) {}
  ~Proxy() override;

  [[nodiscard]] Status start();
  std::string summary() const override;

 private:
  [[nodiscard]] Status take_folder();
  [[nodiscard]] Status remove_files();
  [[nodiscard]] Status wait_for_server();
  // What a probe of this llama-server needs; in it, all of the pages' identity that is known without one.
  [[nodiscard]] Result<SlotProbeSettings> describe(LlamaUpstream& upstream, const UpstreamFacts& facts);
  [[nodiscard]] ServerIdentity::Proof prove_again(LlamaUpstream& client, LlamaUpstream& upstream,
                                                  const UpstreamFacts& facts);
  // Its adapters, each with what its file has: another one may have had the same path.
  [[nodiscard]] Result<std::string> adapters_of(LlamaUpstream& upstream);
  // What the file of an adapter or a control vector has, " " before it; empty: it cannot be read here.
  [[nodiscard]] std::string contents_of(const std::string& path, std::string_view what);

  void carry(const HttpRequest& request, const Exchange& exchange) override;
  // asks: of the same client, what is to be known first.
  void relay(const HttpRequest& request, HttpClient& client, HttpClient& asks, ReplyStream& reply);
  // As ServerIdentity::check().
  [[nodiscard]] Result<std::optional<std::uint64_t>> check(const HttpRequest& request, LlamaUpstream& client,
                                                           const ReplyStream& reply, ServerIdentity::Stay& stay);
  void wait_saved() override { saver_->wait_idle(); }
  CachedTokens totals() const override { return totals_of(metrics_); }
  std::string model_name() const override { return model_name_; }
  nlohmann::ordered_json slots_json() override;
  HttpResponse explain(const HttpRequest& request) override;
  void tell_metrics(const HttpRequest& request, const Exchange& exchange);
  [[nodiscard]] HttpResponse metrics(const HttpRequest& request, HttpClient& client);

  const ProxySettings settings_;
  FileSystem& files_;
  Clock& clock_;
  ProxyMetrics metrics_;
  HttpUrl upstream_;
  KeptGgufHash whole_hash_;  // start()'s, then whoever's who has all slots
  ProofClients proofs_;
  std::unique_ptr<FileLock> folder_;
  std::string model_name_;
  ModelSettings proven_;  // of the llama-server at the start
  std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<SlotTable> slots_;
  std::unique_ptr<SlotSaver> saver_;
  std::unique_ptr<ServerIdentity> identity_;
  std::unique_ptr<RelayParts> parts_;
};

Proxy::~Proxy() {
  proofs_.end();
  end_requests();
  saver_.reset();
  if (folder_) (void)remove_files();
}

// ---- the start

Status Proxy::start() {
  LARDER_ASSIGN_OR_RETURN(upstream_, parse_http_url(settings_.upstream, settings_.upstream_ca));
  LARDER_ASSIGN_OR_RETURN(trace_, TraceRecorder::open(settings_.trace, files_, clock_, metrics_.registry()));
  LARDER_RETURN_IF_ERROR(take_folder());
  // What is wrong with it is said before llama-server loads a model of minutes.
  LARDER_ASSIGN_OR_RETURN(auto storage, PrefixStore::open_storage(settings_.store));
  LARDER_RETURN_IF_ERROR(wait_for_server());
  HttpClient client(upstream_, settings_.quiet_limit, settings_.upstream_key);
  LlamaUpstream upstream(client);
  LARDER_ASSIGN_OR_RETURN(const UpstreamFacts facts, ServerIdentity::ask(upstream, settings_.starts));
  LARDER_ASSIGN_OR_RETURN(const SlotProbeSettings described, describe(upstream, facts));
  model_name_ = described.model;
  proven_ = described.pools;
  LARDER_ASSIGN_OR_RETURN(SlotProbeResult proven, probe_slots(upstream, files_, described));
  format_ = std::move(proven.format);
  LARDER_ASSIGN_OR_RETURN(store_, PrefixStore::open(format_, settings_.store, std::move(storage)));
  slots_ = std::make_unique<SlotTable>(facts.slots, settings_.workers, clock_);
  slots_->set_habits(proven.habits);
  saver_ = std::make_unique<SlotSaver>(
      SlotSaver::Parts{format_, *store_, files_, metrics_, settings_.slot_directory, 2 * facts.slots + 4});
  const auto prove = [this](LlamaUpstream& asks, LlamaUpstream& own, const UpstreamFacts& now) {
    return prove_again(asks, own, now);
  };
  identity_ =
      std::make_unique<ServerIdentity>(facts, ServerIdentity::Parts{*slots_, clock_, metrics_, settings_.starts, prove,
                                                                    settings_.slots_limit, settings_.proof_pause});
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
                                                      facts.slot_context,
                                                      settings_.shifts_context,
                                                      settings_.has_full_windows,
                                                      {trace_.get(), model_name_},
                                                      recent_});
  return listen(settings_.listen, "proxy", settings_.workers, metrics_.registry());
}

// Nobody else composes files there.
Status Proxy::take_folder() {
  LARDER_RETURN_IF_ERROR(files_.make_dirs(settings_.slot_directory));
  LARDER_ASSIGN_OR_RETURN(folder_, files_.lock(join_path(settings_.slot_directory, kProxyLockName)));
  return remove_files();
}

// What a killed proxy has left behind, and at the end the files of restores: the folder may be memory.
Status Proxy::remove_files() {
  LARDER_ASSIGN_OR_RETURN(const auto names, files_.list(settings_.slot_directory));
  for (const std::string& name : names) {
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

Result<SlotProbeSettings> Proxy::describe(LlamaUpstream& upstream, const UpstreamFacts& facts) {
  if (!settings_.starts && !tells_starts_apart(facts)) {
    return unsupported(fmt::format(
        "llama-server {} does not tell its starts apart (media_marker of GET /props is '{}'), so another model that "
        "takes over at its address could be given this one's pages. Start llama-server behind --; or do not set "
        "LLAMA_MEDIA_MARKER, and use a llama-server of April 2026 or later",
        facts.build, facts.instance));
  }
  const std::string& path = settings_.model_path.empty() ? facts.model_path : settings_.model_path;
  const Result<GgufModel> gguf = read_gguf(files_, path);
  if (!gguf.is_ok()) {
    return Status(gguf.status().code(), fmt::format("the model's file cannot be read ({}): give its path with --model",
                                                    gguf.status().message()));
  }
  SlotProbeSettings probe;
  probe.model = gguf->first.text("general.name").value_or(path);
  if (hides_context(*gguf, facts.slot_context, settings_.caps_slots)) {
    return unsupported(
        fmt::format("{} cannot be cached: it chooses its factors of RoPE by the context that there is, and slots of {} "
                    "tokens may hide a larger one: leave out --kv-unified-per-slot, or give the context another size",
                    probe.model, facts.slot_context));
  }
  probe.directory = settings_.slot_directory;
  probe.window_tokens = sliding_window_of(gguf->first);
  probe.pools.model = gguf->identity;
  LARDER_ASSIGN_OR_RETURN(probe.pools.data,
                          settings_.hashes_data ? whole_hash_.of(files_, *gguf) : sample_gguf(files_, *gguf));
  LARDER_ASSIGN_OR_RETURN(const std::string adapters, adapters_of(upstream));
  std::string vectors;
  for (const std::string& one : settings_.control_vectors) vectors += contents_of(one, "a control vector");
  probe.pools.overrides = fmt::format("llama.cpp {}; adapters {}; {}{}{}{}", facts.build, adapters, settings_.identity,
                                      vectors, context_identity(*gguf, facts.slot_context), environment_identity());
  probe.pools.page_size = settings_.saves.page_size;
  return probe;
}

Result<std::string> Proxy::adapters_of(LlamaUpstream& upstream) {
  Result<std::string> text = upstream.adapters();
  if (!text.is_ok()) return text;
  for (const nlohmann::json& adapter : nlohmann::json::parse(*text, nullptr, false)) {
    const auto path = adapter.is_object() ? adapter.find("path") : adapter.end();
    if (path != adapter.end() && path->is_string()) *text += contents_of(path->get<std::string>(), "an adapter");
  }
  return text;
}

std::string Proxy::contents_of(const std::string& path, std::string_view what) {
  const Result<GgufModel> file = read_gguf(files_, path);
  const Result<Digest256> data = file.is_ok() ? hash_gguf(files_, *file) : file.status();
  if (data.is_ok()) return " " + data->hex();
  log_warning("proxy", fmt::format("{} cannot be read here ({}): it is known by its path alone, so give it another "
                                   "path when you change it",
                                   what, data.status().message()));
  return {};
}

// The probe computes some pages, so what tells another one without it comes first.
ServerIdentity::Proof Proxy::prove_again(LlamaUpstream& client, LlamaUpstream& upstream, const UpstreamFacts& facts) {
  const auto failed = [this](const Status& why) {
    return ServerIdentity::Proof{proofs_.is_over() ? cancelled("the proxy ends") : why};
  };
  const Result<SlotProbeSettings> now = describe(upstream, facts);
  if (!now.is_ok()) return failed(now.status());
  if (now->pools.model != proven_.model || now->pools.data != proven_.data) {
    return {conflict("its model is another one than at the start"), true};
  }
  if (now->pools != proven_) return {conflict("its build, its adapters or its options differ from those at the start")};
  // A request that holds no slot may be in the probe's, and stay there for long: `client` waits for less.
  if (const Status is_free = client.erase_slot(0); !is_free.is_ok()) return failed(is_free);
  const Result<SlotProbeResult> again = probe_slots(upstream, files_, *now);
  if (!again.is_ok()) return failed(again.status());
  if (again->format.geometry == format_.geometry) return {};
  return {conflict("the types of its cache differ from those at the start")};
}

std::string Proxy::summary() const {
  return fmt::format("{}: {}, {}", model_name_, counted_text(slots_->size(), "slot"), describe_pages(format_));
}

// ---- requests

void Proxy::carry(const HttpRequest& request, const Exchange& exchange) {
  if (request.path.starts_with("/larder/")) return exchange->respond(answer_own(request));
  if (request.path == "/metrics" && request.method == "GET") return tell_metrics(request, exchange);
  HttpClient client(upstream_, settings_.quiet_limit, key_of(request));
  HttpClient asks(upstream_, settings_.ask_limit, key_of(request));
  ReplyStream reply(exchange);
  reply.on_gone([&client, &asks] {
    client.cancel();
    asks.cancel();
  });
  relay(request, client, asks, reply);
}

void Proxy::tell_metrics(const HttpRequest& request, const Exchange& exchange) {
  HttpClient client(upstream_, kMetricsLimit, key_of(request));
  client.set_deadline(real_clock().now() + kMetricsLimit);
  ReplyStream reply(exchange);
  reply.on_gone([&client] { client.cancel(); });
  reply.respond(metrics(request, client));
}

Result<std::optional<std::uint64_t>> Proxy::check(const HttpRequest& request, LlamaUpstream& client,
                                                  const ReplyStream& reply, ServerIdentity::Stay& stay) {
  if (route_use(request.method, request.path) == RouteUse::kNone) {
    const bool wakes = request.method == "POST" || request.path == "/slots" || request.path == "/lora-adapters";
    if (wakes) identity_->look(client);
    return unsupported("it uses no slot");
  }
  // A proof computes, and may wait for a model that is loaded: as long as the first one, and as any request.
  HttpClient ours(upstream_, settings_.quiet_limit,
                  settings_.upstream_key.empty() ? key_of(request) : settings_.upstream_key);
  const ProofClients::Entry entry(proofs_, ours);
  LlamaUpstream own(ours);
  return identity_->check(
      client, own, [&reply] { return reply.is_gone(); }, stay);
}

void Proxy::relay(const HttpRequest& request, HttpClient& client, HttpClient& asks, ReplyStream& reply) {
  const bool is_post = request.method == "POST";
  const bool changes_adapters = is_post && request.path == "/lora-adapters";
  const bool changes_slots = is_post && request.path.starts_with("/slots/");
  bool has_ended = false;
  // Before the client has its whole answer: its next request finds the change done.
  const auto end_changes = [&](unsigned http_status) {
    if (std::exchange(has_ended, true)) return;
    const bool was_let_in = http_status != 401;
    if (changes_adapters) identity_->end_change(was_let_in);
    if ((changes_slots || changes_adapters) && was_let_in) slots_->forget_all();
  };
  CompletionRelay one(*parts_, client, reply, request, end_changes);
  ServerIdentity::Stay stay;  // ends before a slot is given back, or a proof with all slots would find it
  Status status;
  if (changes_adapters) identity_->begin_change();
  LlamaUpstream asked(asks);
  if (const auto checked = check(request, asked, reply, stay); checked.is_ok()) {
    status = one.run(*checked);
  } else {
    status = one.run_as_it_is(checked.status(), asked.is_let_in());
  }
  end_changes(one.http_status());
  if (!status.is_ok()) log_warning("proxy", fmt::format("{}: {}", request.path, status.to_string()));
}

// ---- our own routes

HttpResponse Proxy::explain(const HttpRequest& request) {
  HttpClient client(upstream_, settings_.ask_limit,
                    settings_.upstream_key.empty() ? key_of(request) : settings_.upstream_key);
  LlamaUpstream upstream(client);
  identity_->look(upstream);
  Explained server(client, *slots_);
  return explained(server, parts_->ask_storage_tokens, request);
}

nlohmann::ordered_json Proxy::slots_json() {
  const SlotTable::Use use = slots_->use();
  return {{"all", slots_->size()}, {"busy", use.busy}, {"waiting", use.waiting}};
}

HttpResponse Proxy::metrics(const HttpRequest& request, HttpClient& client) {
  const SlotTable::Use use = slots_->use();
  MetricsRegistry& registry = metrics_.registry();
  registry.gauge("larder_proxy_slots_busy", "Slots that a request has.").set(use.busy);
  registry.gauge("larder_proxy_requests_waiting", "Requests that wait for a slot.").set(use.waiting);
  const std::string storage = export_tiers(registry, "larder_proxy");
  if (wants_json(request)) return larder::metrics_response(request, registry);
  std::string text;
  const Result<HttpReply> theirs = client.request("GET", "/metrics");
  if (theirs.is_ok() && theirs->status == 200) text = theirs->body;
  if (!text.empty() && text.back() != '\n') text += '\n';
  return metrics_response(text + registry.render() + storage);
}

}  // namespace

Result<std::unique_ptr<LlamaProxy>> LlamaProxy::create(const ProxySettings& settings, FileSystem& files, Clock& clock,
                                                       MetricsRegistry& registry) {
  auto proxy = std::make_unique<Proxy>(settings, files, clock, registry);
  LARDER_RETURN_IF_ERROR(proxy->start());
  return std::unique_ptr<LlamaProxy>(std::move(proxy));
}

}  // namespace larder::llama
