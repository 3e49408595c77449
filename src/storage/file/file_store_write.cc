// The file store's writer role: batches, groups, eviction, clear.
//
// One task at a time is here (is_writer_busy_); it alone touches writer_, cleared_ and next_segment_.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::size_t kMaxBatchJobs = 32;

void note_segment(std::vector<SegmentId>& touched, SegmentId segment) {
  if (std::find(touched.begin(), touched.end(), segment) == touched.end()) touched.push_back(segment);
}

}  // namespace

void FileStore::enqueue(Job job) {
  {
    LockGuard guard(mutex_);
    jobs_.push_back(std::move(job));
  }
  run_writer();
}

void FileStore::run_writer() {
  const OperationGate::Ticket hold = gate_.hold();  // close() waits for the role, not only for the operations
  {
    LockGuard guard(mutex_);
    if (is_writer_busy_) return;  // whoever has the role sees the new job before giving it back
    is_writer_busy_ = true;
  }
  for (;;) {
    std::deque<Job> jobs;
    {
      LockGuard guard(mutex_);
      if (jobs_.empty()) {
        is_writer_busy_ = false;
        return;
      }
      // One batch: enough to share an fdatasync, few enough that the first does not wait long for the last.
      while (!jobs_.empty() && jobs.size() < kMaxBatchJobs) {
        jobs.push_back(std::move(jobs_.front()));
        jobs_.pop_front();
      }
    }
    try {
      process(jobs);
    } catch (...) {  // NOLINT: out of memory; what was not reported stays "cancelled", and the role must not be lost
    }
  }  // the operations end here, and with them run their callbacks
}

void FileStore::process(std::deque<Job>& jobs) {
  Batch batch;
  for (Job& job : jobs) {
    if (job.write) {
      append_write(job, batch);
      continue;
    }
    finish_batch(batch);
    job.clear->result = run_clear(job.clear->request.get());
  }
  finish_batch(batch);
}

void FileStore::append_write(Job& job, Batch& batch) {
  WriteOperation& op = *job.write;
  for (std::size_t g = 0; g < op.request.groups.size(); ++g) {
    counters_.writes.fetch_add(1, kRelaxed);
    BatchGroup out{&op.result.groups[g], op.request.durable || options_.fsync == FsyncMode::kGroup, {}, {}, {}, 0};
    const Status status = append_group(*op.request.scope, op.request.groups[g], job.checksums[g], out, batch);
    *out.status = status;
    if (status.is_ok()) {
      counters_.duplicate_writes.fetch_add(out.duplicates, kRelaxed);
      for (std::size_t i = 0; i < out.pages.size(); ++i) {
        batch.pending.insert_or_assign({out.pages[i].identity, out.pages[i].key}, out.locations[i].segment);
      }
      batch.groups.push_back(std::move(out));
    } else {
      counters_.write_errors.fetch_add(1, kRelaxed);
    }
  }
}

Status FileStore::append_group(const StoreScope& scope, const PageGroup& group, std::span<const Checksum128> checksums,
                               BatchGroup& out, Batch& batch) {
  LARDER_RETURN_IF_ERROR(check_group(scope, group));
  if (group.items.size() > kMaxGroupRecords) return invalid_argument("file store: a group of more than 65536 pages");
  for (;;) {
    plan_group(scope, group, checksums, out, batch);
    if (out.pages.empty()) return Status::ok();
    const std::uint64_t bytes = SegmentWriter::group_bytes(out.pages);
    if (bytes > kMaxGroupBytes) return invalid_argument("file store: a group of more than 64 GiB");
    if (bytes > options_.max_bytes / 2) {
      return invalid_argument("file store: a group of " + std::to_string(bytes) +
                              " bytes is more than half of max_size");
    }
    if (fits(bytes)) break;
    // Making room may take pages that this group counts on as duplicates: plan anew after it.
    finish_batch(batch);
    if (writer_.has_file() && writer_.end_bytes() + bytes > options_.segment_bytes) seal_active();
    if (!evict_one()) return overloaded("file store: max_size is reached and no segment can be dropped");
  }
  return append_with_retry(out, batch);
}

