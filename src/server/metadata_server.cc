// SPDX-License-Identifier: Apache-2.0
#include "server/metadata_server.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <map>
#include <set>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "metadata/metadata_wire.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/json_reader.h"
#include "server/metrics_json.h"

namespace larder {
namespace {

constexpr std::size_t kWaitingThreads = 8;
constexpr std::size_t kWaitingQueue = 1024;
constexpr std::size_t kQuickBodyBytes = 64u << 10;  // a larger body is parsed and answered where waiting is allowed
constexpr std::size_t kMostExported = 1024;         // namespaces, of 8 series: a registry has 10,000
constexpr std::string_view kMediaType = "application/octet-stream";

// The password of "Basic <base64 of user:password>"; none if that is not what it is.
std::optional<std::string> basic_password(std::string_view authorization) {
  constexpr std::string_view kScheme = "Basic ";
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (!authorization.starts_with(kScheme)) return std::nullopt;
  authorization.remove_prefix(kScheme.size());
  while (authorization.ends_with('=')) authorization.remove_suffix(1);
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : authorization) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    text += static_cast<char>((bits >> count) & 0xFF);
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  return text.substr(colon + 1);
}

HttpResponse unauthorized() {
  HttpResponse denied;
  denied.status = 401;
  denied.body = "{\"error\":\"Unauthorized\"}";
  denied.headers.emplace_back("WWW-Authenticate", "Bearer");
  return denied;
}

HttpResponse plain_detail(unsigned status, std::string_view text) {
  HttpResponse response;
  response.status = status;
  response.body = fmt::format("{{\"detail\":\"{}\"}}", text);
  return response;
}

class Server final : public MetadataServer {
 public:
  explicit Server(const MetadataServerParts& parts)
      : service_(*parts.service),
        registry_(*parts.metrics),
        always_waits_(parts.always_waits),
        changes_wait_(parts.changes_wait),
        reference_(service_, *parts.clock, parts.reference),
        keys_(registry_.counter("larder_metadata_keys_total", "Keys asked for, over all calls.")),
        waiting_(std::make_unique<ThreadPoolExecutor>("metadata", kWaitingThreads, kWaitingQueue, OnShutdown::kDrop)),
        rendering_(std::make_unique<ThreadPoolExecutor>("rendering", 1, kWaitingQueue, OnShutdown::kDrop)) {
    auth_.api_key = parts.api_key;
    using Call = ReferenceRoutes::Call;
    for (const Call call :
         {Call::kInitialize, Call::kExists, Call::kReserve, Call::kConfirm, Call::kDelete, Call::kClear, Call::kGet}) {
      calls_[static_cast<std::size_t>(call)] = &counter(std::string(ReferenceRoutes::name_of(call)));
    }
  }

  ~Server() override {
    listener_.reset();  // no handler runs from here on; late answers are dropped
    waiting_.reset();
    rendering_.reset();
  }

  Status listen(const ListenOptions& options) {
    auto listener = HttpListener::create(
        options,
        [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
          handle(std::move(request), std::move(exchange));
        },
        registry_, [this](const HttpRequest& head) { return refusal(head); });
    if (!listener.is_ok()) return listener.status();
    listener_ = std::move(*listener);
    port_ = listener_->port();
    return Status::ok();
  }

  std::uint16_t port() const override { return port_; }
  std::string url() const override { return listener_->url(); }
  void announce_stop() override { is_stopping_.store(true, std::memory_order_relaxed); }
  void stop_accepting() override { listener_->stop_accepting(); }
  bool wait_drained(Nanos limit) override { return listener_->wait_drained(limit); }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;

  Counter& counter(const std::string& route) {
    return registry_.counter("larder_metadata_requests_total", "Requests by route.", {{"route", route}});
  }

  bool is_allowed(const HttpRequest& request) const {
    if (is_authorized(auth_, AuthLevel::kNormal, request.authorization)) return true;
    const std::optional<std::string> password = basic_password(request.authorization);
    return password && is_authorized(auth_, AuthLevel::kNormal, "Bearer " + *password);
  }

  // The answer to who may not ask this; looks at the head only. The gate asks it before a body is read, and handle()
  // again.
  std::optional<HttpResponse> refusal(const HttpRequest& head) const {
    if (head.path == "/health" || head.path == "/metrics") return wrong_method("GET", head);
    if (is_allowed(head)) return std::nullopt;
    return unauthorized();
  }

