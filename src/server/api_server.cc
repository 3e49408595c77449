// SPDX-License-Identifier: Apache-2.0
#include "server/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "engine/request_metrics.h"
#include "server/api_error.h"
#include "server/api_info.h"
#include "server/auth.h"
#include "server/cache_admin.h"
#include "server/completion.h"
#include "server/completion_body.h"
#include "server/json_reader.h"
#include "server/metrics_json.h"
#include "server/recent_requests.h"
#include "server/refusal_log.h"
#include "server/reply_format.h"
#include "server/shared_answer.h"
#include "server/ui_files.h"

namespace larder {
namespace {

constexpr Nanos kExplainLimit = std::chrono::seconds(30);
constexpr Nanos kBetweenEndings = std::chrono::milliseconds(100);
constexpr std::size_t kAdminThreads = 4;
constexpr std::size_t kRecentRequests = 256;
constexpr std::size_t kAdminQueue = 64;
constexpr std::size_t kMostInlineBytes = 64u << 10;  // a larger body is parsed by threads of its own
constexpr std::size_t kWorkThreads = 2;              // few, as each document takes memory
constexpr std::size_t kWorkQueue = 768;
constexpr std::string_view kNoAdminKey =
    "This endpoint requires admin API key, but this server was started without one (admin-api-key). Restart with "
    "--admin-api-key to enable.";

// /health_generate: any answer will do.
class HealthFormat final : public ReplyFormat {
 public:
  void append_event(CompletionState& state, std::string&) override { state.is_end_sent = state.is_ended(); }
  void append_end(std::span<const CompletionState>, std::string&) override {}
  std::string body(std::span<const CompletionState>) override { return "{\"status\":\"ok\"}"; }
};

class Api final : public ApiServer {
 public:
  explicit Api(const ApiParts& parts)
      : scheduler_(*parts.scheduler),
        clock_(*parts.clock),
        registry_(*parts.metrics),
        trace_(parts.trace),
        options_(scheduler_.options()),
        model_(scheduler_.model()),
        next_id_(std::make_shared<std::atomic<std::uint64_t>>(1)),
        recent_(std::make_shared<RecentRequests>(kRecentRequests)),
        started_unix_seconds_(clock_.wall_unix_seconds()),
        refusals_(clock_),
        cache_admin_(scheduler_, clock_),
        server_info_("info", [this] { return make_server_info(); }),
        admin_(std::make_unique<ThreadPoolExecutor>("admin", kAdminThreads, kAdminQueue, OnShutdown::kDrop)),
        work_(std::make_unique<ThreadPoolExecutor>("work", kWorkThreads, kWorkQueue, OnShutdown::kDrop)),
        rendering_(std::make_unique<ThreadPoolExecutor>("rendering", 1, kWorkQueue, OnShutdown::kDrop)) {}

  ~Api() override {
    end_handlers();
    (void)end_blocking(std::nullopt);
    admin_.reset();
  }

  Status listen(const ListenOptions& given) {
    ListenOptions listen = given;
    listen.host = options_.host;
    listen.port = options_.port;
    listen.max_connections = options_.max_connections;
    if (!options_.ssl_certfile.empty()) listen.tls = tls_files(options_);
    auto listener = HttpListener::create(
        listen,
        [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
          handle(std::move(request), std::move(exchange));
        },
        registry_, [this](const HttpRequest& head) { return refusal(find_route(head.path), head); });
    if (!listener.is_ok()) return listener.status();
    listener_ = std::move(*listener);
    port_.store(listener_->port(), std::memory_order_relaxed);
    return Status::ok();
  }

  std::uint16_t port() const override { return port_.load(std::memory_order_relaxed); }
  std::string url() const override { return listener_->url(); }
  void announce_stop() override { is_stopping_.store(true, std::memory_order_relaxed); }
  void stop_accepting() override {
    cache_admin_.stop();
    listener_->stop_accepting();
  }
  bool wait_drained(Nanos limit) override { return listener_->wait_drained(limit); }
  void cut_off() override { open_.cut_off(unavailable("the server is stopping: this answer was cut off")); }
  Status end(Nanos limit) override {
    end_handlers();
    return end_blocking(clock_.now() + limit);
  }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Quick = void (Api::*)(const HttpRequest&, const Exchange&);  // any thread
  using Blocking = HttpResponse (*)(Api&, const HttpRequest&);
  struct Route {
    std::string_view path;
    std::string_view methods;  // "GET|PUT"
    AuthLevel level = AuthLevel::kNormal;
    Quick quick = nullptr;  // does not wait; exactly one of the two is set
    Blocking blocking = nullptr;
    bool wants_admin_key = false;  // without one: this machine only, whatever other key there is
    bool has_get_form = false;     // SGLang takes GET, too; here only with --enable-get-state-changes
    bool is_long = false;          // takes a while at any size: not on an I/O thread
  };

