// SPDX-License-Identifier: Apache-2.0
// What the I/O queues share: how far an operation has come, what an answer of the system means for it, and its end.
//
// Purpose: both implementations of io_queue.h give the same results because they ask here.
// Threads: an IoCursor is confined to whoever holds the operation.
// Cost: O(buffers) in all over the life of an operation; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/file/io_queue.h"

namespace larder::file_store {

// Operations a queue holds at once, those that wait included. More: kOverloaded.
inline constexpr std::size_t kMaxQueuedOperations = std::size_t{1} << 16;
// Buffers one system call takes (IOV_MAX, and the limit of File::readv_at).
inline constexpr std::size_t kMaxBuffersPerCall = 1024;
// Answers without progress ("try again", a few bytes of a block) that one operation survives in a row.
inline constexpr int kMaxStalls = 64;

// kInvalidArgument: no file, no callback, or no system descriptor where `needs_handle`.
[[nodiscard]] Status check_operations(std::span<const IoOperation> operations, bool needs_handle);

// Calls `done`, after file and buffers have been let go. What it throws is dropped: it must not take a thread down.
void finish_operation(IoOperation operation, const Status& status);

// The part of an operation that is still to do. Cuts operation.buffers in place as it goes.
class IoCursor {
 public:
  // `operation` stays where it is as long as the cursor lives.
  explicit IoCursor(IoOperation& operation);

  [[nodiscard]] std::size_t left() const { return left_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  // The next buffers, none empty, at most kMaxBuffersPerCall. Empty when all is done.
  [[nodiscard]] std::span<Segment> next_buffers() const;

  // The system moved `bytes`, fewer than asked perhaps. True: go on from here. False: the operation has ended, with
  // `status` (set in every such case).
  // A short answer inside a block of an aligned operation counts down to the block's start, because a direct file
  // takes no other place to go on from. Moving the same bytes again does no harm.
  [[nodiscard]] bool take(std::size_t bytes, Status& status);
  // The system asks to try again. False: it did so too often.
  [[nodiscard]] bool may_stall() { return ++stalls_ <= kMaxStalls; }

 private:
  void advance(std::size_t bytes);
  [[nodiscard]] Status ended_early() const;

  IoOperation& operation_;
  std::size_t first_ = 0;  // index of the first buffer with something to do
  std::size_t left_ = 0;   // bytes
  std::uint64_t offset_;
  int stalls_ = 0;
  const bool aligned_;
};

}  // namespace larder::file_store
