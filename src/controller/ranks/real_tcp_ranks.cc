// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/real_tcp_ranks.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "base/parse_number.h"

namespace larder::ranks {
namespace {

constexpr Nanos kFirstRedial = std::chrono::milliseconds(20), kMostRedial = std::chrono::milliseconds(500);
constexpr Nanos kAcceptPause = std::chrono::milliseconds(100);  // after an error, such as too many open files
constexpr int kReadsAtOnce = 16;                                // of one connection, before the others' turn
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

class OwnedSocket {
 public:
  explicit OwnedSocket(int socket = -1) : socket_(socket) {}
  ~OwnedSocket() { reset(); }
  OwnedSocket(OwnedSocket&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  OwnedSocket& operator=(OwnedSocket&& other) noexcept {
    if (this != &other) reset(std::exchange(other.socket_, -1));
    return *this;
  }
  void reset(int socket = -1) {
    if (socket_ >= 0) ::close(socket_);
    socket_ = socket;
  }
  [[nodiscard]] int get() const { return socket_; }
  [[nodiscard]] bool is_open() const { return socket_ >= 0; }

 private:
  int socket_;
};

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

Result<SocketAddress> resolve_address(const RankAddress& address, bool is_to_listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (is_to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0 || found == nullptr) {
    return invalid_argument("rank group: there is no address '" + address.host + "' (" + ::gai_strerror(failed) + ")");
  }
  SocketAddress out;
  out.size = found->ai_addrlen;
  std::memcpy(&out.bytes, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return out;
}

bool is_of_this_machine(const SocketAddress& address) {
  if (address.bytes.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&address.bytes)->sin_addr.s_addr) >> 24) == 127;
  }
  if (address.bytes.ss_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_addr) != 0;
}

std::string address_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_4 = address.bytes.ss_family == AF_INET;
  const auto* const four = reinterpret_cast<const sockaddr_in*>(&address.bytes);
  const auto* const six = reinterpret_cast<const sockaddr_in6*>(&address.bytes);
  const void* const bytes = is_4 ? static_cast<const void*>(&four->sin_addr) : &six->sin6_addr;
  (void)::inet_ntop(address.bytes.ss_family, bytes, text.data(), text.size());
  const std::string port = ":" + std::to_string(ntohs(is_4 ? four->sin_port : six->sin6_port));
  return is_4 ? text.data() + port : "[" + std::string(text.data()) + "]" + port;
}

std::string error_text(int error) { return std::strerror(error); }

void set_prompt(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Digest256 draw_of_system() {
  Digest256 number;
  (void)::RAND_bytes(number.bytes.data(), static_cast<int>(number.bytes.size()));
  return number;
}

class TcpRanks final : public TcpRankGroup {
 public:
  TcpRanks(RankAddress address, const RankSettings& settings, Clock& clock, OwnedSocket listener)
      : address_(std::move(address)),
        is_leader_(settings.rank == 0),
        clock_(clock),
        listener_(std::move(listener)),
        member_(settings, clock, [this] { wake(); }) {}
  ~TcpRanks() override {
    member_.leave("its process ends");
    is_stopping_.store(true, std::memory_order_release);
    wake();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    if (!waker_.is_open()) return unavailable("rank group: eventfd: " + error_text(errno));
    thread_ = std::jthread([this] { run(); });
    return Status::ok();
  }
  [[nodiscard]] RankMember& member() override { return member_; }
  [[nodiscard]] std::uint16_t port() const override { return address_.port; }

 private:
  struct Connection {
    OwnedSocket socket;
    std::string address;
    LinkId link = 0;
    bool is_connecting = false;
    std::string output;  // what the socket has not taken yet
    bool is_last = false, is_shut = false;
    TimePoint close_by{};  // with is_last
    bool is_gone = false;
  };

  void wake() {
    if (is_woken_.exchange(true, std::memory_order_acq_rel)) return;
    const std::uint64_t one = 1;
    (void)!::write(waker_.get(), &one, sizeof one);
  }

  void run();
  void wait(const std::vector<Connection*>& polled, std::vector<pollfd>& entries);
  [[nodiscard]] Nanos longest_wait() const;
  void accept_all();
  void dial();
  void finish_dial(Connection& connection);
  void fail_dial(Connection& connection, int error);
  void serve(Connection& connection, short events);
  void receive(Connection& connection);
  void flush(Connection& connection);
  void lose(Connection& connection, const std::string& why);

  // constant after construction
  RankAddress address_;
  const bool is_leader_;
  Clock& clock_;
  const OwnedSocket listener_;
  const OwnedSocket waker_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};

  std::atomic<bool> is_woken_{false}, is_stopping_{false};
  RankMember member_;

  // the thread's
  std::list<Connection> connections_;
  TimePoint dial_at_{}, accept_at_{}, tick_at_{};
  Nanos redial_ = kFirstRedial;
  std::array<char, kReadBytes> piece_{};
  std::jthread thread_;  // last: it uses the others
};

