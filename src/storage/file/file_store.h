// SPDX-License-Identifier: Apache-2.0
// The file backend itself. Options and defaults: file_backend.h; bytes: docs/formats.md section 5.
//
//   submit_read   -> look up -> runs of adjacent pages -> io queue -> verify -> done        file_store_read.cc
//   submit_write  -> checksums -> plan -> place in a segment -> io queue -> publish -> done file_store_write.cc
//                                   |        |                                  \-> sync -> done (durable)
//                                   |        +-> no room: maintenance, then again
//                                   +-> small, and the disk is busy: wait, and go together  file_store_gather.cc
//   what a durable write replaces stays until the write is on disk                        file_store_holds.cc
//   a page that turned out damaged is dropped, and its segment's footer told              file_store_damage.cc
//   roll (ahead of need, if it can), seal, sync, failures of a volume                       file_store_segments.cc
//   how much there may be, in all and on each disk                                        file_store_room.cc
//   evict, clean, remove: keeps the store below its budget                                  file_store_maintain.cc
//   open, clear, close, stats                                                               file_store.cc
//
// A page is visible when publish() has put its group into the index, in one step. Nothing waits for the disk under the
// mutex, and no task waits for another: each step ends by posting or submitting the next, so that the whole store runs
// on one simulated thread as well as on many.
//
// Threads: the port's methods from any thread. Completions run on the io queues' threads; what may block (making,
// sealing and removing files) runs on the executor. (But for a statvfs after a write that found the disk full.)
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/file/io_queue.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"
#include "storage/file/volume.h"
#include "storage/file/write_admission.h"
#include "storage/operation.h"

namespace larder::file_store {

inline constexpr auto kRelaxed = std::memory_order_relaxed;

// Can the device transfer these pieces as they lie in memory, but for a tail of less than a block?
[[nodiscard]] inline bool is_block_aligned(std::span<const Segment> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    if (reinterpret_cast<std::uintptr_t>(payload[i].data) % kBlockBytes != 0) return false;
    if (i + 1 < payload.size() && payload[i].size % kBlockBytes != 0) return false;
  }
  return true;
}

enum class FsyncMode : std::uint8_t { kOff, kSegment, kGroup };
enum class Choice : std::uint8_t { kAuto, kOn, kOff };

struct FileStoreOptions {
  std::vector<std::string> directories;  // one volume each
  std::uint64_t max_bytes = 0;           // of all volumes together, physical
  std::uint64_t segment_bytes = 0;
  unsigned high_percent = 95, low_percent = 85;  // of max_bytes: when eviction begins, and how far live bytes go down
  FsyncMode fsync = FsyncMode::kSegment;
  Choice direct = Choice::kAuto;  // past the page cache
  Choice uring = Choice::kAuto;
  std::size_t io_depth = 64;  // operations at once per volume
  std::size_t queue_limit = 1024;
  std::size_t open_files = 128;
  AdmissionOptions admission;
};

[[nodiscard]] inline PageIdentity identity_of(const StoreScope& scope, PoolName pool) {
  return {scope.namespace_digest, scope.fingerprint(pool), pool};
}

// A page that a durable write has written once more, because what lay there was not good enough for one: an earlier
// durable write may count on the old copy all the same.
struct Replaced {
  ListedPage page;          // the new copy
  PageLocation before;      // where the old one lies
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
  unsigned holds = 0;              // entries of any `replaced` whose old copy lies in it: it stays until they go
  std::vector<Replaced> replaced;  // by copies in it that are not known to be on disk
  bool is_leaving = false;         // being cleaned or removed
  TimePoint remove_again{};        // leaving, and its file would not go: tried again then
  std::optional<TimePoint> unreadable_since;  // cleaning could not read any of it
  TimePoint clean_again{};                    // it could not be read: until then, cleaning takes others
  std::vector<PagePlace> damaged;             // pages that were found damaged, in this process
  std::size_t left_out = 0;                   // of `damaged`: the first so many are known not to be in the footer
  bool is_leaving_out = false;                // its footer is being written anew
  std::uint64_t last_use = 0;                 // for the bound on open files
  FilePtr file;                               // null: closed
};

