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
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/mooncake/real_helper_process.h"
#include "storage/shared/real_share_socket.h"

namespace larder::mooncake {
namespace {

constexpr std::uint64_t kSetupNumber = 0;
constexpr std::size_t kMostCalls = 4096;  // in flight; more are refused: kOverloaded
constexpr Nanos kFirstPause = std::chrono::seconds(1), kLongestPause = std::chrono::seconds(30);
constexpr Nanos kPatienceAtEnd = std::chrono::seconds(5);  // the helper takes 3 to take its leave of the master

class RealHelperLink final : public HelperLink {
 public:
  RealHelperLink(HelperOptions options, share::Arena arena) : options_(std::move(options)), arena_(std::move(arena)) {}
  ~RealHelperLink() override { close(); }

  [[nodiscard]] Status open() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status call(std::string body, Done done, Late late) override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::span<std::byte> staging() override { return arena_.memory->bytes(); }
  void close() override LARDER_EXCLUDES(mutex_);

 private:
  enum class Phase : std::uint8_t { kStarting, kUp, kDown, kClosed };
  struct Call {
    Done done;
    Late late;           // null: has run
    TimePoint deadline;  // of its time in line; once it has a lane, of its answer
  };
  using Calls = std::map<std::uint64_t, Call>;
  using Socket = std::shared_ptr<share::Descriptor>;
  struct Lane {
    Socket socket;
    std::string sending;                // what the socket has not taken yet
    std::optional<std::uint64_t> call;  // whose answer comes next
  };

  void run();
  void start_child() LARDER_EXCLUDES(mutex_);
  // Waits for something to happen, and sees to it. An error: this child is of no use any more.
  [[nodiscard]] Status serve() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] int poll_millis() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status send_rest(std::size_t lane) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status receive(std::size_t lane) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status on_reply(std::size_t lane, Reply reply) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status on_setup(const Reply& reply) LARDER_EXCLUDES(mutex_);
  void give(std::size_t lane, std::uint64_t number) LARDER_REQUIRES(mutex_);
  // Tells those who wait too long. An error: the setup takes too long, or the helper is stuck.
  [[nodiscard]] Status check_deadlines() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_stuck(TimePoint now) LARDER_EXCLUDES(mutex_);
  // The child has ended, or is ended here; then all calls end.
  void drop_child(const Status& why, Nanos patience) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_stopping() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_up() LARDER_EXCLUDES(mutex_);

  // constant after construction
  const HelperOptions options_;
  const share::Arena arena_;
  Clock& clock_ = real_clock();
  share::EventWaker waker_;

  // the thread's
  HelperProcess child_;
  std::vector<ReplyReader> replies_;  // of each lane
  TimePoint setup_deadline_{}, start_at_{}, last_answer_{};
  Nanos pause_ = kFirstPause;

  RankedMutex mutex_{LockRank::kStorage};
  RankedCondition changed_;
  Phase phase_ LARDER_GUARDED_BY(mutex_) = Phase::kStarting;
  Status last_failure_ LARDER_GUARDED_BY(mutex_);
  bool is_stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::uint64_t next_number_ LARDER_GUARDED_BY(mutex_) = 1;
  Calls calls_ LARDER_GUARDED_BY(mutex_);
  std::vector<Lane> lanes_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::size_t> free_lanes_ LARDER_GUARDED_BY(mutex_);  // the last was used last: its thread is warm
  std::deque<std::pair<std::uint64_t, std::string>> waiting_ LARDER_GUARDED_BY(mutex_);  // requests without a lane

  std::jthread thread_;  // last: it uses the others
};

// What the socket did not take. It does not block; an error shows when it is read.
std::string send_some(int socket, std::string bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;
    bytes.erase(0, static_cast<std::size_t>(sent));
  }
  return bytes;
}

Status RealHelperLink::open() {
  thread_ = std::jthread([this] { run(); });
  LockGuard guard(mutex_);
  while (phase_ == Phase::kStarting) changed_.wait(mutex_);
  return phase_ == Phase::kUp ? Status::ok() : last_failure_;
}

