// SPDX-License-Identifier: Apache-2.0
// The file store's maintenance: keeps the bytes on disk below the budget.
//
//   dead segment     -> removed
//   too much alive   -> the nodes used longest ago go, tails before heads (page_index.h)
//   else             -> the segment with the least alive in it is cleaned: what lives is appended anew, synced, and the
//                       segment removed; if the sync fails, the index goes back to the old copies, and the segment
//                       stays
//   nothing gained   -> more of the oldest goes
//   the disk itself is full -> what it holds is the budget from now on (file_store_room.cc); if that frees no segment
//                       at once, the emptiest one is dropped with what lives in it, so that something can be moved
//
// One step at a time, by one chain of tasks; reads and writes go on meanwhile. One segment's worth of the budget is
// kept for cleaning. Cost: cleaning copies at most what lives, about (low / high) of what it frees in the worst case.
#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/log.h"
#include "base/probe.h"
#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kEvictBatch = 256;  // nodes per hold of the mutex
constexpr std::uint64_t kMoveBytes = std::uint64_t{4} << 20;
constexpr std::size_t kMovePages = 512;
// A file that would not go is tried again after so long.
constexpr Nanos kRemoveAgain = std::chrono::seconds(5);
// So long, pages stay of which cleaning can read none; then a bad spot of the disk must not keep a segment for ever.
constexpr Nanos kGivenUpAfter = std::chrono::minutes(1);
// A segment fuller than this is not worth cleaning: first something must be evicted.
constexpr std::uint64_t kCleanBelowPercent = 90;
// So many in a row that left as much on disk as there was: enough.
constexpr unsigned kVainCleanings = 3;

// Of two pages of a segment, the second right behind the first.
template <class Page>
bool is_one_group(const Page& first, const Page& second) {
  return first.key == second.key && first.identity.namespace_digest == second.identity.namespace_digest;
}

}  // namespace

struct FileStore::Cleaning {
  SegmentId segment = 0;
  unsigned volume = 0;
  FilePtr file;
  std::vector<PageIndex::Listed> pages;
  std::size_t next = 0;  // of `pages`
  // The chunk under way: pages [begin, next).
  std::size_t begin = 0;
  std::vector<AlignedBuffer> buffers;
  std::vector<Status> statuses;
  std::size_t reads = 0;                // of the chunk's pages: those that have bytes
  std::atomic<std::size_t> reading{0};  // release / acquire: the last one to end sees what the others read
};

void FileStore::start_maintenance_if_high() {
  {
    LockGuard guard(mutex_);
    if (is_finished_ || (physical_bytes_ <= goal_bytes() && !full_volume_)) return;
  }
  start_maintenance();
}

void FileStore::start_maintenance() {
  {
    LockGuard guard(mutex_);
    if (is_maintaining_ || is_finished_) return;
    is_maintaining_ = true;
    least_physical_ = physical_bytes_;
    vain_cleanings_ = 0;
  }
  post([this] { maintain(); });
}

// Called again when a cleaning has ended, perhaps before the call that began it has returned: then that one goes on.
void FileStore::maintain() {
  {
    LockGuard guard(mutex_);
    if (is_in_maintain_) {
      maintains_again_ = true;
      return;
    }
    is_in_maintain_ = true;
  }
  grow_limits();
  for (;;) {
    const Removal removed = remove_dead();
    if (removed == Removal::kSome) continue;
    {
      LockGuard guard(mutex_);
      // By itself, or since the coldest have gone.
      if (full_volume_ && has_disk_room(*full_volume_, 2 * segment_bytes(*full_volume_))) full_volume_.reset();
      if (is_content()) break;
    }
    // Evicting more frees nothing while files do not go.
    if (removed == Removal::kFailed) return end_maintenance(true);
    if (evict_some()) continue;
    if (drop_for_space()) continue;
    if (!clean_one() && !seal_for_space()) return end_maintenance(true);
    LockGuard guard(mutex_);
    if (std::exchange(maintains_again_, false)) continue;
    is_in_maintain_ = false;
    return;
  }
  end_maintenance(false);
}

std::uint64_t FileStore::awaited_bytes() const {
  if (waiting_.empty()) return 0;
  return segment_bytes_for(waiting_.front()->layout.record_bytes, waiting_.front()->pages.size());
}