  static std::span<const Route> routes() {
    static constexpr AuthLevel kOpen = AuthLevel::kOpen;
    static constexpr AuthLevel kNormal = AuthLevel::kNormal;
    static constexpr AuthLevel kAdmin = AuthLevel::kAdminOptional;
    static constexpr Blocking explain = [](Api& api, const HttpRequest& r) { return api.explain(r); };
    static constexpr Blocking flush = [](Api& api, const HttpRequest& r) { return api.cache_admin_.flush(r); };
    static constexpr Blocking quiesce = [](Api& api, const HttpRequest& r) { return api.cache_admin_.quiesce(r); };
    static constexpr Blocking storage_backend = [](Api& api, const HttpRequest& r) {
      return api.cache_admin_.storage_backend(r);
    };
    static constexpr Blocking clear_storage = [](Api& api, const HttpRequest&) {
      return api.cache_admin_.clear_storage();
    };
    static constexpr Route kRoutes[] = {
        {"/generate", "POST", kNormal, &Api::generate, nullptr},
        {"/v1/completions", "POST", kNormal, &Api::completions, nullptr},
        {"/v1/chat/completions", "POST", kNormal, &Api::chat, nullptr},
        {"/v1/models", "GET", kNormal, &Api::models, nullptr},
        {"/model_info", "GET", kNormal, &Api::model_info, nullptr},
        {"/get_model_info", "GET", kNormal, &Api::model_info, nullptr},
        {"/server_info", "GET", kNormal, &Api::server_info, nullptr},
        {"/get_server_info", "GET", kNormal, &Api::server_info, nullptr},
        {"/recent_requests", "GET", kAdmin, &Api::recent_requests, nullptr},
        {"/ui", "GET", kOpen, &Api::ui, nullptr},
        {"/ui/app.js", "GET", kOpen, &Api::ui, nullptr},
        {"/ui/style.css", "GET", kOpen, &Api::ui, nullptr},
        {"/explain", "POST", kAdmin, nullptr, explain},
        {"/flush_cache", "POST", kAdmin, nullptr, flush, false, true},
        {"/quiesce", "POST", kAdmin, nullptr, quiesce},
        {"/hicache/storage-backend", "GET|PUT|DELETE", kAdmin, nullptr, storage_backend, true},
        {"/hicache/storage-backend/clear", "POST", kAdmin, nullptr, clear_storage},
        {"/clear_hicache_storage_backend", "POST", kAdmin, nullptr, clear_storage, false, true},
        {"/health", "GET", kOpen, &Api::health, nullptr},
        {"/health_generate", "GET", kOpen, &Api::health_generate, nullptr},
        {"/metrics", "GET", kOpen, &Api::metrics, nullptr, false, false, true},
    };
    return kRoutes;
  }

  void count_route(std::string_view route) {
    registry_.counter("larder_http_requests_total", "HTTP requests by route.", {{"route", std::string(route)}})
        .increment();
  }

  // Null: no such route.
  static const Route* find_route(std::string_view path) {
    const std::span<const Route> all = routes();
    const auto found = std::find_if(all.begin(), all.end(), [&](const Route& route) { return route.path == path; });
    return found == all.end() ? nullptr : &*found;
  }

