// SPDX-License-Identifier: Apache-2.0
#include "door/chunk_call.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + StagingArena::kAlignment - 1) / StagingArena::kAlignment * StagingArena::kAlignment;
}

}  // namespace

Status check_patience(const StoreCore& core, TimePoint deadline, const CallTerms& terms) {
  if (terms.cancel && terms.cancel->load(std::memory_order_acquire)) return cancelled("the caller cancelled the call");
  if (core.clock->now() < deadline) return Status::ok();
  return deadline_exceeded("the store '" + core.backend_name + "' did not answer in time");
}

void copy_to_segments(const std::byte* from, std::span<const Segment> to) {
  for (const Segment& piece : to) {
    if (piece.size != 0) std::memcpy(piece.data, from, piece.size);
    from += piece.size;
  }
}

void copy_from_segments(std::span<const Segment> from, std::byte* to) {
  for (const Segment& piece : from) {
    if (piece.size != 0) std::memcpy(to, piece.data, piece.size);
    to += piece.size;
  }
}

bool ChunkCall::Inbox::post(std::shared_ptr<Chunk> chunk) {
  LockGuard guard(mutex_);
  if (is_closed_) return false;
  ended_.push_back(std::move(chunk));
  posted_.notify_one();
  return true;
}

std::shared_ptr<ChunkCall::Chunk> ChunkCall::Inbox::wait(Nanos limit) {
  LockGuard guard(mutex_);
  if (ended_.empty() && limit > Nanos{0}) (void)posted_.wait_for(mutex_, limit);
  if (ended_.empty()) return nullptr;
  std::shared_ptr<Chunk> chunk = std::move(ended_.front());
  ended_.pop_front();
  return chunk;
}

std::deque<std::shared_ptr<ChunkCall::Chunk>> ChunkCall::Inbox::close() {
  LockGuard guard(mutex_);
  is_closed_ = true;
  return std::move(ended_);
}

ChunkCall::ChunkCall(StoreCore& core, const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms)
    : core_(core), space_(space), pages_(pages), terms_(terms), deadline_(core.deadline_of(terms)) {}

void ChunkCall::run() {
  try {
    run_chunks();
  } catch (...) {
    // Out of memory: what the device works on in zero-copy mode is the engine's all the same.
    if (core_.limits.is_zero_copy) wait_for_operations(nullptr);
    throw;
  }
}

void ChunkCall::wait_for_operations(const Status* why) {
  while (!in_flight_.empty()) {
    // Where memory was out, an operation may never have begun, or have died without an answer: nobody posts its chunk.
    const auto held_by_nobody = [](const std::shared_ptr<Chunk>& chunk) { return chunk.use_count() == 1; };
    const auto at = std::find_if(in_flight_.begin(), in_flight_.end(), held_by_nobody);
    if (at != in_flight_.end()) {
      std::atomic_thread_fence(std::memory_order_acquire);  // use_count() is relaxed: the operation's last writes
      const std::size_t begin = (*at)->begin, end = (*at)->end;
      in_flight_.erase(at);
      if (why) give_up(begin, end, false, *why);
      continue;
    }
    try {
      core_.pipeline->tick();
    } catch (...) {  // out of memory: the next round
    }
    if (const std::shared_ptr<Chunk> chunk = inbox_->wait(kCallSlice)) {
      why ? take_ended(chunk) : void(std::erase(in_flight_, chunk));
    }
  }
}

void ChunkCall::run_chunks() {
  while (next_ < pages_.size() || !in_flight_.empty()) {
    const std::uint64_t changes = core_.arena->changes();
    const bool all_begun = start_some();
    if (in_flight_.empty() && all_begun) break;
    wait_for_something(changes);
    while (const std::shared_ptr<Chunk> chunk = inbox_->wait(Nanos{0})) take_ended(chunk);
    if (const Status patience = check_patience(core_, deadline_, terms_); !patience.is_ok()) {
      end_early(patience);
      break;
    }
  }
}