void FileStore::plan_group(const StoreScope& scope, const PageGroup& group, std::span<const Checksum128> checksums,
                           BatchGroup& out, const Batch& batch) {
  out.pages.clear();
  out.touched.clear();
  out.duplicates = 0;
  std::unordered_set<PendingId, PendingHash> own;
  LockGuard guard(mutex_);
  for (std::size_t i = 0; i < group.items.size(); ++i) {
    const WriteItem& item = group.items[i];
    const PageIdentity identity{scope.namespace_digest, scope.fingerprint(item.pool), item.pool};
    const std::uint64_t bytes = larder::payload_bytes(item.payload);
    PageLocation location;
    if (index_.find(index_.find_identity(identity), item.key, location) && location.payload_bytes == bytes) {
      ++out.duplicates;
      note_segment(out.touched, location.segment);
      segments_.touch(location.segment);
      continue;
    }
    const PendingId id{identity, item.key};
    if (const auto at = batch.pending.find(id); at != batch.pending.end()) {
      ++out.duplicates;
      note_segment(out.touched, at->second);
      continue;
    }
    if (!own.insert(id).second) {
      ++out.duplicates;
      continue;
    }
    const bool is_last = i + 1 == group.items.size();
    out.pages.push_back(
        {identity, item.key, item.payload, bytes, checksums[i], is_last ? kEnvelopeCommitMark : std::uint8_t{0}});
  }
}

// One retry after dropping a segment, if the disk is full: a cache yields its oldest bytes rather than stand still.
Status FileStore::append_with_retry(BatchGroup& out, Batch& batch) {
  for (int attempt = 0;; ++attempt) {
    Status status = need_active_segment(SegmentWriter::group_bytes(out.pages));
    if (status.is_ok()) {
      const SegmentId segment = writer_.segment();
      status = writer_.append_group(out.pages, out.locations);
      if (status.is_ok()) {
        note_segment(out.touched, segment);
        note_end();
        return status;
      }
      if (!writer_.has_file()) {  // given up: what it holds stays readable
        LockGuard guard(mutex_);
        if (SegmentTable::Segment* const given_up = segments_.find(segment)) given_up->is_active = false;
      }
    }
    if (status.code() != StatusCode::kOverloaded || attempt > 0) return status;
    finish_batch(batch);
    if (!evict_one()) return status;
  }
}

Status FileStore::need_active_segment(std::uint64_t bytes) {
  const bool is_full = writer_.end_bytes() + bytes > options_.segment_bytes;
  if (writer_.has_file() && is_full && writer_.end_bytes() > kSegmentHeaderBytes) seal_active();
  if (writer_.has_file()) return Status::ok();
  const SegmentId id = next_segment_++;
  LARDER_RETURN_IF_ERROR(writer_.open_new(id, static_cast<std::uint64_t>(clock_.wall_unix_seconds())));
  LockGuard guard(mutex_);
  segments_.add(id, {kSegmentHeaderBytes, 0, true, false, writer_.file()});
  return Status::ok();
}

void FileStore::note_end() {
  LockGuard guard(mutex_);
  segments_.set_end(writer_.segment(), writer_.end_bytes());
}

void FileStore::seal_active() {
  if (!writer_.has_file()) return;
  const SegmentId id = writer_.segment();
  const bool is_synced = writer_.seal(options_.fsync != FsyncMode::kOff);
  std::vector<FilePtr> closed;  // closes behind the lock
  LockGuard guard(mutex_);
  segments_.set_end(id, writer_.end_bytes());
  if (SegmentTable::Segment* const segment = segments_.find(id)) {
    segment->is_active = false;
    segment->is_synced = is_synced;
  }
  segments_.close_extra(0, closed);
}

// Visible first, then on disk where it was asked for, then reported.
void FileStore::finish_batch(Batch& batch) {
  if (batch.groups.empty()) return;
  publish(batch);
  std::vector<SegmentId> failed, synced;
  for (BatchGroup& group : batch.groups) {
    if (!group.is_durable || !group.status->is_ok()) continue;
    for (const SegmentId segment : group.touched) {
      if (std::find(synced.begin(), synced.end(), segment) != synced.end()) continue;
      const bool has_failed = std::find(failed.begin(), failed.end(), segment) != failed.end();
      Status status =
          has_failed ? unavailable("file store: the pages are written, but fsync failed") : sync_segment(segment);
      if (status.is_ok()) {
        synced.push_back(segment);
        continue;
      }
      if (!has_failed) failed.push_back(segment);
      *group.status = std::move(status);
    }
    if (!group.status->is_ok()) counters_.write_errors.fetch_add(1, kRelaxed);
  }
  batch.groups.clear();
  batch.pending.clear();
}

