// SPDX-License-Identifier: Apache-2.0
// The queue between the tables and the journal: order, group commit, and what to do when the disk refuses.
//
// Purpose: a change is applied to its table and append()ed here under the table's lock, so that the journal's order is
// the tables' order. The memory for it is had before (make_piece()), so that what a table has and what is queued stay
// the same where memory runs out between two changes (AppendAtEnd). No call answers before its changes are written:
// commit(), without any lock. Whoever commits first writes for all that wait; the others sleep until theirs is in.
// When the journal refuses: the changes stay queued, in order, and every commit fails with kUnavailable until they are
// in. admit() keeps new changes away meanwhile, so the queue holds no more than what the callers of that moment had;
// the tables are ahead of the journal by exactly the queue. Each admit() tries again; the journal says whether it is
// time. Threads: all methods from any thread. append() takes rank kInbox and may be called under a table's lock. Cost:
// append links a piece in; commit one write of the journal per group of callers, and a copy of all their pieces but the
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "metadata/journal.h"

namespace larder::metadata {

// The number of an append. 0: nothing.
using Ticket = std::uint64_t;

class CommitLog {
 public:
  // Without a journal everything is written and synced at once.
  explicit CommitLog(std::unique_ptr<Journal> journal) : journal_(std::move(journal)) {}

  [[nodiscard]] bool has_journal() const { return journal_ != nullptr; }
  [[nodiscard]] Journal* journal() { return journal_.get(); }

  // What one call changes in one table: one batch with room for `bytes`, which those records fill; none without a
  // journal.
  using Piece = std::list<JournalBatch>;
  [[nodiscard]] Piece make_piece(std::size_t bytes) const;
  // Atomic: all of the piece is in the journal, or nothing. Takes it; an empty one is the last ticket.
  Ticket append(Piece& piece) noexcept LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Ticket last() const LARDER_EXCLUDES(mutex_);
  // Returns when all up to `written` is written, and all up to `synced` survives a power cut.
  [[nodiscard]] Status commit(Ticket written, Ticket synced) LARDER_EXCLUDES(mutex_);
  // May something new be appended? After a failure: tries to write what is queued.
  [[nodiscard]] Status admit() LARDER_EXCLUDES(mutex_);

 private:
  // True: this thread writes now, `upto` and `with_sync` say what.
  [[nodiscard]] bool begin(Ticket& upto, bool& with_sync) LARDER_REQUIRES(mutex_);
  // What it throws is a refusal. Whoever has begun must get to end(): both need no memory of their own.
  [[nodiscard]] Status write_journal(bool with_sync) noexcept;
  void end(Status status, Ticket upto, bool with_sync) noexcept LARDER_REQUIRES(mutex_);

  const std::unique_ptr<Journal> journal_;

  mutable RankedMutex mutex_{LockRank::kInbox};
  RankedCondition changed_;
  Piece queued_ LARDER_GUARDED_BY(mutex_);
  Piece writing_;  // of the thread that has is_writing_; what failed stays in it
  bool is_writing_ LARDER_GUARDED_BY(mutex_) = false;
  Ticket appended_ LARDER_GUARDED_BY(mutex_) = 0;
  Ticket written_ LARDER_GUARDED_BY(mutex_) = 0;
  Ticket synced_ LARDER_GUARDED_BY(mutex_) = 0;
  Ticket wanted_synced_ LARDER_GUARDED_BY(mutex_) = 0;
  Status failure_ LARDER_GUARDED_BY(mutex_);  // of the last write
  std::uint64_t failures_ LARDER_GUARDED_BY(mutex_) = 0;
};

// Appends a piece where a scope ends, also by an exception: in it are the changes that were made until then.
class AppendAtEnd {
 public:
  // Both outlive it.
  AppendAtEnd(CommitLog& log, CommitLog::Piece& piece) : log_(log), piece_(piece) {}
  ~AppendAtEnd() { (void)log_.append(piece_); }
  AppendAtEnd(const AppendAtEnd&) = delete;
  AppendAtEnd& operator=(const AppendAtEnd&) = delete;

 private:
  CommitLog& log_;
  CommitLog::Piece& piece_;
};

}  // namespace larder::metadata