// What opening found (file_store_open.cc).
struct OpenedStore {
  StoreId store{};
  std::vector<Volume> volumes;
  PageIndex index;
  std::map<SegmentId, SegmentInfo> segments;
  std::vector<Cleared> cleared;
  SegmentId next_segment = 1;
  std::uint64_t next_generation = 1;
  std::uint64_t torn_tails = 0, corrupt = 0;
};
// Checks the directories, locks them, reads FORMAT, CLEARED and the segments; gives scanned segments their footers.
// Errors say what to do. kInvalidArgument: foreign files, or no directory. kConflict: locked, or of another store.
// kUnsupported: another format version. kUnavailable: not readable or writable.
// `executor` (may be null) reads segments ahead; nothing depends on its running anything. Time: about 0.2 us per page
// and core, once the page tables (128 bytes per page) have been read; a segment that a killed process left unsealed is
// read, and what was not synced of it written once more.
[[nodiscard]] Result<std::unique_ptr<OpenedStore>> open_store(const FileStoreOptions& options, FileSystem& files,
                                                              Clock& clock, Executor* executor);

class FileStore final : public StorageBackend {
 public:
  FileStore(const FileStoreOptions& options, const BackendEnvironment& environment, OpenedStore opened);
  ~FileStore() override;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override;
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override;
  [[nodiscard]] BackendStats stats() const override;
  [[nodiscard]] Status register_memory(std::span<const Segment> regions) override;
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  // ---- reads
  struct ReadRun;  // pages that one operation fetches
  struct PlannedRead {
    std::size_t item = 0;
    PageLocation location;
    unsigned volume = 0;
    FilePtr file;  // null: its segment is closed
  };
  void start_read(const std::shared_ptr<ReadOperation>& op) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<PlannedRead> plan_reads(ReadOperation& op) LARDER_EXCLUDES(mutex_);
  void submit_plan(const std::shared_ptr<ReadOperation>& op, std::vector<PlannedRead> plan);
  void add_to_runs(const std::shared_ptr<ReadOperation>& op, const PlannedRead& read,
                   std::vector<std::shared_ptr<ReadRun>>& runs);
  [[nodiscard]] bool needs_tail(const ReadRun& run) const;
  [[nodiscard]] IoOperation make_io(ReadRun& run) const;
  void submit_runs(std::vector<std::shared_ptr<ReadRun>> runs);
  void finish_run(ReadRun& run, const Status& status) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<FilePtr> open_segment(SegmentId segment) LARDER_EXCLUDES(mutex_);
  void forget_segment(SegmentId segment, std::vector<FilePtr>& closed) LARDER_REQUIRES(mutex_);
  void close_segment(const FilePtr& file, SegmentId segment) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status check_here(unsigned volume) LARDER_EXCLUDES(mutex_);

  // ---- pages that turned out damaged
  void drop_page(const PageIdentity& identity, const PageKey& key, const PageLocation& location)
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool has_damage_to_tell(const SegmentInfo& segment) const LARDER_REQUIRES(mutex_);
  void leave_out_later(SegmentId segment) LARDER_EXCLUDES(mutex_);
  void leave_out_damaged(SegmentId segment) LARDER_EXCLUDES(mutex_);