  // The answer to who may not ask this, or asks in a way that the route has not; looks at the head only. The gate asks
  // it before a body is read, and handle() again.
  [[nodiscard]] std::optional<HttpResponse> refusal(const Route* route, const HttpRequest& request) {
    if (!route) {
      count_route("unknown");
      return error_response(404, fmt::format("no route {} {}; see GET /v1/models, POST /generate", request.method,
                                             request.path.substr(0, 200)));
    }
    HttpResponse refused;
    if (request.method == "OPTIONS") {
      refused = with_allow(204, *route);
    } else if (!takes(*route, request.method)) {
      refused = with_allow(405, *route);
    } else if (is_for_loopback_only(options_, route->level, route->wants_admin_key) && !request.is_loopback) {
      refused.status = 400;
      refused.body = dump_json({{"error", kNoAdminKey}});
    } else if (!is_authorized(options_, route->level, request.authorization)) {
      refused.status = 401;
      refused.body = "{\"error\":\"Unauthorized\"}";
      refused.headers.emplace_back("WWW-Authenticate", "Bearer");
    } else {
      return std::nullopt;
    }
    count_route(route->path);
    if (refused.status >= 400 && route->level == AuthLevel::kAdminOptional) refusals_.add(request, refused.status);
    return refused;
  }

  void handle(HttpRequest request, Exchange exchange) {
    const Route* route = find_route(request.path);
    if (std::optional<HttpResponse> refused = refusal(route, request)) return exchange->respond(std::move(*refused));
    count_route(route->path);
    if (!route->quick) return run_blocking(*route, std::move(request), exchange);
    const bool is_short = request.body.size() <= kMostInlineBytes && !route->is_long;
    if (is_short) return (this->*route->quick)(request, exchange);
    run_work(route->is_long ? *rendering_ : *work_, route->quick, std::move(request), exchange);
  }

  [[nodiscard]] bool takes(const Route& route, std::string_view method) const {
    if (route.has_get_form && options_.enable_get_state_changes && method == "GET") return true;
    for (std::string_view left = route.methods; !left.empty();) {
      const std::size_t bar = std::min(left.find('|'), left.size());
      if (left.substr(0, bar) == method) return true;
      left.remove_prefix(std::min(bar + 1, left.size()));
    }
    return false;
  }

  // One line for each administrative request that was let in: who, what, and how it ended. Looking that succeeds is no
  // news.
  static void audit(const Route& route, const HttpRequest& request, unsigned status) {
    if (route.level != AuthLevel::kAdminOptional) return;
    if (request.method == "GET" && !route.has_get_form && status < 400) return;
    log_audit(request, status);
  }

  HttpResponse with_allow(unsigned status, const Route& route) const {
    HttpResponse response;
    if (status == 405) {
      const std::string_view hint = route.has_get_form ? " (GET, as SGLang has it: --enable-get-state-changes)" : "";
      response = error_response(405, fmt::format("{} takes {}{}", route.path, route.methods, hint));
    }
    response.status = status;
    std::string allow(route.methods);
    if (route.has_get_form && options_.enable_get_state_changes) allow = "GET|" + allow;
    for (std::size_t bar = allow.find('|'); bar != std::string::npos; bar = allow.find('|'))
      allow.replace(bar, 1, ", ");
    response.headers.emplace_back("Allow", allow);
    return response;
  }

  void run_blocking(const Route& route, HttpRequest request, const Exchange& exchange) {
    const Status posted = admin_->post([this, &route, request = std::move(request), exchange] {
      const BlockingCall call(*this, request.method, route.path);
      if (call.is_late()) return;
      try {
        HttpResponse response = route.blocking(*this, request);
        audit(route, request, response.status);
        exchange->respond(std::move(response));
      } catch (const std::exception& error) {  // out of memory: this request fails, the server lives on
        audit(route, request, 500);
        exchange->respond(error_response(500, error.what()));
      }
    });
    if (!posted.is_ok()) exchange->respond(error_response(503, "too many administrative requests are waiting"));
  }

  // One call that an admin thread makes, while it is under way.
  class BlockingCall {
   public:
    BlockingCall(Api& api, std::string method, std::string_view path)
        : api_(api), name_(std::move(method) + " " + std::string(path)) {
      LockGuard guard(api_.blocking_mutex_);
      is_late_ = api_.is_ending_;
      api_.blocking_.push_back(this);
    }
    ~BlockingCall() {
      LockGuard guard(api_.blocking_mutex_);
      std::erase(api_.blocking_, this);
      if (api_.blocking_.empty()) api_.blocking_ended_.notify_all();
    }
    BlockingCall(const BlockingCall&) = delete;
    BlockingCall& operator=(const BlockingCall&) = delete;
    [[nodiscard]] bool is_late() const { return is_late_; }  // nobody waits for its answer
    [[nodiscard]] const std::string& name() const { return name_; }

