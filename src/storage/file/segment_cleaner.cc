// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_cleaner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace larder::file_store {
namespace {

constexpr std::uint64_t kMoveBytes = std::uint64_t{4} << 20;
constexpr std::size_t kMovePages = 512;
// A segment that could not be read is tried again after so long.
constexpr Nanos kCleanAgain = std::chrono::seconds(5);
// So long, pages stay of which cleaning can read none; then a bad spot of the disk must not keep a segment for ever.
constexpr Nanos kGivenUpAfter = std::chrono::minutes(1);

// Of two pages of a segment, the second right behind the first.
bool is_one_group(const ListedPage& first, const ListedPage& second) {
  return first.key == second.key && first.identity.namespace_digest == second.identity.namespace_digest;
}

}  // namespace

struct SegmentCleaner::Job {
  SegmentId segment = 0;
  unsigned volume = 0;
  FilePtr file;
  std::vector<ListedPage> pages;
  std::size_t next = 0;  // of `pages`
  // The chunk under way: pages [begin, next).
  std::size_t begin = 0;
  std::vector<AlignedBuffer> buffers;
  std::vector<Status> statuses;
  std::size_t reads = 0;                // of the chunk's pages: those that have bytes
  std::atomic<std::size_t> reading{0};  // release / acquire: the last one to end sees what the others read
  Done done;
};

void SegmentCleaner::clean(SegmentId segment, Done done) {
  auto job = std::make_shared<Job>();
  job->segment = segment;
  job->done = std::move(done);
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const info = state_.segments.find(segment);
    if (info) job->volume = info->volume;
    state_.index.drop_unlinked_of(segment);
    state_.index.list_segment(segment, kMaxListed, job->pages);
  }
  sort_by_place(job->pages);
  Result<FilePtr> file = files_.open(segment);
  if (!file.is_ok()) {
    const bool is_gone = file.status().code() == StatusCode::kNotFound;
    return end(job, {is_gone ? Outcome::kMoved : Outcome::kNotRead, file.status()});
  }
  job->file = std::move(file).value();
  read_next(job);
}

// Nothing of the chunk could be read: that is the disk or memory rather than the pages, and may be over soon.
bool SegmentCleaner::may_be_readable_again(const Job& job) {
  const auto failed = static_cast<std::size_t>(
      std::count_if(job.statuses.begin(), job.statuses.end(), [](const Status& status) { return !status.is_ok(); }));
  const bool is_all = failed > 0 && failed == job.reads;
  const bool is_away = is_all && !state_.check_here(job.volume).is_ok();
  LockGuard guard(state_.mutex);
  SegmentInfo* const info = state_.segments.find(job.segment);
  if (!info) return false;
  std::optional<TimePoint>& since = info->unreadable_since;
  if (!is_all) {
    since.reset();
    return false;
  }
  state_.counters.read_errors.fetch_add(failed, kRelaxed);
  if (!since) since = state_.clock.now();
  return is_away || state_.clock.now() - *since < kGivenUpAfter;
}

// Of the chunk, into new buffers. The last one to end posts write().
std::vector<IoOperation> SegmentCleaner::reads_of(const std::shared_ptr<Job>& job) {
  std::vector<IoOperation> reads;
  auto hold = std::make_shared<OperationGate::Ticket>(state_.gate.hold());
  for (std::size_t i = 0; i < job->buffers.size(); ++i) {
    const PageLocation& at = job->pages[job->begin + i].location;
    if (at.payload_bytes == 0) continue;
    const std::uint64_t from = at.offset / kBlockBytes * kBlockBytes;
    job->buffers[i] = AlignedBuffer(align_up(at.offset + at.payload_bytes, kBlockBytes) - from);
    IoOperation io;
    io.file = job->file;
    io.offset = from;
    io.buffers.push_back({job->buffers[i].data(), job->buffers[i].size()});
    io.done = [this, job, i, hold](const Status& status) {
      job->statuses[i] = status;
      if (job->reading.fetch_sub(1, std::memory_order_acq_rel) == 1) state_.post([this, job] { write(job); });
    };
    reads.push_back(std::move(io));
  }
  return reads;
}

