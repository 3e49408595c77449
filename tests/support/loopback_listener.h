// SPDX-License-Identifier: Apache-2.0
// A listening socket on a free port of this machine, for servers that tests write by hand.
// Threads: the tests'. Whoever accepts in another thread ends before the listener does.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace larder::support {

class LoopbackListener {
 public:
  explicit LoopbackListener(int backlog) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address_;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(::listen(socket_, backlog), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address_), &size), 0);
  }
  ~LoopbackListener() { ::close(socket_); }
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  [[nodiscard]] const sockaddr_in& address() const { return address_; }
  [[nodiscard]] std::uint16_t port() const { return ntohs(address_.sin_port); }
  // -1 from end_accept() on.
  [[nodiscard]] int accept() const { return ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC); }
  void end_accept() const { ::shutdown(socket_, SHUT_RDWR); }

 private:
  const int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_{};
};

}  // namespace larder::support
