// SPDX-License-Identifier: Apache-2.0
// The file store's damaged pages: dropped, and left out of their segment's footer, so that they are not promised again
// by the next process.
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
  // The segment's footer is told, if there is something to tell.
  void tell(SegmentId segment) LARDER_EXCLUDES(state_.mutex);
  // All of them are, here, where it has failed before. Precondition: nothing is in flight.
  void finish() LARDER_EXCLUDES(state_.mutex);

 private:
  void tell_here(SegmentId segment) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentLog& log_;
};

}  // namespace larder::file_store
