// SPDX-License-Identifier: Apache-2.0
#include "controller/op_table.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"

namespace larder {

OpTable::OpTable(const Limits& limits, Clock& clock, RankGroup* ranks, OutcomeOf outcome_of)
    : limits_(limits),
      clock_(clock),
      ranks_(ranks),
      outcome_of_(std::move(outcome_of)),
      places_(limits.max_operations, limits.max_explains),
      budget_(limits.poll_budget),
      inbox_(places_.most() + 1) {
  arrivals_.reserve(places_.most() + 1);  // what comes is taken without memory
}

Op& OpTable::add(OpKind kind) {
  const OpId id(kind == OpKind::kExplain ? kFirstExplainId + next_explain_++ : next_op_++);
  Op op;
  op.id = id;
  op.kind = kind;
  op.attachment = attachment_;
  places_.take(kind);
  return ops_.emplace(id.v, std::move(op)).first->second;
}

Op& OpTable::add_timer(TimePoint due) {
  Op& timer = add(OpKind::kTimer);
  timer.due = due;
  timers_.emplace(due, timer.id.v);
  return timer;
}

void OpTable::set_due(Op& timer, TimePoint due) {
  if (timers_.erase({timer.due, timer.id.v}) > 0) timers_.emplace(due, timer.id.v);
  timer.due = due;
}

Op* OpTable::find(OpId id) {
  const auto it = ops_.find(id.v);
  return it == ops_.end() ? nullptr : &it->second;
}

void OpTable::erase(OpId id) {
  const auto it = ops_.find(id.v);
  if (it == ops_.end()) return;
  const Op& op = it->second;
  if (op.kind == OpKind::kTimer) timers_.erase({op.due, id.v});
  op.is_abandoned ? places_.give_back_abandoned(op.kind) : places_.give_back(op.kind);
  ops_.erase(it);
}

bool OpTable::abandon(Op& op) {
  if (std::exchange(op.is_abandoned, true)) return false;
  places_.abandon(op.kind);
  return true;
}

std::function<void(Completion)> OpTable::completion_for(OpId id) {
  Result<Inbox<Arrival>::Ticket> ticket = inbox_.reserve();
  // Cannot fail: the inbox has a place for each operation, for each one aside, and for the one that follows another
  // while that is still counted. If it did, the completion would be dropped and the operation would stay in flight, its
  // buffers quarantined: never wrong, only lost.
  auto place =
      std::make_shared<Inbox<Arrival>::Ticket>(ticket.is_ok() ? std::move(ticket).value() : Inbox<Arrival>::Ticket{});
  return [id, place, bell = bell_](Completion completion) {
    if (!place->valid()) return;
    Inbox<Arrival>::push(std::move(*place), Arrival{id, std::move(completion)});
    if (bell) bell->ring();
  };
}

void OpTable::wake() {
  inbox_.wake();
  if (bell_) bell_->ring();
}

bool OpTable::take_arrivals() {
  arrivals_.clear();
  if (bell_) bell_->silence();
  if (inbox_.drain(arrivals_) == 0) return false;
  for (Arrival& arrival : arrivals_) {
    Op* const op = find(arrival.op);
    if (op == nullptr) continue;
    op->completion = std::move(arrival.completion);
    end(*op);
  }
  return true;
}

void OpTable::end_due_timers() {
  const TimePoint now = clock_.now();
  while (!timers_.empty() && timers_.begin()->first <= now) end(*find(OpId(timers_.begin()->second)));
}

bool OpTable::collect(Nanos wait) {
  bool changed = take_arrivals();
  if (!timers_.empty()) end_due_timers();
  if (!changed && ended_.empty() && !budget_.is_short() && wait > Nanos::zero()) {
    // A timer that is due sooner ends the wait: a limit that it guards is nothing that arrives.
    const Nanos timer = timers_.empty() ? wait : timers_.begin()->first - clock_.now();
    (void)inbox_.wait_for(std::clamp(timer, Nanos::zero(), wait));
    changed = take_arrivals();
    if (!timers_.empty()) end_due_timers();
  }
  return changed;
}

void OpTable::end(Op& op) {
  if (op.kind == OpKind::kTimer) timers_.erase({op.due, op.id.v});
  if (std::exchange(op.reported, true)) return;
  const bool is_own = !ranks_ || op.kind == OpKind::kExplain;
  if (!parted_.is_ok() && (!is_own || is_broken_)) return;  // the others may know the same number as another's
  OutcomeBits bits = outcome_of_(op);
  if (is_own) {
    ended_.push_back({op.id, std::move(bits)});
    return;
  }
  refused_.push_back({op.id, std::move(bits)});
  report_refused();
}

// The group is full while a slow rank has not applied what the others have; a lost report would leave the operation
// open on every rank for ever.
void OpTable::report_refused() {
  std::size_t taken = 0;
  for (; taken < refused_.size(); ++taken) {
    const Status answer = ranks_->report(refused_[taken].op, refused_[taken].bits);
    if (answer.code() == StatusCode::kOverloaded || answer.code() == StatusCode::kUnavailable) break;
    if (!answer.is_ok()) return part(answer);
  }
  refused_.erase(refused_.begin(), refused_.begin() + static_cast<std::ptrdiff_t>(taken));
}

std::optional<TimePoint> OpTable::next_due() const {
  if (!ended_.empty() || budget_.is_short()) return TimePoint::min();
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
}

// A follower must not act on this step before it knows what the leader applied in it, or the ranks part for good.
void OpTable::agree() {
  budget_.begin_poll();
  if (!ranks_ || !parted_.is_ok()) return;
  report_refused();
  if (!parted_.is_ok()) return;
  const bool pending = ops_.size() > places_.open(OpKind::kExplain);
  const Nanos wait = limits_.rank_plan_wait;
  for (Nanos left = limits_.rank_plan_limit;;) {
    const TimePoint asked = clock_.now();
    const Status taken = ranks_->take(step_, pending, wait, agreed_);
    if (taken.is_ok()) break;
    const bool may_come = taken.code() == StatusCode::kDeadlineExceeded || taken.code() == StatusCode::kOverloaded ||
                          taken.code() == StatusCode::kUnavailable;
    Nanos took = clock_.now() - asked;
    if (may_come && took < wait) {  // a group that does not wait itself
      (void)inbox_.wait_for(wait - took);
      took = clock_.now() - asked;
    }
    // A machine that slept has given the others no time: one wait counts for two at most. (A clock by hand may stand.)
    left -= took == Nanos(0) ? wait : std::min(took, 2 * wait);
    if (left <= Nanos(0) || !may_come) return part(taken);
    (void)take_arrivals();  // what the leader waits for may be this rank's report
    report_refused();
    if (!parted_.is_ok()) return;
  }
  ended_.insert(ended_.end(), std::make_move_iterator(agreed_.begin()), std::make_move_iterator(agreed_.end()));
  agreed_.clear();
  ++step_;
}

// What this rank would decide alone from now on, the others would not: their tokens would be computed from pages that
// do not belong together. So it decides nothing any more, and the others learn at once that its outcomes will not come.
void OpTable::part(const Status& why) {
  parted_ = unavailable("cache: rank " + std::to_string(ranks_->rank()) + " has lost the others at step " +
                        std::to_string(step_) + " (" + why.message() +
                        "): end this process and start all ranks of the model anew");
  log_error("cache", parted_.message());
  ranks_->give_up("its cache has lost the others at step " + std::to_string(step_) + ": " + why.message());
}

void OpTable::break_off(Status why) noexcept {
  if (std::exchange(is_broken_, true)) return;
  parted_ = std::move(why);
  ended_.clear();
  refused_.clear();
  budget_.begin_poll();  // nothing is left to do
  budget_.end_poll();
  for (Arrival& arrival : arrivals_) {  // it may have ended among them
    if (Op* const op = find(arrival.op)) op->completion = std::move(arrival.completion);
  }
  try {
    log_error("cache", parted_.message());
    if (ranks_ != nullptr) ranks_->give_up(parted_.message());
  } catch (const std::exception&) {  // still no memory: the others learn it by their own limits
  }
}

// Explanations are this rank's own: the others must not be cut because of them.
std::optional<AgreedEvent> OpTable::next_ended() {
  if (ended_.empty()) return std::nullopt;
  if (!budget_.has_left()) {
    budget_.fall_short();
    return std::nullopt;
  }
  AgreedEvent event = std::move(ended_.front());
  ended_.pop_front();
  if (event.op.v < kFirstExplainId) budget_.spend(1);
  return event;
}

std::vector<AgreedEvent> OpTable::take_ended() {
  std::vector<AgreedEvent> all(std::make_move_iterator(ended_.begin()), std::make_move_iterator(ended_.end()));
  ended_.clear();
  return all;
}

void OpTable::drain(Nanos wait, const std::function<void(Completion&)>& each) {
  (void)inbox_.wait_for(wait);
  arrivals_.clear();
  (void)inbox_.drain(arrivals_);
  for (Arrival& arrival : arrivals_) each(arrival.completion);
}

}  // namespace larder
