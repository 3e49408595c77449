// SPDX-License-Identifier: Apache-2.0
// Cleaning a segment of the file store: what lives in it is appended anew, synced, and the segment removed; if the sync
// fails, the index goes back to the old copies, and the segment stays.
//
// Pages that are damaged are dropped. If none can be read, that is the disk rather than the pages: they stay for a
// while. A group stays together: of half a moved one, the rest would go at another time.
//
// Threads: one cleaning at a time; its steps are posted, or run on the io queues' threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "storage/file/damaged_pages.h"
#include "storage/file/io_queue.h"
#include "storage/file/page_writer.h"
#include "storage/file/segment_files.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

class SegmentCleaner {
 public:
  enum class Outcome : std::uint8_t {
    kMoved,  // all that lived in it
    kStays,  // the same, and yet something lives in it
    kLacksRoom,
    kNotRead,
    kNotWritten,
  };
  struct Cleaned {
    Outcome how = Outcome::kMoved;
    Status why;
    std::uint64_t lacked_bytes = 0;  // kLacksRoom: of a segment for the record that found none
  };
  using Done = std::function<void(const Cleaned&)>;

  SegmentCleaner(StoreState& state, SegmentFiles& files, DamagedPages& damage, PageWriter& writer)
      : state_(state), files_(files), damage_(damage), writer_(writer) {}

  // Blocks for the opening of the file. `done` is called at the end, perhaps at once, without the mutex; the mark is
  // gone then, if the segment is still there. Precondition: the segment is sealed, and marked as leaving. (One that is
  // gone by now: kMoved.)
  void clean(SegmentId segment, Done done) LARDER_EXCLUDES(state_.mutex);

 private:
  struct Job;
  [[nodiscard]] std::vector<IoOperation> reads_of(const std::shared_ptr<Job>& job) LARDER_EXCLUDES(state_.mutex);
  void read_next(const std::shared_ptr<Job>& job) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] bool may_be_readable_again(const Job& job) LARDER_EXCLUDES(state_.mutex);
  void write(const std::shared_ptr<Job>& job) LARDER_EXCLUDES(state_.mutex);
  void end(const std::shared_ptr<Job>& job, Cleaned cleaned) LARDER_EXCLUDES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  DamagedPages& damage_;
  PageWriter& writer_;
};

}  // namespace larder::file_store
