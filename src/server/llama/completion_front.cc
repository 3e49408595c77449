// SPDX-License-Identifier: Apache-2.0
#include "server/llama/completion_front.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/json_reader.h"
#include "server/llama/llama_request.h"
#include "server/real_time_limit.h"
#include "server/ui_files.h"
#include "server/version.h"

namespace larder::llama {
namespace {

constexpr std::size_t kLookers = 8, kLooksWaiting = 256, kTellers = 4;
constexpr std::string_view kPrefix = "/larder";  // of our own routes

// It asks nobody else, or not for long (/metrics): it is answered while the server hangs, too.
bool is_own_matter(const HttpRequest& request) {
  if (request.path == "/metrics") return true;
  return request.path.starts_with("/larder/") && request.path != "/larder/explain";
}

bool asks_for_health(const HttpRequest& request) {
  return request.method == "GET" && (request.path == "/health" || request.path == "/v1/health");
}

// "host", "storage" and "backend" of /larder/status, and "tiers" in the shape of /server_info.
void add_tiers(nlohmann::ordered_json& status, const PrefixStoreCounters& counters) {
  const CacheCounters& tiers = counters.tiers;
  const std::uint64_t host_bytes = counters.host_blocks * counters.block_bytes;
  const std::uint64_t host_free = counters.host_blocks_free * counters.block_bytes;
  status["tiers"] = nlohmann::ordered_json::array();
  status["tiers"].push_back({{"tier", "host"},
                             {"component", "all"},
                             {"slots", tiers.host_resident},
                             {"capacity", 0},
                             {"bytes", host_bytes - host_free},
                             {"capacity_bytes", host_bytes}});
  status["host"] = {{"bytes", host_bytes},
                    {"bytes_free", host_free},
                    {"pages_saved", tiers.backed_up},
                    {"pages_loaded", tiers.loaded_back},
                    {"pages_resident", tiers.host_resident},
                    {"pages_evicted", tiers.host_evicted},
                    {"pages_flushed", tiers.host_flushed}};
  status["storage"] = {{"pages_stored", tiers.stored}, {"pages_fetched", tiers.prefetched}, {"corrupt", tiers.corrupt}};
  status["backend"] = nlohmann::ordered_json::parse(counters.storage_json, nullptr, false);
}

// Gauges <prefix>_host_bytes, _host_free_bytes, _host_pages; counters <prefix>_stored_pages_total,
// _corrupt_pages_total, _host_evicted_pages_total, _host_flushed_pages_total.
void set_tiers(MetricsRegistry& registry, std::string_view prefix, const PrefixStoreCounters& counters) {
  const auto set = [&](std::string_view name, const char* help, std::uint64_t value) {
    registry.gauge(fmt::format("{}_{}", prefix, name), help).set(static_cast<double>(value));
  };
  set("host_bytes", "Host memory for prefixes.", counters.host_blocks * counters.block_bytes);
  set("host_free_bytes", "Host memory for prefixes that is not used.",
      counters.host_blocks_free * counters.block_bytes);
  set("host_pages", "Pages on the host.", counters.tiers.host_resident);
  const auto count = [&](std::string_view name, const char* help, std::uint64_t total) {
    registry.counter(fmt::format("{}_{}", prefix, name), help).rise_to(total);
  };
  count("host_evicted_pages_total", "Pages that left the host to make room.", counters.tiers.host_evicted);
  count("host_flushed_pages_total", "Pages that a flush dropped from the host.", counters.tiers.host_flushed);
  count("stored_pages_total", "Pages that storage took.", counters.tiers.stored);
  count("corrupt_pages_total", "Pages of storage that failed verification.", counters.tiers.corrupt);
}

// The metrics of the store, but for the family that each registry has.
std::string storage_metrics(const PrefixStoreCounters& counters) {
  std::string text = counters.storage_metrics;
  const std::size_t begin = text.find("# HELP larder_metrics_refused_total ");
  if (begin == std::string::npos) return text;
  std::size_t end = begin;
  for (int line = 0; line < 3 && end < text.size(); ++line) end = text.find('\n', end) + 1;  // HELP, TYPE, sample
  text.erase(begin, end - begin);
  return text;
}

}  // namespace

Status CompletionFront::drain_storage(Nanos limit) {
  wait_saved();
  return store_->drain(limit);
}

void CompletionFront::on_left(std::function<void(const std::string& what)> tell) {
  if (store_) store_->on_left(std::move(tell));
}

Status CompletionFront::listen(const ListenOptions& options, const std::string& command, std::uint32_t workers,
                               MetricsRegistry& registry) {
  command_ = command;
  workers_ = std::make_unique<ThreadPoolExecutor>(command, workers, workers);
  lookers_ = std::make_unique<ThreadPoolExecutor>(command + "-look", kLookers, kLooksWaiting);
  tellers_ = std::make_unique<ThreadPoolExecutor>(command + "-tell", kTellers, kLooksWaiting);
  const auto handle = [this, command](HttpRequest request, const Exchange& exchange) {
    if (is_stopping_.load(std::memory_order_relaxed) && asks_for_health(request)) {
      return exchange->respond(error_response(503, kIsStopping));
    }
    const bool is_look = route_use(request.method, request.path) == RouteUse::kNone;
    const Status posted = (is_own_matter(request) ? tellers_
                           : is_look              ? lookers_
                                                  : workers_)
                              ->post([this, request = std::make_shared<HttpRequest>(std::move(request)), exchange] {
                                carry(*request, exchange);
                              });
    if (posted.is_ok()) return;
    HttpResponse busy =
        error_response(503, fmt::format("larder {}: too many requests are under way; try again", command));
    busy.headers.emplace_back("Retry-After", "1");
    exchange->respond(std::move(busy));
  };
  LARDER_ASSIGN_OR_RETURN(listener_, HttpListener::create(options, handle, registry));
  return Status::ok();
}

void CompletionFront::end_requests() {
  listener_.reset();
  workers_.reset();
  lookers_.reset();
  tellers_.reset();
}

HttpResponse CompletionFront::answer_own(const HttpRequest& request) {
  if (!request.is_loopback) {
    refusals_.add(request, 403);
    return error_response(403,
                          "this is for programs on this machine, which call it 127.0.0.1 or localhost; not for web "
                          "pages of other sites");
  }
  if (request.method == "GET") {
    if (request.path == "/larder/status") return status();
    if (request.path == "/larder/recent") return recent(request);
    if (request.path == "/larder/ui" || request.path.starts_with("/larder/ui/")) {
      if (auto file = ui_file(std::string_view(request.path).substr(kPrefix.size()))) return std::move(*file);
    }
  }
  if (request.path == "/larder/explain" && request.method == "POST") return explain(request);
  if (request.path == "/larder/flush" && request.method == "POST") {
    store_->flush();
    log_audit(request, 200);
    return json_response(R"({"status":"ok"})");
  }
  return error_response(
      404, "no such route: GET /larder/status, /larder/recent, /larder/ui; POST /larder/explain, /larder/flush");
}

HttpResponse CompletionFront::status() {
  const CachedTokens sums = totals();
  nlohmann::ordered_json out = {
      {"server", "larder " + command_},
      {"version", kLarderVersion},
      {"model", model_name()},
      {"page_size", format_.page_size()},
      {"slots", slots_json()},
      {"prompt_tokens", sums.prompt},
      {"cached_tokens", {{"device", sums.device}, {"host", sums.host}, {"storage", sums.storage}}}};
  add_tiers(out, store_->counters());
  return json_response(dump_json(out));
}

HttpResponse CompletionFront::recent(const HttpRequest& request) const {
  const Result<double> limit = query_number(request, "limit", kRecentRequests, kRecentRequests);
  if (!limit.is_ok()) return error_response(limit.status());
  return json_response(dump_json(recent_.json(static_cast<std::size_t>(*limit))));
}

std::string CompletionFront::export_tiers(MetricsRegistry& registry, std::string_view prefix) {
  const PrefixStoreCounters counters = store_->counters();
  set_tiers(registry, prefix, counters);
  return storage_metrics(counters);
}

HttpResponse CompletionFront::explained(ExplainedServer& server, std::uint64_t asks, const HttpRequest& request) {
  const Result<std::string> body = explain_prefix({format_, *store_, asks}, server, request.body);
  return body.is_ok() ? json_response(*body) : error_response(body.status());
}

Status close_front(std::unique_ptr<CompletionFront> front, const CloseLimits& limits,
                   const std::function<void(const std::string& what)>& leave_behind) {
  const Nanos all = limits.storage + limits.close;
  const TimeLimit limit(all, [&leave_behind, all] {
    leave_behind(fmt::format("the store has not closed within {} s",
                             std::chrono::duration_cast<std::chrono::seconds>(all).count()));
  });
  std::string left;
  front->on_left([&left](const std::string& what) { left = what; });
  Status stored = front->drain_storage(limits.storage);
  front.reset();
  if (!left.empty()) leave_behind(left);
  return stored;
}

HttpResponse metrics_response(std::string text) {
  HttpResponse response = json_response(std::move(text));
  response.content_type = std::string(MetricsRegistry::content_type());
  return response;
}

bool wants_json(const HttpRequest& request) {
  const auto format = request.query.find("format");
  return format != request.query.end() && format->second == "json";
}

std::string describe_pages(const SlotFormat& format) {
  const BlobGeometry& geometry = format.geometry;
  std::string text = fmt::format("pages of {} tokens", format.page_size());
  if (geometry.full) text += fmt::format(" ({} bytes)", geometry.full->page_bytes(format.page_size()));
  if (geometry.window) text += fmt::format(", windows of {} tokens", geometry.window_tokens);
  if (geometry.recurrent) text += fmt::format(", states of {} bytes", geometry.recurrent->checkpoint_bytes());
  return text;
}

Miss miss_beyond(const Miss& found, std::uint64_t reused) { return found.at_token < reused ? Miss{} : found; }

void add_reuse(HttpResponse& answer, std::uint64_t tokens, std::string_view from, const Miss& miss) {
  answer.headers.emplace_back("X-Larder-Reused-Tokens", std::to_string(tokens));
  answer.headers.emplace_back("X-Larder-Reused-From", std::string(from));
  const Miss told = miss.for_tenant();
  if (told.reason == MissReason::kNone) return;
  std::string text = fmt::format("{}; at_token={}", miss_reason_name(told.reason), told.at_token);
  if (told.is_loss()) text += fmt::format("; tier={}", lost_from_name(told.tier));
  answer.headers.emplace_back("X-Larder-Miss", std::move(text));
}

MissCounts::MissCounts(MetricsRegistry& registry) {
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    counters_[i] =
        &registry.counter("larder_misses_total", "Requests by why they reused no more (none: all that may be reused)",
                          {{"reason", std::string(miss_reason_name(static_cast<MissReason>(i)))}});
  }
}

void MissCounts::count(std::string_view component, const Miss& miss, std::uint64_t reused, std::uint64_t prompt) {
  counters_[static_cast<std::size_t>(miss.reason)]->increment();
  const LogLevel level = miss.reason == MissReason::kNeverSeen ? LogLevel::kDebug : LogLevel::kInfo;
  if (miss.reason == MissReason::kNone || !log_enabled(level)) return;
  log_line(level, component,
           fmt::format("a request reused {} of {} prompt tokens: {}: {}", reused, prompt, miss_reason_name(miss.reason),
                       miss_sentence(miss)));
}

}  // namespace larder::llama
