// SPDX-License-Identifier: Apache-2.0
#include "door/write_retry.h"

#include <algorithm>
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

std::uint64_t WriteRetry::write_began(const Digest256& digest) {
  LockGuard guard(mutex_);
  ++writes_[{digest, epoch_}];
  return epoch_;
}

std::uint64_t WriteRetry::epoch() const {
  LockGuard guard(mutex_);
  return epoch_;
}

void WriteRetry::write_ended(const Digest256& digest, std::uint64_t epoch) {
  LockGuard guard(mutex_);
  const auto at = writes_.find({digest, epoch});
  if (at == writes_.end() || --at->second > 0) return;
  writes_.erase(at);
  writes_ended_.notify_all();
}

std::uint64_t WriteRetry::cleared_at(const Digest256& digest) const {
  const auto at = cleared_.find(digest);
  return at == cleared_.end() ? all_cleared_ : std::max(all_cleared_, at->second);
}

bool WriteRetry::has_earlier(const StoreScope* scope) const {
  for (const auto& [write, count] : writes_) {
    const auto& [digest, epoch] = write;
    if ((scope == nullptr || digest == scope->namespace_digest) && epoch < cleared_at(digest)) return true;
  }
  return false;
}

bool WriteRetry::wait_for_earlier(const StoreScope* scope, Nanos limit) {
  const TimePoint end = real_clock().now() + limit;
  LockGuard guard(mutex_);
  while (has_earlier(scope)) {
    const Nanos left = end - real_clock().now();
    if (left <= Nanos{0}) return false;
    (void)writes_ended_.wait_for(mutex_, left);
  }
  return true;
}

bool WriteRetry::may_take(const StoreScope& scope, std::uint64_t bytes, std::uint64_t epoch) {
  const bool has_room = stats_.waiting_bytes + bytes + kEntryOverhead <= options_.most_bytes;
  if (!is_stopped_ && has_room && epoch >= cleared_at(scope.namespace_digest)) return true;
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
                       std::uint64_t epoch) {
  const std::uint64_t bytes = group_bytes(group);
  {
    LockGuard guard(mutex_);
    if (!may_take(*scope, bytes, epoch)) return false;
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
  one.front()->offered = clock_.now();
  LockGuard guard(mutex_);
  if (!may_take(*scope, bytes, epoch)) return false;  // much may have come during the copy
  ++stats_.taken;
  ++stats_.waiting;
  stats_.waiting_bytes += bytes + kEntryOverhead;
  waiting_.splice(waiting_.end(), one);
  return true;
}

void WriteRetry::drop_old(TimePoint now) {
  while (!waiting_.empty() && now - waiting_.front()->offered > options_.oldest) {
    forget(*waiting_.front());
    ++stats_.dropped;
    waiting_.pop_front();
  }
}

std::shared_ptr<const StoreScope> WriteRetry::due() {
  LockGuard guard(mutex_);
  const TimePoint now = clock_.now();
  drop_old(now);
  if (is_stopped_ || !in_flight_.empty() || waiting_.empty() || now < next_try_) return nullptr;
  return waiting_.front()->scope;
}

WriteRetry::Batch WriteRetry::take_batch(const StoreScope& scope) {
  LockGuard guard(mutex_);
  if (is_stopped_ || !in_flight_.empty() || waiting_.empty()) return {};
  const bool durable = waiting_.front()->durable;
  std::uint64_t bytes = 0;
  Batch batch;
  auto end = waiting_.begin();
  for (; end != waiting_.end() && batch.size() < kBatchGroups && bytes < kBatchBytes; ++end) {
    if ((*end)->scope.get() != &scope || (*end)->durable != durable) break;
    bytes += (*end)->bytes.size();
    batch.push_back(*end);
  }
  in_flight_.splice(in_flight_.end(), waiting_, waiting_.begin(), end);
  return batch;
}

void WriteRetry::tick() {
  try {
    write_due();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): nothing was taken, and the next tick tries again
  }
}

// The write begins before its entries leave the queue: a clear finds them there, or waits for the write.
void WriteRetry::write_due() {
  const std::shared_ptr<const StoreScope> scope = due();
  if (!scope) return;
  const std::shared_ptr<Write> write = begin_write(*scope);
  const Batch batch = take_batch(*scope);
  if (batch.empty()) return;
  std::vector<Status> answers;
  try {
    const Status submitted = submit(batch, write);
    if (submitted.is_ok()) return;
    answers.assign(batch.size(), submitted);
  } catch (const std::bad_alloc&) {
    answers.clear();
  }
  if (write->end()) answered(answers);
}

Status WriteRetry::submit(const Batch& batch, const std::shared_ptr<Write>& write) {
  WriteRequest request;
  request.scope = batch[0]->scope;
  request.durable = batch[0]->durable;
  for (const std::shared_ptr<Entry>& entry : batch) request.groups.push_back(entry->group);
  // With the batch: its bytes stay as long as the operation may read them.
  return backend_->submit_write(std::move(request),
                                [self = shared_from_this(), batch, write](const WriteResult& result) {
                                  if (write->end()) self->answered(result.groups);
                                });
}

// A clear that came since has marked what is its own.
void WriteRetry::answered(const std::vector<Status>& answers) {
  LockGuard guard(mutex_);
  bool has_failed = false;
  for (std::size_t i = in_flight_.size(); i-- > 0;) {  // backwards, so that what goes back keeps its order
    const Entry& entry = *in_flight_.back();
    const bool is_stored = i < answers.size() && answers[i].is_ok();
    const bool may_pass = i >= answers.size() || is_worth_it(answers[i]);
    if (may_pass && !entry.is_cleared && !is_stopped_) {
      waiting_.splice(waiting_.begin(), in_flight_, std::prev(in_flight_.end()));
      has_failed = true;
      continue;
    }
    forget(entry);
    ++(is_stored ? stats_.stored : stats_.dropped);
    in_flight_.pop_back();
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
  if (scope != nullptr && cleared_.size() < kMostCleared) {
    cleared_[scope->namespace_digest] = epoch_ + 1;
  } else {
    all_cleared_ = epoch_ + 1;
    cleared_.clear();
  }
  ++epoch_;
  const auto is_of_it = [&](const std::shared_ptr<Entry>& entry) {
    return scope == nullptr || entry->scope->namespace_digest == scope->namespace_digest;
  };
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (!is_of_it(*at)) {
      ++at;
      continue;
    }
    forget(**at);
    ++stats_.dropped;
    at = waiting_.erase(at);
  }
  for (const std::shared_ptr<Entry>& entry : in_flight_) entry->is_cleared = entry->is_cleared || is_of_it(entry);
}

void WriteRetry::end_clear() {
  LockGuard guard(mutex_);
  ++clears_;
}

std::uint64_t WriteRetry::clears() const {
  LockGuard guard(mutex_);
  return clears_;
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