   private:
    Api& api_;
    const std::string name_;
    bool is_late_ = false;
  };

  // No handler runs from here on; answers of the admin threads are dropped.
  void end_handlers() {
    cache_admin_.stop();
    listener_.reset();
    work_.reset();
    rendering_.reset();
  }

  // A clear or an explain may have a minute left, and nobody waits for its answer any more. Asks again and again: a
  // call may have been about to begin its wait. nullopt: waits for ever.
  Status end_blocking(std::optional<TimePoint> until) LARDER_EXCLUDES(blocking_mutex_) {
    for (;;) {
      scheduler_.end_waits();
      const Nanos left = until ? *until - clock_.now() : kBetweenEndings;
      LockGuard guard(blocking_mutex_);
      is_ending_ = true;
      if (blocking_.empty()) return Status::ok();
      if (left <= Nanos{0}) return deadline_exceeded(open_calls());
      blocking_ended_.wait_for(blocking_mutex_, std::min(left, kBetweenEndings));
    }
  }

  [[nodiscard]] std::string open_calls() const LARDER_REQUIRES(blocking_mutex_) {
    std::string names;
    for (const BlockingCall* call : blocking_) names += (names.empty() ? "" : ", ") + call->name();
    return names + (blocking_.size() == 1 ? " has not ended" : " have not ended");
  }

  // What takes a while: on an I/O thread, nobody else would be answered meanwhile.
  void run_work(ThreadPoolExecutor& threads, Quick handler, HttpRequest request, const Exchange& exchange) {
    const Status posted = threads.post([this, handler, request = std::move(request), exchange] {
      try {
        (this->*handler)(request, exchange);
      } catch (const std::exception& error) {
        exchange->respond(error_response(500, error.what()));
      }
    });
    if (!posted.is_ok()) exchange->respond(error_response(503, "too many large requests are waiting"));
  }

  // --- completions ---

  CompletionContext completion_context() const { return {&scheduler_, &clock_, next_id_, recent_, trace_}; }

  void start_completion(CompletionBody body, std::unique_ptr<ReplyFormat> format, const Exchange& exchange,
                        CompletionContext context) {
    auto completion = std::make_shared<Completion>(std::move(context), exchange, std::move(format), body.is_stream);
    auto prompts = std::make_shared<std::vector<PromptRequest>>(std::move(body.prompts));
    exchange->post([completion, prompts] { completion->start(std::move(*prompts)); });
    open_.add(completion);  // behind the start, as cut_off() is
  }

  void generate(const HttpRequest& request, const Exchange& exchange) {
    Result<CompletionBody> body = parse_generate_body(request.body, model_);
    if (!body.is_ok()) return exchange->respond(error_response(body.status()));
    GenerateFormatOptions format;
    format.storage_backend = cache_admin_.storage_name();
    format.is_batch = body->is_batch;
    start_completion(std::move(*body), make_generate_format(std::move(format)), exchange, completion_context());
  }

  void completions(const HttpRequest& request, const Exchange& exchange) {
    start_openai(parse_completions_body(request.body, model_), false, exchange);
  }

  void chat(const HttpRequest& request, const Exchange& exchange) {
    start_openai(parse_chat_body(request.body, model_), true, exchange);
  }

  void start_openai(Result<CompletionBody> body, bool is_chat, const Exchange& exchange) {
    if (!body.is_ok()) return exchange->respond(error_response(body.status()));
    OpenAiFormatOptions format;
    format.model = served_name(options_, model_);
    format.created_unix_seconds = clock_.wall_unix_seconds();
    format.is_chat = is_chat;
    format.include_usage = body->include_usage;
    format.wants_cached_details = body->wants_cached_details;
    format.storage_backend = cache_admin_.storage_name();
    start_completion(std::move(*body), make_openai_format(std::move(format)), exchange, completion_context());
  }

  // No user's request: neither traces nor numbers know of it.
  void health_generate(const HttpRequest&, const Exchange& exchange) {
    if (is_stopping_.load(std::memory_order_relaxed)) return exchange->respond(error_response(503, kIsStopping));
    CompletionBody body;
    PromptRequest prompt;
    prompt.generate.tokens = {0};
    prompt.generate.max_new_tokens = 1;
    prompt.generate.ignore_eos = true;
    prompt.generate.is_probe = true;
    body.prompts.push_back(std::move(prompt));
    CompletionContext context = completion_context();
    context.recent = nullptr;
    context.trace = nullptr;
    start_completion(std::move(body), std::make_unique<HealthFormat>(), exchange, std::move(context));
  }

