// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_member.h"

#include <algorithm>
#include <utility>

namespace larder::ranks {
namespace {

// How long a wait lasts before it looks at the injected clock again: a manual clock does not end a real wait.
constexpr Nanos kMemberLookInterval = std::chrono::milliseconds(2);

}  // namespace

RankMember::RankMember(const RankSettings& settings, Clock& clock, std::function<void()> wake)
    : rank_(settings.rank),
      ranks_(settings.ranks),
      alive_interval_(settings.alive_interval),
      draw_(settings.draw),
      clock_(clock),
      wake_(std::move(wake)),
      session_(RankSession::make(settings)),
      ticked_(clock.now()) {}

Status RankMember::report(OpId op, OutcomeBits bits) {
  {
    LockGuard guard(mutex_);
    if (!session_->over().is_ok()) return unavailable(session_->over().message());
    LARDER_RETURN_IF_ERROR(session_->report(op, bits));
  }
  if (rank_ != 0) wake_();
  return Status::ok();
}

Status RankMember::take(std::uint64_t step, bool pending, Nanos deadline, std::vector<AgreedEvent>& out) {
  // A rank that gave a step up may go on with a later one: it gets the events of both.
  if (step < next_step_) {
    return invalid_argument("rank group: rank " + std::to_string(rank_) + " asks for step " + std::to_string(step) +
                            " again, the next one is " + std::to_string(next_step_));
  }
  if (!pending && !is_over_.load(std::memory_order_acquire)) {
    next_step_ = step + 1;
    return Status::ok();
  }
  bool has_news = false;
  {
    LockGuard guard(mutex_);
    const TimePoint start = clock_.now();
    for (;;) {
      if (!session_->over().is_ok()) return session_->over();
      const Status taken = session_->take(step, out);
      if (taken.is_ok()) break;
      if (taken.code() != StatusCode::kDeadlineExceeded) return taken;
      const Nanos waited = clock_.now() - start;
      if (waited >= deadline) return taken;
      (void)changed_.wait_for(mutex_, std::min(kMemberLookInterval, deadline - waited));
    }
    has_news = ranks_ > 1 && session_->wants_output();
  }
  next_step_ = step + 1;
  if (has_news) wake_();
  return Status::ok();
}

void RankMember::note_end() {
  if (!session_->over().is_ok()) is_over_.store(true, std::memory_order_release);
}

Result<LinkId> RankMember::open_link(std::string peer) {
  if (!draw_) return unavailable("rank group: nobody draws its numbers");
  LARDER_ASSIGN_OR_RETURN(const Digest256 nonce, draw_());
  LockGuard guard(mutex_);
  return session_->open(std::move(peer), nonce);
}

void RankMember::receive(LinkId link, std::string_view bytes) {
  {
    LockGuard guard(mutex_);
    session_->receive(link, bytes);
    note_end();
  }
  changed_.notify_all();
}

void RankMember::close_link(LinkId link, const std::string& why) {
  {
    LockGuard guard(mutex_);
    session_->closed(link, why);
    note_end();
  }
  changed_.notify_all();
}

RankSession::Output RankMember::take_output(LinkId link) {
  LockGuard guard(mutex_);
  return session_->take_output(link);
}

bool RankMember::wants_output() const {
  LockGuard guard(mutex_);
  return session_->wants_output();
}

bool RankMember::wants_link() const {
  LockGuard guard(mutex_);
  return session_->wants_link();
}

void RankMember::tick() {
  {
    LockGuard guard(mutex_);
    const TimePoint now = clock_.now();
    session_->tick(now - ticked_);
    ticked_ = now;
    note_end();
  }
  changed_.notify_all();
}

Status RankMember::wait_formed(Nanos limit) {
  LockGuard guard(mutex_);
  for (const TimePoint start = clock_.now();;) {
    if (!session_->over().is_ok()) return session_->over();
    if (session_->is_formed()) return Status::ok();
    const Nanos waited = clock_.now() - start;
    if (waited >= limit) {
      return deadline_exceeded("rank group: not formed within " + seconds_text(limit) + ": " +
                               session_->missing_text());
    }
    (void)changed_.wait_for(mutex_, std::min(kMemberLookInterval, limit - waited));
  }
}

Status RankMember::status() const {
  LockGuard guard(mutex_);
  return session_->over();
}

void RankMember::leave(const std::string& why) {
  {
    LockGuard guard(mutex_);
    session_->leave(why);
    note_end();
  }
  changed_.notify_all();
  wake_();
}

std::vector<RankHealth> RankMember::health() const {
  LockGuard guard(mutex_);
  return session_->health();
}

RankTraffic RankMember::traffic() const {
  LockGuard guard(mutex_);
  return session_->traffic();
}

}  // namespace larder::ranks
