// SPDX-License-Identifier: Apache-2.0
// Memory of the door's own, between an engine's pages and the storage backend.
//
// Why: a storage operation that hangs keeps its buffers (rule 3), and an engine's thread must not hang with it. So
// operations run on pieces of this arena, and a call copies between them and the engine's memory only while it waits.
// A call that gives up leaves its pieces to the operation, which returns them whenever it ends.
//
// The arena is one region, registered with the device at open. Pieces of one use take at most three quarters of it, but
// for a single one: reads that hang leave room for writes, and the other way round. A piece that is larger than the
// arena has memory of its own. So has one that finds no room and is larger than kOrdinaryBytes and a sixteenth of the
// arena: while smaller ones come and go, there may never be so many free bytes in one run. Of each use one such piece
// exists at a time.
//
// Threads: any. Lifetime: pieces may outlive the arena object.
// Cost: a short lock and a walk over the free ranges; there are as many ranges as pieces at most.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "base/status.h"
#include "pool/host_pools.h"
#include "pool/memory.h"

namespace larder {

class StagingArena {
  struct State;

 public:
  static constexpr std::size_t kAlignment = 4096;
  static constexpr std::size_t kOrdinaryBytes = std::size_t{2} << 20;
  enum class Use : std::uint8_t { kRead, kWrite };

  // Gives its bytes back when it ends.
  class Piece {
   public:
    Piece(std::shared_ptr<State> state, Use use, std::byte* data, std::size_t size, std::unique_ptr<Memory> own);
    ~Piece();
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    [[nodiscard]] std::byte* data() const { return data_; }  // aligned to kAlignment
    [[nodiscard]] std::size_t size() const { return size_; }

   private:
    const std::shared_ptr<State> state_;
    const Use use_;
    std::byte* const data_;
    const std::size_t size_;
    const std::unique_ptr<Memory> own_;  // null: in the arena
  };

  // Errors: as MemorySource::allocate().
  [[nodiscard]] static Result<std::unique_ptr<StagingArena>> create(std::size_t bytes, MemorySource& source);

  // Null: no room now for this use; wait_for_room() waits. Errors: as MemorySource::allocate(), for what is larger than
  // the arena.
  [[nodiscard]] Result<std::shared_ptr<Piece>> try_take(std::size_t bytes, Use use);
  // Until a piece was given back since `seen` (of changes()), or `limit` is over.
  void wait_for_room(std::uint64_t seen, Nanos limit);
  [[nodiscard]] std::uint64_t changes() const;
  [[nodiscard]] Segment memory() const;
  [[nodiscard]] std::size_t used_bytes() const;  // of all pieces, also those with memory of their own

 private:
  struct State {
    explicit State(std::unique_ptr<Memory> region, MemorySource& from);
    void give(Use use, std::byte* data, std::size_t size, bool is_own);
    [[nodiscard]] bool may_take(Use use, std::size_t bytes) const LARDER_REQUIRES(mutex);
    [[nodiscard]] std::optional<std::size_t> take_range(Use use, std::size_t bytes) LARDER_EXCLUDES(mutex);

    const std::unique_ptr<Memory> memory;
    MemorySource& source;
    mutable RankedMutex mutex{LockRank::kPool};
    RankedCondition changed;
    std::map<std::size_t, std::size_t> free_ranges LARDER_GUARDED_BY(mutex);  // offset -> bytes; none touch
    std::array<std::size_t, 2> used LARDER_GUARDED_BY(mutex){};               // by use, in the arena
    std::array<std::size_t, 2> own LARDER_GUARDED_BY(mutex){};                // by use, of the piece outside of it
    std::uint64_t given LARDER_GUARDED_BY(mutex) = 0;
  };
  explicit StagingArena(std::shared_ptr<State> state) : state_(std::move(state)) {}
  [[nodiscard]] Result<std::shared_ptr<Piece>> take_own(std::size_t bytes, Use use);

  const std::shared_ptr<State> state_;
};

}  // namespace larder
