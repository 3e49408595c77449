// SPDX-License-Identifier: Apache-2.0
// The file store's clears, of a namespace or of all, one at a time: each rewrites CLEARED.
//
//   unlink   nothing finds the namespace's pages from here on; new ones of it are others (page_index.h)
//   write    CLEARED, in every volume: from here on they stay away, also after a crash
//   drop     the index removes them, some at a time: other calls, of all namespaces, are served in between, and what
//            evicts, cleans or seals meanwhile takes them for what they are. It stays one task: behind those of a busy
//            executor it would take too long
//   full     CLEARED takes no more: maintenance cleans what keeps its entries, and then the clear is tried once more
//   end      segments that hold nothing go; the caller has its answer
//
// Threads: submit() from any; the rest runs on the executor.
#pragma once

#include <deque>
#include <memory>
#include <span>

#include "base/status.h"
#include "storage/file/segment_files.h"
#include "storage/file/segment_log.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class StoreClears {
 public:
  StoreClears(StoreState& state, SegmentFiles& files, SegmentLog& log, StoreSteps& steps)
      : state_(state), files_(files), log_(log), steps_(steps) {}

  [[nodiscard]] Status submit(std::shared_ptr<const StoreScope> scope, StorageBackend::ClearDone done)
      LARDER_EXCLUDES(state_.mutex);
  // Writes CLEARED as it should be, where somebody deleted it: without it pages would come back.
  void write_again() LARDER_EXCLUDES(state_.mutex);
  // Those that found CLEARED full. Maintenance has ended.
  void try_again() LARDER_EXCLUDES(state_.mutex);

 private:
  struct Job;
  void run_all() LARDER_EXCLUDES(state_.mutex);
  // False: CLEARED is full.
  [[nodiscard]] bool run(const StoreScope* scope, Status& status) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool unlink(const StoreScope* scope, Job& job) LARDER_EXCLUDES(state_.mutex);
  void drop() LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] Status write(std::span<const std::byte> bytes) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  SegmentLog& log_;
  StoreSteps& steps_;
  std::deque<std::shared_ptr<ClearOperation>> waiting_ LARDER_GUARDED_BY(state_.mutex);
  std::deque<std::shared_ptr<ClearOperation>> crowded_out_ LARDER_GUARDED_BY(state_.mutex);  // until maintenance ends
  std::deque<std::shared_ptr<ClearOperation>> last_tries_ LARDER_GUARDED_BY(state_.mutex);   // of those
  bool is_running_ LARDER_GUARDED_BY(state_.mutex) = false;  // one writes CLEARED at a time
  bool must_write_ LARDER_GUARDED_BY(state_.mutex) = false;
};

}  // namespace larder::file_store
