// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_clears.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace larder::file_store {
namespace {

// Pages that are looked at, per hold of the mutex: about half a millisecond if all of them go.
constexpr std::size_t kPagesAtOnce = 1024;

}  // namespace

struct StoreClears::Job {
  std::vector<std::byte> bytes;     // of CLEARED
  std::vector<EndedSegment> ended;  // so that they can go
};

Status StoreClears::submit(std::shared_ptr<const StoreScope> scope, StorageBackend::ClearDone done) {
  if (scope && scope->namespace_digest.is_zero()) return invalid_argument("file store: no namespace has a digest of 0");
  const auto run = [this](const std::shared_ptr<ClearOperation>& op) {
    {
      LockGuard guard(state_.mutex);
      waiting_.push_back(op);
    }
    run_all();
  };
  return submit_operation<ClearOperation>(state_.gate, state_.executor, std::move(scope), std::move(done), run);
}

void StoreClears::write_again() {
  {
    LockGuard guard(state_.mutex);
    must_write_ = true;
  }
  run_all();
}

void StoreClears::try_again() {
  {
    LockGuard guard(state_.mutex);
    if (crowded_out_.empty()) return;
    for (std::shared_ptr<ClearOperation>& op : crowded_out_) last_tries_.push_back(std::move(op));
    crowded_out_.clear();
  }
  state_.post([this] { run_all(); });
}

// One after the other, until none waits.
void StoreClears::run_all() {
  const OperationGate::Ticket hold = state_.gate.hold();  // an operation ends before this does
  {
    LockGuard guard(state_.mutex);
    if (is_running_) return;
    is_running_ = true;
  }
  for (;;) {
    std::shared_ptr<ClearOperation> op;
    std::vector<std::byte> again;
    bool is_last_try = false;
    {
      LockGuard guard(state_.mutex);
      is_last_try = !last_tries_.empty();
      std::deque<std::shared_ptr<ClearOperation>>& from = is_last_try ? last_tries_ : waiting_;
      if (std::exchange(must_write_, false)) {
        again = encode_cleared(state_.cleared.entries());
      } else if (from.empty()) {
        is_running_ = false;
        return;
      } else {
        op = std::move(from.front());
        from.pop_front();
      }
    }
    if (!op) {
      (void)write(again);  // the next segment looks again
    } else if (!run(op->request.get(), op->result) && !is_last_try) {
      {
        LockGuard guard(state_.mutex);
        crowded_out_.push_back(std::move(op));
      }
      steps_.start_maintenance();
    }
  }
}

bool StoreClears::run(const StoreScope* scope, Status& status) {
  Job job;
  if (!unlink(scope, job)) {
    status = overloaded("file store: " + std::to_string(kMaxCleared) +
                        " namespaces are cleared and still on disk; try again when cleaning has moved what lies beside "
                        "them, or clear the whole store");
    return false;
  }
  status = write(job.bytes);
  drop();
  for (const EndedSegment& each : job.ended) log_.settle_here(each.segment, each.volume);
  files_.remove_dead();  // what would not go is tried again
  // What has gone has left room on the disk.
  if (status.code() == StatusCode::kOverloaded) status = write(job.bytes);
  bool is_crowded = false;
  {
    LockGuard guard(state_.mutex);
    state_.room.note_held();
    is_crowded = state_.cleared.size() >= ClearedList::kCrowded;
  }
  if (is_crowded) steps_.start_maintenance();
  return true;
}

// No read finds the pages from here on.
bool StoreClears::unlink(const StoreScope* scope, Job& job) {
  LockGuard guard(state_.mutex);
  std::uint64_t oldest = state_.next_generation;
  for (const auto& [id, segment] : state_.segments) oldest = std::min(oldest, segment.first_generation);
  state_.cleared.forget_settled(oldest);
  // Above the first generation of every segment that is there.
  const std::uint64_t generation = ++state_.next_generation;
  if (!state_.cleared.add(scope ? scope->namespace_digest : Digest256{}, generation)) return false;
  if (scope) {
    state_.index.unlink_namespace(scope->namespace_digest);
  } else {
    state_.index.clear();
    job.ended = state_.end_active();
  }
  for (auto& [id, segment] : state_.segments) state_.copies.settle(segment, false);
  job.bytes = encode_cleared(state_.cleared.entries());
  return true;
}

void StoreClears::drop() {
  for (bool is_done = false; !is_done;) {
    state_.let_callers_go_first();
    LockGuard guard(state_.mutex);
    is_done = !state_.index.drop_unlinked(kPagesAtOnce);
  }
}

Status StoreClears::write(std::span<const std::byte> bytes) {
  Status status;
  for (unsigned i = 0; i < state_.volumes.size(); ++i) {
    Status written = state_.check_here(i);  // below an empty mount point it would be kept from the disk with the pages
    if (written.is_ok()) written = replace_file(state_.files, state_.volumes[i].directory, kClearedName, bytes);
    if (!written.is_ok()) status = written;
  }
  return status;
}

}  // namespace larder::file_store
