// Recovery: reads one segment file and says which whole groups it holds.
//
// Only envelopes and commit records are read, except for groups that were perhaps not on disk when the power went
// (those behind the last synced_bytes that a commit record names): their payloads are read and checked too, if asked.
// Damage in the middle (bit rot) costs the group it hits: the scan goes on at the next commit record that is whole and
// names its own place. What lies behind the last whole group is the torn tail.
//
// Threads: confined. Errors never come from the file's content. Cost: one 4 KiB read per page, or less for small pages.
#pragma once

#include <cstdint>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

struct ScannedPage {
  PageIdentity identity;
  PageKey key;
  PageLocation location;
};

struct ScanResult {
  std::vector<ScannedPage> pages;  // of whole groups, in file order
  std::uint64_t end_bytes = 0;     // behind the last whole group (or the header)
  std::uint64_t file_bytes = 0;    // > end_bytes: a torn tail
  std::uint64_t synced_bytes = 0;  // highest promise found
  std::uint64_t groups = 0;
  std::uint64_t corrupt_groups = 0;  // damaged ones in the middle, or unsynced ones with a payload that is not there
  std::uint64_t max_generation = 0, max_group = 0;  // the first: at least those of unreadable pages, too
  Status io;  // not ok: reading failed at end_bytes; what lies behind is unknown, not torn
};

// kCorrupt: shorter than a header. kConflict: a segment of another store or another number. kUnsupported: another
// version. I/O errors of the header as they come.
[[nodiscard]] Result<ScanResult> scan_segment(File& file, const StoreId& store, SegmentId segment,
                                              bool check_unsynced_payloads);

}  // namespace larder::file_store
