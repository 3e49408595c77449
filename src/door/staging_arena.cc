// SPDX-License-Identifier: Apache-2.0
#include "door/staging_arena.h"

#include <algorithm>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + StagingArena::kAlignment - 1) / StagingArena::kAlignment * StagingArena::kAlignment;
}

constexpr std::size_t index_of(StagingArena::Use use) { return static_cast<std::size_t>(use); }

}  // namespace

StagingArena::State::State(std::unique_ptr<Memory> region, MemorySource& from)
    : memory(std::move(region)), source(from) {
  free_ranges.emplace(0, memory->size());
}

bool StagingArena::State::may_take(Use use, std::size_t bytes) const {
  const std::size_t mine = used[index_of(use)];
  return mine == 0 || mine + bytes <= memory->size() - memory->size() / 4;
}

void StagingArena::State::give(Use use, std::byte* data, std::size_t size, bool is_own) {
  LockGuard guard(mutex);
  ++given;
  if (is_own) {
    own[index_of(use)] = 0;
  } else {
    used[index_of(use)] -= size;
    const auto offset = static_cast<std::size_t>(data - memory->data());
    auto at = free_ranges.emplace(offset, size).first;
    const auto next = std::next(at);
    if (next != free_ranges.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_ranges.erase(next);
    }
    if (at != free_ranges.begin()) {
      const auto before = std::prev(at);
      if (before->first + before->second == at->first) {
        before->second += at->second;
        free_ranges.erase(at);
      }
    }
  }
  changed.notify_all();
}

StagingArena::Piece::Piece(std::shared_ptr<State> state, Use use, std::byte* data, std::size_t size,
                           std::unique_ptr<Memory> own)
    : state_(std::move(state)), use_(use), data_(data), size_(size), own_(std::move(own)) {}

StagingArena::Piece::~Piece() { state_->give(use_, data_, size_, own_ != nullptr); }

Result<std::unique_ptr<StagingArena>> StagingArena::create(std::size_t bytes, MemorySource& source) {
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory, source.allocate(round_up(bytes)));
  return std::unique_ptr<StagingArena>(new StagingArena(std::make_shared<State>(std::move(memory), source)));
}

std::optional<std::size_t> StagingArena::State::take_range(Use use, std::size_t bytes) {
  LockGuard guard(mutex);
  if (!may_take(use, bytes)) return std::nullopt;
  auto at = free_ranges.begin();
  while (at != free_ranges.end() && at->second < bytes) ++at;
  if (at == free_ranges.end()) return std::nullopt;
  const auto [offset, size] = *at;
  free_ranges.erase(at);
  if (size > bytes) free_ranges.emplace(offset + bytes, size - bytes);
  used[index_of(use)] += bytes;
  return offset;
}

Result<std::shared_ptr<StagingArena::Piece>> StagingArena::try_take(std::size_t bytes, Use use) {
  const std::size_t wanted = std::max(round_up(bytes), kAlignment);
  if (const std::optional<std::size_t> offset = state_->take_range(use, wanted)) {
    return std::make_shared<Piece>(state_, use, state_->memory->data() + *offset, wanted, nullptr);
  }
  const std::size_t size = state_->memory->size();
  const bool is_ordinary = wanted <= std::min(std::max(kOrdinaryBytes, size / 16), size);
  return is_ordinary ? std::shared_ptr<Piece>() : take_own(wanted, use);
}

Result<std::shared_ptr<StagingArena::Piece>> StagingArena::take_own(std::size_t bytes, Use use) {
  {
    LockGuard guard(state_->mutex);
    std::size_t& own = state_->own[index_of(use)];
    if (own != 0) return std::shared_ptr<Piece>();
    own = bytes;
  }
  Result<std::unique_ptr<Memory>> memory = state_->source.allocate(bytes);
  if (!memory.is_ok()) {
    {
      LockGuard guard(state_->mutex);  // who waits for room is not woken up: there is no more than before
      state_->own[index_of(use)] = 0;
    }
    if (bytes <= state_->memory->size()) return std::shared_ptr<Piece>();
    return memory.status();
  }
  std::byte* const data = (*memory)->data();
  return std::make_shared<Piece>(state_, use, data, bytes, std::move(memory).value());
}

void StagingArena::wait_for_room(std::uint64_t seen, Nanos limit) {
  LockGuard guard(state_->mutex);
  if (state_->given == seen) (void)state_->changed.wait_for(state_->mutex, limit);
}

std::uint64_t StagingArena::changes() const {
  LockGuard guard(state_->mutex);
  return state_->given;
}

Segment StagingArena::memory() const { return {state_->memory->data(), state_->memory->size()}; }

std::size_t StagingArena::used_bytes() const {
  LockGuard guard(state_->mutex);
  return state_->used[0] + state_->used[1] + state_->own[0] + state_->own[1];
}

}  // namespace larder