bool FileStore::is_content() const {
  if (full_volume_) return false;
  if (waiting_.empty()) return physical_bytes_ <= goal_bytes();
  const std::uint64_t own = awaited_bytes();
  // As try_place() decides: what it would let wait again must not count as content.
  const TimePoint now = clock_.now();
  bool may_fit = false, has_disk = !are_disks_limited();  // else try_place() says which one has to give
  for (unsigned i = 0; i < volumes_.size(); ++i) {
    if (is_too_large(i, own) || volumes_[i].suspended_until > now) continue;
    may_fit = true;
    has_disk = has_disk || has_disk_room(i, std::max(segment_bytes(i), own));
  }
  if (!may_fit) return true;  // try_place() refuses it
  return has_disk && has_room(std::max(largest_segment(), own), false);
}

void FileStore::end_maintenance(bool is_stuck) {
  std::deque<RecordPtr> refused;
  {
    LockGuard guard(mutex_);
    is_maintaining_ = is_in_maintain_ = maintains_again_ = false;
    full_volume_.reset();
    if (is_stuck) refused.swap(waiting_);
  }
  for (const RecordPtr& record : refused) {
    fail_record(*record, overloaded("file store: max_size is reached and nothing can be evicted now"));
  }
  place_waiting();
}

FileStore::Removal FileStore::remove_dead() {
  std::vector<SegmentId> dead;
  {
    LockGuard guard(mutex_);
    const TimePoint now = clock_.now();
    for (auto& [id, segment] : segments_) {
      const bool is_due = segment.remove_again != TimePoint{} && segment.remove_again <= now;
      if (segment.active || segment.holds > 0 || (segment.is_leaving && !is_due)) continue;
      if (index_.live_pages(id) > 0) continue;
      segment.is_leaving = true;
      dead.push_back(id);
    }
  }
  bool any = false;
  for (const SegmentId id : dead) any = remove_segment(id) || any;
  if (any) return Removal::kSome;
  return dead.empty() ? Removal::kNothing : Removal::kFailed;
}

// True: something went, so look again. Evicts only what is too much to live.
bool FileStore::evict_some() {
  LockGuard guard(mutex_);
  const std::uint64_t target = percent_of_budget(options_.low_percent);
  if (live_bytes() <= target) return false;
  for (std::size_t i = 0; i < kEvictBatch && live_bytes() > target; ++i) {
    const PageIndex::Evicted evicted = index_.evict_coldest();
    if (evicted.pages == 0) return i > 0;
    counters_.evicted.fetch_add(evicted.pages, kRelaxed);
    probe(Probe::kFileEvicted);
  }
  return true;
}

// What the pages in the index take on disk, about: payloads, and their lines in heads and footers.
std::uint64_t FileStore::live_bytes() const { return index_.payload_bytes() + index_.size() * 2 * kPageBytes; }

// The sealed segment with the least alive in it; 0: there is none.
SegmentId FileStore::emptiest_segment(unsigned volume, std::uint64_t& live) const {
  SegmentId best = 0;
  double least = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.active || segment.is_leaving || segment.holds > 0 || segment.physical_bytes == 0) continue;
    if (volume != kAnyVolume && segment.volume != volume) continue;
    const double share = static_cast<double>(index_.live_bytes(id)) / static_cast<double>(segment.physical_bytes);
    if (best != 0 && share >= least) continue;
    best = id;
    least = share;
    live = index_.live_bytes(id);
  }
  return best;
}

// The disk of a volume is full: nothing can be moved, so its emptiest segment goes with what lives in it. If it has
// none, others fill the disk: then the volume's writes wait until that ends, and other volumes keep what they have.
// False: no disk is full.
bool FileStore::drop_for_space() {
  SegmentId victim = 0;
  {
    LockGuard guard(mutex_);
    if (!full_volume_) return false;
    std::uint64_t live = 0;
    victim = emptiest_segment(*full_volume_, live);
    full_volume_.reset();
    if (victim == 0) return true;
    segments_.at(victim).is_leaving = true;
    counters_.evicted.fetch_add(index_.drop_segment(victim), kRelaxed);
  }
  (void)remove_segment(victim);
  return true;
}

