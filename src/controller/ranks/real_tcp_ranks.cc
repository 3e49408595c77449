// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/real_tcp_ranks.h"

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
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder::ranks {
namespace {

constexpr Nanos kFirstRedial = std::chrono::milliseconds(20), kMostRedial = std::chrono::milliseconds(500);
constexpr Nanos kAcceptPause = std::chrono::milliseconds(100);  // after an error, such as too many open files
constexpr Nanos kMostWait = std::chrono::seconds(1);
constexpr int kReadsAtOnce = 16;  // of one connection, before the others' turn
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

std::string error_text(int error) { return std::strerror(error); }

Result<Digest256> draw_of_system() {
  Digest256 number;
  if (::RAND_bytes(number.bytes.data(), static_cast<int>(number.bytes.size())) == 1) return number;
  return unavailable("rank group: the system gives no random numbers (RAND_bytes of OpenSSL)");
}

class TcpRanks final : public TcpRankGroup {
 public:
  TcpRanks(RankAddress address, const RankSettings& settings, Clock& clock, OwnedSocket listener)
      : address_(std::move(address)),
        is_leader_(settings.rank == 0),
        most_lingering_(settings.ranks + kMaxStrangers),
        clock_(clock),
        member_(settings, clock, [this] { wake(); }),
        listener_(std::move(listener)) {}
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
    // It was told its last words: the socket is shut for writing behind them, and closed once the peer has closed it,
    // too. Closed at once it would drop words that are on their way, if the peer has just said something.
    bool is_last = false, is_shut = false;
    TimePoint close_by{};  // with is_connecting or is_last
    bool is_gone = false;
  };

  void wake() {
    if (is_woken_.exchange(true, std::memory_order_acq_rel)) return;
    const std::uint64_t one = 1;
    (void)!::write(waker_.get(), &one, sizeof one);
  }

  void run();
  void send_all();
  void wait();
  [[nodiscard]] Nanos longest_wait() const;
  void accept_some();
  void dial();
  [[nodiscard]] Status dial_next(Connection& connection);
  void finish_dial(Connection& connection);
  void fail_dial(Connection& connection, const std::string& why);
  void open_link(Connection& connection);
  void serve(Connection& connection, short events);
  void receive(Connection& connection);
  void flush(Connection& connection);
  void bound_lingering();
  void lose(Connection& connection, const std::string& why);

  // constant after construction
  const RankAddress address_;
  const bool is_leader_;
  const std::size_t most_lingering_;
  Clock& clock_;
  const OwnedSocket waker_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};

  std::atomic<bool> is_woken_{false}, is_stopping_{false};
  RankMember member_;

  // the thread's
  OwnedSocket listener_;  // until the group is over
  std::list<Connection> connections_;
  TimePoint dial_at_{}, accept_at_{}, tick_at_{}, stop_by_ = TimePoint::max();
  Nanos redial_ = kFirstRedial;
  std::size_t dials_ = 0;
  std::vector<pollfd> entries_;
  std::array<char, kReadBytes> piece_{};
  std::jthread thread_;  // last: it uses the others
};

void TcpRanks::run() {
  pthread_setname_np(pthread_self(), "larder-ranks");
  for (;;) {
    const TimePoint now = clock_.now();
    if (member_.is_over()) listener_.reset();
    if (!is_leader_ && connections_.empty() && now >= dial_at_ && member_.wants_link()) dial();
    send_all();
    if (is_stopping_.load(std::memory_order_acquire)) {
      stop_by_ = std::min(stop_by_, now + kFarewellLimit);
      if (connections_.empty() || now >= stop_by_) return;
    }
    wait();
    // The entries: the waker, the listener, then the connections.
    const bool is_asked = entries_[1].revents != 0;
    auto entry = entries_.begin() + 2;
    for (Connection& connection : connections_) serve(connection, (entry++)->revents);
    if (is_asked) accept_some();
    // Here, where all that had come was received.
    if (clock_.now() >= tick_at_) {
      member_.tick();
      tick_at_ = clock_.now() + member_.tick_interval();
    }
  }
}

void TcpRanks::send_all() {
  for (Connection& connection : connections_) flush(connection);
  bound_lingering();
  connections_.remove_if([](const Connection& connection) { return connection.is_gone; });
}

void TcpRanks::wait() {
  const bool is_accepting = listener_.is_open() && clock_.now() >= accept_at_;
  entries_.clear();
  entries_.push_back({waker_.get(), POLLIN, 0});
  entries_.push_back({is_accepting ? listener_.get() : -1, POLLIN, 0});
  for (const Connection& connection : connections_) {
    const int reads = connection.is_connecting ? 0 : POLLIN;
    const int writes = connection.is_connecting || !connection.output.empty() ? POLLOUT : 0;
    entries_.push_back({connection.socket.get(), static_cast<short>(reads | writes), 0});
  }
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(longest_wait()).count();
  if (::poll(entries_.data(), entries_.size(), static_cast<int>(milliseconds)) < 0) {
    for (pollfd& entry : entries_) entry.revents = 0;
  }
  std::uint64_t count = 0;
  if (entries_[0].revents != 0) (void)!::read(waker_.get(), &count, sizeof count);
  // An exchange, so that who has found it set has what he did seen in the round that comes.
  (void)is_woken_.exchange(false, std::memory_order_acq_rel);
}

