// SPDX-License-Identifier: Apache-2.0
// The file store's bad pages. One that is damaged is dropped, and left out of its segment's footer, so that it is not
// promised again by the next process. One that cannot be read now stays: its disk may come back; but it is written anew
// when it is computed anew (page_copies.h).
//
//   in a segment that is written   it ends here: its footer, which lists what the index has, comes at once
//   in a sealed one                its footer is written anew without them, by one task at a time per segment
//   that fails                     said in the log, and tried again with the next page of the segment, and at the end
//
// What a footer is told here is a favour: the payloads' checksums are in it, and a page that is promised once more is
// found damaged once more. So no failure here costs a write or a page.
//
// Threads: any. finish() blocks; the rest posts what does.
#pragma once

#include "key/page_key.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_log.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class DamagedPages {
 public:
  DamagedPages(StoreState& state, SegmentLog& log) : state_(state), log_(log) {}

  // Without effect if the page does not lie there any more.
  void drop(const PageIdentity& identity, const PageKey& key, const PageLocation& location)
      LARDER_EXCLUDES(state_.mutex);
  // A read of the page there failed.
  void note_unread(const PageLocation& location) LARDER_EXCLUDES(state_.mutex);
  // ... succeeded, where one had failed.
  void note_read(const PageLocation& location) LARDER_EXCLUDES(state_.mutex);
  // The segment's footer is told, if there is something to tell.
  void tell(SegmentId segment) LARDER_EXCLUDES(state_.mutex);
  // All of them are, here, where it has failed before. Precondition: nothing is in flight.
  void finish() LARDER_EXCLUDES(state_.mutex);

 private:
  [[nodiscard]] EndedSegment end(const SegmentInfo& segment) LARDER_REQUIRES(state_.mutex);
  void tell_here(SegmentId segment) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentLog& log_;
};

}  // namespace larder::file_store