Status RealHelperLink::call(std::string body, Done done, Late late) {
  Socket socket;
  std::string request;
  std::size_t lane = 0;
  {
    LockGuard guard(mutex_);
    if (phase_ != Phase::kUp || is_stopping_) {
      return unavailable("mooncake: its helper does not run now" +
                         (last_failure_.is_ok() ? "" : ": " + last_failure_.message()));
    }
    if (calls_.size() >= kMostCalls) {
      return overloaded("mooncake: " + std::to_string(calls_.size()) + " calls wait for the helper");
    }
    const std::uint64_t number = next_number_++;
    request = encode_request(number, body);
    calls_.emplace(number, Call{std::move(done), std::move(late), clock_.now() + options_.answer_limit});
    if (free_lanes_.empty()) {
      waiting_.emplace_back(number, std::move(request));
      return Status::ok();
    }
    lane = free_lanes_.back();
    free_lanes_.pop_back();
    give(lane, number);
    socket = lanes_[lane].socket;
  }
  std::string rest = send_some(socket->get(), std::move(request));
  if (rest.empty()) return Status::ok();
  {
    LockGuard guard(mutex_);
    if (lane >= lanes_.size() || lanes_[lane].socket != socket) return Status::ok();  // the child has ended meanwhile
    lanes_[lane].sending = std::move(rest);
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

bool RealHelperLink::is_up() {
  LockGuard guard(mutex_);
  return phase_ == Phase::kUp;
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
  setup_deadline_ = clock_.now() + options_.start_limit;
  const Status started = child_.start(options_.python, arena_.descriptor.get(), options_.lanes);
  if (!started.is_ok()) return drop_child(started, Nanos(0));
  replies_.assign(options_.lanes, ReplyReader());
  LockGuard guard(mutex_);
  lanes_.clear();
  for (const Socket& socket : child_.sockets()) lanes_.push_back({socket, {}, std::nullopt});
  lanes_[0].sending = encode_request(kSetupNumber, setup_request(options_.setup));
}

int RealHelperLink::poll_millis() {
  // Who calls wakes nobody here, so deadlines are looked at now and then.
  const TimePoint look = clock_.now() + std::min<Nanos>(options_.answer_limit / 8, std::chrono::seconds(1));
  LockGuard guard(mutex_);
  TimePoint next = look;
  if (!child_.is_running()) next = start_at_;
  if (child_.is_running() && phase_ != Phase::kUp) next = std::min(next, setup_deadline_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock_.now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
}

Status RealHelperLink::serve() {
  std::vector<pollfd> wanted = {{waker_.descriptor(), POLLIN, 0}};
  if (child_.is_running()) {
    wanted.push_back({child_.output(), POLLIN, 0});
    LockGuard guard(mutex_);
    for (const Lane& lane : lanes_) {
      wanted.push_back({lane.socket->get(), static_cast<short>(lane.sending.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
  }
  if (::poll(wanted.data(), wanted.size(), poll_millis()) < 0 && errno != EINTR) {
    return unavailable(std::string("mooncake: poll: ") + std::strerror(errno));
  }
  if (wanted[0].revents != 0) waker_.clear();
  if (!child_.is_running()) return Status::ok();
  if (wanted[1].revents != 0) (void)child_.read_output();  // its end shows at the sockets, too
  for (std::size_t lane = 0; lane + 2 < wanted.size(); ++lane) {
    const auto events = wanted[lane + 2].revents;
    if ((events & POLLOUT) != 0) LARDER_RETURN_IF_ERROR(send_rest(lane));
    if ((events & ~POLLOUT) != 0) LARDER_RETURN_IF_ERROR(receive(lane));
  }
  return check_deadlines();
}

Status RealHelperLink::send_rest(std::size_t lane) {
  std::string bytes;
  {
    LockGuard guard(mutex_);
    bytes = std::exchange(lanes_[lane].sending, {});
  }
  bytes = send_some(child_.sockets()[lane]->get(), std::move(bytes));
  LockGuard guard(mutex_);
  lanes_[lane].sending = std::move(bytes);
  return Status::ok();
}

Status RealHelperLink::receive(std::size_t lane) {
  std::array<char, 65536> piece;  // NOLINT: filled by recv
  const ssize_t got = ::recv(child_.sockets()[lane]->get(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::ok();
  if (got <= 0) return unavailable("mooncake: the helper has gone");
  replies_[lane].append({piece.data(), static_cast<std::size_t>(got)});
  for (;;) {
    LARDER_ASSIGN_OR_RETURN(std::optional<Reply> reply, replies_[lane].next());
    if (!reply.has_value()) return Status::ok();
    LARDER_RETURN_IF_ERROR(on_reply(lane, std::move(*reply)));
  }
}

Status RealHelperLink::on_setup(const Reply& reply) {
  if (reply.has_failed) return unavailable("mooncake: " + reply.words);
  pause_ = kFirstPause;
  LockGuard guard(mutex_);
  phase_ = Phase::kUp;
  last_failure_ = Status::ok();
  for (std::size_t lane = lanes_.size(); lane > 0; --lane) free_lanes_.push_back(lane - 1);
  changed_.notify_all();
  return Status::ok();
}

Status RealHelperLink::on_reply(std::size_t lane, Reply reply) {
  if (reply.number == kSetupNumber && !is_up()) return on_setup(reply);
  last_answer_ = clock_.now();
  Call call;
  std::string request;
  {
    LockGuard guard(mutex_);
    const auto at = calls_.find(reply.number);
    if (at == calls_.end() || lanes_[lane].call != reply.number) {
      return corrupt("mooncake: the helper answers what was not asked");
    }
    call = std::move(at->second);
    calls_.erase(at);
    lanes_[lane].call.reset();
    if (waiting_.empty()) {
      free_lanes_.push_back(lane);
    } else {
      give(lane, waiting_.front().first);
      request = std::move(waiting_.front().second);
      waiting_.pop_front();
    }
  }
  if (!request.empty()) {
    std::string rest = send_some(child_.sockets()[lane]->get(), std::move(request));
    LockGuard guard(mutex_);
    lanes_[lane].sending = std::move(rest);
  }
  if (reply.has_failed) {
    call.done(unavailable("mooncake: the client library failed: " + reply.words));
  } else {
    call.done(std::move(reply.codes));
  }
  return Status::ok();
}

void RealHelperLink::give(std::size_t lane, std::uint64_t number) {
  lanes_[lane].call = number;
  calls_.at(number).deadline = clock_.now() + options_.answer_limit;
}

Status RealHelperLink::check_deadlines() {
  const TimePoint now = clock_.now();
  std::vector<Late> late;
  std::vector<Done> refused;
  {
    LockGuard guard(mutex_);
    if (phase_ != Phase::kUp) {
      if (now < setup_deadline_) return Status::ok();
      const auto limit = std::chrono::duration_cast<std::chrono::seconds>(options_.start_limit).count();
      return unavailable("mooncake: the helper's setup takes longer than " + std::to_string(limit) + " s");
    }
    for (; !waiting_.empty(); waiting_.pop_front()) {
      const auto first = calls_.find(waiting_.front().first);
      if (now < first->second.deadline) break;
      refused.push_back(std::move(first->second.done));
      calls_.erase(first);
    }
    for (const Lane& lane : lanes_) {
      Call* const call = lane.call ? &calls_.at(*lane.call) : nullptr;
      if (call != nullptr && call->deadline <= now && call->late) late.push_back(std::exchange(call->late, nullptr));
    }
  }
  const Status why = deadline_exceeded("mooncake: a call had no answer in time (option 'client_timeout')");
  for (const Late& tell : late) tell(why);
  const Status full = overloaded("mooncake: no thread of the helper was free in time (option 'client_threads')");
  for (const Done& tell : refused) tell(full);
  if (!is_stuck(now)) return Status::ok();
  return unavailable("mooncake: calls have no answer any more (option 'client_timeout'), the helper is ended");
}

bool RealHelperLink::is_stuck(TimePoint now) {
  const bool is_silent = now - last_answer_ >= options_.answer_limit;
  const Nanos most = options_.answer_limit * (is_silent ? 1 : options_.lanes);
  LockGuard guard(mutex_);
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) LARDER_REQUIRES(mutex_) {
    return lane.call && calls_.at(*lane.call).deadline - options_.answer_limit + most <= now;
  });
}

void RealHelperLink::drop_child(const Status& why, Nanos patience) {
  const bool has_run = child_.is_running();
  const std::string how = child_.end(patience);
  const Status failure = unavailable(has_run ? why.message() + " (" + how + ")" : why.message());
  Calls calls;
  {
    LockGuard guard(mutex_);
    phase_ = Phase::kDown;
    last_failure_ = failure;
    calls = std::exchange(calls_, {});
    lanes_.clear();
    free_lanes_.clear();
    waiting_.clear();
    changed_.notify_all();
  }
  start_at_ = clock_.now() + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  for (auto& [number, call] : calls) call.done(failure);
}

}  // namespace

Result<std::unique_ptr<HelperLink>> start_helper(const HelperOptions& options) {
  LARDER_ASSIGN_OR_RETURN(share::Arena arena, share::make_arena(options.staging_bytes));
  auto link = std::make_unique<RealHelperLink>(options, std::move(arena));
  LARDER_RETURN_IF_ERROR(link->open());
  return std::unique_ptr<HelperLink>(std::move(link));
}

}  // namespace larder::mooncake