  // None: the method is the one.
  static std::optional<HttpResponse> wrong_method(std::string_view method, const HttpRequest& request) {
    if (request.method == method) return std::nullopt;
    const bool is_question = request.method == "OPTIONS";
    HttpResponse response = plain_detail(is_question ? 204 : 405, "Method Not Allowed");
    response.headers.emplace_back("Allow", std::string(method));
    return response;
  }
  // False: it has been answered.
  static bool takes(std::string_view method, const HttpRequest& request, const Exchange& exchange) {
    std::optional<HttpResponse> wrong = wrong_method(method, request);
    if (wrong) exchange->respond(std::move(*wrong));
    return !wrong;
  }

  // Runs `work`, which gives a response, here or where waiting is allowed.
  template <class Work>
  void run(bool may_wait, const Exchange& exchange, Work work) {
    if (!may_wait && !always_waits_) return exchange->respond(work());
    run_on(*waiting_, exchange, std::move(work));
  }

  template <class Work>
  static void run_on(ThreadPoolExecutor& threads, const Exchange& exchange, Work work) {
    const Status posted = threads.post([exchange, work = std::move(work)]() mutable {
      try {
        exchange->respond(work());
      } catch (const std::exception& error) {  // out of memory: this request fails, the server lives on
        exchange->respond(error_response(500, error.what()));
      }
    });
    if (!posted.is_ok()) exchange->respond(plain_detail(503, "too many requests are waiting"));
  }

  // An I/O thread that works on a large body answers nobody else meanwhile, /health included.
  static bool is_long(const HttpRequest& request) { return request.body.size() > kQuickBodyBytes; }

  void handle(HttpRequest request, Exchange exchange) {
    if (std::optional<HttpResponse> refused = refusal(request)) return exchange->respond(std::move(*refused));
    if (request.path == "/health") return health(exchange);
    if (request.path == "/metrics") return metrics(request, exchange);
    if (request.path == "/v1/metadata") return binary(std::move(request), exchange);
    if (request.path == "/v1/stats") return stats(request, exchange);
    const std::optional<ReferenceRoutes::Route> found = ReferenceRoutes::route_of(request.path);
    if (!found) return exchange->respond(plain_detail(404, "Not Found"));
    if (!takes("POST", request, exchange)) return;
    const ReferenceRoutes::Call call = found->call;
    calls_[static_cast<std::size_t>(call)]->increment();
    const bool waits =
        is_long(request) || ReferenceRoutes::may_wait(call) || (changes_wait_ && ReferenceRoutes::changes(call));
    if (!always_waits_ && !waits) return exchange->respond(answer(*found, request.body));
    run(true, exchange, [this, request = std::move(request)] {
      return answer(*ReferenceRoutes::route_of(request.path), request.body);
    });
  }

  HttpResponse answer(const ReferenceRoutes::Route& route, std::string_view body) {
    std::uint64_t keys = 0;
    HttpResponse response = reference_.answer(route, body, keys);
    keys_.increment(keys);
    return response;
  }

  void health(const Exchange& exchange) const {
    if (is_stopping_.load(std::memory_order_relaxed)) return exchange->respond(error_response(503, kIsStopping));
    HttpResponse response;
    response.body = "{\"status\":\"ok\"}";
    exchange->respond(std::move(response));
  }

  void binary(HttpRequest request, const Exchange& exchange) {
    if (!takes("POST", request, exchange)) return;
    binary_calls_.increment();
    const metadata::WireGlance glance = metadata::glance_at(request.body);
    const bool waits = is_long(request) || glance.may_wait || (changes_wait_ && glance.changes);
    // All of the request: while it lives, its body counts.
    run(waits, exchange, [this, request = std::move(request)] {
      metadata::WireAnswer answer = metadata::answer_wire_request(service_, request.body);
      keys_.increment(answer.keys);
      HttpResponse response;
      response.status = http_status_of(answer.code);
      response.content_type = kMediaType;
      response.body = std::move(answer.bytes);
      return response;
    });
  }

