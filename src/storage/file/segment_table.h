// SPDX-License-Identifier: Apache-2.0
// The segments of a file store as the process knows them: what each holds of the disk, how far it has come on its way
// from appends to removal, and which of their files are open.
//
// Threads: confined (the store's mutex). Nothing here touches a disk; a file that is closed is handed to the caller,
// who lets it go when the mutex is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "storage/file/page_index.h"
#include "storage/file/volume.h"

namespace larder::file_store {

// A page that a durable write has written once more, because what lay there was not good enough for one: an earlier
// durable write may count on the old copy all the same.
struct Replaced {
  ListedPage page;          // the new copy
  PageLocation before;      // where the old one lies
  bool was_listed = false;  // the footer there lists the old one
  bool is_syncing = false;  // the new one was published when the last fdatasync of its segment began
};

// A segment that is on disk, active or not.
struct SegmentInfo {
  SegmentId id = 0;
  unsigned volume = 0;               // index into the volumes
  std::uint64_t physical_bytes = 0;  // of the file
  // No page that was written into it is older. Pages that cleaning moved here may be, but none that was cleared before
  // the segment was made (docs/formats.md 5.2). 0: not known.
  std::uint64_t first_generation = 0;
  std::shared_ptr<ActiveSegment> active;  // may be appended to, waits for its seal, or is being sealed; else null
  // A durable write counts on something in it: synced before it is sealed, whatever `fsync` is.
  bool has_durable = false;
  bool is_listed = false;  // what its footer says is settled, and whether it is synced first
  bool is_synced = false;  // all of it is on disk; never if it is doubtful
  // An earlier process wrote it with fsync = off, or a sync of it failed (a later one proves nothing): what it lists
  // may not be on disk. A durable write does not count on it.
  bool is_doubtful = false;
  bool is_unread = false;          // an opening could not read all of it: it may have more pages than the index knows
  unsigned holds = 0;              // entries of any `replaced` whose old copy lies in it: it stays until they go
  std::vector<Replaced> replaced;  // by copies in it that are not known to be on disk
  bool is_leaving = false;         // being cleaned or removed
  TimePoint remove_again{};        // leaving, and its file would not go: tried again then
  std::optional<TimePoint> unreadable_since;  // cleaning could not read any of it
  TimePoint clean_again{};                    // it could not be read: until then, cleaning takes others
  std::vector<PagePlace> damaged;             // pages that were found damaged, in this process
  std::size_t left_out = 0;                   // of `damaged`: the first so many are known not to be in the footer
  bool is_leaving_out = false;                // its footer is being written anew
  FilePtr file;                               // null: closed
  // While it is open: its place in the table's order of use.
  std::list<SegmentInfo*>::iterator in_use_order;

  // Its footer should be told of damaged pages, and nobody does so now.
  [[nodiscard]] bool has_damage_to_tell() const {
    return !active && !is_leaving && !is_leaving_out && left_out < damaged.size();
  }
};

class SegmentTable {
 public:
  // `segments`: as opening found them; none is open. `next`: the number of the next one that is made.
  SegmentTable(std::map<SegmentId, SegmentInfo> segments, SegmentId next, std::size_t volumes, std::size_t most_open);

  [[nodiscard]] SegmentId take_number() { return next_++; }
  // One of that number, of 0 bytes.
  SegmentInfo& add(SegmentId id, unsigned volume, std::uint64_t first_generation);
  void erase(SegmentId id, std::vector<FilePtr>& closed);

  // Null: there is none (any more).
  [[nodiscard]] SegmentInfo* find(SegmentId id);
  [[nodiscard]] SegmentInfo& at(SegmentId id) { return segments_.at(id); }
  [[nodiscard]] bool contains(SegmentId id) const { return segments_.contains(id); }
  [[nodiscard]] std::size_t size() const { return segments_.size(); }
  // By number: pairs of it and the segment.
  [[nodiscard]] auto begin() { return segments_.begin(); }
  [[nodiscard]] auto end() { return segments_.end(); }
  [[nodiscard]] auto begin() const { return segments_.begin(); }
  [[nodiscard]] auto end() const { return segments_.end(); }

  // ---- sizes
  void set_size(SegmentInfo& segment, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t physical_bytes() const { return physical_bytes_; }
  [[nodiscard]] std::uint64_t held_bytes(unsigned volume) const { return held_bytes_[volume]; }
  // What the volume's segments take now; not what they may take before they are full. Cost: O(segments).
  [[nodiscard]] std::uint64_t bytes_on_disk(unsigned volume) const;

  // ---- open files: at most `most_open`, and those of active segments
  void use(SegmentInfo& segment) {
    if (segment.file) use_order_.splice(use_order_.end(), use_order_, segment.in_use_order);
  }
  // Counts as a use. Others that were used longest ago are closed. Precondition: its file is not open.
  // Cost: O(active segments), however many there are.
  void open(SegmentInfo& segment, FilePtr file, std::vector<FilePtr>& closed);
  [[nodiscard]] FilePtr close(SegmentInfo& segment);
  // So many segments has open() looked at, for one to close. For tests.
  [[nodiscard]] std::uint64_t looked_at() const { return looked_at_; }

 private:
  std::map<SegmentId, SegmentInfo> segments_;
  SegmentId next_;
  std::uint64_t physical_bytes_ = 0;
  std::vector<std::uint64_t> held_bytes_;  // by volume
  const std::size_t most_open_;
  std::list<SegmentInfo*> use_order_;  // those that are open; the one used longest ago first
  std::uint64_t looked_at_ = 0;
};

}  // namespace larder::file_store
