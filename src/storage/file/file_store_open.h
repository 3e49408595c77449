// SPDX-License-Identifier: Apache-2.0
// Opening a file store: directories, locks, FORMAT, CLEARED, segments.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/cleared_list.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_table.h"
#include "storage/file/store_options.h"
#include "storage/file/volume.h"

namespace larder::file_store {

// What opening found.
struct OpenedStore {
  StoreId store{};
  std::vector<Volume> volumes;
  PageIndex index;
  std::map<SegmentId, SegmentInfo> segments;
  ClearedList cleared;
  SegmentId next_segment = 1;
  std::uint64_t next_generation = 1;
  std::uint64_t torn_tails = 0, corrupt = 0;
};

// Checks the directories, locks them, reads FORMAT, CLEARED and the segments; gives scanned segments their footers.
// Errors say what to do. kInvalidArgument: foreign files, or no directory. kConflict: locked, or of another store.
// kUnsupported: another format version. kUnavailable: not readable or writable.
// `executor` (may be null) reads segments ahead; nothing depends on its running anything. Time: about 0.2 us per page
// and core, once the page tables (128 bytes per page) have been read; a segment that a killed process left unsealed is
// read, and what was not synced of it written once more.
[[nodiscard]] Result<std::unique_ptr<OpenedStore>> open_store(const FileStoreOptions& options, FileSystem& files,
                                                              Clock& clock, Executor* executor);

}  // namespace larder::file_store
