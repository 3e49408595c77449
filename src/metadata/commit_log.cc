// SPDX-License-Identifier: Apache-2.0
#include "metadata/commit_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace larder::metadata {

CommitLog::Piece CommitLog::make_piece(std::size_t bytes) const {
  Piece piece;
  if (journal_ != nullptr) piece.emplace_back(bytes);
  return piece;
}

Ticket CommitLog::append(Piece& piece) noexcept {
  if (journal_ == nullptr) return 0;
  LockGuard guard(mutex_);
  if (piece.empty() || piece.front().empty()) return appended_;
  queued_.splice(queued_.end(), piece);
  return ++appended_;
}

Ticket CommitLog::last() const {
  LockGuard guard(mutex_);
  return appended_;
}

bool CommitLog::begin(Ticket& upto, bool& with_sync) {
  if (is_writing_) return false;
  is_writing_ = true;  // from here to end(), whatever happens
  writing_.splice(writing_.end(), queued_);
  upto = appended_;
  with_sync = wanted_synced_ > synced_;
  return true;
}

void CommitLog::end(Status status, Ticket upto, bool with_sync) noexcept {
  is_writing_ = false;
  failure_ = std::move(status);
  if (failure_.is_ok()) {
    written_ = upto;
    if (with_sync) synced_ = upto;
  } else {
    ++failures_;
  }
  changed_.notify_all();
}

Status CommitLog::write_journal(bool with_sync) noexcept {
  try {
    if (writing_.empty()) return journal_->sync();
    JournalBatch& all = writing_.front();
    for (auto next = std::next(writing_.begin()); next != writing_.end(); next = writing_.erase(next))
      all.append(*next);
    Status status = journal_->write(all, with_sync);
    if (status.is_ok()) writing_.clear();
    return status;
  } catch (...) {
    return unavailable("out of memory");  // so short that a string needs none for it
  }
}

Status CommitLog::commit(Ticket written, Ticket synced) {
  if (journal_ == nullptr) return Status::ok();
  bool is_mine = false;
  std::uint64_t failures = 0;
  for (bool first = true;; first = false) {
    Ticket upto = 0;
    bool with_sync = false;
    {
      LockGuard guard(mutex_);
      if (first) {
        failures = failures_;
        wanted_synced_ = std::max(wanted_synced_, synced);
      }
      if (written_ >= written && synced_ >= synced) return Status::ok();
      if (failures_ != failures) return failure_.is_ok() ? unavailable("the journal failed") : failure_;
      is_mine = begin(upto, with_sync);
      if (!is_mine) {
        changed_.wait(mutex_);
        continue;
      }
    }
    Status status = write_journal(with_sync);
    LockGuard guard(mutex_);
    end(std::move(status), upto, with_sync);
  }
}

Status CommitLog::admit() {
  Ticket upto = 0;
  {
    LockGuard guard(mutex_);
    if (failure_.is_ok()) return Status::ok();
    upto = appended_;
  }
  return commit(upto, 0);
}

}  // namespace larder::metadata
