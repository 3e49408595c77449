// SPDX-License-Identifier: Apache-2.0
// The files of a store's segments: opened when something of them is read, closed when one fails, and taken away when
// nothing in them is alive.
//
// Threads: any. All but close_failed() blocks.
#pragma once

#include "base/status.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class SegmentFiles {
 public:
  explicit SegmentFiles(StoreState& state) : state_(state) {}

  // kNotFound: the segment, or its file, is gone; its pages are dropped from the index. Others: the disk.
  [[nodiscard]] Result<FilePtr> open(SegmentId id) LARDER_EXCLUDES(state_.mutex);
  // A read of it failed. A file that was open when its disk went away never works again; one that is opened anew may.
  void close_failed(SegmentId id, const FilePtr& file) LARDER_EXCLUDES(state_.mutex);
  // Takes the file away. False: it would not go; it is counted until it does (remove_dead).
  bool remove(SegmentId id) LARDER_EXCLUDES(state_.mutex);
  // Those that hold nothing, and those that would not go a while ago. True: a file went.
  bool remove_dead() LARDER_EXCLUDES(state_.mutex);

 private:
  StoreState& state_;
};

}  // namespace larder::file_store