void TcpRanks::run() {
  pthread_setname_np(pthread_self(), "larder-ranks");
  TimePoint end{};
  for (std::vector<pollfd> entries;;) {
    const TimePoint now = clock_.now();
    if (is_stopping_.load(std::memory_order_acquire)) {
      if (end == TimePoint{}) end = now + kFarewellLimit;
      if (connections_.empty() || now >= end) return;
    } else if (!is_leader_ && connections_.empty() && now >= dial_at_ && member_.wants_link()) {
      dial();
    }
    for (Connection& connection : connections_) flush(connection);
    std::vector<Connection*> polled;
    for (Connection& connection : connections_) polled.push_back(&connection);
    wait(polled, entries);
    is_woken_.store(false, std::memory_order_release);
    for (std::size_t i = 0; i < polled.size(); ++i) serve(*polled[i], entries[i + 2].revents);
    if (entries[1].revents != 0) accept_all();
    connections_.remove_if([](const Connection& connection) { return connection.is_gone; });
    // Here, where all that had come was received.
    if (clock_.now() >= tick_at_) {
      member_.tick();
      tick_at_ = clock_.now() + member_.tick_interval();
    }
  }
}

// The entries: the waker, the listener, then the connections.
void TcpRanks::wait(const std::vector<Connection*>& polled, std::vector<pollfd>& entries) {
  const bool is_accepting = listener_.is_open() && clock_.now() >= accept_at_;
  entries.clear();
  entries.push_back({waker_.get(), POLLIN, 0});
  entries.push_back({is_accepting ? listener_.get() : -1, POLLIN, 0});
  bool is_one_gone = false;
  for (const Connection* const connection : polled) {
    const bool writes = connection->is_connecting || !connection->output.empty();
    entries.push_back({connection->is_gone ? -1 : connection->socket.get(),
                       static_cast<short>(connection->is_connecting ? POLLOUT : POLLIN | (writes ? POLLOUT : 0)), 0});
    is_one_gone = is_one_gone || connection->is_gone;
  }
  const Nanos limit = is_one_gone ? Nanos(0) : longest_wait();
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  if (::poll(entries.data(), entries.size(), static_cast<int>(milliseconds)) < 0) {
    for (pollfd& entry : entries) entry.revents = 0;
  }
  std::uint64_t count = 0;
  if (entries[0].revents != 0) (void)!::read(waker_.get(), &count, sizeof count);
}

Nanos TcpRanks::longest_wait() const {
  const TimePoint now = clock_.now();
  Nanos limit = std::clamp(tick_at_ - now, Nanos(0), member_.tick_interval());
  if (!is_leader_ && connections_.empty()) limit = std::min(limit, std::max(dial_at_ - now, Nanos(0)));
  const bool is_ending = is_stopping_.load(std::memory_order_acquire) ||
                         std::any_of(connections_.begin(), connections_.end(), [](const auto& c) { return c.is_last; });
  return is_ending ? std::min<Nanos>(limit, std::chrono::milliseconds(50)) : limit;
}

