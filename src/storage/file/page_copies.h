// SPDX-License-Identifier: Apache-2.0
// Which copy of a page counts, where there are two: one that a durable write has replaced stays until the new one is
// known to be on disk, and one that cleaning has moved until the move is.
//
//   the new copy is published                         its segment lists the old one, whose segment is held
//   a sync of its segment covers it                   the old copy may go
//   such a sync fails, or the segment's file is lost  the index goes back to the old copy, in the same step
//   the page is cleared, or evicted                   nobody counts on either copy
//   the segment is gone, and the page lies elsewhere  so does what was synced or held before that could be
//
// So an old copy holds its segment no longer than the segment of the new one is there and not synced; and syncs that
// fail again and again hold one segment, not one each.
//
// A page whose read failed stays where it is: its disk may come back. But it is not "here" to a write: whoever computed
// it anew stores it anew, and the new copy replaces the old one as above, durable or not. Of such pages, the last
// kMostUnread are known.
//
// Threads: confined (the store's mutex).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "storage/file/page_index.h"
#include "storage/file/segment_table.h"
#include "storage/file/store_options.h"
#include "storage/file/write_record.h"

namespace larder::file_store {

class PageCopies {
 public:
  // Both outlive it.
  PageCopies(FsyncMode fsync, PageIndex& index, SegmentTable& segments)
      : fsync_(fsync), index_(index), segments_(segments) {}

  // The page is in the index, and good enough for the write: it could be read when that was last tried, and of a
  // durable write, a sync of its segment makes it durable. `at`: where it is; segment 0: nowhere.
  [[nodiscard]] bool is_here(IdentityId identity, const PageKey& key, std::uint64_t bytes, bool is_durable,
                             PageLocation& at);

  // ---- what durable writes replace
  // Puts the page into the index. A durable one keeps the copy at `before`, where is_here() has found it; any keeps one
  // that could not be read.
  [[nodiscard]] Status insert(const ListedPage& page, bool is_durable, const PageLocation& before);
  // A sync of the segment has succeeded. One that takes appends may have got some since that began.
  void synced(SegmentInfo& segment);
  // Copies that nobody counts on any more go. `is_lost`: the new copies are, or may be.
  void settle(SegmentInfo& segment, bool is_lost);
  // A sync of the segment failed. What it replaced counts again. What cleaning was moving to it is where it was again,
  // in the same step: a durable write that replaces a page then makes the good copy stay until it is synced itself, not
  // the doubtful one.
  void doubt(SegmentInfo& segment);

  // ---- what could not be read
  // A read of the page there failed, and not because it is damaged. True: its segment should take no more appends, so
  // that its footer lists the page before a new copy replaces it.
  bool note_unread(const PageLocation& at);
  // It could be read.
  void note_read(const PageLocation& at);
  [[nodiscard]] bool is_unread(const PageLocation& at) const { return unread_.contains(place_in_store(at)); }

  // ---- what cleaning moves
  // It is published, and not known to be on disk.
  void begin_move(const RecordPtr& record) { moving_ = record; }
  // The end of it. Not ok: what was moved lies where it was, as long as that segment is there. A page that went or was
  // written anew meanwhile stays as it is.
  void end_move(const WriteRecord& record, bool is_ok);

  // The segment's file is gone.
  void forget(SegmentId id, std::vector<FilePtr>& closed);

  // How often the index went back to an old copy. A durable write that met the new one, and does not find its segment
  // any more, cannot count on either.
  [[nodiscard]] std::uint64_t returns() const { return returns_; }

 private:
  // About 8 MiB. One that is forgotten is found again by the next read of it.
  static constexpr std::size_t kMostUnread = std::size_t{1} << 16;
  using PlaceInStore = std::pair<SegmentId, PagePlace>;

  [[nodiscard]] static PlaceInStore place_in_store(const PageLocation& at) { return {at.segment, place_of(at)}; }
  void release(const Replaced& replaced);
  [[nodiscard]] bool is_settled(const Replaced& replaced, bool is_lost);
  void take_back(const WriteRecord& record);

  const FsyncMode fsync_;
  PageIndex& index_;
  SegmentTable& segments_;
  std::weak_ptr<WriteRecord> moving_;
  std::uint64_t returns_ = 0;
  std::set<PlaceInStore> unread_;
  std::deque<PlaceInStore> unread_order_;  // these, oldest first, and some that could be read since
};

}  // namespace larder::file_store
