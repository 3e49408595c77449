// SPDX-License-Identifier: Apache-2.0
// The file store's maintenance: keeps the bytes on disk below the budget.
//
//   dead segment     -> removed
//   too much alive   -> the nodes used longest ago go, tails before heads (page_index.h)
//   else             -> the segment with the least alive in it is cleaned (segment_cleaner.h)
//   nothing gained   -> more of the oldest goes
//   no room to clean -> the segments that cleaning fills are sealed, which gives back what they do not fill; if that is
//                       not enough, the emptiest segment is dropped
//   files do not go  -> nothing else of that directory is cleaned for a while, for it would free nothing; one file that
//                       does not go is tried again, and counts as long as it is there
//   cleaning fails   -> nothing is dropped for it: a segment that cannot be read is left alone for a while, and others
//                       are tried; if what was read cannot be written, maintenance ends
//   the disk itself is full -> what it holds is the budget from now on (store_room.h); if that frees no segment at
//                       once, the emptiest one is dropped with what lives in it, so that something can be moved
//   CLEARED is half full -> the oldest segment, which keeps its entries (docs/formats.md 5.6), is cleaned, then the
//                       next one; not while writes wait for room
//
// One step at a time, by one chain of tasks; reads and writes go on meanwhile. One segment's worth of the budget is
// kept for cleaning. Cost: cleaning copies at most what lives, about (low / high) of what it frees in the worst case.
//
// Threads: any; go_on() blocks.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "storage/file/page_writer.h"
#include "storage/file/segment_cleaner.h"
#include "storage/file/segment_files.h"
#include "storage/file/segment_log.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class Maintenance {
 public:
  Maintenance(StoreState& state, SegmentFiles& files, SegmentLog& log, PageWriter& writer, SegmentCleaner& cleaner,
              StoreSteps& steps)
      : state_(state), files_(files), log_(log), writer_(writer), cleaner_(cleaner), steps_(steps) {}

  // Posts it, unless it is under way.
  void start() LARDER_EXCLUDES(state_.mutex);
  // The same, if segments hold more than they should, a disk is full, or CLEARED is crowded.
  void start_if_high() LARDER_EXCLUDES(state_.mutex);
  // What it waits for has ended, perhaps before the call that began that has returned: then that one goes on.
  void go_on() LARDER_EXCLUDES(state_.mutex);

 private:
  [[nodiscard]] bool is_content() const LARDER_REQUIRES(state_.mutex);
  void end(bool is_stuck) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool do_all_files_stay() const LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool evict_some() LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool evict_a_segments_worth() LARDER_REQUIRES(state_.mutex);
  [[nodiscard]] bool drop_for_space() LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool has_room_to_clean() const LARDER_REQUIRES(state_.mutex);
  [[nodiscard]] bool lacks_room_for_good() const LARDER_REQUIRES(state_.mutex);
  [[nodiscard]] bool seal_for_cleaning() LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool clean_one() LARDER_EXCLUDES(state_.mutex);
  void cleaned(const SegmentCleaner::Cleaned& ended) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] SegmentInfo* keeper_of_clears() LARDER_REQUIRES(state_.mutex);
  [[nodiscard]] bool clean_oldest() LARDER_EXCLUDES(state_.mutex);
  void oldest_cleaned(SegmentCleaner::Outcome how) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool seal_for_space() LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  SegmentLog& log_;
  PageWriter& writer_;
  SegmentCleaner& cleaner_;
  StoreSteps& steps_;

  bool is_under_way_ LARDER_GUARDED_BY(state_.mutex) = false;
  bool is_in_step_ LARDER_GUARDED_BY(state_.mutex) = false, goes_on_ LARDER_GUARDED_BY(state_.mutex) = false;
  std::uint64_t least_filled_ LARDER_GUARDED_BY(state_.mutex) = 0;  // of the segments, since it began
  std::uint64_t live_bytes_ LARDER_GUARDED_BY(state_.mutex) = 0;    // when it began
  unsigned vain_cleanings_ LARDER_GUARDED_BY(state_.mutex) = 0;     // since it began, or evicted for them
  unsigned lacked_room_ LARDER_GUARDED_BY(state_.mutex) = 0;        // so many of the last cleanings in a row
  std::uint64_t lacked_bytes_ LARDER_GUARDED_BY(state_.mutex) = 0;  // by the last one of those
  bool oldest_stays_ LARDER_GUARDED_BY(state_.mutex) = false;       // it could not be cleaned, this time
  Status cleaning_failed_ LARDER_GUARDED_BY(state_.mutex);          // not ok: so ended the last one
};

}  // namespace larder::file_store