  // ---- writes
  struct GroupRef {  // a group of an operation, in a record
    std::shared_ptr<WriteOperation> op;
    std::size_t group = 0;
    std::size_t begin = 0, end = 0;  // of the record's pages; empty: nothing of it that a group before has not
    bool is_here = false;            // all of it was in the index already
  };
  struct Record {                        // one append, from planning to its end
    std::shared_ptr<WriteOperation> op;  // the first one of `groups`; null: cleaning
    std::vector<ListedPage> pages;
    std::vector<std::vector<Segment>> payloads;  // one per page
    std::vector<GroupRef> groups;
    std::vector<SegmentId> duplicates_in;                  // segments that hold pages of the groups already
    std::map<PoolName, std::unordered_set<PageKey>> seen;  // what `pages` holds already
    std::uint64_t returns = 0;                             // of returns_, when it was planned
    bool is_durable = false;
    bool may_wait = false;                     // all of its operation, on a thread that may wait for the disk
    bool is_alone = false;                     // and nothing else is being written: so that thread does write it
    std::vector<PageLocation> moved_from;      // cleaning: where each page was
    std::shared_ptr<void> keep;                // cleaning: what the payloads lie in
    std::function<void(const Status&)> moved;  // cleaning: called at the end
    bool is_cleared = false;                   // cleaning: not written, because some of it was cleared meanwhile
    bool lacks_room = false;                   // cleaning: not written, because there is no room to move it to
    RecordLayout layout;
    unsigned volume = 0;
    std::shared_ptr<ActiveSegment> segment;
    std::uint64_t start = 0, synced_bytes = 0;
    AlignedBuffer staging;  // head, small payloads, padding
    [[nodiscard]] LogKind log() const { return moved_from.empty() ? LogKind::kNew : LogKind::kMoved; }
  };
  using RecordPtr = std::shared_ptr<Record>;
  enum class Placed : std::uint8_t { kPlaced, kWaits, kWaitsForRoll, kRoll, kRefused };
  void prepare_write(const std::shared_ptr<WriteOperation>& op, bool may_block) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status plan_group(const std::shared_ptr<WriteOperation>& op, std::size_t group, Record& record)
      LARDER_EXCLUDES(mutex_);
  // The page is in the index, and good enough for the write: of a durable one, a sync of its segment makes it durable.
  [[nodiscard]] bool is_here(IdentityId identity, const PageKey& key, std::uint64_t bytes, bool is_durable,
                             PageLocation& at) LARDER_REQUIRES(mutex_);
  void place(RecordPtr record, bool may_block) LARDER_EXCLUDES(mutex_);
  void place_later(RecordPtr record) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Placed try_place(Record& record, unsigned& volume, Status& why) LARDER_REQUIRES(mutex_);
  void take_place(Record& record, unsigned volume) LARDER_REQUIRES(mutex_);
  void write_record(const RecordPtr& record);
  void record_written(const RecordPtr& record, const Status& status) LARDER_EXCLUDES(mutex_);
  void publish(Record& record) LARDER_REQUIRES(mutex_);
  void take_back(const Record& record) LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool is_cleared(const ListedPage& page) const LARDER_REQUIRES(mutex_);
  void record_published(const RecordPtr& record) LARDER_EXCLUDES(mutex_);
  void finish_record(Record& record, const Status& synced) LARDER_EXCLUDES(mutex_);
  void fail_record(Record& record, const Status& why);
  void place_waiting() LARDER_EXCLUDES(mutex_);

  // ---- copies that durable writes have replaced
  void hold(const ListedPage& page, const PageLocation& before) LARDER_REQUIRES(mutex_);
  void release(const Replaced& replaced) LARDER_REQUIRES(mutex_);
  void release_synced(SegmentInfo& segment) LARDER_REQUIRES(mutex_);
  // `is_lost`: the new copies are, or may be.
  void settle_replaced(SegmentInfo& segment, bool is_lost) LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool is_settled(const Replaced& replaced, bool is_lost) LARDER_REQUIRES(mutex_);

  // ---- small writes
  [[nodiscard]] static bool is_quick(const WriteRequest& request);
  [[nodiscard]] bool claim_idle_disk() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t gathered_limit() const LARDER_REQUIRES(mutex_);
  void place_or_gather(RecordPtr record, bool may_block) LARDER_EXCLUDES(mutex_);
  void place_gathered() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<RecordPtr> take_gathered() LARDER_REQUIRES(mutex_);
  [[nodiscard]] static bool may_share(const Record& a, const Record& b);
  [[nodiscard]] static RecordPtr join(std::vector<RecordPtr> parts);

