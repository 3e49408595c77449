// SPDX-License-Identifier: Apache-2.0
#include "door/write_retry.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace larder {
namespace {

std::uint64_t group_bytes(const PageGroup& group) {
  std::uint64_t sum = 0;
  for (const WriteItem& item : group.items) sum += payload_bytes(item.payload);
  return sum;
}

// An entry costs its bytes and what it is described with.
constexpr std::uint64_t kEntryOverhead = 1024;

}  // namespace

bool WriteRetry::is_worth_it(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOverloaded:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInternal: return true;
    default: return false;
  }
}

std::uint64_t WriteRetry::write_began() {
  LockGuard guard(mutex_);
  ++writes_[epoch_];
  return epoch_;
}

std::uint64_t WriteRetry::epoch() const {
  LockGuard guard(mutex_);
  return epoch_;
}

void WriteRetry::write_ended(std::uint64_t epoch) {
  LockGuard guard(mutex_);
  const auto at = writes_.find(epoch);
  if (at == writes_.end() || --at->second > 0) return;
  writes_.erase(at);
  writes_ended_.notify_all();
}

bool WriteRetry::wait_for_earlier(Nanos limit) {
  const TimePoint end = real_clock().now() + limit;
  LockGuard guard(mutex_);
  while (!writes_.empty() && writes_.begin()->first < epoch_) {
    const Nanos left = end - real_clock().now();
    if (left <= Nanos{0}) return false;
    (void)writes_ended_.wait_for(mutex_, left);
  }
  return true;
}

bool WriteRetry::offer(const std::shared_ptr<const StoreScope>& scope, const PageGroup& group, bool durable,
                       std::uint64_t epoch) {
  const std::uint64_t bytes = group_bytes(group);
  {
    LockGuard guard(mutex_);
    if (is_stopped_ || epoch != epoch_ || stats_.waiting_bytes + bytes + kEntryOverhead > options_.most_bytes) {
      ++stats_.refused;
      return false;
    }
    ++stats_.taken;
    ++stats_.waiting;
    stats_.waiting_bytes += bytes + kEntryOverhead;
  }
  auto entry = std::make_shared<Entry>();
  entry->scope = scope;
  entry->durable = durable;
  entry->offered = clock_.now();
  entry->bytes.resize(bytes);
  std::byte* to = entry->bytes.data();
  for (const WriteItem& item : group.items) {
    WriteItem copy{item.pool, item.key, {}, item.parent};
    std::byte* const begin = to;
    for (const Segment& piece : item.payload) {
      if (piece.size != 0) std::memcpy(to, piece.data, piece.size);
      to += piece.size;
    }
    if (to != begin) copy.payload.push_back({begin, static_cast<std::size_t>(to - begin)});
    entry->group.items.push_back(std::move(copy));
  }
  LockGuard guard(mutex_);
  if (is_stopped_ || epoch != epoch_) {
    forget(*entry);
    ++stats_.dropped;
    return false;
  }
  waiting_.push_back(std::move(entry));
  return true;
}

void WriteRetry::drop_old(TimePoint now) {
  while (!waiting_.empty() && now - waiting_.front()->offered > options_.oldest) {
    forget(*waiting_.front());
    ++stats_.dropped;
    waiting_.pop_front();
  }
}

// The oldest groups of one namespace and durability.
WriteRetry::Batch WriteRetry::take_batch() {
  Batch batch;
  std::uint64_t bytes = 0;
  while (!waiting_.empty() && batch.size() < kBatchGroups && bytes < kBatchBytes) {
    const std::shared_ptr<Entry>& next = waiting_.front();
    if (!batch.empty() && (next->scope != batch[0]->scope || next->durable != batch[0]->durable)) break;
    bytes += next->bytes.size();
    batch.push_back(next);
    waiting_.pop_front();
  }
  return batch;
}

void WriteRetry::tick() {
  const std::shared_ptr<Write> write = begin_write();
  Batch batch;
  {
    LockGuard guard(mutex_);
    const TimePoint now = clock_.now();
    drop_old(now);
    if (is_stopped_ || !in_flight_.empty() || waiting_.empty() || now < next_try_) return;
    batch = take_batch();
    in_flight_ = batch;
  }
  Status submitted;
  try {
    submitted = submit(batch, write);
  } catch (const std::bad_alloc&) {
    submitted = overloaded("out of memory");
  }
  if (!submitted.is_ok() && write->end()) answered(batch, std::vector<Status>(batch.size(), submitted));
}

Status WriteRetry::submit(const Batch& batch, const std::shared_ptr<Write>& write) {
  WriteRequest request;
  request.scope = batch[0]->scope;
  request.durable = batch[0]->durable;
  for (const std::shared_ptr<Entry>& entry : batch) request.groups.push_back(entry->group);
  return backend_->submit_write(std::move(request),
                                [self = shared_from_this(), batch, write](const WriteResult& result) {
                                  if (write->end()) self->answered(batch, result.groups);
                                });
}

// A clear that came since has marked what is its own.
void WriteRetry::answered(const Batch& batch, const std::vector<Status>& answers) {
  LockGuard guard(mutex_);
  in_flight_.clear();
  bool has_failed = false;
  for (std::size_t i = batch.size(); i-- > 0;) {  // backwards, so that what goes back keeps its order
    const Status status = i < answers.size() ? answers[i] : internal_error("a write without an answer");
    if (!status.is_ok() && is_worth_it(status) && !batch[i]->is_cleared && !is_stopped_) {
      waiting_.push_front(batch[i]);
      has_failed = true;
      continue;
    }
    forget(*batch[i]);
    ++(status.is_ok() ? stats_.stored : stats_.dropped);
  }
  pause_ = !has_failed          ? Nanos{0}
           : pause_ == Nanos{0} ? options_.first_pause
                                : std::min(pause_ * 2, options_.longest_pause);
  next_try_ = clock_.now() + pause_;
}

void WriteRetry::forget(const Entry& entry) {
  --stats_.waiting;
  stats_.waiting_bytes -= entry.bytes.size() + kEntryOverhead;
}

void WriteRetry::begin_clear(const StoreScope* scope) {
  LockGuard guard(mutex_);
  ++epoch_;
  const auto is_of_it = [&](const std::shared_ptr<Entry>& entry) {
    return scope == nullptr || entry->scope->namespace_digest == scope->namespace_digest;
  };
  std::deque<std::shared_ptr<Entry>> kept;
  for (std::shared_ptr<Entry>& entry : waiting_) {
    if (is_of_it(entry)) {
      forget(*entry);
      ++stats_.dropped;
    } else {
      kept.push_back(std::move(entry));
    }
  }
  waiting_ = std::move(kept);
  for (const std::shared_ptr<Entry>& entry : in_flight_) entry->is_cleared = entry->is_cleared || is_of_it(entry);
}

void WriteRetry::stop() {
  LockGuard guard(mutex_);
  is_stopped_ = true;
  for (const std::shared_ptr<Entry>& entry : waiting_) forget(*entry);
  stats_.dropped += waiting_.size();
  waiting_.clear();
}

RetryStats WriteRetry::stats() const {
  LockGuard guard(mutex_);
  return stats_;
}

}  // namespace larder
