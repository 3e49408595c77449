// SPDX-License-Identifier: Apache-2.0
#include "storage/operation.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/defect.h"

namespace larder {

OperationGate::OperationGate(std::string owner, std::size_t limit)
    : owner_(std::move(owner)), state_(std::make_shared<State>(limit)) {}

OperationGate::Ticket::~Ticket() {
  const std::shared_ptr<State> state = std::move(state_);  // outlives the guard
  if (!state) return;
  LockGuard guard(state->mutex);
  --state->entered;
  state->changed.notify_all();
}

Result<OperationGate::Ticket> OperationGate::enter() { return enter_below(state_->limit); }
Result<OperationGate::Ticket> OperationGate::enter_inline() {
  return enter_below(std::numeric_limits<std::size_t>::max());
}

Result<OperationGate::Ticket> OperationGate::enter_below(std::size_t limit) {
  LockGuard guard(state_->mutex);
  if (state_->closed) return unavailable("storage backend '" + owner_ + "' is closed");
  if (state_->entered >= limit) {
    return overloaded("storage backend '" + owner_ + "': " + std::to_string(limit) +
                      " operations are in flight, the most it takes");
  }
  ++state_->entered;
  return Ticket(state_);
}

OperationGate::Ticket OperationGate::hold() {
  LockGuard guard(state_->mutex);
  ++state_->entered;
  return Ticket(state_);
}

void OperationGate::close() {
  LockGuard guard(state_->mutex);
  state_->closed = true;
}

Status OperationGate::close_within(std::chrono::nanoseconds limit) {
  close();
  if (wait_idle(std::max(limit, std::chrono::nanoseconds(0)))) return Status::ok();
  return deadline_exceeded("storage backend '" + owner_ + "': operations are still in flight");
}

void OperationGate::drain() {
  close();
  (void)wait_idle(std::chrono::nanoseconds(-1));
}

bool OperationGate::is_closed() const {
  LockGuard guard(state_->mutex);
  return state_->closed;
}

bool OperationGate::wait_idle(std::chrono::nanoseconds limit) {
  LockGuard guard(state_->mutex);
  if (defect(Defect::kCloseDoesNotDrain)) return true;
  if (limit.count() < 0) {
    while (state_->entered > 0) state_->changed.wait(state_->mutex);
    return true;
  }
  const TimePoint begin = real_clock().now();
  for (Nanos left = limit; state_->entered > 0 && left > Nanos(0); left = limit - (real_clock().now() - begin)) {
    (void)state_->changed.wait_for(state_->mutex, left);
  }
  return state_->entered == 0;
}

std::uint64_t OperationGate::in_flight() const {
  LockGuard guard(state_->mutex);
  return state_->entered;
}

namespace {
Status never_run() { return cancelled("the storage operation was dropped before it ran"); }
}  // namespace

void preset_cancelled(ReadOperation& op) { op.result.items.assign(op.request.items.size(), never_run()); }
void preset_cancelled(WriteOperation& op) { op.result.groups.assign(op.request.groups.size(), never_run()); }
void preset_cancelled(ExistsOperation& op) { op.result.status = never_run(); }
void preset_cancelled(ClearOperation& op) { op.result = never_run(); }

void count_read(BackendStats& stats, const Status& status) {
  ++stats.reads;
  switch (status.code()) {
    case StatusCode::kOk: ++stats.read_hits; break;
    case StatusCode::kNotFound: ++stats.read_misses; break;
    case StatusCode::kCorrupt: ++stats.corrupt; break;
    default: ++stats.read_errors; break;
  }
}

Status check_group(const StoreScope& scope, const PageGroup& group) {
  if (group.items.empty()) return invalid_argument("page group without items");
  for (const WriteItem& item : group.items) {
    if (scope.fingerprint(item.pool).is_zero()) {
      return invalid_argument("the scope's model has no pool '" + std::string(pool_name(item.pool)) + "'");
    }
    if (payload_bytes(item.payload) > std::numeric_limits<std::uint32_t>::max()) {
      return invalid_argument("a page of 4 GiB or more cannot be stored");
    }
  }
  return Status::ok();
}

}  // namespace larder