Nanos TcpRanks::longest_wait() const {
  const TimePoint now = clock_.now();
  TimePoint until = std::min({tick_at_, stop_by_, now + kMostWait});
  if (!is_leader_ && connections_.empty() && member_.wants_link()) until = std::min(until, dial_at_);
  if (listener_.is_open() && accept_at_ > now) until = std::min(until, accept_at_);
  for (const Connection& connection : connections_) {
    if (connection.is_connecting || connection.is_last) until = std::min(until, connection.close_by);
  }
  return std::clamp(until - now, Nanos(0), std::min(member_.tick_interval(), kMostWait));
}

void TcpRanks::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    SocketAddress peer;
    OwnedSocket socket(::accept4(listener_.get(), peer.get(), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_at_ = clock_.now() + kAcceptPause;
      return;
    }
    set_prompt(socket.get());
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.address = peer.text();
    open_link(connection);
  }
}

void TcpRanks::dial() {
  Connection& connection = connections_.emplace_back();
  const Status begun = dial_next(connection);
  dial_at_ = clock_.now() + redial_;  // behind a resolver that took its time
  redial_ = std::min(redial_ * 2, kMostRedial);
  if (!begun.is_ok()) fail_dial(connection, begun.message());
}

Status TcpRanks::dial_next(Connection& connection) {
  LARDER_ASSIGN_OR_RETURN(const std::vector<SocketAddress> all, resolve_addresses(address_, false));
  const SocketAddress& to = all[dials_++ % all.size()];
  connection.address = to.text();
  LARDER_ASSIGN_OR_RETURN(connection.socket, begin_connecting(to));
  connection.is_connecting = true;
  connection.close_by = clock_.now() + kDialLimit;
  return Status::ok();
}

void TcpRanks::fail_dial(Connection& connection, const std::string& why) {
  member_.close_link(0, why);
  connection.is_gone = true;
}

void TcpRanks::finish_dial(Connection& connection) {
  const Status connected = finish_connecting(connection.socket.get());
  if (!connected.is_ok()) return fail_dial(connection, connected.message() + " (" + connection.address + ")");
  connection.is_connecting = false;
  open_link(connection);
}

void TcpRanks::open_link(Connection& connection) {
  const Result<LinkId> link = member_.open_link(connection.address);
  if (link.is_ok()) {
    connection.link = *link;
    return;
  }
  connection.is_gone = true;
  if (!is_leader_) return member_.close_link(0, link.status().message());
  log_error("ranks", link.status().message());
  accept_at_ = clock_.now() + kAcceptPause;
}

void TcpRanks::serve(Connection& connection, short events) {
  const bool is_late = clock_.now() >= connection.close_by;
  if (connection.is_connecting) {
    if (events != 0) return finish_dial(connection);
    if (is_late) fail_dial(connection, "no answer from " + connection.address);
    return;
  }
  if ((events & ~POLLOUT) != 0) receive(connection);
  if (connection.is_last && is_late && !connection.is_gone) lose(connection, "it was not closed in time");
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

void TcpRanks::flush(Connection& connection) {
  if (connection.is_connecting && member_.is_over()) connection.is_gone = true;
  while (!connection.is_gone && !connection.is_connecting && !connection.is_shut) {
    if (connection.output.empty() && !connection.is_last) {
      RankSession::Output output = member_.take_output(connection.link);
      connection.output = std::move(output.bytes);
      connection.is_last = output.is_last;
      if (connection.is_last) connection.close_by = clock_.now() + kFarewellLimit;
      if (connection.output.empty()) {
        if (connection.is_last) lose(connection, "nothing was left to say");
        return;
      }
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
    } else if (errno != EINTR) {  // what it had said before it went may say why
      const std::string why = error_text(errno);
      receive(connection);
      if (!connection.is_gone) lose(connection, why);
    }
  }
}

// However many strangers are told why they are refused, and do not close.
void TcpRanks::bound_lingering() {
  const auto is_lingering = [](const Connection& connection) { return connection.is_last && !connection.is_gone; };
  auto count = static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), is_lingering));
  for (auto at = connections_.begin(); count > most_lingering_; ++at) {
    if (!is_lingering(*at)) continue;
    lose(*at, "others wait for its place");
    --count;
  }
}

}  // namespace

Result<std::unique_ptr<TcpRankGroup>> TcpRankGroup::open(const RankAddress& address, RankSettings settings,
                                                         Clock& clock) {
  LARDER_RETURN_IF_ERROR(check_rank_settings(settings));
  const bool is_leader = settings.rank == 0;
  if (!is_leader && address.port == 0) return invalid_argument("rank group: port 0 is nobody's");
  RankAddress at = address;
  OwnedSocket listener;
  const Result<std::vector<SocketAddress>> resolved = resolve_addresses(address, is_leader);
  // A follower with a secret may be started before its leader's name is known.
  if (!resolved.is_ok() && (is_leader || settings.secret.empty())) return resolved.status();
  if (settings.secret.empty() && !std::all_of(resolved->begin(), resolved->end(),
                                              [](const SocketAddress& one) { return one.is_of_this_machine(); })) {
    return invalid_argument("rank group: other machines reach " + address.host +
                            ", and without a secret any of them could say that it is a rank: give all ranks the same "
                            "one, or let them meet on 127.0.0.1");
  }
  if (is_leader) {
    LARDER_ASSIGN_OR_RETURN(listener, listen_at(*resolved, at.port));
  }
  if (!settings.draw) settings.draw = draw_of_system;
  settings.address = rank_address_text(at);
  auto made = std::make_unique<TcpRanks>(std::move(at), settings, clock, std::move(listener));
  LARDER_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<TcpRankGroup>(std::move(made));
}

}  // namespace larder::ranks
