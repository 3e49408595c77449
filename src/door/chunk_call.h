// SPDX-License-Identifier: Apache-2.0
// A call over many pages as operations of a few pages each: several are in the backend at once, and while the disk
// works on the next ones the thread of the call copies those that have come.
//
//   pages -> chunks (about kChunkBytes; of a put, whole groups) -> [room in the arena] -> backend -> inbox of the call
//   -> answers
//
// What get and put share. A derived call says how a chunk starts and what its end means.
//
// Threads: one call belongs to one thread; operations end on any, and post to the inbox, which outlives the call.
// Patience: at its deadline, or when it is cancelled, a staged call leaves what is in flight to its operations. A
// zero-copy call waits for that, because the memory is the engine's. A chunk for which the arena has no room waits for
// it, unless those that have it are operations that hang: then its pages are answered at once.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "door/page_space.h"
#include "door/store_core.h"

namespace larder {

class ChunkCall {
 public:
  ChunkCall(StoreCore& core, const PageSpace& space, std::span<CallPage> pages, const CallTerms& terms);
  virtual ~ChunkCall() = default;
  ChunkCall(const ChunkCall&) = delete;
  ChunkCall& operator=(const ChunkCall&) = delete;

  // Fills the status of every page.
  void run();

 protected:
  static constexpr std::size_t kChunkBytes = StagingArena::kOrdinaryBytes;
  static constexpr std::size_t kMostInFlight = 32;

  // Pages [begin, end) of the call, on their way.
  struct Chunk {
    virtual ~Chunk() = default;
    std::size_t begin = 0, end = 0;
    std::shared_ptr<StagingArena::Piece> piece;  // null: zero copy
    std::vector<std::size_t> offsets;            // in the piece, by page of the chunk
    std::vector<Status> answers;                 // as the operation gave them
  };
  // Where operations leave what has ended. Outlives the call.
  class Inbox {
   public:
    // False: the call is over, and nobody will look.
    [[nodiscard]] bool post(std::shared_ptr<Chunk> chunk) LARDER_EXCLUDES(mutex_);
    // The next one; null if none came within `limit`.
    [[nodiscard]] std::shared_ptr<Chunk> wait(Nanos limit) LARDER_EXCLUDES(mutex_);
    // The call is over. What had been posted.
    [[nodiscard]] std::deque<std::shared_ptr<Chunk>> close() LARDER_EXCLUDES(mutex_);

   private:
    mutable RankedMutex mutex_{LockRank::kController};
    RankedCondition posted_;
    std::deque<std::shared_ptr<Chunk>> ended_ LARDER_GUARDED_BY(mutex_);
    bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;
  };

  [[nodiscard]] virtual std::shared_ptr<Chunk> make_chunk() = 0;
  // Submits. Not ok: nothing was taken.
  [[nodiscard]] virtual Status start(const std::shared_ptr<Chunk>& chunk, TimePoint deadline) = 0;
  // All answers are there; the call still waits.
  virtual void finish(Chunk& chunk) = 0;
  // The call has given up while the chunk is in flight, or before it began.
  virtual void give_up(std::size_t begin, std::size_t end, bool is_in_flight, const Status& why) = 0;
  // Of its operations.
  [[nodiscard]] virtual Lane lane() const { return Lane::kWrite; }

  [[nodiscard]] const PoolDescription& pool_of(const CallPage& page) const { return space_.pools()[page.pool]; }
  // The place of page `index` of the call in the chunk's piece.
  [[nodiscard]] static std::byte* staged(const Chunk& chunk, std::size_t index) {
    return chunk.piece->data() + chunk.offsets[index - chunk.begin];
  }
  // The segments that the operation works on: the staged place, or the engine's.
  [[nodiscard]] std::vector<Segment> operation_segments(const Chunk& chunk, std::size_t index) const;

  StoreCore& core_;
  const PageSpace& space_;
  const std::span<CallPage> pages_;
  const CallTerms terms_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();

 private:
  void run_chunks();
  [[nodiscard]] std::size_t chunk_end(std::size_t begin) const;
  // Whether the chunk's pages have their places; false: no room now. Errors: the machine has not that much memory.
  [[nodiscard]] Result<bool> stage(Chunk& chunk) const;
  // Starts what there is room for. False: the next chunk waits for room or for the backend's queue.
  bool start_some();
  void take_ended(const std::shared_ptr<Chunk>& chunk);
  // Until no operation has the engine's memory. `why`: of chunks that no operation holds; null: nobody asks.
  void wait_for_operations(const Status* why);
  void wait_for_something(std::uint64_t arena_changes);
  void end_early(const Status& why);

  TimePoint deadline_;
  std::size_t next_ = 0;  // pages from here on have not begun
  std::deque<std::shared_ptr<Chunk>> in_flight_;
};

// Copies `from` to the pieces, or back. Sizes add up.
void copy_to_segments(const std::byte* from, std::span<const Segment> to);
void copy_from_segments(std::span<const Segment> from, std::byte* to);

}  // namespace larder
