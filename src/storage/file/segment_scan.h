// SPDX-License-Identifier: Apache-2.0
// Recovery: reads one segment file and says which whole groups it holds (docs/formats.md 5.5).
//
// A sealed segment costs three reads: header, trailer and footer. Else heads are read one by one, and the payloads of
// groups that were perhaps not on disk when the power went (those of records that end behind the highest promise of
// synced bytes that any record makes) are read and checked, if asked. Damage in the middle (bit rot, or a write that
// was overtaken by later ones when the power went) costs what it hits: the scan goes on at the next whole head that
// names its own place. What lies behind the last whole record is the torn tail.
//
// What is listed was written so, bit by bit: damage makes pages absent, never different. Payloads are the exception,
// outside of those checked: their checksum is listed, and the reader compares.
//
// Threads: confined. `file` must not be opened direct. Errors never come from the file's content.
// Memory: the list, and buffers: the footer of a sealed segment, else 1 MiB or one head. Time: a torn or reserved tail
// is read once, in pieces of 1 MiB.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

// `known`, and what a segment that cannot be read may add to it: more pages than any store writes while one segment is
// open (2^40), and still only a sliver of 64 bits.
[[nodiscard]] inline std::uint64_t beyond_unknown(std::uint64_t known) {
  constexpr std::uint64_t kUnknownGenerations = std::uint64_t{1} << 40;
  return known + std::min(~std::uint64_t{0} - known, kUnknownGenerations);
}

struct ScanResult {
  std::vector<ListedPage> pages;     // of whole groups, in file order (of a footer: in its order)
  bool has_footer = false;           // read from the footer; the fields marked (scan) are then zero
  bool is_footer_synced = false;     // the footer says that all it lists was on disk before it
  std::uint64_t end_bytes = 0;       // behind the last whole record (or the header); with a footer: where that starts
  std::uint64_t file_bytes = 0;      // > end_bytes without a footer: a torn tail (or space reserved ahead: all zeros)
  bool is_tail_zero = false;         // (scan) nothing, or only zeros, behind end_bytes: reserved space, no torn record
  std::uint64_t synced_bytes = 0;    // (scan) highest promise found
  std::uint64_t records = 0;         // whole ones
  std::uint64_t corrupt_groups = 0;  // (scan) unsynced ones with a payload that is not there, and one per damaged place
  std::uint64_t unsynced_gaps = 0;   // (scan) of corrupt_groups: places behind synced_bytes, with whole records behind
                                     // them. A server may be about to write there: it writes records side by side
  std::uint64_t max_generation = 0;  // of listed and dropped pages, and at least one less than the header's first. If
                                     // `io` is not ok: 2^40 more, for the pages that may be readable next time
  std::uint64_t first_generation = 0;  // as the header says; 0: it is damaged, or cannot be read
  // Not ok: reading failed, at end_bytes (what lies behind is unknown, not torn) or in payloads that were to be checked
  // (their groups are kept, a read will tell). Such a segment must not be cut or sealed.
  Status io;
};

// kCorrupt: shorter than a header, or a header that is none and no footer or record either (they name store and segment
// as well, so a header that is damaged or cannot be read costs nothing by itself). kConflict: a segment of another
// store or another number. kUnsupported: another version. I/O errors are in `io`, but for that of the file's size.
[[nodiscard]] Result<ScanResult> scan_segment(File& file, const StoreId& store, SegmentId segment,
                                              bool check_unsynced_payloads);

}  // namespace larder::file_store
