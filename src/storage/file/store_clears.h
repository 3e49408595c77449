// SPDX-License-Identifier: Apache-2.0
// The file store's clears, of a namespace or of all, one at a time: each rewrites CLEARED.
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
  StoreClears(StoreState& state, SegmentFiles& files, SegmentLog& log) : state_(state), files_(files), log_(log) {}

  [[nodiscard]] Status submit(std::shared_ptr<const StoreScope> scope, StorageBackend::ClearDone done)
      LARDER_EXCLUDES(state_.mutex);
  // Writes CLEARED as it should be, where somebody deleted it: without it pages would come back.
  void write_again() LARDER_EXCLUDES(state_.mutex);

 private:
  void run_all() LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] Status run(const StoreScope* scope) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] Status write(std::span<const std::byte> bytes) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  SegmentLog& log_;
  std::deque<std::shared_ptr<ClearOperation>> waiting_ LARDER_GUARDED_BY(state_.mutex);
  bool is_running_ LARDER_GUARDED_BY(state_.mutex) = false;  // one writes CLEARED at a time
  bool must_write_ LARDER_GUARDED_BY(state_.mutex) = false;
};

}  // namespace larder::file_store
