// SPDX-License-Identifier: Apache-2.0
// A volume: one directory of a file store, usually one disk; its lock, its segments' numbers, its health.
//
// State machine of its health, as writes see it:
//
//    healthy --a write, sync or create fails--> healthy, with a new segment --fails again--> suspended (1 s)
//       ^                                                                                       |
//       +----- a record is written -----  back-off over, the next append tries  <---------------+ fails: twice as long
//
// Reads are not stopped by it: what can be read is read. Before each new segment somebody looks whether the directory
// is still there: one that was deleted is made again; one whose mount went away, or where another store lies now
// (FORMAT tells), is left alone until it comes back. A FORMAT or LOCK that somebody deleted beside the segments is made
// again. If another process was faster with LOCK (its text tells), the store is that process's, and nothing is written
// there any more.
//
// Threads: confined: the file store's mutex guards the mutable part; the file functions below block and take none.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/disk_limit.h"
#include "storage/file/io_queue.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_scan.h"

namespace larder::file_store {

using FilePtr = std::shared_ptr<File>;

// Can the device transfer these pieces as they lie in memory, but for a tail of less than a block?
[[nodiscard]] inline bool is_block_aligned(std::span<const Segment> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    if (reinterpret_cast<std::uintptr_t>(payload[i].data) % kBlockBytes != 0) return false;
    if (i + 1 < payload.size() && payload[i].size % kBlockBytes != 0) return false;
  }
  return true;
}

// A segment file that takes appends.
struct ActiveSegment {
  SegmentId id = 0;
  FilePtr file;
  std::uint64_t capacity_bytes = 0;    // reserved, with room for the footer
  std::uint64_t end_bytes = 0;         // where the next record goes
  std::uint64_t synced_bytes = 0;      // [0, this) is on disk
  std::vector<std::uint64_t> writing;  // starts of records under way, ascending
  std::uint64_t records = 0, pages = 0;
  std::uint64_t max_generation = 0;
  bool is_reserved = false;  // the disk keeps room for all of it
  bool has_asked = false;    // for the segment behind it, ahead of time
  bool is_full = false;      // takes no more; sealed when `writing` is empty
  bool is_sealing = false;
  bool is_broken = false;  // a write or sync of it failed: no footer, no promise
  // Takes no more, and its last write has ended.
  [[nodiscard]] bool is_due() const { return is_full && !is_sealing && writing.empty(); }
  // [0, this) has been written, as far as the file is concerned.
  [[nodiscard]] std::uint64_t written_bytes() const { return writing.empty() ? end_bytes : writing.front(); }
  // What a footer over this many pages may take, the trailer included.
  [[nodiscard]] static std::uint64_t footer_room(std::uint64_t pages) {
    const std::uint64_t identities = std::min<std::uint64_t>(pages, 1024);
    return align_up(kRecordHeaderBytes + pages * kPageBytes + identities * kIdentityBytes, kBlockBytes) + kBlockBytes;
  }
  // So little is left that the next segment should be made, if it is worth it.
  [[nodiscard]] bool is_nearly_full() const {
    return capacity_bytes >= kLeastMadeAhead && end_bytes + capacity_bytes / 8 >= capacity_bytes;
  }
  static constexpr std::uint64_t kLeastMadeAhead = std::uint64_t{16} << 20;
  [[nodiscard]] bool fits(std::uint64_t record_bytes, std::uint64_t more_pages) const {
    return !is_full && end_bytes + record_bytes + footer_room(pages + more_pages) <= capacity_bytes;
  }
};

// New pages and pages that cleaning moves go to different segments: what survived once lives longer, and the room that
// is kept for cleaning is not taken by others.
enum class LogKind : std::uint8_t { kNew, kMoved };
inline constexpr std::size_t kLogs = 2;

struct Volume {
  std::string directory;
  VolumeFormat format;  // constant after opening
  std::uint64_t device_id = 0;
  bool is_direct = false;
  std::unique_ptr<FileLock> lock;  // null: closed
  std::unique_ptr<IoQueue> io;

