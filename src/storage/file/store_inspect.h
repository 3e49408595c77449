// SPDX-License-Identifier: Apache-2.0
// A look at a file store from outside: what `larder store` shows, checks and copies.
//
// Purpose: lists volumes, segments and pages from the files alone (docs/formats.md section 5), without opening the
// store. Nothing here writes, takes a lock or makes a file.
//
// Beside a running server: segments may grow, be sealed, or vanish while they are read. A segment that is gone is left
// out and counted. A page behind the last promise of synced bytes of an unsealed segment may be half written: it is
// called unfinished, not damaged; and where no record is yet before one that is, that is no damage either. So an answer
// is a picture of about now, never an error because of the server.
//
// Memory: about 200 bytes per stored page. Threads: confined. Calls block on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/io_queue.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_scan.h"
#include "storage/file/volume_set.h"

namespace larder::file_store {

enum class PageState : std::uint8_t {
  kLive,
  kSuperseded,  // the same page with a higher generation is stored, or a second copy
  kCleared,     // its namespace was cleared after it was written
};
[[nodiscard]] std::string_view page_state_name(PageState state);

struct VolumeReport {
  std::string directory;
  Status format_status;  // not ok: FORMAT is absent or damaged; `format` is then empty
  VolumeFormat format;
  bool has_cleared = false;
  Status cleared_status;  // not ok: CLEARED is damaged
  std::vector<Cleared> cleared;
  std::vector<std::string> temporary, foreign;  // names: left-over *.tmp files; files no store makes
  std::uint64_t vanished = 0;                   // segments that were gone when they were to be read
};

struct SegmentReport {
  SegmentId number = 0;
  std::uint32_t volume = 0;  // index into StoreReport::volumes
  std::string path;
  Status status;  // as scan_segment(); not ok: it has no pages here
  // Nothing but zeros, if anything: a server makes it, or did when it or the power ended. No problem, despite `status`.
  bool is_unwritten = false;
  ScanResult scan;                          // `pages` is empty: they are in StoreReport::pages
  std::uint32_t first_page = 0, pages = 0;  // range of StoreReport::pages, in file order

  // For certain, also beside a server.
  [[nodiscard]] std::uint64_t damaged_groups() const { return scan.corrupt_groups - scan.unsynced_gaps; }
  // What is wrong with it besides the payloads of its listed pages. Names the file.
  [[nodiscard]] Status problem() const;
};

struct InspectedPage {
  ListedPage page;
  std::uint32_t segment = 0;  // index into StoreReport::segments
  PageState state = PageState::kLive;
};

struct StoreReport {
  StoreId store{};
  std::vector<VolumeReport> volumes;    // as the directories were given
  std::vector<SegmentReport> segments;  // by volume, then number
  std::vector<InspectedPage> pages;
  std::vector<Cleared> cleared;  // of all volumes together
  bool is_all_dropped = false;   // no whole CLEARED where there must be one: every page counts as cleared

  [[nodiscard]] const std::string& path_of(const InspectedPage& page) const { return segments[page.segment].path; }
  // Is the page behind what its unsealed segment promises to be on disk?
  [[nodiscard]] bool is_unfinished(const InspectedPage& page) const;
};

struct InspectOptions {
  bool check_unsynced_payloads = false;  // as scan_segment()
};
// kInvalidArgument: no directory, or one given twice. kNotFound, kUnavailable: a directory that cannot be listed, or a
// CLEARED that cannot be read. Damage is in the report.
[[nodiscard]] Result<StoreReport> inspect_store(FileSystem& files, std::span<const std::string> directories,
                                                const InspectOptions& options);
// Do the directories make one store: every FORMAT whole, one store id, different volumes, all of them? kNotFound: no
// store is there. kCorrupt, kConflict, kUnsupported, kUnavailable: says which directory or volume, and what to do.
[[nodiscard]] Status check_volumes(const StoreReport& report);
// Those whose FORMAT is whole. Points into the report.
[[nodiscard]] std::vector<VolumeSeen> volumes_seen(const StoreReport& report);

// Done and total bytes; called now and then.
using ProgressSink = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Reads stretches of segment files, in any order, fastest in file order; past the page cache where that works.
class PayloadReader {
 public:
  explicit PayloadReader(FileSystem& files);
  // Hands the bytes [offset, offset + length) to `sink` in pieces. kCorrupt: the file ends before. Else as the file
  // system says; kNotFound: the file is gone.
  [[nodiscard]] Status read(const std::string& path, std::uint64_t offset, std::uint64_t length,
                            const std::function<void(std::span<const std::byte>)>& sink);
  // Reads and checks a page; `into`, if not null, gets its payload. kCorrupt: says what differs.
  [[nodiscard]] Status read_page(const std::string& path, const PageLocation& location, std::vector<std::byte>* into);

 private:
  [[nodiscard]] Status open(const std::string& path);
  [[nodiscard]] Status fill(std::uint64_t at, std::uint64_t end);

  FileSystem& files_;
  AlignedBuffer buffer_;
  std::unique_ptr<File> file_;
  std::string path_;
  bool is_direct_ = false;
  std::uint64_t window_start_ = 0, window_bytes_ = 0;  // what buffer_ holds of file_
};

struct DamagedPage {
  std::uint32_t page = 0;  // index into StoreReport::pages
  Status status;           // kCorrupt: wrong bytes. Else the disk failed.
};
struct VerifyReport {
  std::uint64_t pages = 0, bytes = 0;  // read and right
  std::uint64_t unfinished = 0;        // not right, but perhaps not written yet (see above)
  std::uint64_t vanished = 0;          // pages whose segment went away meanwhile
  std::vector<DamagedPage> damaged;
};
// Reads the payload of every listed page.
[[nodiscard]] VerifyReport verify_pages(FileSystem& files, const StoreReport& report, const ProgressSink& progress);

// Which pages a command is about. Empty lists: all.
struct PageSelection {
  std::string namespace_prefix;           // lower-case hex digits
  std::vector<PoolName> pools;            // of these pools
  std::vector<std::string> key_prefixes;  // hex
};
// kInvalidArgument: says what is wrong with the text. At least 4 and at most 64 hex digits; either case.
[[nodiscard]] Result<std::string> parse_digest_prefix(std::string_view what, std::string_view text);
[[nodiscard]] bool is_selected(const PageSelection& selection, const ListedPage& page);
// The one namespace of the store that starts with the prefix. kNotFound: none; kConflict: several, named.
[[nodiscard]] Result<Digest256> find_namespace(const StoreReport& report, const std::string& prefix);

}  // namespace larder::file_store