  // --- what the server says about itself ---

  void health(const HttpRequest&, const Exchange& exchange) {
    if (is_stopping_.load(std::memory_order_relaxed))
      return exchange->respond(text_response(503, std::string(kIsStopping)));
    const Status health = scheduler_.health();
    exchange->respond(text_response(health.is_ok() ? 200 : 503, health.message()));
  }

  void models(const HttpRequest&, const Exchange& exchange) {
    exchange->respond(json_response(dump_json(models_json(options_, model_, started_unix_seconds_))));
  }

  void model_info(const HttpRequest&, const Exchange& exchange) {
    exchange->respond(json_response(dump_json(model_info_json(options_, model_))));
  }

  // It may wait for the scheduler, and who asks is no administrator: it must not take the threads of those who are.
  void server_info(const HttpRequest&, const Exchange& exchange) { server_info_.ask(exchange); }

  HttpResponse make_server_info() {
    nlohmann::ordered_json info = server_info_json(options_, model_, scheduler_.stats());
    info["port"] = port();
    return json_response(dump_json(info));
  }

  void metrics(const HttpRequest& request, const Exchange& exchange) {
    registry_.gauge("larder_scheduler_failed", "1: the scheduler has failed, and the server must be started again")
        .set(scheduler_.health().is_ok() ? 0 : 1);
    exchange->respond(metrics_response(request, registry_));
  }

  void recent_requests(const HttpRequest& request, const Exchange& exchange) {
    const Result<double> limit = query_number(request, "limit", kRecentRequests, kRecentRequests);
    if (!limit.is_ok()) return exchange->respond(error_response(limit.status()));
    exchange->respond(json_response(dump_json(recent_->json(static_cast<std::size_t>(*limit)))));
  }

  void ui(const HttpRequest& request, const Exchange& exchange) {
    exchange->respond(ui_file(request.path).value_or(error_response(404, "no such file")));
  }

  HttpResponse explain(const HttpRequest& request) {
    Result<CompletionBody> body = parse_generate_body(request.body, model_);
    if (!body.is_ok()) return error_response(body.status());
    if (body->is_batch) return error_response(400, "/explain takes one prompt, not a list of prompts");
    Result<Explanation> explanation = scheduler_.explain(body->prompts[0].generate, kExplainLimit);
    if (!explanation.is_ok()) return error_response(explanation.status());
    return json_response(dump_json(explain_json(*explanation, model_.page_size)));
  }

  // constant after construction
  Scheduler& scheduler_;
  Clock& clock_;
  MetricsRegistry& registry_;
  TraceRecorder* const trace_;  // null: nothing is recorded
  const Options& options_;
  const ModelSpec& model_;
  const std::shared_ptr<std::atomic<std::uint64_t>> next_id_;
  const std::shared_ptr<RecentRequests> recent_;  // completions may outlive the server
  const std::int64_t started_unix_seconds_;

  std::atomic<bool> is_stopping_{false};  // relaxed: a request that just misses it is answered as usual
  OpenCompletions open_;
  RefusalLog refusals_;
  CacheAdmin cache_admin_;
  std::atomic<std::uint16_t> port_{0};
  SharedAnswer server_info_;
  RankedMutex blocking_mutex_{LockRank::kServer};
  RankedCondition blocking_ended_;
  std::vector<const BlockingCall*> blocking_ LARDER_GUARDED_BY(blocking_mutex_);  // calls under way
  bool is_ending_ LARDER_GUARDED_BY(blocking_mutex_) = false;
  std::unique_ptr<ThreadPoolExecutor> admin_;
  std::unique_ptr<ThreadPoolExecutor> work_;       // parses large bodies
  std::unique_ptr<ThreadPoolExecutor> rendering_;  // of /metrics
  std::unique_ptr<HttpListener> listener_;         // last: its handler uses the rest
};

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::create(const ApiParts& parts) {
  auto api = std::make_unique<Api>(parts);
  const Status status = api->listen(parts.listen);
  if (!status.is_ok()) return status;
  return std::unique_ptr<ApiServer>(std::move(api));
}

}  // namespace larder
