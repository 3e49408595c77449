// SPDX-License-Identifier: Apache-2.0
#include "door/write_retry.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <iterator>
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

bool WriteRetry::may_take(std::uint64_t bytes) {
  const bool has_room = stats_.waiting_bytes + bytes + kEntryOverhead <= options_.most_bytes;
  if (!is_stopped_ && has_room) return true;
  ++stats_.refused;
  return false;
}

std::shared_ptr<WriteRetry::Entry> WriteRetry::copy_of(const PageGroup& group, std::uint64_t bytes) {
  auto entry = std::make_shared<Entry>();
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
  return entry;
}

bool WriteRetry::offer(const std::shared_ptr<const StoreScope>& scope, const PageGroup& group, bool durable,
                       const ClearMark& as_of) {
  const std::uint64_t bytes = group_bytes(group);
  {
    LockGuard guard(mutex_);
    if (!may_take(bytes)) return false;
  }
  Entries one;
  try {
    one.push_back(copy_of(group, bytes));
  } catch (const std::exception&) {  // no memory
    LockGuard guard(mutex_);
    ++stats_.refused;
    return false;
  }
  one.front()->scope = scope;
  one.front()->durable = durable;
  one.front()->as_of = as_of;
  one.front()->offered = clock_.now();
  LockGuard guard(mutex_);
  if (!may_take(bytes)) return false;  // much may have come during the copy
  ++stats_.taken;
  ++stats_.waiting;
  stats_.waiting_bytes += bytes + kEntryOverhead;
  waiting_.splice(waiting_.end(), one);
  return true;
}

void WriteRetry::drop_old(TimePoint now) {
  if (now < next_drop_) return;
  next_drop_ = now + kDropEach;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto entry = at++;
    if (now - (*entry)->offered <= options_.oldest) continue;
    uncount(**entry);
    ++stats_.dropped;
    waiting_.erase(entry);
  }
}

WriteRetry::Batch WriteRetry::take_batch() {
  LockGuard guard(mutex_);
  const TimePoint now = clock_.now();
  drop_old(now);
  is_submitting_ = !is_stopped_ && in_flight_.empty() && !waiting_.empty() && now >= next_try_;
  if (!is_submitting_) return {};
  Batch batch;
  batch.reserve(kBatchGroups);  // from here on nothing throws
  const std::shared_ptr<Entry> first = waiting_.front();
  std::uint64_t bytes = 0;
  std::size_t looked_at = 0;
  for (auto at = waiting_.begin(); at != waiting_.end() && looked_at < kMostLookedAt; ++looked_at) {
    if (batch.size() == kBatchGroups || bytes >= kBatchBytes) break;
    const auto entry = at++;
    if ((*entry)->scope != first->scope || (*entry)->durable != first->durable || (*entry)->as_of != first->as_of)
      continue;
    bytes += (*entry)->bytes.size();
    batch.push_back(*entry);
    in_flight_.splice(in_flight_.end(), waiting_, entry);
  }
  return batch;
}

void WriteRetry::tick() {
  {
    LockGuard guard(mutex_);
    if (is_submitting_) return;
    is_submitting_ = true;
  }
  try {
    submit_due();
  } catch (const std::bad_alloc&) {  // nothing was taken, and the next tick tries again
    LockGuard guard(mutex_);
    is_submitting_ = false;
  }
}

struct WriteRetry::End {
  std::atomic<bool> is_there{false};
  [[nodiscard]] bool is_first() { return !is_there.exchange(true, std::memory_order_relaxed); }  // a single fact
};

// A loop, since a backend may answer inside submit.
void WriteRetry::submit_due() {
  for (;;) {
    const auto end = std::make_shared<End>();
    const Batch batch = take_batch();
    if (batch.empty()) return;
    std::vector<Status> answers;
    try {
      const Status submitted = submit(batch, end);
      if (submitted.is_ok()) continue;
      answers.assign(batch.size(), submitted);
    } catch (const std::bad_alloc&) {
      answers.clear();
    }
    if (end->is_first()) answered(answers);
  }
}

Status WriteRetry::submit(const Batch& batch, const std::shared_ptr<End>& end) {
  WriteRequest request;
  request.scope = batch[0]->scope;
  request.durable = batch[0]->durable;
  request.as_of = batch[0]->as_of;
  for (const std::shared_ptr<Entry>& entry : batch) request.groups.push_back(entry->group);
  // With the batch: its bytes stay as long as the operation may read them.
  return backend_->submit_write(std::move(request), [self = shared_from_this(), batch, end](const WriteResult& result) {
    if (!end->is_first()) return;
    self->answered(result.groups);
    self->tick();
  });
}

void WriteRetry::answered(const std::vector<Status>& answers) {
  LockGuard guard(mutex_);
  bool has_failed = false;
  for (std::size_t i = 0; !in_flight_.empty(); ++i) {
    const Entry& entry = *in_flight_.front();
    const bool is_stored = i < answers.size() && answers[i].is_ok();
    const bool may_pass = i >= answers.size() || is_worth_it(answers[i]);
    if (may_pass && !is_stopped_) {
      waiting_.splice(waiting_.end(), in_flight_, in_flight_.begin());
      has_failed = true;
      continue;
    }
    uncount(entry);
    ++(is_stored ? stats_.stored : stats_.dropped);
    in_flight_.pop_front();
  }
  pause_ = !has_failed          ? Nanos{0}
           : pause_ == Nanos{0} ? options_.first_pause
                                : std::min(pause_ * 2, options_.longest_pause);
  next_try_ = clock_.now() + pause_;
}

void WriteRetry::uncount(const Entry& entry) {
  --stats_.waiting;
  stats_.waiting_bytes -= entry.bytes.size() + kEntryOverhead;
}

void WriteRetry::forget(const StoreScope* scope, const ClearMark& before) {
  Entries gone;  // outlives the guard
  LockGuard guard(mutex_);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto entry = at++;
    const ClearMark& as_of = (*entry)->as_of;
    const bool is_of_it = scope == nullptr || (*entry)->scope->namespace_digest == scope->namespace_digest;
    if (!is_of_it || as_of.store != before.store || as_of.count > before.count) continue;
    uncount(**entry);
    ++stats_.dropped;
    gone.splice(gone.end(), waiting_, entry);
  }
}

void WriteRetry::stop() {
  LockGuard guard(mutex_);
  is_stopped_ = true;
  for (const std::shared_ptr<Entry>& entry : waiting_) uncount(*entry);
  stats_.dropped += waiting_.size();
  waiting_.clear();
}

RetryStats WriteRetry::stats() const {
  LockGuard guard(mutex_);
  return stats_;
}

}  // namespace larder