  // guarded by the store's mutex
  std::optional<std::string> lock_text;  // mark_lock()'s
  struct Log {
    std::shared_ptr<ActiveSegment> active;  // null: the next append makes one
    bool is_rolling = false;                // somebody is making the next segment
  };
  std::array<Log, kLogs> logs;
  [[nodiscard]] Log& log(LogKind kind) { return logs[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] const Log& log(LogKind kind) const { return logs[static_cast<std::size_t>(kind)]; }
  // One segment is made at a time: restoring a directory is nothing for two.
  [[nodiscard]] bool is_rolling() const {
    return std::any_of(logs.begin(), logs.end(), [](const Log& log) { return log.is_rolling; });
  }
  std::uint64_t disk_bytes = ~std::uint64_t{0};  // constant after opening
  DiskLimit limit;
  bool is_limit_said = false;     // in the log
  unsigned unexplained_full = 0;  // in a row: no room, and free bytes all the same
  TimePoint suspended_until{};
  Nanos back_off{};
  Status last_error;
  std::uint64_t write_failures = 0;
  unsigned stuck_files = 0;  // in a row, that were to be removed and would not go
  TimePoint clean_again{};   // nothing of it is cleaned before: its files seem to stay
};

inline constexpr Nanos kFirstBackOff = std::chrono::seconds(1);
inline constexpr Nanos kLongestBackOff = std::chrono::seconds(60);

// Writes `bytes` as `name` in the directory, so that a crash leaves the old or the new file, whole.
[[nodiscard]] Status replace_file(FileSystem& files, const std::string& directory, std::string_view name,
                                  std::span<const std::byte> bytes);

// Can files in `directory` be opened and read and written past the page cache? Tries it on a file of its own, or, where
// the disk is full, on a segment that is there.
[[nodiscard]] Status try_direct(FileSystem& files, const std::string& directory);
// Does what try_direct() came to mean that they cannot be? Other errors say nothing about that.
[[nodiscard]] inline bool takes_no_direct(const Status& tried) {
  const StatusCode code = tried.code();
  return code == StatusCode::kInvalidArgument || code == StatusCode::kUnsupported || code == StatusCode::kCorrupt;
}

// Writes `text` into the LOCK that this process holds, so that it knows its own again. What LOCK says then; none: it
// cannot be read.
[[nodiscard]] std::optional<std::string> mark_lock(FileSystem& files, const std::string& directory,
                                                   const std::string& text);
// kConflict: the LOCK that lies there says something else than mark_lock() found. One that is missing or cannot be read
// says nothing.
[[nodiscard]] Status check_lock(FileSystem& files, const std::string& directory,
                                const std::optional<std::string>& lock_text);

// What FORMAT of the directory says. kNotFound: there is none. kCorrupt, kUnsupported: as parse_format_text().
[[nodiscard]] Result<VolumeFormat> read_format(FileSystem& files, const std::string& directory);
[[nodiscard]] Status write_format(FileSystem& files, const std::string& directory, const VolumeFormat& format);
// What CLEARED of the directory says. kNotFound: there is none. kCorrupt, kUnsupported: as decode_cleared().
[[nodiscard]] Result<std::vector<Cleared>> read_cleared(FileSystem& files, const std::string& directory);

// What is to be found where a volume should be.
struct Whereabouts {
  enum class State : std::uint8_t {
    kHere,
    kDeleted,  // the directory is gone, or its FORMAT and all segments; the disk is there
    kAway,     // another disk or another store lies there, or it cannot be said
  };
  State state = State::kAway;
  bool lacks_format = false;    // here, and its segments are, but FORMAT is not
  std::uint64_t device_id = 0;  // here: of the directory
  Status why;                   // away
};
// `device_id`: of the volume when it was last seen. Cost: reads FORMAT if all is well. (So cleaners that go by the last
// access spare it.)
[[nodiscard]] Whereabouts find_volume(FileSystem& files, const std::string& directory, const VolumeFormat& format,
                                      std::uint64_t device_id);

// What restore_directory() did, if anything.
struct Restored {
  bool was_lost = false;      // the directory was made again, and its segments are gone
  bool lacked_files = false;  // FORMAT or LOCK was made again beside the segments
  std::uint64_t device_id = 0;
  std::unique_ptr<FileLock> lock;        // instead of the volume's; null: that one goes on
  std::optional<std::string> lock_text;  // with `lock`
};
// The directory is there and holds FORMAT and LOCK of this volume; made again if they were deleted. kUnavailable: it is
// not to be had now. kConflict: another process has it, or had it meanwhile. `old_lock` is let go where a new one is
// taken; one caller at a time. `lock_text`: the volume's.
[[nodiscard]] Result<Restored> restore_directory(FileSystem& files, const std::string& directory,
                                                 const VolumeFormat& format, std::uint64_t device_id,
                                                 std::unique_ptr<FileLock>& old_lock,
                                                 const std::optional<std::string>& lock_text);

// Makes the file of a new segment: header written, space reserved, name synced. On error there is no file, unless it
// could not be removed: then `left_bytes` says what it takes. kConflict: one of that name is there.
[[nodiscard]] Result<std::shared_ptr<ActiveSegment>> create_segment(FileSystem& files, const Volume& volume,
                                                                    const SegmentHeader& header,
                                                                    std::uint64_t capacity_bytes,
                                                                    std::uint64_t& left_bytes);

// Writes [begin, end) of a segment once more, as it reads. Where a sync failed, what the file reads as may not be on
// the disk, and no later sync brings it there, because the system counts it as written; and a process that did not see
// the failure cannot know. Before a file that another process left without a footer is called synced.
[[nodiscard]] Status write_again(File& file, std::uint64_t begin, std::uint64_t end);

// Writes the footer of a sealed segment anew, in its place, without those pages; there is nothing to do if it lists
// none of them. A segment that has no whole footer any more gets one only if `is_synced`: all of it is known to be on
// disk. Bytes of the file then. A failure, or a power cut meanwhile, leaves at worst no footer: the next opening scans
// the segment, as after a kill.
[[nodiscard]] Result<std::uint64_t> leave_out_pages(FileSystem& files, const std::string& path, const StoreId& store,
                                                    SegmentId segment, std::span<const PagePlace> pages,
                                                    bool is_synced);

// Writes footer and trailer behind the records and cuts the file to its length. Bytes of the file then.
[[nodiscard]] Result<std::uint64_t> seal_segment(File& file, Footer footer, bool with_sync);
// The same for a segment that another process left without a footer, as a scan has found it (`pages`: the scan's): cuts
// off what is behind its last whole record, and brings all before that to the disk.
[[nodiscard]] Result<std::uint64_t> seal_left_segment(FileSystem& files, const std::string& path, const StoreId& store,
                                                      SegmentId segment, const ScanResult& found,
                                                      std::vector<ListedPage> pages);

}  // namespace larder::file_store