  // ---- segments
  struct SyncWait {  // guarded by mutex_
    RecordPtr record;
    std::size_t left = 0;  // segments not synced yet
    Status status;
  };
  // There as long as somebody syncs or seals the segment: one at a time, for the system tells an error only once, and
  // of two it would tell one. Guarded by mutex_.
  struct SegmentSync {
    std::vector<std::shared_ptr<SyncWait>> covered, next;  // by the fdatasync under way; by the one after it
  };
  void post(Task task);
  [[nodiscard]] static Status earlier_sync_failed();
  [[nodiscard]] static std::uint64_t segment_bytes_for(std::uint64_t record_bytes, std::size_t pages);
  void roll(unsigned volume, LogKind log, std::uint64_t record_bytes, std::size_t pages, bool is_ahead = false)
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool may_roll_ahead(unsigned volume) const LARDER_REQUIRES(mutex_);
  void roll_ahead(unsigned volume) LARDER_EXCLUDES(mutex_);
  // `free`: on a full disk, as the system says. `asked`: by a new segment; else its usual size counts.
  void note_failure(unsigned volume, const Status& why, const std::shared_ptr<ActiveSegment>& segment,
                    std::uint64_t free = 0, std::uint64_t asked = 0) LARDER_REQUIRES(mutex_);
  void doubt(SegmentInfo& segment) LARDER_REQUIRES(mutex_);
  struct EndedSegment {
    std::shared_ptr<ActiveSegment> segment;
    unsigned volume = 0;
  };
  [[nodiscard]] std::vector<EndedSegment> end_active() LARDER_REQUIRES(mutex_);
  void settle(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) LARDER_EXCLUDES(mutex_);
  void seal(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) LARDER_EXCLUDES(mutex_);
  void wait_for_sync(const RecordPtr& record) LARDER_EXCLUDES(mutex_);
  void start_sync(SegmentId id) LARDER_EXCLUDES(mutex_);
  void synced(SegmentId id, unsigned volume, std::uint64_t written, const Status& status) LARDER_EXCLUDES(mutex_);
  void end_sync(SegmentId id, const Status& status) LARDER_EXCLUDES(mutex_);
  void trim_open_files(std::vector<FilePtr>& closed) LARDER_REQUIRES(mutex_);
  void forget_volume(unsigned volume, std::vector<FilePtr>& closed) LARDER_REQUIRES(mutex_);

  // ---- room
  [[nodiscard]] bool are_disks_limited() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t most_bytes() const LARDER_REQUIRES(mutex_);  // kUnlimited: nobody knows
  [[nodiscard]] std::uint64_t segment_bytes(unsigned volume) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t segments_bytes() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t largest_segment() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t largest_record() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_room(std::uint64_t bytes, bool for_cleaning) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool has_disk_room(unsigned volume, std::uint64_t bytes) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool is_too_large(unsigned volume, std::uint64_t bytes) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t bytes_ahead() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t percent_of_budget(unsigned percent) const LARDER_REQUIRES(mutex_);
  // Bytes that segments may hold when maintenance is content.
  [[nodiscard]] std::uint64_t goal_bytes() const LARDER_REQUIRES(mutex_) {
    return percent_of_budget(options_.high_percent);
  }
  void set_size(SegmentInfo& segment, std::uint64_t bytes) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t bytes_on_disk(unsigned volume) const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool note_full_disk(unsigned volume, std::uint64_t asked, std::uint64_t free) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t free_bytes(unsigned volume) const;
  [[nodiscard]] bool may_limits_grow() const LARDER_REQUIRES(mutex_);
  void grow_limits() LARDER_EXCLUDES(mutex_);

  // ---- maintenance
  struct Cleaning;
  [[nodiscard]] std::uint64_t live_bytes() const LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool is_content() const LARDER_REQUIRES(mutex_);
  // What a segment needs for the write that has waited longest; 0: none waits.
  [[nodiscard]] std::uint64_t awaited_bytes() const LARDER_REQUIRES(mutex_);
  // Of that volume; without one, of all that cleaning may take now. 0: there is none.
  [[nodiscard]] SegmentId emptiest_segment(std::optional<unsigned> volume, std::uint64_t& live) const
      LARDER_REQUIRES(mutex_);
  void start_maintenance() LARDER_EXCLUDES(mutex_);
  void start_maintenance_if_high() LARDER_EXCLUDES(mutex_);
  void maintain() LARDER_EXCLUDES(mutex_);
  void end_maintenance(bool is_stuck) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool do_all_files_stay() const LARDER_EXCLUDES(mutex_);
  bool remove_dead() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool evict_some() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool drop_for_space() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool evict_a_segments_worth() LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool clean_one() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool seal_for_space() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool may_be_readable_again(const Cleaning& job) LARDER_EXCLUDES(mutex_);
  void clean_next(const std::shared_ptr<Cleaning>& job) LARDER_EXCLUDES(mutex_);
  void clean_write(const std::shared_ptr<Cleaning>& job) LARDER_EXCLUDES(mutex_);
  enum class Cleaned : std::uint8_t { kMoved, kLacksRoom, kNotRead, kNotWritten };
  void end_cleaning(const std::shared_ptr<Cleaning>& job, Cleaned how, const Status& why) LARDER_EXCLUDES(mutex_);
  bool remove_segment(SegmentId segment) LARDER_EXCLUDES(mutex_);