// Nothing is to be gained by moving (pages that fill their segments badly, too): the coldest go until something is.
bool FileStore::evict_a_segments_worth() {
  vain_cleanings_ = 0;
  // What a segment holds of it on the average: padding and dead pages take the rest.
  const double share =
      static_cast<double>(live_bytes()) / static_cast<double>(std::max<std::uint64_t>(physical_bytes_, 1));
  const auto enough = static_cast<std::uint64_t>(static_cast<double>(largest_segment()) * std::min(share, 1.0));
  for (std::uint64_t freed = 0; freed <= enough;) {
    const PageIndex::Evicted evicted = index_.evict_coldest();
    if (evicted.pages == 0) return freed > 0;
    counters_.evicted.fetch_add(evicted.pages, kRelaxed);
    freed += evicted.payload_bytes + evicted.pages * 2 * kPageBytes;
  }
  return true;
}

bool FileStore::clean_one() {
  auto job = std::make_shared<Cleaning>();
  {
    LockGuard guard(mutex_);
    std::uint64_t live = 0;
    job->segment = emptiest_segment(kAnyVolume, live);
    if (job->segment == 0) return false;
    SegmentInfo& info = segments_.at(job->segment);
    if (live > info.physical_bytes / 100 * kCleanBelowPercent || vain_cleanings_ > kVainCleanings) {
      if (!evict_a_segments_worth()) return false;
      job = nullptr;
    } else {
      info.is_leaving = true;
      job->volume = info.volume;
      index_.list_segment(job->segment, kMaxListed, job->pages);
    }
  }
  if (!job) {
    post([this] { maintain(); });
    return true;
  }
  std::sort(job->pages.begin(), job->pages.end(), [](const PageIndex::Listed& a, const PageIndex::Listed& b) {
    return place_of(a.location) < place_of(b.location);
  });
  Result<FilePtr> file = open_segment(job->segment);
  if (!file.is_ok()) return end_cleaning(job, file.status().code() == StatusCode::kNotFound), true;
  job->file = std::move(file).value();
  clean_next(job);
  return true;
}

// Nothing that is sealed can be cleaned, and writes wait for room: the segments that take appends may be most of what
// the store holds (they were sized before the disk was found to be full), so they are sealed, too. True: one is about
// to be, and seal() goes on with maintain().
bool FileStore::seal_for_space() {
  std::vector<EndedSegment> ended;
  {
    LockGuard guard(mutex_);
    if (waiting_.empty()) return false;
    ended = end_active();
    awaits_seal_ = std::any_of(segments_.begin(), segments_.end(),
                               [](const auto& entry) { return entry.second.active && entry.second.active->is_full; });
    if (!awaits_seal_) return false;
  }
  for (const EndedSegment& each : ended) settle(each.segment, each.volume);
  return true;
}

// Reads the next pages of the segment; all of it moved: removes it.
void FileStore::clean_next(const std::shared_ptr<Cleaning>& job) {
  if (job->next == job->pages.size()) return end_cleaning(job, true);
  job->begin = job->next;
  std::vector<IoOperation> batch;
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
  auto hold = std::make_shared<OperationGate::Ticket>(gate_.hold());
  for (std::size_t i = 0; i < count; ++i) {
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
      if (job->reading.fetch_sub(1, std::memory_order_acq_rel) == 1) post([this, job] { clean_write(job); });
    };
    batch.push_back(std::move(io));
  }
  job->reads = batch.size();
  if (batch.empty()) return clean_write(job);
  job->reading.store(job->reads, std::memory_order_release);
  if (!volumes_[job->volume].io->submit(std::move(batch)).is_ok()) end_cleaning(job, false);
}

// Nothing of the chunk could be read: that is the disk or memory rather than the pages, and may be over soon.
bool FileStore::may_be_readable_again(const Cleaning& job) {
  const auto failed = static_cast<std::size_t>(
      std::count_if(job.statuses.begin(), job.statuses.end(), [](const Status& status) { return !status.is_ok(); }));
  const bool is_all = failed > 0 && failed == job.reads;
  const bool is_away = is_all && !check_here(job.volume).is_ok();
  LockGuard guard(mutex_);
  const auto info = segments_.find(job.segment);
  if (info == segments_.end()) return false;
  std::optional<TimePoint>& since = info->second.unreadable_since;
  if (!is_all) {
    since.reset();
    return false;
  }
  counters_.read_errors.fetch_add(failed, kRelaxed);
  if (!since) since = clock_.now();
  return is_away || clock_.now() - *since < kGivenUpAfter;
}

