// SPDX-License-Identifier: Apache-2.0
// Mends single segment files for fsck (store_check.h). The store is locked and no one else writes.
//
// Threads: confined. Errors: as the file system says; the old file is then still there.
#pragma once

#include <set>
#include <vector>

#include "base/clock.h"
#include "storage/file/store_inspect.h"

namespace larder::file_store {

// The groups of a segment, by the heads of its records; damaged ones are stepped over.
[[nodiscard]] Result<std::vector<std::vector<ListedPage>>> read_groups(File& file, const StoreId& store,
                                                                       SegmentId segment, std::uint64_t end_bytes);

// Writes the header block again. A file without a whole head or footer is removed: nothing in it can be read.
// kConflict: its records are another store's, or carry another number. `now`: seconds since 1970.
[[nodiscard]] Status restore_header(FileSystem& files, const std::string& path, const StoreId& store, SegmentId segment,
                                    std::uint64_t now);

struct RewriteResult {
  std::uint64_t kept_pages = 0, removed_pages = 0, removed_groups = 0;
};
// Writes the segment again, without the groups that hold one of `damaged` (indexes into report.pages), beside the old
// file, and puts it in its place when it is on disk. Nothing left: removes it. Numbers stay: no other volume has to be
// known, and a crash leaves the old file or the new one.
[[nodiscard]] Result<RewriteResult> rewrite_segment(FileSystem& files, const StoreReport& report,
                                                    const SegmentReport& segment,
                                                    const std::set<std::uint32_t>& damaged, std::uint64_t now);

}  // namespace larder::file_store