void FileStore::publish(Batch& batch) {
  LockGuard guard(mutex_);  // one lock for the batch: no reader sees a part of a group
  for (BatchGroup& group : batch.groups) {
    for (std::size_t i = 0; i < group.pages.size() && group.status->is_ok(); ++i) {
      const PageToAppend& page = group.pages[i];
      *group.status = index_.insert(page.identity, page.key, group.locations[i]);
    }
    if (group.status->is_ok()) continue;
    counters_.write_errors.fetch_add(1, kRelaxed);  // the index is full: none of the group may show
    for (std::size_t i = 0; i < group.pages.size(); ++i) {
      const PageToAppend& page = group.pages[i];
      (void)index_.erase(index_.find_identity(page.identity), page.key, group.locations[i].generation);
    }
  }
}

Status FileStore::sync_segment(SegmentId segment) {
  if (writer_.has_file() && writer_.segment() == segment) {
    const Status status = writer_.sync();
    if (!writer_.has_file()) {  // given up
      LockGuard guard(mutex_);
      if (SegmentTable::Segment* const given_up = segments_.find(segment)) given_up->is_active = false;
    }
    return status;
  }
  {
    LockGuard guard(mutex_);
    const SegmentTable::Segment* const known = segments_.find(segment);
    if (known == nullptr) return unavailable("file store: the segment of a durable page is gone");
    if (known->is_synced) return Status::ok();
  }
  OpenOptions options;
  options.write = true;
  const Result<std::unique_ptr<File>> file = files_.open(join_path(options_.directory, segment_name(segment)), options);
  if (!file.is_ok()) return file.status();
  LARDER_RETURN_IF_ERROR((*file)->sync_data());
  LARDER_RETURN_IF_ERROR(files_.sync_dir(options_.directory));
  LockGuard guard(mutex_);
  if (SegmentTable::Segment* const known = segments_.find(segment)) known->is_synced = true;
  return Status::ok();
}

bool FileStore::fits(std::uint64_t bytes) const {
  LockGuard guard(mutex_);
  // A new segment may be needed: its header and the old one's sync mark count too.
  const std::uint64_t extra = kSegmentHeaderBytes + commit_bytes(0);
  return segments_.total_bytes() + bytes + extra <= options_.max_bytes;
}

bool FileStore::evict_one() {
  FilePtr file;  // closes behind the lock
  SegmentId victim = 0;
  {
    LockGuard guard(mutex_);
    victim = segments_.victim();
    if (victim == 0) return false;
    counters_.evicted.fetch_add(index_.drop_segment(victim), kRelaxed);
    file = segments_.remove(victim);
  }
  // If this fails the file comes back at the next open, and leaves then.
  (void)files_.remove(join_path(options_.directory, segment_name(victim)));
  return true;
}

// The list on disk first: a crash in between must not bring cleared pages back. In memory they go in any case.
Status FileStore::run_clear(const StoreScope* scope) {
  const Cleared entry{scope == nullptr ? Digest256{} : scope->namespace_digest, writer_.next_generation()};
  std::erase_if(cleared_, [&](const Cleared& c) { return c.namespace_digest == entry.namespace_digest; });
  if (scope == nullptr) cleared_.clear();
  Status status;
  if (cleared_.size() < kMaxCleared) {
    cleared_.push_back(entry);
    status = replace_file(files_, options_.directory, kClearedName, encode_cleared(cleared_));
  } else {
    status = overloaded("file store: 4096 namespaces were cleared since it was opened; reopen it");
  }
  if (scope == nullptr) {
    const Status removed = remove_all_segments();
    return status.is_ok() ? removed : status;
  }
  LockGuard guard(mutex_);
  (void)index_.drop_namespace(scope->namespace_digest);
  return status;
}

Status FileStore::remove_all_segments() {
  writer_.abandon();
  std::vector<FilePtr> closed;
  std::vector<SegmentId> ids;
  {
    LockGuard guard(mutex_);
    index_.clear();
    ids = segments_.ids();
    for (const SegmentId id : ids) closed.push_back(segments_.remove(id));
  }
  Status status;
  for (const SegmentId id : ids) {
    Status removed = files_.remove(join_path(options_.directory, segment_name(id)));
    if (!removed.is_ok() && removed.code() != StatusCode::kNotFound) status = std::move(removed);
  }
  return status;
}

}  // namespace larder::file_store
