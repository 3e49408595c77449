// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_clears.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace larder::file_store {

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

void StoreClears::run_all() {
  {
    LockGuard guard(state_.mutex);
    if (is_running_) return;
    is_running_ = true;
  }
  for (;;) {
    std::shared_ptr<ClearOperation> op;
    std::vector<std::byte> again;
    {
      LockGuard guard(state_.mutex);
      if (std::exchange(must_write_, false)) {
        again = encode_cleared(state_.cleared.entries());
      } else if (waiting_.empty()) {
        is_running_ = false;
        return;
      } else {
        op = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    if (op) {
      op->result = run(op->request.get());
    } else {
      (void)write(again);  // the next segment looks again
    }
  }
}

// The pages are gone from the index first, so that no read finds them from here on; then the disk is told.
Status StoreClears::run(const StoreScope* scope) {
  std::vector<std::byte> bytes;
  std::vector<EndedSegment> ended;
  {
    LockGuard guard(state_.mutex);
    std::uint64_t oldest = state_.next_generation;
    for (const auto& [id, segment] : state_.segments) oldest = std::min(oldest, segment.first_generation);
    state_.cleared.forget_settled(oldest);
    // Above the first generation of every segment that is there.
    const std::uint64_t generation = ++state_.next_generation;
    if (!state_.cleared.add(scope ? scope->namespace_digest : Digest256{}, generation)) {
      return overloaded("file store: " + std::to_string(kMaxCleared) +
                        " namespaces are cleared and still on disk; clear the whole store instead");
    }
    if (scope) {
      (void)state_.index.drop_namespace(scope->namespace_digest);
    } else {
      state_.index.clear();
      ended = state_.end_active();  // so that they can go
    }
    for (auto& [id, segment] : state_.segments) state_.copies.settle(segment, false);
    bytes = encode_cleared(state_.cleared.entries());
  }
  const Status status = write(bytes);
  for (const EndedSegment& each : ended) log_.settle_here(each.segment, each.volume);
  files_.remove_dead();                                                     // what would not go is tried again
  return status.code() == StatusCode::kOverloaded ? write(bytes) : status;  // what has gone has left room on the disk
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
