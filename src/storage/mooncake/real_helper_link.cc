// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/real_helper_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/ranked_mutex.h"
#include "storage/mooncake/real_helper_process.h"
#include "storage/shared/real_share_socket.h"

namespace larder::mooncake {
namespace {

constexpr std::uint64_t kSetupNumber = 0;
constexpr Nanos kPatienceAtEnd = std::chrono::seconds(5);  // the helper takes 3 to take its leave of the master

class RealHelperLink final : public HelperLink {
 public:
  RealHelperLink(HelperOptions options, share::Arena arena)
      : options_(std::move(options)), arena_(std::move(arena)), pause_(options_.first_pause) {}
  ~RealHelperLink() override { close(); }

  [[nodiscard]] Status open() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status call(std::string body, Done done) override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::span<std::byte> staging() override { return arena_.memory->bytes(); }
  void close() override LARDER_EXCLUDES(mutex_);

 private:
  enum class Phase : std::uint8_t { kStarting, kUp, kDown, kClosed };
  struct Call {
    Done done;
    TimePoint deadline;
  };
  using Calls = std::map<std::uint64_t, Call>;

  void run();
  void start_child();
  // Waits for something to happen, and sees to it. An error: this child is of no use any more.
  [[nodiscard]] Status serve();
  [[nodiscard]] int poll_millis() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status send() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status receive();
  [[nodiscard]] Status on_reply(Reply reply) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status check_deadlines() LARDER_EXCLUDES(mutex_);
  // The child has ended, or is ended here; then all calls end.
  void drop_child(const Status& why, Nanos patience) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_stopping() LARDER_EXCLUDES(mutex_);

  // constant after construction
  const HelperOptions options_;
  const share::Arena arena_;
  Clock& clock_ = real_clock();
  share::EventWaker waker_;

  // the thread's
  HelperProcess child_;
  ReplyReader replies_;
  std::string sending_;  // what the socket has not taken yet
  TimePoint setup_deadline_{}, start_at_{};
  Nanos pause_;

  RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;
  Phase phase_ LARDER_GUARDED_BY(mutex_) = Phase::kStarting;
  Status last_failure_ LARDER_GUARDED_BY(mutex_);
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::uint64_t next_number_ LARDER_GUARDED_BY(mutex_) = 1;
  Calls calls_ LARDER_GUARDED_BY(mutex_);
  std::string outbox_ LARDER_GUARDED_BY(mutex_);

  std::jthread thread_;  // last: it uses the others
};

Status RealHelperLink::open() {
  thread_ = std::jthread([this] { run(); });
  LockGuard guard(mutex_);
  while (phase_ == Phase::kStarting) changed_.wait(mutex_);
  return phase_ == Phase::kUp ? Status::ok() : last_failure_;
}

Status RealHelperLink::call(std::string body, Done done) {
  {
    LockGuard guard(mutex_);
    if (phase_ != Phase::kUp || is_stopping_) {
      return unavailable("mooncake: its helper does not run now" +
                         (last_failure_.is_ok() ? "" : ": " + last_failure_.message()));
    }
    if (calls_.size() >= options_.most_calls) {
      return overloaded("mooncake: " + std::to_string(calls_.size()) + " calls wait for the helper");
    }
    const std::uint64_t number = next_number_++;
    outbox_ += encode_request(number, body);
    calls_.emplace(number, Call{std::move(done), clock_.now() + options_.answer_limit});
  }
  waker_.wake();
  return Status::ok();
}

void RealHelperLink::close() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
  }
  waker_.wake();
  if (thread_.joinable()) thread_.join();
}

bool RealHelperLink::is_stopping() {
  LockGuard guard(mutex_);
  return is_stopping_;
}

void RealHelperLink::run() {
  while (!is_stopping()) {
    if (!child_.is_running() && clock_.now() >= start_at_) start_child();
    const Status status = serve();
    if (!status.is_ok()) drop_child(status, Nanos(0));
  }
  drop_child(unavailable("mooncake: the backend is closed"), kPatienceAtEnd);
  LockGuard guard(mutex_);
  phase_ = Phase::kClosed;
  changed_.notify_all();
}

void RealHelperLink::start_child() {
  replies_ = ReplyReader();
  sending_ = encode_request(kSetupNumber, setup_request(options_.setup));
  setup_deadline_ = clock_.now() + options_.start_limit;
  const Status started = child_.start(options_.python, arena_.descriptor.get());
  if (!started.is_ok()) drop_child(started, Nanos(0));
}

