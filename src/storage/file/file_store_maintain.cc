// SPDX-License-Identifier: Apache-2.0
// The file store's maintenance: keeps the bytes on disk below the budget.
//
//   dead segment     -> removed
//   too much alive   -> the nodes used longest ago go, tails before heads (page_index.h)
//   else             -> the segment with the least alive in it is cleaned: what lives is appended anew, synced, and the
//                       segment removed; if the sync fails, the index goes back to the old copies, and the segment
//                       stays
//   nothing gained   -> more of the oldest goes
//   files do not go  -> nothing else of that directory is cleaned for a while, for it would free nothing; one file that
//                       does not go is tried again, and counts as long as it is there
//   cleaning fails   -> nothing is dropped for it: a segment that cannot be read is left alone for a while, and others
//                       are tried; if what was read cannot be written, maintenance ends
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
// So many files in a row that would not go are more than bad luck: the disk is read-only, or the directory. Then, after
// so long, one more is tried.
constexpr unsigned kStuckFiles = 2;
constexpr Nanos kEmptyAgain = std::chrono::minutes(1);
// A segment that could not be read is tried again after so long.
constexpr Nanos kCleanAgain = std::chrono::seconds(5);
// So long, pages stay of which cleaning can read none; then a bad spot of the disk must not keep a segment for ever.
constexpr Nanos kGivenUpAfter = std::chrono::minutes(1);
// A segment fuller than this is not worth cleaning: first something must be evicted.
constexpr std::uint64_t kCleanBelowPercent = 90;
// So many in a row that left as much on disk as there was: enough.
constexpr unsigned kVainCleanings = 3;

// Of two pages of a segment, the second right behind the first.
bool is_one_group(const ListedPage& first, const ListedPage& second) {
  return first.key == second.key && first.identity.namespace_digest == second.identity.namespace_digest;
}

}  // namespace

