// SPDX-License-Identifier: Apache-2.0
// What `larder proxy` and `larder serve` of a GGUF file have in common: how the process that runs one sees it, what
// becomes of a request until a worker carries it, and what both tell of their tiers.
//
// Threads: the public methods of a front from one thread; requests on `workers` of its own; the functions from any.
// Lifetime: who derives from it calls end_requests() in the destructor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "controller/miss.h"
#include "server/http_listener.h"
#include "server/http_message.h"
#include "server/llama/prefix_explanation.h"
#include "server/llama/prefix_store.h"
#include "server/llama/slot_pages.h"
#include "server/recent_requests.h"
#include "server/refusal_log.h"

namespace larder::llama {

class CompletionFront {
 public:
  virtual ~CompletionFront() = default;
  [[nodiscard]] std::string url() const { return listener_->url(); }
  // One line about the model: slots, pages, restore points.
  [[nodiscard]] virtual std::string summary() const = 0;
  // Before an orderly stop: /health answers 503 from now on, and all else goes on.
  void announce_stop() { is_stopping_.store(true, std::memory_order_relaxed); }
  void stop_accepting() { listener_->stop_accepting(); }
  [[nodiscard]] bool wait_drained(Nanos limit) { return listener_->wait_drained(limit); }
  // Ends open answers with an error that their clients are told, where this server writes them itself. Returns at once.
  virtual void cut_off() {}
  // Waits until storage has what was saved.
  [[nodiscard]] Status drain_storage(Nanos limit);
  // As PrefixStore::on_left().
  void on_left(std::function<void(const std::string& what)> tell);

 protected:
  using Exchange = std::shared_ptr<HttpExchange>;

  // Requests come from here on. command: "proxy". workers: requests at once, but for those that use no slot.
  [[nodiscard]] Status listen(const ListenOptions& options, const std::string& command, std::uint32_t workers,
                              MetricsRegistry& registry);
  // Clients are gone: their requests end. First in a destructor, while all is there that requests use.
  void end_requests();
  // On a thread of its own for as long as it takes: answers.
  virtual void carry(const HttpRequest& request, const Exchange& exchange) = 0;
  // What is below /larder/, to requests from this machine.
  [[nodiscard]] HttpResponse answer_own(const HttpRequest& request);
  // Brings the metrics of the tiers up to date; those that storage has itself, as text.
  [[nodiscard]] std::string export_tiers(MetricsRegistry& registry, std::string_view prefix);
  // What of a prompt `server` and the tiers would give. asks: as in ExplainParts.
  [[nodiscard]] HttpResponse explained(ExplainedServer& server, std::uint64_t asks, const HttpRequest& request);

  virtual void wait_saved() = 0;
  // Prompt tokens of all requests, and those that were reused. device: from slots.
  [[nodiscard]] virtual CachedTokens totals() const = 0;
  [[nodiscard]] virtual std::string model_name() const = 0;
  [[nodiscard]] virtual nlohmann::ordered_json slots_json() = 0;  // of /larder/status
  [[nodiscard]] virtual HttpResponse explain(const HttpRequest& request) = 0;

  SlotFormat format_;
  std::unique_ptr<PrefixStore> store_;
  RecentRequests recent_{kRecentRequests};

 private:
  static constexpr std::size_t kRecentRequests = 256;

  [[nodiscard]] HttpResponse status();
  [[nodiscard]] HttpResponse recent(const HttpRequest& request) const;

  std::string command_;
  std::atomic<bool> is_stopping_{false};  // relaxed: a request that just misses it is answered as usual
  RefusalLog refusals_{real_clock()};
  std::unique_ptr<ThreadPoolExecutor> workers_;
  std::unique_ptr<ThreadPoolExecutor> lookers_;  // of requests that use no slot: health and metrics of a full server
  std::unique_ptr<ThreadPoolExecutor> tellers_;  // of what is told without the server, whoever waits for that
  std::unique_ptr<HttpListener> listener_;       // last: its handler uses the rest
};

struct CloseLimits {
  Nanos storage;  // for what it has yet to take
  Nanos close;    // beyond that
};
// Lets storage take what was saved, and ends `front`. What hangs cannot be ended, and `leave_behind` is called with
// words for it, which should end the process: on another thread after both limits, or on this one where `front` has
// left a write or a read of its store behind. kDeadlineExceeded: storage has not taken all.
[[nodiscard]] Status close_front(std::unique_ptr<CompletionFront> front, const CloseLimits& limits,
                                 const std::function<void(const std::string& what)>& leave_behind);

[[nodiscard]] HttpResponse metrics_response(std::string text);
// GET /metrics?format=json, which has our own metrics alone.
[[nodiscard]] bool wants_json(const HttpRequest& request);
// CompletionFront::totals() of the counters that ProxyMetrics and ServeMetrics have.
template <class Metrics>
[[nodiscard]] CachedTokens totals_of(const Metrics& metrics) {
  CachedTokens sums;
  sums.prompt = metrics.prompt_tokens.value();
  sums.device = metrics.slot_tokens.value();
  sums.host = metrics.host_tokens.value();
  sums.storage = metrics.storage_tokens.value();
  return sums;
}
// "pages of 64 tokens (33536 bytes), windows of 32 tokens, states of 38980 bytes"
[[nodiscard]] std::string describe_pages(const SlotFormat& format);
// Why no more of a prompt was reused than `reused` tokens. kNone: nothing of what the lookup missed lies behind them (a
// slot had more than host memory and storage).
[[nodiscard]] Miss miss_beyond(const Miss& found, std::uint64_t reused);
// X-Larder-Reused-Tokens and X-Larder-Reused-From; and X-Larder-Miss: "evicted; at_token=512; tier=host", of what a
// tenant may know.
void add_reuse(HttpResponse& answer, std::uint64_t tokens, std::string_view from, const Miss& miss);

// larder_misses_total{reason}, and a line in the log: at info, or at debug where new tokens alone explain it.
class MissCounts {
 public:
  explicit MissCounts(MetricsRegistry& registry);
  // component: of the log.
  void count(std::string_view component, const Miss& miss, std::uint64_t reused, std::uint64_t prompt);

 private:
  std::array<Counter*, kMissReasons> counters_{};
};

}  // namespace larder::llama
