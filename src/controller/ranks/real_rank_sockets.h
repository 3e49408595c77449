// SPDX-License-Identifier: Apache-2.0
// Sockets and addresses of the network between ranks (real_tcp_ranks.h).
//
// Threads: values; functions: any. resolve_addresses() asks the system's resolver, and waits for it: seconds, where a
// name server does not answer. Nothing else waits.
// Errors: kInvalidArgument: there is no such address; kUnavailable: the system refuses, and says why.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace larder::ranks {

struct RankAddress {
  std::string host;
  std::uint16_t port = 0;  // of the leader only: 0 is any free one
};
// "HOST:PORT", "[IPv6]:PORT". kInvalidArgument: anything else.
[[nodiscard]] Result<RankAddress> parse_rank_address(std::string_view text);
// The same the other way.
[[nodiscard]] std::string rank_address_text(const RankAddress& address);

class OwnedSocket {
 public:
  explicit OwnedSocket(int socket = -1) : socket_(socket) {}
  ~OwnedSocket() { reset(); }
  OwnedSocket(OwnedSocket&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  OwnedSocket& operator=(OwnedSocket&& other) noexcept {
    if (this != &other) reset(std::exchange(other.socket_, -1));
    return *this;
  }
  void reset(int socket = -1);
  [[nodiscard]] int get() const { return socket_; }
  [[nodiscard]] bool is_open() const { return socket_ >= 0; }

 private:
  int socket_;
};

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] std::string text() const;  // "127.0.0.1:5000", "[::1]:5000"
  // No other machine reaches it.
  [[nodiscard]] bool is_of_this_machine() const;
};

// All of a name, in the system's order; at least one.
[[nodiscard]] Result<std::vector<SocketAddress>> resolve_addresses(const RankAddress& address, bool is_to_listen);
// Listens on the first of them that can be listened on; says on which port. Precondition: at least one.
[[nodiscard]] Result<OwnedSocket> listen_at(const std::vector<SocketAddress>& addresses, std::uint16_t& port);
// A socket that is connected, or about to be: finish_connecting() once it can be written to.
[[nodiscard]] Result<OwnedSocket> begin_connecting(const SocketAddress& to);
// Not ok: the connection was not made, or reaches nobody but this socket itself. (A port that nobody listens on may be
// the one that the system has chosen for this end: then it answers itself.)
[[nodiscard]] Status finish_connecting(int socket);
// Small messages go at once.
void set_prompt(int socket);

}  // namespace larder::ranks
