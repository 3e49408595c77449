// SPDX-License-Identifier: Apache-2.0
#include "sim/faulty_backend.h"

#include <utility>

namespace larder::sim {
namespace {

Status injected_cancel() { return cancelled("faulty backend: ended while the operation was held"); }
Status injected_failure() { return unavailable("faulty backend: injected failure"); }

bool has_failure(const std::vector<Status>& failures, std::size_t i) {
  return i < failures.size() && !failures[i].is_ok();
}

// Submits the items that do not fail, with all that the request says of them, and answers for all.
template <class Request, class Item, class Result, class Done, class Submit>
void pass_on(Request& request, std::vector<Item> Request::*items, std::vector<Status> Result::*statuses,
             const std::vector<Status>& failures, Done done, const Submit& submit) {
  const std::vector<Item> all = std::exchange(request.*items, {});
  std::vector<std::size_t> places;
  Result result;
  result.*statuses = failures;
  (result.*statuses).resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (has_failure(failures, i)) continue;
    places.push_back(i);
    (request.*items).push_back(all[i]);
  }
  const auto merge = [result, statuses, places, done](const Result& inner) mutable {
    for (std::size_t i = 0; i < places.size(); ++i) (result.*statuses)[places[i]] = (inner.*statuses).at(i);
    done(std::move(result));
  };
  const Status submitted = submit(std::move(request), merge);
  if (submitted.is_ok()) return;
  for (const std::size_t place : places) (result.*statuses)[place] = submitted;
  done(std::move(result));
}

}  // namespace

FaultyBackend::FaultyBackend(std::unique_ptr<StorageBackend> inner, std::uint64_t seed, FaultPlan plan)
    : inner_(std::move(inner)), rng_(seed), plan_(plan) {}

FaultyBackend::~FaultyBackend() {
  for (;;) {  // a callback may submit: refused now, but it must not find the lists in use
    std::vector<Held> ending;
    {
      LockGuard guard(mutex_);
      is_closed_ = true;
      ending.swap(held_);
      for (Held& hung : hung_) ending.push_back(std::move(hung));
      hung_.clear();
    }
    if (ending.empty()) return;
    for (Held& held : ending) held(false);
  }
}

void FaultyBackend::set_plan(const FaultPlan& plan) {
  LockGuard guard(mutex_);
  plan_ = plan;
}

void FaultyBackend::fail_nth(std::uint64_t n, StorageFault fault, std::function<void()> fired) {
  LockGuard guard(mutex_);
  until_fault_ = n;
  fault_ = fault;
  fired_ = std::move(fired);
}

bool FaultyBackend::release_one() {
  Held held;
  {
    LockGuard guard(mutex_);
    if (held_.empty()) return false;
    std::swap(held_.back(), held_[static_cast<std::size_t>(rng_.below(held_.size()))]);
    held = std::move(held_.back());
    held_.pop_back();
  }
  held(true);
  return true;
}

std::size_t FaultyBackend::release_all() {
  std::size_t count = 0;
  while (release_one()) ++count;
  return count;
}

std::size_t FaultyBackend::release_hung() {
  LockGuard guard(mutex_);
  const std::size_t count = hung_.size();
  for (Held& hung : hung_) held_.push_back(std::move(hung));
  hung_.clear();
  return count;
}

std::size_t FaultyBackend::held() const {
  LockGuard guard(mutex_);
  return held_.size();
}
std::size_t FaultyBackend::hung() const {
  LockGuard guard(mutex_);
  return hung_.size();
}
FaultyBackend::Injected FaultyBackend::injected() const {
  LockGuard guard(mutex_);
  return injected_;
}

Status FaultyBackend::check_open() const {
  LockGuard guard(mutex_);
  return is_closed_ ? unavailable("faulty backend: closed") : Status::ok();
}

FaultyBackend::Fate FaultyBackend::draw_fate() {
  std::function<void()> fired;
  const Fate fate = draw_fate(fired);
  if (fired) fired();
  return fate;
}

FaultyBackend::Fate FaultyBackend::draw_fate(std::function<void()>& fired) {
  LockGuard guard(mutex_);
  auto draw = static_cast<unsigned>(rng_.below(100));
  const auto hits = [&draw](unsigned percent) {
    if (draw < percent) return true;
    draw -= percent;
    return false;
  };
  if (until_fault_ > 0 && --until_fault_ == 0) {
    fired.swap(fired_);
    switch (fault_) {
      case StorageFault::kRefused: return ++injected_.refused, Fate::kRefused;
      case StorageFault::kHung: return ++injected_.hung, Fate::kHung;
      case StorageFault::kFailed: return ++injected_.failed, Fate::kFailed;
      case StorageFault::kPartial: return ++injected_.partial, Fate::kPartial;
    }
  }
  if (hits(plan_.refuse_percent)) return ++injected_.refused, Fate::kRefused;
  if (hits(plan_.hang_percent)) return ++injected_.hung, Fate::kHung;
  if (hits(plan_.fail_percent)) return ++injected_.failed, Fate::kFailed;
  if (hits(plan_.partial_percent)) return ++injected_.partial, Fate::kPartial;
  return Fate::kDone;
}

