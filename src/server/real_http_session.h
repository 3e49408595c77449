// SPDX-License-Identifier: Apache-2.0
// One connection of the HTTP listener, and what all connections share (internal to server/).
//
// Threads: start(), refuse_connection(), stop_if_idle() and close_now() on the session's strand (post()); post() any.
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

#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "server/http_listener.h"

struct ssl_ctx_st;

namespace larder {

class HttpSession {
 public:
  virtual ~HttpSession() = default;

  virtual void post(std::function<void()> task) = 0;
  virtual void start() = 0;
  // Answers 503 and closes.
  virtual void refuse_connection() = 0;
  virtual void stop_if_idle() = 0;
  virtual void close_now() = 0;
};

// What sessions share with the listener. Shared, because an exchange may outlive the listener.
struct HttpCore {
  HttpCore(const ListenOptions& o, HttpListener::Handler h, HttpListener::Gate g, MetricsRegistry& metrics);

  void count_response(unsigned status);

  const ListenOptions options;
  const HttpListener::Handler handler;
  const HttpListener::Gate gate;  // may be empty
  Counter& accepted;
  Counter& refused;
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