int RealHelperLink::poll_millis() {
  LockGuard guard(mutex_);
  TimePoint next = TimePoint::max();
  if (!child_.is_running()) next = start_at_;
  if (child_.is_running() && phase_ != Phase::kUp) next = setup_deadline_;
  // In the order of their numbers, deadlines grow.
  if (!calls_.empty()) next = std::min(next, calls_.begin()->second.deadline);
  if (next == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock_.now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
}

Status RealHelperLink::serve() {
  std::array<pollfd, 3> wanted{{{waker_.descriptor(), POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}}};
  if (child_.is_running()) {
    wanted[1] = {child_.socket(), static_cast<short>(sending_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    wanted[2] = {child_.output(), POLLIN, 0};
  }
  if (::poll(wanted.data(), wanted.size(), poll_millis()) < 0 && errno != EINTR) {
    return unavailable(std::string("mooncake: poll: ") + std::strerror(errno));
  }
  if (wanted[0].revents != 0) waker_.clear();
  if (!child_.is_running()) return Status::ok();
  if (wanted[2].revents != 0) (void)child_.read_output();  // its end shows at the socket, too
  if (wanted[1].revents != 0) LARDER_RETURN_IF_ERROR(receive());
  LARDER_RETURN_IF_ERROR(send());
  return check_deadlines();
}

Status RealHelperLink::send() {
  for (;;) {
    if (sending_.empty()) {
      LockGuard guard(mutex_);
      std::swap(sending_, outbox_);
    }
    if (sending_.empty()) return Status::ok();
    const ssize_t sent = ::send(child_.socket(), sending_.data(), sending_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::ok();
    if (sent < 0) return unavailable("mooncake: the helper has gone");
    sending_.erase(0, static_cast<std::size_t>(sent));
  }
}

Status RealHelperLink::receive() {
  std::array<char, 65536> piece;  // NOLINT: filled by recv
  const ssize_t got = ::recv(child_.socket(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::ok();
  if (got <= 0) return unavailable("mooncake: the helper has gone");
  replies_.append({piece.data(), static_cast<std::size_t>(got)});
  for (;;) {
    Result<std::optional<Reply>> reply = replies_.next();
    if (!reply.is_ok()) return reply.status();
    if (!reply->has_value()) return Status::ok();
    LARDER_RETURN_IF_ERROR(on_reply(std::move(**reply)));
  }
}

Status RealHelperLink::on_reply(Reply reply) {
  if (reply.number == kSetupNumber) {
    if (reply.has_failed) return unavailable("mooncake: " + reply.words);
    pause_ = options_.first_pause;
    LockGuard guard(mutex_);
    phase_ = Phase::kUp;
    last_failure_ = Status::ok();
    changed_.notify_all();
    return Status::ok();
  }
  Call call;
  {
    LockGuard guard(mutex_);
    const auto at = calls_.find(reply.number);
    if (at == calls_.end()) return corrupt("mooncake: the helper answers what was not asked");
    call = std::move(at->second);
    calls_.erase(at);
  }
  if (reply.has_failed) {
    call.done(unavailable("mooncake: the client library failed: " + reply.words));
  } else {
    call.done(std::move(reply.codes));
  }
  return Status::ok();
}

Status RealHelperLink::check_deadlines() {
  const TimePoint now = clock_.now();
  LockGuard guard(mutex_);
  if (phase_ != Phase::kUp && setup_deadline_ <= now) {
    return unavailable("mooncake: the helper's setup takes longer than " +
                       std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.start_limit).count()) +
                       " s");
  }
  if (!calls_.empty() && calls_.begin()->second.deadline <= now) {
    return deadline_exceeded("mooncake: a call had no answer in time (option 'client_timeout'), the helper is ended");
  }
  return Status::ok();
}

void RealHelperLink::drop_child(const Status& why, Nanos patience) {
  const bool has_run = child_.is_running();
  const std::string how = child_.end(patience);
  Status failure(why.code(), has_run ? why.message() + " (" + how + ")" : why.message());
  Calls calls;
  {
    LockGuard guard(mutex_);
    phase_ = Phase::kDown;
    last_failure_ = failure;
    calls = std::exchange(calls_, {});
    outbox_.clear();
    changed_.notify_all();
  }
  sending_.clear();
  start_at_ = clock_.now() + pause_;
  pause_ = std::min(2 * pause_, options_.longest_pause);
  if (failure.code() != StatusCode::kDeadlineExceeded) failure = unavailable(failure.message());
  for (auto& [number, call] : calls) call.done(failure);
}

}  // namespace

Result<std::unique_ptr<HelperLink>> start_helper(const HelperOptions& options) {
  Result<share::Arena> arena = share::make_arena(options.staging_bytes);
  if (!arena.is_ok()) return arena.status();
  auto link = std::make_unique<RealHelperLink>(options, std::move(*arena));
  LARDER_RETURN_IF_ERROR(link->open());
  return std::unique_ptr<HelperLink>(std::move(link));
}

}  // namespace larder::mooncake
