// Appends groups to the active segment file.
//
// State machine: no file --open_new--> active --append--> active --seal / broken--> no file.
// A failed append is undone: the file is cut back to the last whole group; if even that fails, the file is given up
// (broken) and the next append needs a new one. Recovery skips whatever was left.
//
// Threads: confined to whoever holds the store's writer role. May block on the disk.
// Zero copy: payload segments go to writev as they are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "storage/backend.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_table.h"

namespace larder::file_store {

// One page to append. The payload is the caller's until append_group() returns.
struct PageToAppend {
  PageIdentity identity;
  PageKey key;
  std::span<const Segment> payload;
  std::uint64_t payload_bytes = 0;
  Checksum128 checksum;
  std::uint8_t flags = 0;
};

class SegmentWriter {
 public:
  SegmentWriter(FileSystem& files, std::string directory, const StoreId& store, std::uint64_t next_generation,
                std::uint64_t next_group)
      : files_(files),
        directory_(std::move(directory)),
        store_(store),
        next_generation_(next_generation),
        next_group_(next_group) {}

  // Bytes a group of these pages takes, commit record included.
  [[nodiscard]] static std::uint64_t group_bytes(std::span<const PageToAppend> pages);

  [[nodiscard]] bool has_file() const { return file_ != nullptr; }
  [[nodiscard]] SegmentId segment() const { return segment_; }  // 0: none
  [[nodiscard]] const FilePtr& file() const { return file_; }
  [[nodiscard]] std::uint64_t end_bytes() const { return end_bytes_; }
  [[nodiscard]] bool is_synced() const { return synced_bytes_ == end_bytes_ && is_name_synced_; }
  [[nodiscard]] std::uint64_t next_generation() const { return next_generation_; }

  // Makes the file of segment `id`. Precondition: !has_file(). On error there is no file, also on disk.
  [[nodiscard]] Status open_new(SegmentId id, std::uint64_t now_unix_seconds);
  // Appends the pages and their commit record; `locations` gets one place per page. On error nothing of it counts;
  // has_file() may be false then. Precondition: has_file(), 1 to kMaxGroupRecords pages.
  [[nodiscard]] Status append_group(std::span<const PageToAppend> pages, std::vector<PageLocation>& locations);
  // Everything appended so far survives a power cut. On error the file is given up: after a failed fsync nobody knows
  // what is on disk.
  [[nodiscard]] Status sync();
  // Ends the file: synced and marked so if `with_sync`. Never fails as such; the result says whether it is synced.
  bool seal(bool with_sync);
  // Forgets the file without touching it.
  void abandon();

 private:
  using Buffers = std::vector<std::span<const std::byte>>;
  [[nodiscard]] Status write_buffers(Buffers& buffers, std::uint64_t offset);
  void undo(std::uint64_t end_bytes);

  FileSystem& files_;
  const std::string directory_;
  const StoreId store_;
  std::uint64_t next_generation_, next_group_;

  FilePtr file_;
  SegmentId segment_ = 0;
  std::uint64_t end_bytes_ = 0, synced_bytes_ = 0;
  bool is_name_synced_ = false;
};

}  // namespace larder::file_store
