// SPDX-License-Identifier: Apache-2.0
#include "metadata/commit_log.h"

#include <algorithm>
#include <exception>
#include <string>

namespace larder::metadata {

Ticket CommitLog::append(const JournalBatch& batch) {
  if (journal_ == nullptr) return 0;
  LockGuard guard(mutex_);
  if (batch.empty()) return appended_;
  queued_.append(batch);
  return ++appended_;
}

Ticket CommitLog::last() const {
  LockGuard guard(mutex_);
  return appended_;
}

bool CommitLog::begin(Ticket& upto, bool& with_sync) {
  if (is_writing_) return false;
  writing_.append(queued_);
  is_writing_ = true;  // from here to end(), whatever happens
  queued_.clear();
  upto = appended_;
  with_sync = wanted_synced_ > synced_;
  return true;
}

void CommitLog::end(const Status& status, Ticket upto, bool with_sync) {
  is_writing_ = false;
  failure_ = status;
  if (status.is_ok()) {
    writing_.clear();
    written_ = upto;
    if (with_sync) synced_ = upto;
  } else {
    ++failures_;
  }
  changed_.notify_all();
}

Status CommitLog::write_journal(bool with_sync) {
  try {
    return writing_.empty() ? journal_->sync() : journal_->write(writing_, with_sync);
  } catch (const std::exception& error) {  // out of memory: whoever waits must be told, and the next one may write
    return Status(StatusCode::kUnavailable, std::string("the journal failed: ") + error.what());
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
    const Status status = write_journal(with_sync);
    LockGuard guard(mutex_);
    end(status, upto, with_sync);
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