std::vector<Status> FaultyBackend::draw_item_failures(std::size_t count) {
  std::vector<Status> failures(count);
  if (count == 0) return failures;
  LockGuard guard(mutex_);
  const std::size_t certain = static_cast<std::size_t>(rng_.below(count));
  for (std::size_t i = 0; i < count; ++i) {
    if (i != certain && rng_.chance(1, 2)) continue;
    ++injected_.failed_items;
    const std::uint64_t kind = rng_.below(3);
    failures[i] = kind == 0   ? injected_failure()
                  : kind == 1 ? corrupt("faulty backend: injected")
                              : not_found("injected");
  }
  return failures;
}

std::vector<Status> FaultyBackend::failures_of(Fate fate, std::size_t count) {
  if (fate == Fate::kPartial) return draw_item_failures(count);
  if (fate != Fate::kFailed) return {};
  LockGuard guard(mutex_);
  injected_.failed_items += count;
  return std::vector<Status>(count, injected_failure());
}

Status FaultyBackend::take(Fate fate, Held held) {
  {
    LockGuard guard(mutex_);
    if (is_closed_) return unavailable("faulty backend: closed");
    if (fate == Fate::kHung) {
      hung_.push_back(std::move(held));
      return Status::ok();
    }
    if (plan_.is_holding) {
      held_.push_back(std::move(held));
      return Status::ok();
    }
  }
  held(true);
  return Status::ok();
}

void FaultyBackend::scribble(const std::vector<ReadItem>& items) {
  LockGuard guard(mutex_);
  for (const ReadItem& item : items) {
    for (const Segment& piece : item.payload) {
      for (std::size_t i = 0; i < piece.size; ++i) piece.data[i] = static_cast<std::byte>(rng_.next_u64());
    }
  }
}

Status FaultyBackend::submit_exists(ExistsRequest request, ExistsDone done) {
  LARDER_RETURN_IF_ERROR(check_open());
  const Fate fate = draw_fate();
  if (fate == Fate::kRefused) return overloaded("faulty backend: injected refusal");
  // Presence has no status per item, so a partial failure is a whole one.
  const bool fails = fate == Fate::kFailed || fate == Fate::kPartial;
  return take(fate, [this, fails, request = std::move(request), done = std::move(done)](bool is_released) mutable {
    if (!is_released || fails) return done({is_released ? injected_failure() : injected_cancel(), {}});
    const Status submitted = inner_->submit_exists(std::move(request), done);
    if (!submitted.is_ok()) done({submitted, {}});
  });
}

Status FaultyBackend::submit_read(ReadRequest request, ReadDone done) {
  LARDER_RETURN_IF_ERROR(check_open());
  const Fate fate = draw_fate();
  if (fate == Fate::kRefused) return overloaded("faulty backend: injected refusal");
  scribble(request.items);
  std::vector<Status> failures = failures_of(fate, request.items.size());
  return take(fate, [this, failures = std::move(failures), request = std::move(request),
                     done = std::move(done)](bool is_released) mutable {
    if (!is_released) return done({std::vector<Status>(request.items.size(), injected_cancel())});
    pass_on(
        request, &ReadRequest::items, &ReadResult::items, failures, std::move(done),
        [this](ReadRequest rest, ReadDone ended) { return inner_->submit_read(std::move(rest), std::move(ended)); });
  });
}

Status FaultyBackend::submit_write(WriteRequest request, WriteDone done) {
  LARDER_RETURN_IF_ERROR(check_open());
  const Fate fate = draw_fate();
  if (fate == Fate::kRefused) return overloaded("faulty backend: injected refusal");
  std::vector<Status> failures = failures_of(fate, request.groups.size());
  return take(fate, [this, failures = std::move(failures), request = std::move(request),
                     done = std::move(done)](bool is_released) mutable {
    if (!is_released) return done({std::vector<Status>(request.groups.size(), injected_cancel())});
    pass_on(
        request, &WriteRequest::groups, &WriteResult::groups, failures, std::move(done),
        [this](WriteRequest rest, WriteDone ended) { return inner_->submit_write(std::move(rest), std::move(ended)); });
  });
}

Status FaultyBackend::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  LARDER_RETURN_IF_ERROR(check_open());
  const Fate fate = draw_fate();
  if (fate == Fate::kRefused) return overloaded("faulty backend: injected refusal");
  const bool fails = fate == Fate::kFailed || fate == Fate::kPartial;
  return take(fate, [this, fails, scope = std::move(scope), done = std::move(done)](bool is_released) mutable {
    if (!is_released || fails) return done(is_released ? injected_failure() : injected_cancel());
    const Status submitted = inner_->submit_clear(std::move(scope), done);
    if (!submitted.is_ok()) done(submitted);
  });
}

Status FaultyBackend::close(std::chrono::nanoseconds limit) {
  {
    LockGuard guard(mutex_);
    is_closed_ = true;
    if (!held_.empty() || !hung_.empty()) return deadline_exceeded("faulty backend: operations are held");
  }
  return inner_->close(limit);
}

}  // namespace larder::sim
