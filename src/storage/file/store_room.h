// SPDX-License-Identifier: Apache-2.0
// The file store's room: how much it may hold, in all and on each disk, and how long its segments are.
//
//   max_size                                  of all volumes together, as the options say
//   a disk that turned out to have less       its volume's DiskLimit; if all have one, their sum counts like max_size
//
// A volume at its limit takes nothing while others have room, and keeps what it has. A segment is at most an eighth of
// what its volume may hold, so that there is always one to clean or drop.
//
// Threads: confined (the store's mutex).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/log_lines.h"
#include "base/status.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_table.h"
#include "storage/file/store_options.h"
#include "storage/file/volume.h"

namespace larder::file_store {

class StoreRoom {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  // All outlive it. Of the volumes, it changes `limit` and what belongs to that.
  StoreRoom(const FileStoreOptions& options, std::vector<Volume>& volumes, const SegmentTable& segments,
            const PageIndex& index)
      : options_(options),
        volumes_(volumes),
        segments_(segments),
        index_(index),
        least_held_(segments.physical_bytes()) {}

  [[nodiscard]] std::uint64_t most_bytes() const;  // kUnlimited: nobody knows
  [[nodiscard]] bool are_disks_limited() const;    // all of them
  // Bytes that segments may hold when maintenance is content.
  [[nodiscard]] std::uint64_t goal_bytes() const { return percent_of_budget(options_.high_percent); }
  // Bytes that live pages may take when eviction ends.
  [[nodiscard]] std::uint64_t low_bytes() const { return percent_of_budget(options_.low_percent); }
  // What the pages in the index take on disk, about: payloads, and their lines in heads and footers.
  [[nodiscard]] std::uint64_t live_bytes() const { return index_.payload_bytes() + index_.size() * 2 * kPageBytes; }

  // ---- sizes
  [[nodiscard]] std::uint64_t segment_bytes(unsigned volume) const;  // of one that is made now
  [[nodiscard]] std::uint64_t largest_segment() const;               // of those
  [[nodiscard]] std::uint64_t least_segment() const;
  // Of a segment for one record alone.
  [[nodiscard]] static std::uint64_t segment_bytes_for(std::uint64_t record_bytes, std::size_t pages) {
    return kBlockBytes + record_bytes + ActiveSegment::footer_room(pages);
  }
  // What a group may weigh so that the budget always has room for it and for cleaning.
  [[nodiscard]] std::uint64_t largest_record() const;
  // kInvalidArgument, kOverloaded: a group of these new bytes will never fit; or not on the disks as they are, which
  // lets the limits grow for it when they can.
  [[nodiscard]] Status check_new(std::uint64_t payload_bytes, std::size_t pages);

  // ---- is there room?
  // Of the store's budget, for a segment. Cleaning may also take one beside the least that was held since the opening:
  // a store may open with more than the budget (max_size is lower now, or segments are larger), and moving pages is how
  // it gets below that without losing them. A limit of the disk is none to go beyond (has_disk_room).
  [[nodiscard]] bool has_room(std::uint64_t bytes, bool for_cleaning) const;
  [[nodiscard]] bool has_disk_room(unsigned volume, std::uint64_t bytes) const;
  // Both, for what cleaning moves: a new segment there with a record that needs `own` of it.
  [[nodiscard]] bool has_room_to_move(unsigned volume, std::uint64_t own) const;
  // A segment of that size was planned before the limit was known: all that is there would go for it.
  [[nodiscard]] bool is_too_large(unsigned volume, std::uint64_t bytes) const;
  // For the segment behind the volume's active one, without making room first.
  [[nodiscard]] bool has_room_ahead(unsigned volume) const;

  // To be called when segments have gone.
  void note_held() { least_held_ = std::min(least_held_, segments_.physical_bytes()); }
  // What segments hold, but for the room that cleaning still has in those that it fills, and that which a seal gives
  // back.
  [[nodiscard]] std::uint64_t filled_bytes() const;

  // ---- full disks
  // The disk had no room for what needed `asked` bytes at most; `free`: as the system says. True: something must go
  // first. False: there is room, for a smaller segment at least; or so the system says, and the disk is tried once
  // more.
  [[nodiscard]] bool note_full_disk(LogLines& lines, unsigned volume, std::uint64_t asked, std::uint64_t free,
                                    TimePoint now);
  [[nodiscard]] bool may_limits_grow(TimePoint now) const;
  // Is it worth asking for the volume's free bytes? `awaited`: a segment for the write that has waited longest, or 0.
  [[nodiscard]] bool wants_to_grow(unsigned volume, std::uint64_t awaited, TimePoint now) const;
  void grow(unsigned volume, std::uint64_t free, TimePoint now);

  // The disk of this volume is full: a segment of it must go, alive or not.
  std::optional<unsigned> full_volume;
  // By itself, or since the coldest have gone.
  void forget_full_if_there_is_room();

  struct Emptiest {
    SegmentId id = 0;  // 0: there is none
    std::uint64_t live_bytes = 0;
  };
  // The sealed segment with the least alive in it: of that volume; without one, of all that cleaning may take now.
  // Cost: O(segments).
  [[nodiscard]] Emptiest emptiest_segment(std::optional<unsigned> volume, TimePoint now) const;

 private:
  [[nodiscard]] std::uint64_t segments_bytes() const;
  [[nodiscard]] std::uint64_t percent_of_budget(unsigned percent) const;

  const FileStoreOptions& options_;
  std::vector<Volume>& volumes_;
  const SegmentTable& segments_;
  const PageIndex& index_;
  std::uint64_t refused_bytes_ = 0;  // the largest group that a learned limit was too small for
  std::uint64_t least_held_;         // by all segments, since the store was opened
};

}  // namespace larder::file_store
