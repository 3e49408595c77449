// SPDX-License-Identifier: Apache-2.0
// The file store's writes: plan (what is new), place (where), write, publish.
//
// A page is visible when publish() has put its group into the index, in one step.
//
// Threads: any; completions on the io queues' threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "storage/file/segment_log.h"
#include "storage/file/store_state.h"
#include "storage/file/write_admission.h"
#include "storage/file/write_gather.h"
#include "storage/file/write_record.h"

namespace larder::file_store {

// Without eviction, what is new is not for this store: trying again helps only when somebody makes room.
[[nodiscard]] inline Status declined_as_full() {
  return unsupported("file store: declined: it is full, and evict is off");
}

class PageWriter {
 public:
  PageWriter(StoreState& state, SegmentLog& log, StoreSteps& steps)
      : state_(state),
        log_(log),
        steps_(steps),
        gather_(state.volumes.size()),
        admission_(state.options.admission, state.clock.now()) {}

  [[nodiscard]] Status submit(WriteRequest request, StorageBackend::WriteDone done) LARDER_EXCLUDES(state_.mutex);
  // Gives the record its place and writes it, or keeps it until there is room. A thread that must not block leaves the
  // making of a segment to the executor.
  void place(RecordPtr record, bool may_block) LARDER_EXCLUDES(state_.mutex);
  // What waits for room, or for a segment, tries again; posted.
  void place_waiting() LARDER_EXCLUDES(state_.mutex);
  // It is not written: ends its operations. kUnsupported: they are declined.
  void fail(WriteRecord& record, const Status& why) LARDER_EXCLUDES(state_.mutex);

 private:
  enum class Placed : std::uint8_t { kPlaced, kWaits, kWaitsForRoll, kRoll, kRefused };

  void plan(const std::shared_ptr<WriteOperation>& op, bool may_block) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] Status plan_group(const std::shared_ptr<WriteOperation>& op, std::size_t group, WriteRecord& record)
      LARDER_EXCLUDES(state_.mutex);
  void place_or_gather(RecordPtr record, bool may_block) LARDER_EXCLUDES(state_.mutex);
  void place_gathered() LARDER_EXCLUDES(state_.mutex);
  void place_later(RecordPtr record) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] Placed try_place(WriteRecord& record, unsigned& volume, Status& why) LARDER_REQUIRES(state_.mutex);
  void take_place(WriteRecord& record, unsigned volume) LARDER_REQUIRES(state_.mutex);
  void write(const RecordPtr& record) LARDER_EXCLUDES(state_.mutex);
  [[nodiscard]] IoOperation write_of(const RecordPtr& record);
  [[nodiscard]] bool gives_place_back(WriteRecord& record) LARDER_EXCLUDES(state_.mutex);
  void written(const RecordPtr& record, const Status& status) LARDER_EXCLUDES(state_.mutex);
  void publish(WriteRecord& record) LARDER_REQUIRES(state_.mutex);
  void published(const RecordPtr& record) LARDER_EXCLUDES(state_.mutex);
  void finish(WriteRecord& record, const Status& synced) LARDER_EXCLUDES(state_.mutex);
  void count_refused(const Status& why);

  StoreState& state_;
  SegmentLog& log_;
  StoreSteps& steps_;
  WriteGather gather_ LARDER_GUARDED_BY(state_.mutex);
  WriteAdmission admission_ LARDER_GUARDED_BY(state_.mutex);
  unsigned next_volume_ LARDER_GUARDED_BY(state_.mutex) = 0;
};

}  // namespace larder::file_store