  struct Figure {
    const char* name;
    std::uint64_t NamespaceStats::*value;
  };
  static constexpr Figure kPages[] = {{"free", &NamespaceStats::free},
                                      {"reserved", &NamespaceStats::reserved},
                                      {"stored", &NamespaceStats::stored},
                                      {"quarantined", &NamespaceStats::quarantined}};
  static constexpr Figure kMore[] = {{"leased", &NamespaceStats::leased},
                                     {"evicted", &NamespaceStats::evicted},
                                     {"expired", &NamespaceStats::expired},
                                     {"refused", &NamespaceStats::refused}};

  void stats(const HttpRequest& request, const Exchange& exchange) {
    if (!takes("GET", request, exchange)) return;
    run(true, exchange, [this] {
      const auto all = service_.stats();
      if (!all.is_ok()) return error_response(all.status());
      nlohmann::ordered_json namespaces = nlohmann::ordered_json::object();
      for (const auto& [name, figures] : *all) {
        nlohmann::ordered_json& out = namespaces[name.text()];
        out["pages"] = figures.pages;
        for (const Figure& figure : kPages) out[figure.name] = figures.*figure.value;
        for (const Figure& figure : kMore) out[figure.name] = figures.*figure.value;
      }
      HttpResponse response;
      response.body = dump_json({{"namespaces", std::move(namespaces)}});
      return response;
    });
  }

  // On a thread of its own: who has no key may ask this, and must not take those of the calls that need one.
  void metrics(const HttpRequest& request, const Exchange& exchange) {
    run_on(*rendering_, exchange, [this, request] {
      const auto all = service_.stats();
      if (all.is_ok()) {
        export_all(*all);
      }
      return metrics_response(request, registry_);
    });
  }

  void export_all(const std::map<MetadataNamespace, NamespaceStats>& all) LARDER_EXCLUDES(mutex_) {
    NamespaceStats others;
    LockGuard guard(mutex_);
    for (const auto& [name, figures] : all) {
      if (exported_.size() < kMostExported) exported_.insert(name);
      if (exported_.contains(name)) {
        export_figures(name.text(), figures);
        continue;
      }
      for (const Figure& figure : kPages) others.*figure.value += figures.*figure.value;
      for (const Figure& figure : kMore) others.*figure.value += figures.*figure.value;
    }
    if (all.size() > kMostExported) export_figures("others", others);
  }

  void export_figures(const std::string& name, const NamespaceStats& figures) {
    for (const Figure& figure : kPages) {
      registry_.gauge("larder_metadata_pages", "Pages by state.", {{"namespace", name}, {"state", figure.name}})
          .set(static_cast<double>(figures.*figure.value));
    }
    registry_.gauge("larder_metadata_leased_pages", "Pages that a reader may be reading.", {{"namespace", name}})
        .set(static_cast<double>(figures.leased));
    const Labels labels{{"namespace", name}};
    registry_.counter("larder_metadata_evicted_total", "Pages that were evicted.", labels).rise_to(figures.evicted);
    registry_.counter("larder_metadata_expired_total", "Reservations that ran out.", labels).rise_to(figures.expired);
    registry_.counter("larder_metadata_refused_total", "Pages that were asked for when all were in use.", labels)
        .rise_to(figures.refused);
  }

  // constant after construction
  MetadataService& service_;
  MetricsRegistry& registry_;
  const bool always_waits_;
  const bool changes_wait_;
  Options auth_;
  std::array<Counter*, 7> calls_{};
  std::uint16_t port_ = 0;

  std::atomic<bool> is_stopping_{false};  // relaxed: a request that just misses it is answered as usual
  RankedMutex mutex_{LockRank::kServer};
  std::set<MetadataNamespace> exported_ LARDER_GUARDED_BY(mutex_);  // with series of their own
  ReferenceRoutes reference_;
  Counter& keys_;
  Counter& binary_calls_ = counter("/v1/metadata");
  std::unique_ptr<ThreadPoolExecutor> waiting_;
  std::unique_ptr<ThreadPoolExecutor> rendering_;  // of /metrics
  std::unique_ptr<HttpListener> listener_;         // last: its handler uses the rest
};

}  // namespace

Result<std::unique_ptr<MetadataServer>> MetadataServer::create(const MetadataServerParts& parts) {
  auto server = std::make_unique<Server>(parts);
  LARDER_RETURN_IF_ERROR(server->listen(parts.listen));
  return std::unique_ptr<MetadataServer>(std::move(server));
}

}  // namespace larder
