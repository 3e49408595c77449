// SPDX-License-Identifier: Apache-2.0
// The waiting operations of one lane (internal to storage/pipeline/).
//
// Threads: under the core's lock. Cost: push and take O(1). Ending what is expired or cancelled costs O(waiting), and
// is done when a deadline has passed or after as many looks as there are waiting operations: amortised O(1) per look.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "storage/pipeline/queued_operation.h"

namespace larder {

using OperationPtr = std::shared_ptr<QueuedOperation>;
// Operations that end without having reached the backend, and why.
using EndedOperations = std::vector<std::pair<OperationPtr, Status>>;

class LaneQueue {
 public:
  void push(OperationPtr op);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t size(Urgency urgency) const { return queues_[index_of(urgency)].size(); }
  // The next one; null: none waits.
  [[nodiscard]] const QueuedOperation* front() const;
  [[nodiscard]] OperationPtr take();
  // Moves what is expired or cancelled to `ended`, if it is time to look. is_forced: looks in any case.
  void sweep(TimePoint now, bool is_forced, EndedOperations& ended);
  // Moves everything to `ended`.
  void end_all(const Status& status, EndedOperations& ended);
  // kDeadlineExceeded, kCancelled, or ok: it may still begin.
  [[nodiscard]] static Status expiry(const QueuedOperation& op, TimePoint now);

 private:
  std::array<std::deque<OperationPtr>, kUrgencyCount> queues_;
  std::size_t size_ = 0;
  std::size_t looks_ = 0;                           // since the last sweep
  TimePoint earliest_deadline_ = TimePoint::max();  // of those that wait; may be too early, never too late
};

}  // namespace larder