void TcpRanks::accept_all() {
  for (;;) {
    SocketAddress peer;
    peer.size = sizeof peer.bytes;
    OwnedSocket socket(::accept4(listener_.get(), peer.get(), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_at_ = clock_.now() + kAcceptPause;
      return;
    }
    set_prompt(socket.get());
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.address = address_text(peer);
    connection.link = member_.open_link(connection.address);
  }
}

void TcpRanks::dial() {
  Connection& connection = connections_.emplace_back();
  dial_at_ = clock_.now() + redial_;
  redial_ = std::min(redial_ * 2, kMostRedial);
  const Result<SocketAddress> to = resolve_address(address_, false);
  if (!to.is_ok()) {
    member_.close_link(0, to.status().message());
    connection.is_gone = true;
    return;
  }
  connection.address = address_text(*to);
  connection.socket.reset(::socket(to->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.socket.is_open()) return fail_dial(connection, errno);
  set_prompt(connection.socket.get());
  connection.is_connecting = true;
  if (::connect(connection.socket.get(), to->get(), to->size) != 0 && errno != EINPROGRESS) {
    fail_dial(connection, errno);
  }
}

void TcpRanks::fail_dial(Connection& connection, int error) {
  member_.close_link(0, "connecting to " + connection.address + ": " + error_text(error));
  connection.is_gone = true;
}

void TcpRanks::finish_dial(Connection& connection) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(connection.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail_dial(connection, error);
  connection.is_connecting = false;
  connection.link = member_.open_link(connection.address);
}

void TcpRanks::serve(Connection& connection, short events) {
  if (connection.is_gone) return;
  if (connection.is_connecting) {
    if (events != 0) finish_dial(connection);
    return;
  }
  if ((events & ~POLLOUT) != 0) receive(connection);
  if (connection.is_last && clock_.now() >= connection.close_by) connection.is_gone = true;
}

void TcpRanks::receive(Connection& connection) {
  for (int reads = 0; reads < kReadsAtOnce && !connection.is_gone; ++reads) {
    const ssize_t got = ::recv(connection.socket.get(), piece_.data(), piece_.size(), 0);
    if (got > 0) {
      // Who has been told the last words may go on talking; it is not heard any more.
      if (!connection.is_last) member_.receive(connection.link, {piece_.data(), static_cast<std::size_t>(got)});
    } else if (got == 0) {
      lose(connection, "its connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      lose(connection, error_text(errno));
    }
  }
}

void TcpRanks::lose(Connection& connection, const std::string& why) {
  connection.is_gone = true;
  member_.close_link(connection.link, why);
}

// The last words: the socket is shut for writing, and closed once the peer has closed it too, or at its limit. Closed
// at once it would drop words that are on their way, if the peer has just said something.
void TcpRanks::flush(Connection& connection) {
  while (!connection.is_gone && !connection.is_connecting && !connection.is_shut) {
    if (connection.output.empty() && !connection.is_last) {
      RankSession::Output output = member_.take_output(connection.link);
      connection.output = std::move(output.bytes);
      connection.is_last = output.is_last;
      if (connection.is_last) connection.close_by = clock_.now() + kFarewellLimit;
      if (connection.output.empty() && !connection.is_last) return;
    }
    if (connection.output.empty()) {
      connection.is_shut = true;
      (void)::shutdown(connection.socket.get(), SHUT_WR);
      return;
    }
    const ssize_t sent = ::send(connection.socket.get(), connection.output.data(), connection.output.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      connection.output.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      lose(connection, error_text(errno));
    }
  }
}

Result<OwnedSocket> listen_at(const SocketAddress& address, std::uint16_t& port) {
  OwnedSocket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto fail = [&] {
    return unavailable("rank group: listening on " + address_text(address) + ": " + error_text(errno));
  };
  if (!socket.is_open()) return fail();
  const int on = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), address.get(), address.size) != 0) return fail();
  if (::listen(socket.get(), SOMAXCONN) != 0) return fail();
  SocketAddress bound;
  bound.size = sizeof bound.bytes;
  if (::getsockname(socket.get(), bound.get(), &bound.size) != 0) return fail();
  port = ntohs(bound.bytes.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&bound.bytes)->sin_port
                                                : reinterpret_cast<const sockaddr_in6*>(&bound.bytes)->sin6_port);
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

Result<std::unique_ptr<TcpRankGroup>> TcpRankGroup::open(const RankAddress& address, RankSettings settings,
                                                         Clock& clock) {
  LARDER_RETURN_IF_ERROR(check_rank_settings(settings));
  const bool is_leader = settings.rank == 0;
  if (!is_leader && address.port == 0) return invalid_argument("rank group: port 0 is nobody's");
  RankAddress at = address;
  OwnedSocket listener;
  const Result<SocketAddress> resolved = resolve_address(address, is_leader);
  // A follower with a secret may be started before its leader's name is known.
  if (!resolved.is_ok() && (is_leader || settings.secret.empty())) return resolved.status();
  if (settings.secret.empty() && !is_of_this_machine(*resolved)) {
    return invalid_argument("rank group: other machines reach " + address.host +
                            ", and without a secret any of them could say that it is a rank: give all ranks the same "
                            "one, or let them meet on 127.0.0.1");
  }
  if (is_leader) {
    Result<OwnedSocket> listening = listen_at(*resolved, at.port);
    if (!listening.is_ok()) return listening.status();
    listener = std::move(listening).value();
  }
  if (!settings.draw) settings.draw = draw_of_system;
  auto made = std::make_unique<TcpRanks>(std::move(at), settings, clock, std::move(listener));
  LARDER_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<TcpRankGroup>(std::move(made));
}

}  // namespace larder::ranks