struct FileStore::Cleaning {
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
  while (!is_closing()) {  // the next process goes on
    if (remove_dead()) continue;
    {
      LockGuard guard(mutex_);
      // By itself, or since the coldest have gone.
      if (full_volume_ && has_disk_room(*full_volume_, 2 * segment_bytes(*full_volume_))) full_volume_.reset();
      if (is_content()) break;
    }
    if (do_all_files_stay()) return end_maintenance(true);
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
  Status why = overloaded("file store: max_size is reached and nothing can be evicted now");
  {
    LockGuard guard(mutex_);
    if (!cleaning_failed_.is_ok()) {
      why = overloaded("file store: max_size is reached and no room can be made now: " + cleaning_failed_.to_string());
    }
    is_maintaining_ = is_in_maintain_ = maintains_again_ = false;
    full_volume_.reset();
    if (is_stuck) refused.swap(waiting_);
  }
  for (const RecordPtr& record : refused) fail_record(*record, why);
  place_waiting();
}

// Then evicting more frees nothing.
bool FileStore::do_all_files_stay() const {
  LockGuard guard(mutex_);
  const TimePoint now = clock_.now();
  return std::all_of(volumes_.begin(), volumes_.end(), [now](const Volume& v) { return v.clean_again > now; });
}

// True: a file went.
bool FileStore::remove_dead() {
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
  return any;
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

// The sealed segment with the least alive in it.
SegmentId FileStore::emptiest_segment(std::optional<unsigned> volume, std::uint64_t& live) const {
  SegmentId best = 0;
  double least = 0;
  const TimePoint now = clock_.now();
  for (const auto& [id, segment] : segments_) {
    if (segment.active || segment.is_leaving || segment.holds > 0 || segment.physical_bytes == 0) continue;
    const TimePoint not_before = std::max(segment.clean_again, volumes_[segment.volume].clean_again);
    if (volume ? segment.volume != *volume : not_before > now) continue;
    const double share = static_cast<double>(index_.live_bytes(id)) / static_cast<double>(segment.physical_bytes);
    if (best != 0 && share >= least) continue;
    best = id;
    least = share;
    live = index_.live_bytes(id);
  }
  return best;
}

// The disk of a volume is full: nothing can be moved, so its emptiest segment goes with what lives in it. If it has
// none, others fill the disk; or its files stay, whatever is dropped: then the volume's writes wait until that ends,
// and everything is kept. False: no disk is full.
bool FileStore::drop_for_space() {
  SegmentId victim = 0;
  {
    LockGuard guard(mutex_);
    if (!full_volume_) return false;
    std::uint64_t live = 0;
    if (volumes_[*full_volume_].clean_again <= clock_.now()) victim = emptiest_segment(full_volume_, live);
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
    job->segment = emptiest_segment(std::nullopt, live);
    if (job->segment == 0) return false;
    SegmentInfo& info = segments_.at(job->segment);
    const bool is_vain = live > info.physical_bytes / 100 * kCleanBelowPercent || vain_cleanings_ > kVainCleanings;
    // While cleaning fails, a fuller segment shows whether it works again; nothing is evicted before.
    if (is_vain && cleaning_failed_.is_ok()) {
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
  sort_by_place(job->pages);
  Result<FilePtr> file = open_segment(job->segment);
  if (!file.is_ok()) {
    const bool is_gone = file.status().code() == StatusCode::kNotFound;
    end_cleaning(job, is_gone ? Cleaned::kMoved : Cleaned::kNotRead, file.status());
    return true;
  }
  job->file = std::move(file).value();
  clean_next(job);
  return true;
}

// There is nothing sealed to be cleaned, and writes wait for room: the segments that take appends may be most of what
// the store holds (they were sized before the disk was found to be full), so they are sealed, too. True: one is about
// to be, and seal() goes on with maintain().
bool FileStore::seal_for_space() {
  std::vector<EndedSegment> ended;
  {
    LockGuard guard(mutex_);
    const TimePoint now = clock_.now();
    const bool is_any_left_alone = std::any_of(segments_.begin(), segments_.end(),
                                               [now](const auto& each) { return each.second.clean_again > now; });
    if (waiting_.empty() || is_any_left_alone) return false;
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
  if (job->next == job->pages.size()) return end_cleaning(job, Cleaned::kMoved, Status::ok());
  if (is_closing()) return end_cleaning(job, Cleaned::kNotRead, unavailable("the store is being closed"));
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
  const Status submitted = volumes_[job->volume].io->submit(std::move(batch));
  if (!submitted.is_ok()) end_cleaning(job, Cleaned::kNotRead, submitted);
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
  if (may_be_readable_again(*job)) {
    return end_cleaning(job, Cleaned::kNotRead,
                        unavailable("no page of " + segment_name(job->segment) + " can be read"));
  }
  auto record = std::make_shared<Record>();
  auto buffers = std::make_shared<std::vector<AlignedBuffer>>(std::move(job->buffers));
  const std::vector<Cleared> cleared = [this] {
    LockGuard guard(mutex_);
    return cleared_;
  }();
  for (std::size_t i = 0; i < job->statuses.size(); ++i) {
    const ListedPage& from = job->pages[job->begin + i];
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
    ListedPage page = from;
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
  record->moved = [this, job, hold, of = record.get()](const Status& status) {  // the record calls it, and so is there
    const Cleaned how = of->lacks_room ? Cleaned::kLacksRoom : Cleaned::kNotWritten;
    post([this, job, status, how, again = of->is_cleared] {
      if (again) job->next = job->begin;  // without what was cleared
      if (status.is_ok() || again) return clean_next(job);
      end_cleaning(job, how, status);
    });
  };
  place(std::move(record), true);
}

void FileStore::end_cleaning(const std::shared_ptr<Cleaning>& job, Cleaned how, const Status& why) {
  bool is_dead = false, has_life = false, has_damage = false, is_full = false;
  {
    LockGuard guard(mutex_);
    const auto info = segments_.find(job->segment);
    const bool is_gone = info == segments_.end();
    const bool is_held = !is_gone && info->second.holds > 0;  // since cleaning began; remove_dead() looks at it again
    is_dead = !is_gone && !is_held && index_.live_pages(job->segment) == 0;
    has_life = !is_gone && !is_held && !is_dead;
    if (!is_gone && !is_dead) info->second.is_leaving = false;
    if (!is_gone && how == Cleaned::kNotRead) info->second.clean_again = clock_.now() + kCleanAgain;
    has_damage = !is_gone && has_damage_to_tell(info->second);
    cleaning_failed_ = how == Cleaned::kNotRead || how == Cleaned::kNotWritten ? why : Status::ok();
  }
  if (is_dead) remove_segment(job->segment);
  if (has_damage) leave_out_later(job->segment);
  {
    LockGuard guard(mutex_);
    if (physical_bytes_ >= least_physical_ && cleaning_failed_.is_ok()) ++vain_cleanings_;
    if (how == Cleaned::kLacksRoom) vain_cleanings_ = kVainCleanings + 1;  // evict instead
    least_physical_ = std::min(least_physical_, physical_bytes_);
    is_full = full_volume_.has_value();
  }
  // On a full disk, something is dropped first.
  const bool is_stuck = how == Cleaned::kMoved ? has_life : how == Cleaned::kNotWritten && !is_full;
  if (is_stuck) return end_maintenance(true);
  post([this] { maintain(); });
}

// Takes the file away. False: it would not go; it is counted until it does (remove_dead).
bool FileStore::remove_segment(SegmentId id) {
  std::string path;
  unsigned volume = 0;
  bool is_first_try = false;
  {
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment == segments_.end()) return false;
    segment->second.is_leaving = true;
    is_first_try = std::exchange(segment->second.remove_again, TimePoint{}) == TimePoint{};
    volume = segment->second.volume;
    path = join_path(volumes_[volume].directory, segment_name(id));
  }
  Status removed = check_here(volume);  // below an empty mount point, the name may be that of another store's segment
  if (removed.is_ok()) removed = files_.remove(path);
  if (removed.code() == StatusCode::kNotFound) removed = Status::ok();
  if (!removed.is_ok() && is_first_try) {
    log_warning("storage/file", "a segment that holds nothing cannot be removed now: " + removed.to_string());
  }
  std::vector<FilePtr> closed;
  LockGuard guard(mutex_);
  Volume& v = volumes_[volume];
  if (removed.is_ok()) {
    v.stuck_files = 0;
    v.clean_again = TimePoint{};
    forget_segment(id, closed);
    return true;
  }
  const TimePoint now = clock_.now();
  const auto segment = segments_.find(id);
  if (segment != segments_.end()) segment->second.remove_again = now + kRemoveAgain;
  if (is_first_try && ++v.stuck_files >= kStuckFiles) v.clean_again = now + kEmptyAgain;
  return false;
}

}  // namespace larder::file_store
