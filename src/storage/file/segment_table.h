// The segments of a store: sizes, last use, and a bounded number of open files.
//
// A File that leaves the table is handed to the caller, who lets it go outside the lock; reads in flight keep theirs.
// Threads: confined (the file store's mutex guards it). Cost: O(1), except victim() and closing a file: O(segments).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/file_system.h"
#include "storage/file/page_index.h"

namespace larder::file_store {

using FilePtr = std::shared_ptr<File>;

class SegmentTable {
 public:
  explicit SegmentTable(std::size_t open_files_limit) : open_files_limit_(open_files_limit) {}

  struct Segment {
    std::uint64_t end_bytes = 0;
    std::uint64_t last_use = 0;
    bool is_active = false;  // being appended to: never a victim, its file stays open
    bool is_synced = false;  // all of it is on disk
    FilePtr file;            // null: closed
  };

  void add(SegmentId id, Segment segment);
  // nullptr: no such segment (any more). Valid until the next change.
  [[nodiscard]] Segment* find(SegmentId id);
  void touch(SegmentId id);
  void set_end(SegmentId id, std::uint64_t end_bytes);
  // Keeps `file` open for later reads; appends files closed for it to `closed`.
  void keep_open(SegmentId id, FilePtr file, std::vector<FilePtr>& closed);
  // Closes the files used longest ago until the limit is kept; appends them to `closed`. `keep` stays open.
  void close_extra(SegmentId keep, std::vector<FilePtr>& closed);
  // The sealed segment used longest ago; 0: there is none.
  [[nodiscard]] SegmentId victim() const;
  // Forgets the segment; its file, if it was open.
  FilePtr remove(SegmentId id);
  [[nodiscard]] std::vector<SegmentId> ids() const;
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] std::size_t size() const { return segments_.size(); }

 private:
  const std::size_t open_files_limit_;
  std::map<SegmentId, Segment> segments_;
  std::uint64_t total_bytes_ = 0, uses_ = 0;
  std::size_t open_files_ = 0;
};

}  // namespace larder::file_store
