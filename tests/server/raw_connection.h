// SPDX-License-Identifier: Apache-2.0
// A connection to a server on this machine whose bytes the test sends when it likes.
// Threads: confined.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace larder {

class RawConnection {
 public:
  explicit RawConnection(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timeval patience{20, 0};
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  }
  ~RawConnection() { ::close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void send(std::string_view bytes) const { (void)::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // No more bytes come from here; those of the server are read still.
  void end_sending() const { EXPECT_EQ(::shutdown(socket_, SHUT_WR), 0); }
  // The server has closed it, and what it sent has been read.
  [[nodiscard]] bool has_ended() const {
    char byte = 0;
    return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }
  // All that comes up to `end`, or to the end of the connection.
  [[nodiscard]] std::string read_to(std::string_view end) const {
    std::string text;
    char byte = 0;
    while (!text.ends_with(end) && ::recv(socket_, &byte, 1, 0) == 1) text += byte;
    return text;
  }
  [[nodiscard]] std::string read_to_the_end() const {
    std::string text;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(socket_, bytes, sizeof bytes, 0)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  const int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

}  // namespace larder
