// SPDX-License-Identifier: Apache-2.0
// The file store's segments while they are written: made (ahead of need, if that can be), synced, and sealed.
//
//   roll     a volume's next segment is made; the one before is sealed when its writes have ended
//   settle   a full segment whose last write has ended is sealed; if nothing in it is alive, it goes
//   sync     one fdatasync of a segment serves all who wait for it
//
// A segment is synced or sealed by one at a time: the system tells an error only once, and of two it would tell one.
//
// Threads: any. roll() and finish() block; the rest posts what does, but for opening a segment whose sync somebody
// waits for when its file has been closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "storage/file/segment_files.h"
#include "storage/file/store_state.h"

namespace larder::file_store {

// A sync of the segment failed before: a durable write cannot count on a later one.
[[nodiscard]] Status earlier_sync_failed();

class SegmentLog {
 public:
  SegmentLog(StoreState& state, SegmentFiles& files, StoreSteps& steps) : state_(state), files_(files), steps_(steps) {}

  // Makes the volume's next segment, unless somebody was faster, or its active one has room for such a record.
  void roll(unsigned volume, LogKind kind, std::uint64_t record_bytes, std::size_t pages) LARDER_EXCLUDES(state_.mutex);
  // While the next segment is made, nothing can be written; so this makes it while there is still room in the active
  // one, which takes appends meanwhile, and goes on if there comes no other. Posts that, where it can.
  void roll_ahead(unsigned volume) LARDER_EXCLUDES(state_.mutex);
  // Call it when the segment has been ended, and when a write to it has.
  void settle(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) LARDER_EXCLUDES(state_.mutex);
  // The same, but sealed when it returns, if its last write has ended. Blocks.
  void settle_here(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) LARDER_EXCLUDES(state_.mutex);
  // No more is appended to any segment (of that kind). True: one is about to be sealed, and maintenance goes on behind
  // that.
  [[nodiscard]] bool seal(std::optional<LogKind> kind = std::nullopt) LARDER_EXCLUDES(state_.mutex);
  // True: a full segment is about to be sealed, and maintenance goes on behind that.
  [[nodiscard]] bool await_seal() LARDER_EXCLUDES(state_.mutex);
  // Seals what is active, here. Precondition: nothing is in flight.
  void finish() LARDER_EXCLUDES(state_.mutex);

  // `done` is called when those segments are on disk, or known not to be; perhaps at once. `returns`: PageCopies'
  // count from before the caller met what lies in them.
  void wait_for_sync(std::vector<SegmentId> segments, std::uint64_t returns, std::function<void(const Status&)> done)
      LARDER_EXCLUDES(state_.mutex);

 private:
  struct SyncWait {  // guarded by the store's mutex
    std::function<void(const Status&)> done;
    std::size_t left = 0;  // segments not synced yet
    Status status;
  };
  // There as long as somebody syncs or seals the segment.
  struct SegmentSync {
    std::vector<std::shared_ptr<SyncWait>> covered, next;  // by the fdatasync under way; by the one after it
  };
  void make(unsigned volume, LogKind kind, std::uint64_t record_bytes, std::size_t pages, bool is_ahead)
      LARDER_EXCLUDES(state_.mutex);
  void mend_directory(const Volume& volume, const Restored& restored) LARDER_EXCLUDES(state_.mutex);
  void forget_volume(unsigned volume, std::vector<FilePtr>& closed, LogLines& lines) LARDER_REQUIRES(state_.mutex);
  void seal(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) LARDER_EXCLUDES(state_.mutex);
  // True: the caller is the one who seals it.
  [[nodiscard]] bool claim_seal(ActiveSegment& segment) LARDER_EXCLUDES(state_.mutex);
  void start_sync(SegmentId id) LARDER_EXCLUDES(state_.mutex);
  void synced(SegmentId id, unsigned volume, std::uint64_t written, const Status& status) LARDER_EXCLUDES(state_.mutex);
  void end_sync(SegmentId id, const Status& status) LARDER_EXCLUDES(state_.mutex);
  // Whether a full segment is about to be sealed; remembers that it is awaited.
  [[nodiscard]] bool is_seal_due() LARDER_REQUIRES(state_.mutex);

  StoreState& state_;
  SegmentFiles& files_;
  StoreSteps& steps_;
  std::map<SegmentId, SegmentSync> syncs_ LARDER_GUARDED_BY(state_.mutex);
  bool awaits_seal_ LARDER_GUARDED_BY(state_.mutex) = false;  // the next seal goes on with maintenance
};

}  // namespace larder::file_store
