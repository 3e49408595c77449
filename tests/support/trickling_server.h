// SPDX-License-Identifier: Apache-2.0
// A server that is never silent and never done: it answers a byte at a time.
// Threads: the tests'; it serves in one of its own, one connection after the other.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "base/thread_pool.h"
#include "tests/support/loopback_listener.h"

namespace larder::support {

class TricklingServer {
 public:
  // To the first bytes of a request `answer` comes, a byte each 50 ms, and then the connection's end.
  explicit TricklingServer(std::string answer) : answer_(std::move(answer)) {
    EXPECT_TRUE(thread_.post([this] { serve(); }).is_ok());
  }
  ~TricklingServer() {
    listener_.end_accept();
    thread_.wait_idle();
  }
  TricklingServer(const TricklingServer&) = delete;
  TricklingServer& operator=(const TricklingServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  [[nodiscard]] int connections() const { return connections_.load(); }

 private:
  void serve() {
    for (;;) {
      const int peer = listener_.accept();
      if (peer < 0) return;
      connections_.fetch_add(1);
      char request[4096];
      if (::recv(peer, request, sizeof request, 0) > 0) trickle(peer);
      ::close(peer);
    }
  }
  void trickle(int peer) const {
    for (const char byte : answer_) {
      if (::send(peer, &byte, 1, MSG_NOSIGNAL) != 1) return;
      pollfd left{peer, POLLRDHUP, 0};
      if (::poll(&left, 1, 50) != 0) return;  // the client is gone
    }
  }

  const std::string answer_;
  const LoopbackListener listener_{8};
  std::atomic<int> connections_{0};
  ThreadPoolExecutor thread_{"trickle", 1, 1};
};

}  // namespace larder::support