  // ---- life
  void run_clears() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status run_clear(const StoreScope* scope) LARDER_EXCLUDES(mutex_);
  void forget_settled_clears() LARDER_REQUIRES(mutex_);
  // close() was called, and no write waits for room: maintenance ends.
  [[nodiscard]] bool is_closing() LARDER_EXCLUDES(mutex_);
  void finish() LARDER_EXCLUDES(mutex_);

  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  static constexpr std::size_t kMaxListed = std::size_t{1} << 26;

  // constant after construction
  const FileStoreOptions options_;
  FileSystem& files_;
  Clock& clock_;
  Executor& executor_;
  const StoreId store_;
  BackendInfo info_;

  OperationGate gate_;  // synchronises itself

  mutable RankedMutex mutex_{LockRank::kStorage};
  PageIndex index_ LARDER_GUARDED_BY(mutex_);
  std::map<SegmentId, SegmentInfo> segments_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t physical_bytes_ LARDER_GUARDED_BY(mutex_) = 0;  // of all segments
  std::size_t open_files_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ LARDER_GUARDED_BY(mutex_) = 0;
  SegmentId next_segment_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t next_generation_ LARDER_GUARDED_BY(mutex_);
  std::vector<Cleared> cleared_ LARDER_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<ClearOperation>> clears_ LARDER_GUARDED_BY(mutex_);
  bool is_clearing_ LARDER_GUARDED_BY(mutex_) = false;
  std::deque<RecordPtr> waiting_ LARDER_GUARDED_BY(mutex_);     // for room
  std::deque<RecordPtr> gathered_ LARDER_GUARDED_BY(mutex_);    // for a write to end; see file_store_gather.cc
  std::uint64_t gathered_bytes_ LARDER_GUARDED_BY(mutex_) = 0;  // of their records
  std::size_t writes_in_flight_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_lone_coming_ LARDER_GUARDED_BY(mutex_) = false;  // on its way to the executor
  bool is_placing_gathered_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_maintaining_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_in_maintain_ LARDER_GUARDED_BY(mutex_) = false, maintains_again_ LARDER_GUARDED_BY(mutex_) = false;
  std::uint64_t refused_bytes_ LARDER_GUARDED_BY(mutex_) =
      0;  // the largest group that a learned limit was too small for
  std::uint64_t least_physical_ LARDER_GUARDED_BY(mutex_) = 0;  // since maintenance began
  unsigned vain_cleanings_ LARDER_GUARDED_BY(mutex_) = 0;       // in a row
  Status cleaning_failed_ LARDER_GUARDED_BY(mutex_);            // not ok: so ended the last one
  bool awaits_seal_ LARDER_GUARDED_BY(mutex_) = false;          // the next seal goes on with maintain()
  // The disk of this volume is full: a segment of it must go, alive or not.
  std::optional<unsigned> full_volume_ LARDER_GUARDED_BY(mutex_);
  unsigned next_volume_ LARDER_GUARDED_BY(mutex_) = 0;
  std::map<SegmentId, SegmentSync> syncs_ LARDER_GUARDED_BY(mutex_);
  std::weak_ptr<Record> moving_ LARDER_GUARDED_BY(mutex_);  // cleaning: published, and not known to be on disk
  // How often the index went back to an old copy. A durable write that met the new one, and does not find its segment
  // any more, cannot count on either.
  std::uint64_t returns_ LARDER_GUARDED_BY(mutex_) = 0;
  WriteAdmission admission_ LARDER_GUARDED_BY(mutex_);
  bool is_finished_ LARDER_GUARDED_BY(mutex_) = false;
  std::vector<Volume> volumes_;  // the vector is constant; see Volume for who guards what

  // relaxed atomics: statistics
  struct Counters {
    std::atomic<std::uint64_t> reads{0}, read_hits{0}, read_misses{0}, read_errors{0}, writes{0}, write_errors{0};
    std::atomic<std::uint64_t> duplicate_writes{0}, declined{0}, corrupt{0}, evicted{0}, moved{0}, torn_tails{0};
    std::atomic<std::uint64_t> written_bytes{0};
  };
  Counters counters_;
};

}  // namespace larder::file_store
