// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/real_rank_sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/parse_number.h"

namespace larder::ranks {
namespace {

Status socket_failure(const std::string& what, int error) {
  return unavailable("rank group: " + what + ": " + std::strerror(error));
}

Result<OwnedSocket> open_socket(const SocketAddress& address) {
  OwnedSocket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int error = errno;
  if (!socket.is_open()) return socket_failure("a socket for " + address.text(), error);
  return socket;
}

Result<OwnedSocket> listen_at_one(const SocketAddress& address, std::uint16_t& port) {
  Result<OwnedSocket> socket = open_socket(address);
  if (!socket.is_ok()) return socket;
  const int on = 1;
  (void)::setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  SocketAddress bound;
  if (::bind(socket->get(), address.get(), address.size) != 0 || ::listen(socket->get(), SOMAXCONN) != 0 ||
      ::getsockname(socket->get(), bound.get(), &bound.size) != 0) {
    const int error = errno;
    return socket_failure("listening on " + address.text(), error);
  }
  port = bound.port();
  return socket;
}

}  // namespace

Result<RankAddress> parse_rank_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    host = {};
  }
  const std::optional<std::uint16_t> port =
      colon == std::string_view::npos ? std::nullopt : parse_number<std::uint16_t>(text.substr(colon + 1));
  if (host.empty() || !port) {
    return invalid_argument("rank group: '" + std::string(text) + "' is no HOST:PORT, such as 127.0.0.1:5000");
  }
  return RankAddress{std::string(host), *port};
}

std::string rank_address_text(const RankAddress& address) {
  const bool is_six = address.host.find(':') != std::string::npos;
  return (is_six ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

void OwnedSocket::reset(int socket) {
  if (socket_ >= 0) ::close(socket_);
  socket_ = socket;
}

std::uint16_t SocketAddress::port() const {
  return ntohs(bytes.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port
                                          : reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port);
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> host{};
  const bool is_four = bytes.ss_family == AF_INET;
  const void* const number = is_four
                                 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr)
                                 : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr);
  (void)::inet_ntop(bytes.ss_family, number, host.data(), host.size());
  return rank_address_text({host.data(), port()});
}

bool SocketAddress::is_of_this_machine() const {
  if (bytes.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr.s_addr) >> 24) == 127;
  }
  if (bytes.ss_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr) != 0;
}

Result<std::vector<SocketAddress>> resolve_addresses(const RankAddress& address, bool is_to_listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (is_to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  std::vector<SocketAddress> out;
  for (const addrinfo* at = failed == 0 ? found : nullptr; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    SocketAddress& one = out.emplace_back();
    one.size = at->ai_addrlen;
    std::memcpy(&one.bytes, at->ai_addr, at->ai_addrlen);
  }
  if (failed == 0) ::freeaddrinfo(found);
  if (!out.empty()) return out;
  return invalid_argument("rank group: there is no address '" + address.host + "'" +
                          (failed == 0 ? "" : std::string(" (") + ::gai_strerror(failed) + ")"));
}

Result<OwnedSocket> listen_at(const std::vector<SocketAddress>& addresses, std::uint16_t& port) {
  Status first;
  for (const SocketAddress& address : addresses) {
    Result<OwnedSocket> socket = listen_at_one(address, port);
    if (socket.is_ok()) return socket;
    if (first.is_ok()) first = socket.status();
  }
  return first;
}

Result<OwnedSocket> begin_connecting(const SocketAddress& to) {
  Result<OwnedSocket> socket = open_socket(to);
  if (!socket.is_ok()) return socket;
  set_prompt(socket->get());
  if (::connect(socket->get(), to.get(), to.size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    return socket_failure("connecting to " + to.text(), error);
  }
  return socket;
}

Status finish_connecting(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return socket_failure("connecting", error);
  SocketAddress own, peer;
  if (::getsockname(socket, own.get(), &own.size) != 0 || ::getpeername(socket, peer.get(), &peer.size) != 0) {
    return socket_failure("connecting", errno);
  }
  if (own.text() == peer.text()) return unavailable("rank group: connecting: nobody listens there but this connection");
  return Status::ok();
}

void set_prompt(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace larder::ranks