// Reads the next pages of the segment; all of it moved: removes it.
void SegmentCleaner::read_next(const std::shared_ptr<Job>& job) {
  if (job->next == job->pages.size()) return end(job, {});
  if (state_.is_closing()) return end(job, {Outcome::kNotRead, unavailable("the store is being closed")});
  job->begin = job->next;
  std::uint64_t bytes = 0;
  while (job->next < job->pages.size()) {
    const std::size_t taken = job->next - job->begin;
    const bool is_enough = bytes >= kMoveBytes || taken >= kMovePages;
    // A group stays together: of half a moved group, the rest would be elsewhere after a crash, and go at another time.
    if (is_enough && (taken >= 2 * kMovePages || !is_one_group(job->pages[job->next - 1], job->pages[job->next])))
      break;
    bytes += job->pages[job->next++].location.payload_bytes;
  }
  const std::size_t count = job->next - job->begin;
  job->buffers.clear();
  job->buffers.resize(count);
  job->statuses.assign(count, Status::ok());
  std::vector<IoOperation> batch = reads_of(job);
  job->reads = batch.size();
  if (batch.empty()) return write(job);
  job->reading.store(job->reads, std::memory_order_release);
  const Status submitted = state_.volumes[job->volume].io->submit(std::move(batch));
  if (submitted.code() == StatusCode::kOverloaded) {  // the queue is full, which is not the disk's fault
    for (IoOperation& io : reads_of(job)) io.done(run_operation(io));
  } else if (!submitted.is_ok()) {
    end(job, {Outcome::kNotRead, submitted});
  }
}

// Appends what was read. Pages that are damaged are dropped; that nothing else changed is checked when it is published.
void SegmentCleaner::write(const std::shared_ptr<Job>& job) {
  if (may_be_readable_again(*job)) {
    return end(job, {Outcome::kNotRead, unavailable("no page of " + segment_name(job->segment) + " can be read")});
  }
  auto record = std::make_shared<WriteRecord>();
  auto buffers = std::make_shared<std::vector<AlignedBuffer>>(std::move(job->buffers));
  std::vector<bool> is_cleared(job->statuses.size());
  {
    LockGuard guard(state_.mutex);
    for (std::size_t i = 0; i < is_cleared.size(); ++i) {
      is_cleared[i] = state_.cleared.covers(job->pages[job->begin + i]);
    }
  }
  for (std::size_t i = 0; i < job->statuses.size(); ++i) {
    const ListedPage& from = job->pages[job->begin + i];
    if (is_cleared[i]) continue;
    if (!job->statuses[i].is_ok()) {  // a page that cannot be read is worth nothing
      state_.counters.read_errors.fetch_add(1, kRelaxed);
      damage_.drop(from.identity, from.key, from.location);
      continue;
    }
    std::vector<Segment> payload;
    if (from.location.payload_bytes > 0) {
      payload.push_back({(*buffers)[i].data() + from.location.offset % kBlockBytes, from.location.payload_bytes});
    }
    if (payload_checksum(payload) != from.location.checksum) {
      state_.counters.corrupt.fetch_add(1, kRelaxed);
      damage_.drop(from.identity, from.key, from.location);
      continue;
    }
    ListedPage page = from;
    if (!record->pages.empty()) {
      const ListedPage& last = record->pages.back();
      page.group = last.group + (is_one_group(last, page) ? 0 : 1);
    }
    record->moved_from.push_back(from.location);
    record->pages.push_back(page);
    record->payloads.push_back(std::move(payload));
  }
  if (record->pages.empty()) return read_next(job);
  record->keep = buffers;
  record->is_durable = true;  // with fsync = off, too: some of the pages may be, and their segment goes
  auto hold = std::make_shared<OperationGate::Ticket>(state_.gate.hold());
  record->moved = [this, job, hold, of = record.get()](const Status& status) {  // the record calls it, and so is there
    Cleaned failed{of->lacks_room ? Outcome::kLacksRoom : Outcome::kNotWritten, status};
    failed.lacked_bytes = StoreRoom::segment_bytes_for(of->layout.record_bytes, of->pages.size());
    state_.post([this, job, failed = std::move(failed), again = of->is_cleared] {
      if (again) job->next = job->begin;  // without what was cleared
      if (failed.why.is_ok() || again) return read_next(job);
      end(job, failed);
    });
  };
  writer_.place(std::move(record), true);
}

void SegmentCleaner::end(const std::shared_ptr<Job>& job, Cleaned cleaned) {
  bool is_dead = false, has_damage = false;
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const info = state_.segments.find(job->segment);
    // One that is held since cleaning began is looked at again with the dead ones.
    const bool is_free = info && info->holds == 0;
    state_.index.drop_unlinked_of(job->segment);  // of a clear meanwhile
    is_dead = is_free && state_.index.live_pages(job->segment) == 0;
    if (is_free && !is_dead && cleaned.how == Outcome::kMoved) cleaned.how = Outcome::kStays;
    if (info && !is_dead) info->is_leaving = false;
    if (info && cleaned.how == Outcome::kNotRead) info->clean_again = state_.clock.now() + kCleanAgain;
    has_damage = info && info->has_damage_to_tell();
  }
  if (is_dead) files_.remove(job->segment);
  if (has_damage) damage_.tell(job->segment);
  std::exchange(job->done, nullptr)(cleaned);
}

}  // namespace larder::file_store
