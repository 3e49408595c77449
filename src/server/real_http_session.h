// SPDX-License-Identifier: Apache-2.0
// One connection of the HTTP listener, and what all connections share (internal to server/).
//
// Threads: post() any; the rest on the session's strand (post()).
// Lifetime: a session keeps itself alive while something of it is pending; the core lives as long as any session.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "server/http_listener.h"

struct ssl_ctx_st;

namespace larder {

// Whether a connection waits for a request, or for the rest of a head, and since when. What comes of a head does not
// begin a wait anew: who sends one byte by byte is as old as who sends nothing.
// Threads: began() any; the rest on the session's strand, or before it starts.
class RequestWait {
 public:
  void begin(TimePoint now) { began_.store(now, std::memory_order_relaxed); }
  // Of a connection that is to be refused: it has no place that it could give up.
  void begin_without_place() { begin(kNoPlace); }
  void end() { begin(kOff); }
  [[nodiscard]] bool is_on() const { return began() != kOff; }
  // A time that never comes: it has no place, or is asking, or being answered.
  [[nodiscard]] TimePoint began() const { return began_.load(std::memory_order_relaxed); }

 private:
  static constexpr TimePoint kOff = TimePoint::max(), kNoPlace = kOff - Nanos(1);
  std::atomic<TimePoint> began_{kOff};  // relaxed: what it says may change at once
};

class HttpSession {
 public:
  virtual ~HttpSession() = default;

  virtual void post(std::function<void()> task) = 0;
  virtual void start() = 0;
  // Answers 503 and closes.
  virtual void refuse_connection() = 0;
  virtual void stop_if_idle() = 0;
  // To make room: closes it if it still waits, and has for least_wait.
  virtual void close_for_another() = 0;
  virtual void close_now() = 0;

  RequestWait wait;
};

// What sessions share with the listener. Shared, because an exchange may outlive the listener.
struct HttpCore {
  HttpCore(const ListenOptions& o, HttpListener::Handler h, HttpListener::Gate g, MetricsRegistry& metrics);

  void count_response(unsigned status);
  // Who waits since then, or longer, may be closed for another.
  [[nodiscard]] TimePoint latest_begin() const { return real_clock().now() - options.least_wait; }

  const ListenOptions options;
  const HttpListener::Handler handler;
  const HttpListener::Gate gate;  // may be empty
  Counter& accepted;
  Counter& refused;
  Counter& closed_waiting;
  Counter& handshakes_failed;
  Gauge& open;
  MetricsRegistry& registry;
  boost::asio::io_context io;
  std::atomic<bool> stopping{false};         // relaxed: a request that just misses it is answered as usual
  std::atomic<std::uint64_t> body_bytes{0};  // of open requests; relaxed: a count
  std::atomic<std::uint64_t> next_id{1};     // relaxed: unique is enough
  const std::string id_prefix;               // of this process, so that ids of two servers differ

  RankedMutex mutex{LockRank::kServer};
  std::unordered_map<HttpSession*, std::weak_ptr<HttpSession>> sessions LARDER_GUARDED_BY(mutex);
  RankedCondition drained;  // sessions became empty
  std::size_t refusals LARDER_GUARDED_BY(mutex) = 0;
  bool closed LARDER_GUARDED_BY(mutex) = false;  // nothing is posted any more
};

// tls: null: in the clear.
[[nodiscard]] std::shared_ptr<HttpSession> make_http_session(std::shared_ptr<HttpCore> core,
                                                             boost::asio::ip::tcp::socket socket, ssl_ctx_st* tls);

}  // namespace larder
