// The file backend itself. Options and defaults: file_backend.h; bytes: segment_format.h and docs/formats.md.
//
// Threads: submit_*, stats, info, close from any thread. Reads run in parallel on the executor. Writes and clears are
// prepared in parallel (checksums) and then done by one task at a time, the one with the *writer role*; the role is
// handed over under the mutex. While one writes, others only queue: what has gathered is written as one batch with one
// fdatasync.
//
//   submit_write -> task: checksums -> jobs_ -> (role free?) take it -> plan, make room, append, publish, sync, done
//
// A page is visible when publish() has put its group into the index, in one step.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ranked_mutex.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"
#include "storage/file/segment_table.h"
#include "storage/file/segment_writer.h"
#include "storage/operation.h"

namespace larder::file_store {

enum class FsyncMode : std::uint8_t { kOff, kSegment, kGroup };

struct FileStoreOptions {
  std::string directory;
  std::uint64_t max_bytes = 0;
  std::uint64_t segment_bytes = 0;
  FsyncMode fsync = FsyncMode::kSegment;
  std::size_t read_tasks = 4;
  std::size_t queue_limit = 1024;
  std::size_t open_files = 128;
};

// What opening found (file_store_open.cc).
struct OpenedStore {
  explicit OpenedStore(std::size_t open_files) : segments(open_files) {}
  std::unique_ptr<FileLock> lock;
  StoreId store{};
  PageIndex index;
  SegmentTable segments;
  std::vector<Cleared> cleared;
  SegmentId next_segment = 1;
  std::uint64_t next_generation = 1, next_group = 1;
  std::uint64_t torn_tails = 0, corrupt = 0;
};
// Checks the directory, locks it, reads FORMAT, CLEARED and the segments. Errors say what to do:
// kInvalidArgument: foreign files, or no directory. kConflict: locked, or a segment of another store. kUnsupported: a
// newer format. kUnavailable: not readable or writable.
[[nodiscard]] Result<std::unique_ptr<OpenedStore>> open_store(const FileStoreOptions& options, FileSystem& files,
                                                              Clock& clock);

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
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override;

 private:
  // A write with its checksums, or a clear.
  struct Job {
    std::shared_ptr<WriteOperation> write;
    std::vector<std::vector<Checksum128>> checksums;  // [group][item]
    std::shared_ptr<ClearOperation> clear;
  };
  struct PendingId {
    PageIdentity identity;
    PageKey key;
    friend bool operator==(const PendingId&, const PendingId&) = default;
  };
  struct PendingHash {
    std::size_t operator()(const PendingId& id) const noexcept {
      return id.key.prefix64() ^ (id.identity.namespace_digest.prefix64() * 31) ^
             static_cast<std::size_t>(id.identity.pool);
    }
  };
  // A group of the batch: what was appended for it, and every segment its pages lie in.
  struct BatchGroup {
    Status* status;  // in the operation's result
    bool is_durable;
    std::vector<PageToAppend> pages;
    std::vector<PageLocation> locations;
    std::vector<SegmentId> touched;
    std::uint64_t duplicates = 0;
  };
  struct Batch {
    std::vector<BatchGroup> groups;  // appended, not yet published
    std::unordered_map<PendingId, SegmentId, PendingHash> pending;
  };

  // file_store.cc: reads and life cycle
  void run_reads(ReadOperation& op, std::atomic<std::size_t>& next);
  [[nodiscard]] Status read_item(const StoreScope& scope, const ReadItem& item) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<FilePtr> open_for_read(SegmentId segment) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status read_page(File& file, const ExpectedPage& expected, const PageLocation& location,
                                 std::span<const Segment> payload);
  void drop_page(const PageIdentity& identity, const PageKey& key, std::uint64_t generation) LARDER_EXCLUDES(mutex_);
  void finish() LARDER_EXCLUDES(mutex_);

  // file_store_write.cc: the writer role
  void enqueue(Job job) LARDER_EXCLUDES(mutex_);
  void run_writer() LARDER_EXCLUDES(mutex_);
  void process(std::deque<Job>& jobs);
  void append_write(Job& job, Batch& batch);
  [[nodiscard]] Status append_group(const StoreScope& scope, const PageGroup& group,
                                    std::span<const Checksum128> checksums, BatchGroup& out, Batch& batch);
  void plan_group(const StoreScope& scope, const PageGroup& group, std::span<const Checksum128> checksums,
                  BatchGroup& out, const Batch& batch) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status append_with_retry(BatchGroup& out, Batch& batch);
  [[nodiscard]] Status need_active_segment(std::uint64_t bytes) LARDER_EXCLUDES(mutex_);
  void note_end() LARDER_EXCLUDES(mutex_);
  void seal_active() LARDER_EXCLUDES(mutex_);
  void finish_batch(Batch& batch);
  void publish(Batch& batch) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status sync_segment(SegmentId segment) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool fits(std::uint64_t bytes) const LARDER_EXCLUDES(mutex_);
  bool evict_one() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status run_clear(const StoreScope* scope) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status remove_all_segments() LARDER_EXCLUDES(mutex_);

  // constant after construction
  const FileStoreOptions options_;
  FileSystem& files_;
  Clock& clock_;
  Executor& executor_;
  BackendInfo info_;

  OperationGate gate_;  // synchronises itself

  mutable RankedMutex mutex_{LockRank::kStorage};
  PageIndex index_ LARDER_GUARDED_BY(mutex_);
  SegmentTable segments_ LARDER_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ LARDER_GUARDED_BY(mutex_);
  bool is_writer_busy_ LARDER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<FileLock> lock_ LARDER_GUARDED_BY(mutex_);  // null: finished

  // owned by the writer role
  SegmentWriter writer_;
  std::vector<Cleared> cleared_;
  SegmentId next_segment_;

  // relaxed atomics: statistics
  struct Counters {
    std::atomic<std::uint64_t> reads{0}, read_hits{0}, read_misses{0}, read_errors{0}, writes{0}, write_errors{0};
    std::atomic<std::uint64_t> duplicate_writes{0}, corrupt{0}, evicted{0}, torn_tails{0};
  };
  Counters counters_;
};

// Writes `bytes` as `name` in the directory, so that a crash leaves the old or the new file, whole.
[[nodiscard]] Status replace_file(FileSystem& files, const std::string& directory, std::string_view name,
                                  std::span<const std::byte> bytes);

inline constexpr std::uint64_t kMaxGroupBytes = std::uint64_t{64} << 30;
inline constexpr std::size_t kMaxCleared = 4096;  // entries of CLEARED; more: kOverloaded until the store is reopened

}  // namespace larder::file_store