bool ChunkCall::start_some() {
  while (next_ < pages_.size()) {
    if (in_flight_.size() >= kMostInFlight) return false;
    const std::size_t end = chunk_end(next_);
    std::shared_ptr<Chunk> chunk = make_chunk();
    chunk->begin = next_;
    chunk->end = end;
    if (!core_.limits.is_zero_copy) {
      const Result<bool> is_staged = stage(*chunk);
      if (!is_staged.is_ok() || !*is_staged) {
        const Status may_wait = is_staged.is_ok() ? core_.pipeline->check_wait(lane()) : is_staged.status();
        if (may_wait.is_ok()) return false;
        give_up(next_, end, false, may_wait);
        next_ = end;
        continue;
      }
    }
    in_flight_.push_back(chunk);  // before it is: out of memory later, nobody would wait for it
    const Status started = start(chunk, deadline_);
    if (!started.is_ok()) {
      in_flight_.pop_back();
      // A full queue has room again when something of ours, or of others, has ended.
      if (started.code() == StatusCode::kOverloaded && !in_flight_.empty()) return false;
      give_up(next_, end, false, started);
    }
    next_ = end;
  }
  return true;
}

void ChunkCall::take_ended(const std::shared_ptr<Chunk>& chunk) {
  std::erase(in_flight_, chunk);
  finish(*chunk);
}

void ChunkCall::wait_for_something(std::uint64_t arena_changes) {
  const Nanos left = std::clamp<Nanos>(deadline_ - core_.clock->now(), Nanos{0}, kCallSlice);
  if (in_flight_.empty()) {
    core_.arena->wait_for_room(arena_changes, left);
  } else if (const std::shared_ptr<Chunk> chunk = inbox_->wait(left)) {
    take_ended(chunk);
  }
}

void ChunkCall::end_early(const Status& why) {
  ++(why.code() == StatusCode::kCancelled ? core_.counters.calls_cancelled : core_.counters.calls_late);
  if (core_.limits.is_zero_copy) {
    wait_for_operations(&why);
  } else {
    for (const std::shared_ptr<Chunk>& chunk : inbox_->close()) take_ended(chunk);
  }
  for (const std::shared_ptr<Chunk>& chunk : in_flight_) give_up(chunk->begin, chunk->end, true, why);
  if (next_ < pages_.size()) give_up(next_, pages_.size(), false, why);
}

// Successive pages with one key are one group of a put, and go together.
std::size_t ChunkCall::chunk_end(std::size_t begin) const {
  std::size_t bytes = 0, end = begin;
  while (end < pages_.size()) {
    std::size_t after = end;
    std::size_t group = 0;
    do {
      group += aligned(pool_of(pages_[after++]).page_bytes);
    } while (lane() == Lane::kWrite && after < pages_.size() && pages_[after].key == pages_[end].key);
    if (end != begin && bytes + group > kChunkBytes) break;
    bytes += group;
    end = after;
  }
  return end;
}

Result<bool> ChunkCall::stage(Chunk& chunk) const {
  std::size_t bytes = 0;
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    chunk.offsets.push_back(bytes);
    bytes += aligned(pool_of(pages_[i]).page_bytes);
  }
  LARDER_ASSIGN_OR_RETURN(chunk.piece, core_.arena->try_take(bytes, lane() == Lane::kRead ? StagingArena::Use::kRead
                                                                                          : StagingArena::Use::kWrite));
  return chunk.piece != nullptr;
}

std::vector<Segment> ChunkCall::operation_segments(const Chunk& chunk, std::size_t index) const {
  const std::size_t bytes = pool_of(pages_[index]).page_bytes;
  if (bytes == 0) return {};
  if (chunk.piece) return {{staged(chunk, index), bytes}};
  return {pages_[index].segments.begin(), pages_[index].segments.end()};
}

}  // namespace larder
