// SPDX-License-Identifier: Apache-2.0
// The file store's segments: making, sealing and syncing them, and what happens when a volume fails.
#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/log.h"
#include "base/probe.h"
#include "storage/file/file_store.h"

namespace larder::file_store {

Status FileStore::earlier_sync_failed() { return cancelled("file store: an earlier sync of its segment failed"); }

// Runs a step where it may block; the store does not close before it ended.
void FileStore::post(Task task) {
  auto hold = std::make_shared<OperationGate::Ticket>(gate_.hold());
  auto step = std::make_shared<Task>(std::move(task));
  const auto run = [hold, step] { (*step)(); };
  if (!executor_.post(run).is_ok()) run();  // a full executor: better late than never
}

std::uint64_t FileStore::segment_bytes_for(std::uint64_t record_bytes, std::size_t pages) {
  return kBlockBytes + record_bytes + ActiveSegment::footer_room(pages);
}

// Only where room for it would not be made first.
bool FileStore::may_roll_ahead(unsigned volume) const {
  const ActiveSegment* const active = volumes_[volume].log(LogKind::kNew).active.get();
  const std::uint64_t bytes = segment_bytes(volume);
  return active && active->is_nearly_full() && has_room(bytes, false) && has_disk_room(volume, bytes);
}

// While the next segment is made, nothing can be written; so it is made while there is still room in this one.
void FileStore::roll_ahead(unsigned volume) {
  auto hold = std::make_shared<OperationGate::Ticket>(gate_.hold());
  (void)executor_.post([this, volume, hold] {  // a full executor: then when it is needed
    roll(volume, LogKind::kNew, 0, 0, true);
    start_maintenance_if_high();
  });
}

// Makes the volume's next segment; the one before is sealed when its writes have ended. May block. Ahead: that one
// takes appends meanwhile, and goes on if there comes no other.
void FileStore::roll(unsigned volume, LogKind kind, std::uint64_t record_bytes, std::size_t pages, bool is_ahead) {
  Volume& v = volumes_[volume];
  Volume::Log& log = v.log(kind);
  std::shared_ptr<ActiveSegment> old;
  SegmentHeader header;
  std::uint64_t device_id = 0, capacity = 0, free = 0, left_bytes = 0;
  bool maintains = false;
  std::unique_ptr<FileLock> lock;
  grow_limits();
  {
    LockGuard guard(mutex_);
    if (v.is_rolling() || v.suspended_until > clock_.now()) return;
    if (is_ahead && !may_roll_ahead(volume)) return;
    if (!is_ahead && log.active && log.active->fits(record_bytes, pages)) return;  // somebody was faster
    log.is_rolling = true;
    old = log.active;
    if (old) probe(Probe::kFileRolled);
    if (!is_ahead) log.active = nullptr;
    if (!is_ahead && old) old->is_full = true;
    header = {store_, next_segment_++, static_cast<std::uint64_t>(clock_.wall_unix_seconds()), next_generation_};
    device_id = v.device_id;
    capacity = std::max(segment_bytes(volume), segment_bytes_for(record_bytes, pages));
    lock = std::move(v.lock);  // nobody else rolls, and the store does not close meanwhile
  }
  // Each time: a directory below an empty mount point would take the segment, and fill the wrong disk.
  Result<Restored> restored = restore_directory(files_, v.directory, v.format, device_id, lock);
  Status status = restored.status();
  std::shared_ptr<ActiveSegment> made;
  if (status.is_ok()) {
    Result<std::shared_ptr<ActiveSegment>> created = create_segment(files_, v, header, capacity, left_bytes);
    status = created.status();
    if (created.is_ok()) made = std::move(created).value();
  }
  if (status.code() == StatusCode::kOverloaded) free = free_bytes(volume);
  std::vector<FilePtr> closed;
  {
    LockGuard guard(mutex_);
    log.is_rolling = false;
    v.lock = std::move(lock);
    if (restored.is_ok()) {
      v.device_id = restored->device_id;
      if (restored->lock) v.lock = std::move(restored->lock);
      if (restored->was_lost) {
        forget_volume(volume, closed);
        maintains = std::exchange(awaits_seal_, false);  // of one that is gone, perhaps
      }
    }
    if (made || left_bytes > 0) {  // what is left of one that failed holds nothing: remove_dead() takes it away
      SegmentInfo& info = segments_[header.segment];
      info.id = header.segment;
      info.volume = volume;
      info.first_generation = header.first_generation;
      info.active = made;
      if (made) info.file = made->file;
      set_size(info, made ? capacity : left_bytes);
    }
    if (made) {
      if (old) old->is_full = true;
      log.active = made;
      ++open_files_;
      trim_open_files(closed);
    } else if (!is_ahead) {
      note_failure(volume, status, nullptr, free, capacity);
    }
  }
  if (old) settle(old, volume);
  if (maintains) post([this] { maintain(); });
  place_waiting();
}

// A write, a sync or a new file failed. What was written before stays readable.
void FileStore::note_failure(unsigned volume, const Status& why, const std::shared_ptr<ActiveSegment>& segment,
                             std::uint64_t free, std::uint64_t asked) {
  Volume& v = volumes_[volume];
  const TimePoint now = clock_.now();
  const bool is_full = why.code() == StatusCode::kOverloaded;  // the disk, and nothing else (file_system.h)
  if (is_full && segment && segment->is_broken) return;        // one failure, many writes
  if (segment) {
    segment->is_broken = segment->is_full = true;
    for (Volume::Log& log : v.logs) {
      if (log.active == segment) log.active = nullptr;
    }
  }
  v.last_error = why;
  if (v.suspended_until > now) return;  // one failure, many writes
  if (is_full) {
    if (!note_full_disk(volume, std::max(asked, segment_bytes(volume)), free)) return;
    full_volume_ = volume;
  }
  // The first failure in a row is answered by a new segment at once; the next ones wait longer and longer.
  if (++v.write_failures < 2) return;
  probe(Probe::kFileSuspended);
  v.back_off = v.back_off == Nanos(0) ? kFirstBackOff : std::min(v.back_off * 2, kLongestBackOff);
  v.suspended_until = now + v.back_off;
  log_warning("storage/file", "writing to " + v.directory + " is suspended: " + why.to_string());
}

// A sync of the segment failed. What it replaced counts again. What cleaning was moving to it is where it was again, in
// the same step: a durable write that replaces a page then makes the good copy stay until it is synced itself, not the
// doubtful one.
void FileStore::doubt(SegmentInfo& segment) {
  if (defect(Defect::kFailedSyncForgotten)) return;
  segment.is_doubtful = true;
  settle_replaced(segment, true);
  const RecordPtr moving = moving_.lock();
  if (moving && moving->segment->id == segment.id) take_back(*moving);
}

// No more is appended to any of them. The caller settles them.
std::vector<FileStore::EndedSegment> FileStore::end_active() {
  std::vector<EndedSegment> ended;
  for (unsigned i = 0; i < volumes_.size(); ++i) {
    for (Volume::Log& log : volumes_[i].logs) {
      if (!log.active) continue;
      log.active->is_full = true;
      ended.push_back({std::exchange(log.active, nullptr), i});
    }
  }
  return ended;
}

// A full segment whose last write has ended is sealed; if nothing in it is alive, it goes. While it is synced it waits:
// end_sync() goes on then.
void FileStore::settle(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) {
  {
    LockGuard guard(mutex_);
    if (!segment->is_due() || !syncs_.try_emplace(segment->id).second) return;
    segment->is_sealing = true;
  }
  post([this, segment, volume] { seal(segment, volume); });
}

void FileStore::seal(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) {
  Footer footer;
  footer.store = store_;
  footer.segment = segment->id;
  bool with_sync = options_.fsync != FsyncMode::kOff, is_broken = false;
  {
    LockGuard guard(mutex_);
    is_broken = segment->is_broken;
    footer.start = segment->end_bytes;
    footer.max_generation = segment->max_generation;
    footer.records = segment->records;
    index_.list_segment(segment->id, kMaxListed, footer.pages);
    const auto info = segments_.find(segment->id);
    if (info != segments_.end()) {
      info->second.is_listed = true;
      info->second.left_out = info->second.damaged.size();
      with_sync = with_sync || info->second.has_durable;
      is_broken = is_broken || info->second.is_doubtful;
    }
  }
  Result<std::uint64_t> end = segment->end_bytes;
  const bool gets_footer = !footer.pages.empty() && !is_broken && footer.pages.size() < kMaxListed;
  if (gets_footer) {
    sort_by_place(footer.pages);
    end = seal_segment(*segment->file, std::move(footer), with_sync);
  } else {
    // Without a footer the next opening scans it. A file whose sync failed promises nothing.
    if (!segment->file->truncate(segment->end_bytes).is_ok()) {
      end = std::max(segment->capacity_bytes, segment->end_bytes);  // so much it still takes
    }
  }
  bool is_dead = false, has_damage = false, maintains = false;
  const std::uint64_t free = end.status().code() == StatusCode::kOverloaded ? free_bytes(volume) : 0;
  {
    LockGuard guard(mutex_);
    if (!end.is_ok()) note_failure(volume, end.status(), segment, free);
    maintains = std::exchange(awaits_seal_, false) && !is_finished_;
    const auto info = segments_.find(segment->id);
    if (info != segments_.end()) {
      const std::uint64_t bytes = end.is_ok() ? *end : std::max(segment->capacity_bytes, segment->end_bytes);
      set_size(info->second, bytes);
      info->second.active = nullptr;
      if (!end.is_ok()) doubt(info->second);  // perhaps it was the sync
      info->second.is_synced = gets_footer && with_sync && end.is_ok() && !info->second.is_doubtful;
      if (info->second.is_synced) release_synced(info->second);
      is_dead = index_.live_pages(segment->id) == 0 && info->second.holds == 0;
      has_damage = has_damage_to_tell(info->second);
      const auto sync = syncs_.find(segment->id);
      if (sync != syncs_.end() && info->second.is_synced) sync->second.covered.swap(sync->second.next);
    }
  }
  if (is_dead) remove_segment(segment->id);
  end_sync(segment->id, Status::ok());
  if (has_damage) leave_out_later(segment->id);
  if (maintains) return post([this] { maintain(); });
  place_waiting();
}

// ---- syncing: one fdatasync of a segment serves all who wait for it

void FileStore::wait_for_sync(const RecordPtr& record) {
  auto wait = std::make_shared<SyncWait>();
  wait->record = record;
  std::vector<SegmentId> segments = record->duplicates_in;
  if (record->segment) segments.push_back(record->segment->id);
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  std::vector<SegmentId> to_start;
  bool is_waiting = false;
  {
    LockGuard guard(mutex_);
    for (const SegmentId id : segments) {
      const auto info = segments_.find(id);
      if (info == segments_.end() && record->returns != returns_) wait->status = earlier_sync_failed();
      if (info == segments_.end() || info->second.is_synced) continue;
      ++wait->left;
      const auto [sync, is_first] = syncs_.try_emplace(id);
      sync->second.next.push_back(wait);
      if (is_first) to_start.push_back(id);
    }
    is_waiting = wait->left > 0;
  }
  if (!is_waiting) return finish_record(*record, wait->status);
  for (const SegmentId id : to_start) start_sync(id);
}

void FileStore::start_sync(SegmentId id) {
  IoOperation io;
  io.kind = IoOperation::Kind::kSyncData;
  unsigned volume = 0;
  std::uint64_t written = 0;
  bool is_doubtful = false;
  {
    LockGuard guard(mutex_);
    SegmentSync& sync = syncs_[id];
    sync.covered = std::move(sync.next);
    sync.next.clear();
    const auto info = segments_.find(id);
    if (info != segments_.end()) {
      volume = info->second.volume;
      io.file = info->second.file;
      is_doubtful = info->second.is_doubtful;
      if (info->second.active) written = info->second.active->written_bytes();
      for (Replaced& replaced : info->second.replaced) replaced.is_syncing = true;
    }
  }
  if (is_doubtful) return end_sync(id, earlier_sync_failed());
  if (!io.file) {  // closed, or evicted meanwhile
    Result<FilePtr> opened = open_segment(id);
    if (opened.status().code() == StatusCode::kNotFound) {
      return end_sync(id, cancelled("file store: its segment was evicted or cleared before it was synced"));
    }
    if (!opened.is_ok()) return end_sync(id, opened.status());
    io.file = std::move(opened).value();
  }
  auto hold = std::make_shared<OperationGate::Ticket>(gate_.hold());
  io.done = [this, id, volume, written, hold](const Status& status) { synced(id, volume, written, status); };
  std::vector<IoOperation> batch;
  batch.push_back(std::move(io));
  const Status submitted = volumes_[volume].io->submit(std::move(batch));
  if (!submitted.is_ok()) end_sync(id, submitted);
}

// The fdatasync has ended.
void FileStore::synced(SegmentId id, unsigned volume, std::uint64_t written, const Status& status) {
  Status outcome = status;
  const std::uint64_t free = status.code() == StatusCode::kOverloaded ? free_bytes(volume) : 0;
  {
    LockGuard guard(mutex_);
    const auto info = segments_.find(id);
    if (!status.is_ok() && status.code() != StatusCode::kCancelled) {
      if (info != segments_.end()) doubt(info->second);
      note_failure(volume, status, info != segments_.end() ? info->second.active : nullptr, free);
    } else if (status.is_ok() && info != segments_.end()) {
      SegmentInfo& segment = info->second;
      if (segment.is_doubtful) {
        outcome = earlier_sync_failed();
      } else if (segment.active) {
        segment.active->synced_bytes = std::max(segment.active->synced_bytes, written);
      } else {
        segment.is_synced = true;
      }
      if (!segment.is_doubtful) release_synced(segment);
    }
  }
  end_sync(id, outcome);
}

// Tells those who wait, and goes on to the segment's seal or its next sync. Comes without synced() where there was no
// fdatasync: then nothing is known about the segment that was not known before, and a later sync of it counts.
void FileStore::end_sync(SegmentId id, const Status& status) {
  std::vector<std::shared_ptr<SyncWait>> done;
  std::shared_ptr<ActiveSegment> due;
  unsigned volume = 0;
  bool again = false;
  {
    LockGuard guard(mutex_);
    const auto sync = syncs_.find(id);
    if (sync == syncs_.end()) return;
    for (const std::shared_ptr<SyncWait>& wait : sync->second.covered) {
      if (!status.is_ok()) wait->status = status;
      if (--wait->left == 0) done.push_back(wait);
    }
    sync->second.covered.clear();
    const auto info = segments_.find(id);
    if (info != segments_.end() && info->second.active && info->second.active->is_due()) {
      due = info->second.active;
      due->is_sealing = true;
      volume = info->second.volume;
    } else {
      again = !sync->second.next.empty();
      if (!again) syncs_.erase(sync);
    }
  }
  if (due) post([this, due, volume] { seal(due, volume); });  // first: those below may be what keeps the store open
  for (const std::shared_ptr<SyncWait>& wait : done) finish_record(*wait->record, wait->status);
  if (again) start_sync(id);
}

// ---- segments that are gone

void FileStore::forget_segment(SegmentId id, std::vector<FilePtr>& closed) {
  const auto segment = segments_.find(id);
  if (segment == segments_.end()) return;
  settle_replaced(segment->second, true);
  for (const Replaced& replaced : segment->second.replaced) release(replaced);
  (void)index_.drop_segment(id);
  set_size(segment->second, 0);
  if (segment->second.file) {
    closed.push_back(std::move(segment->second.file));
    --open_files_;
  }
  segments_.erase(segment);
}

void FileStore::forget_volume(unsigned volume, std::vector<FilePtr>& closed) {
  std::vector<SegmentId> ids;
  for (const auto& [id, segment] : segments_) {
    if (segment.volume == volume) ids.push_back(id);
  }
  for (const SegmentId id : ids) forget_segment(id, closed);
  volumes_[volume].stuck_files = 0;
  volumes_[volume].clean_again = TimePoint{};
  for (Volume::Log& log : volumes_[volume].logs) {  // what is still written to it is lost, too
    if (log.active) log.active->is_full = log.active->is_broken = true;
    log.active = nullptr;
  }
  log_warning("storage/file", volumes_[volume].directory + " was deleted and made again; its pages are lost");
}

}  // namespace larder::file_store