// Appends what was read. Pages that are damaged are dropped; that nothing else changed is checked by publish().
void FileStore::clean_write(const std::shared_ptr<Cleaning>& job) {
  if (may_be_readable_again(*job)) return end_cleaning(job, false);
  auto record = std::make_shared<Record>();
  auto buffers = std::make_shared<std::vector<AlignedBuffer>>(std::move(job->buffers));
  const std::vector<Cleared> cleared = [this] {
    LockGuard guard(mutex_);
    return cleared_;
  }();
  for (std::size_t i = 0; i < job->statuses.size(); ++i) {
    const PageIndex::Listed& from = job->pages[job->begin + i];
    if (is_in(cleared, from.identity.namespace_digest, from.location.generation)) continue;
    if (!job->statuses[i].is_ok()) {  // a page that cannot be read is worth nothing
      counters_.read_errors.fetch_add(1, kRelaxed);
      drop_page(from.identity, from.key, from.location);
      continue;
    }
    std::vector<Segment> payload;
    if (from.location.payload_bytes > 0) {
      payload.push_back({(*buffers)[i].data() + from.location.offset % kBlockBytes, from.location.payload_bytes});
    }
    if (payload_checksum(payload) != from.location.checksum) {
      counters_.corrupt.fetch_add(1, kRelaxed);
      drop_page(from.identity, from.key, from.location);
      continue;
    }
    ListedPage page{from.identity, from.key, from.parent, from.location, 0};
    if (!record->pages.empty()) {
      const ListedPage& last = record->pages.back();
      page.group = last.group + (is_one_group(last, page) ? 0 : 1);
    }
    record->moved_from.push_back(from.location);
    record->pages.push_back(page);
    record->payloads.push_back(std::move(payload));
  }
  if (record->pages.empty()) return clean_next(job);
  record->keep = buffers;
  record->is_durable = true;  // with fsync = off, too: some of the pages may be, and their segment goes
  auto hold = std::make_shared<OperationGate::Ticket>(gate_.hold());
  record->moved = [this, job, hold, of = record.get()](bool is_moved) {  // the record calls it, and so is there
    post([this, job, is_moved, again = of->is_cleared] {
      if (again) job->next = job->begin;  // without what was cleared
      if (is_moved || again) return clean_next(job);
      end_cleaning(job, false);
    });
  };
  place(std::move(record), true);
}

void FileStore::end_cleaning(const std::shared_ptr<Cleaning>& job, bool is_moved) {
  bool is_dead = false, is_gone = false, is_held = false, has_damage = false;
  {
    LockGuard guard(mutex_);
    const auto info = segments_.find(job->segment);
    is_gone = info == segments_.end();
    is_held = !is_gone && info->second.holds > 0;  // since cleaning began; remove_dead() looks at it again
    is_dead = !is_gone && !is_held && index_.live_pages(job->segment) == 0;
    if (!is_gone && !is_dead) info->second.is_leaving = false;
    has_damage = !is_gone && has_damage_to_tell(info->second);
  }
  if (is_dead) is_gone = remove_segment(job->segment);
  if (has_damage) leave_out_later(job->segment);
  {
    LockGuard guard(mutex_);
    if (physical_bytes_ >= least_physical_) ++vain_cleanings_;
    if (!is_moved) vain_cleanings_ = kVainCleanings + 1;  // there was no room to move to: evict instead
    least_physical_ = std::min(least_physical_, physical_bytes_);
  }
  if (is_moved && !is_gone && !is_held) return end_maintenance(true);
  post([this] { maintain(); });
}

// Takes the file away. False: it would not go; it is counted until it does (remove_dead).
bool FileStore::remove_segment(SegmentId id) {
  std::string path;
  unsigned volume = 0;
  {
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment == segments_.end()) return false;
    segment->second.is_leaving = true;
    segment->second.remove_again = TimePoint{};
    volume = segment->second.volume;
    path = join_path(volumes_[volume].directory, segment_name(id));
  }
  Status removed = check_here(volume);  // below an empty mount point, the name may be that of another store's segment
  if (removed.is_ok()) removed = files_.remove(path);
  if (removed.code() == StatusCode::kNotFound) removed = Status::ok();
  if (!removed.is_ok()) {
    log_warning("storage/file", "a segment that holds nothing cannot be removed now: " + removed.to_string());
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment != segments_.end()) segment->second.remove_again = clock_.now() + kRemoveAgain;
    note_failure(volume, removed, nullptr);
    return false;
  }
  std::vector<FilePtr> closed;
  LockGuard guard(mutex_);
  forget_segment(id, closed);
  return true;
}

}  // namespace larder::file_store
