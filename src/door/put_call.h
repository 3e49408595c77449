// SPDX-License-Identifier: Apache-2.0
// Stores pages of an engine; successive pages with one key are a group. See chunk_call.h.
//
// Staged, the bytes are captured before the operation begins: a put that gives up has lent nothing. With
// CallTerms::retry, a group that fails for a reason that may pass goes to the store's WriteRetry and is answered ok;
// a durable one goes there, too, and is answered with the failure.
#pragma once

#include "door/chunk_call.h"

namespace larder {

class PutCall final : public ChunkCall {
 public:
  using ChunkCall::ChunkCall;

 protected:
  [[nodiscard]] std::shared_ptr<Chunk> make_chunk() override { return std::make_shared<PutChunk>(); }
  [[nodiscard]] Status start(const std::shared_ptr<Chunk>& chunk, TimePoint deadline) override;
  void finish(Chunk& chunk) override;
  void give_up(std::size_t begin, std::size_t end, bool is_in_flight, const Status& why) override;

 private:
  struct PutChunk final : Chunk {
    std::vector<PageGroup> groups;         // what the operation has; empty once it has begun, if nobody retries
    std::vector<std::size_t> group_begin;  // pages of the call, absolute; one more than groups
  };

  void make_groups(PutChunk& chunk) const;
  [[nodiscard]] PageGroup group_of_engine(std::size_t begin, std::size_t end) const;
  // The answer of one group, after it was offered to the retry queue if it may be.
  void answer(std::size_t begin, std::size_t end, const PageGroup& group, const Status& status);
  // The answer of pages that failed with `why`, and will be written later.
  void set_taken(std::size_t begin, std::size_t end, const Status& why);
  void set(std::size_t begin, std::size_t end, const Status& status);

  // When the call began: what a clear finds of it later, wherever it waits, is not written any more.
  const ClearMark begun_ = core_.pipeline->clear_mark();
};

}  // namespace larder
