// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/lane_queue.h"

#include <algorithm>
#include <string>

namespace larder {

void LaneQueue::push(OperationPtr op) {
  earliest_deadline_ = std::min(earliest_deadline_, op->terms.deadline);
  queues_[index_of(op->terms.urgency)].push_back(std::move(op));
  ++size_;
}

const QueuedOperation* LaneQueue::front() const {
  for (const auto& queue : queues_) {
    if (!queue.empty()) return queue.front().get();
  }
  return nullptr;
}

OperationPtr LaneQueue::take() {
  for (auto& queue : queues_) {
    if (queue.empty()) continue;
    OperationPtr op = std::move(queue.front());
    queue.pop_front();
    --size_;
    return op;
  }
  return nullptr;
}

Status LaneQueue::expiry(const QueuedOperation& op, TimePoint now) {
  if (op.is_cancelled()) return cancelled("the storage operation was cancelled while it waited for its turn");
  if (now < op.terms.deadline) return Status::ok();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - op.queued_at);
  return deadline_exceeded("the storage operation was not begun by its deadline; it waited " +
                           std::to_string(waited.count()) + " ms");
}

void LaneQueue::sweep(TimePoint now, bool is_forced, EndedOperations& ended) {
  ++looks_;
  if (size_ == 0 || !(is_forced || now >= earliest_deadline_ || looks_ > size_)) return;
  looks_ = 0;
  earliest_deadline_ = TimePoint::max();
  for (auto& queue : queues_) {
    std::deque<OperationPtr> kept;
    for (OperationPtr& op : queue) {
      Status status = expiry(*op, now);
      if (status.is_ok()) {
        earliest_deadline_ = std::min(earliest_deadline_, op->terms.deadline);
        kept.push_back(std::move(op));
      } else {
        ended.emplace_back(std::move(op), std::move(status));
        --size_;
      }
    }
    queue.swap(kept);
  }
}

void LaneQueue::end_all(const Status& status, EndedOperations& ended) {
  while (OperationPtr op = take()) ended.emplace_back(std::move(op), status);
  earliest_deadline_ = TimePoint::max();
}

}  // namespace larder
