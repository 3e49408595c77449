// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_log.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/defect.h"
#include "base/log.h"
#include "base/probe.h"

namespace larder::file_store {
namespace {

// Instead of the one that it had, if there is a new one.
void take_lock(Volume& volume, Restored& restored) {
  if (!restored.lock) return;
  volume.lock = std::move(restored.lock);
  volume.lock_text = std::move(restored.lock_text);
}

}  // namespace

Status earlier_sync_failed() { return cancelled("file store: an earlier sync of its segment failed"); }

void SegmentLog::roll(unsigned volume, LogKind kind, std::uint64_t record_bytes, std::size_t pages) {
  make(volume, kind, record_bytes, pages, false);
}

void SegmentLog::roll_ahead(unsigned volume) {
  auto hold = std::make_shared<OperationGate::Ticket>(state_.gate.hold());
  (void)state_.executor.post([this, volume, hold] {  // a full executor: then when it is needed
    make(volume, LogKind::kNew, 0, 0, true);
    steps_.start_maintenance_if_high();
  });
}

void SegmentLog::make(unsigned volume, LogKind kind, std::uint64_t record_bytes, std::size_t pages, bool is_ahead) {
  Volume& v = state_.volumes[volume];
  Volume::Log& log = v.log(kind);
  std::shared_ptr<ActiveSegment> old;
  SegmentHeader header;
  std::uint64_t device_id = 0, capacity = 0, free = 0, left_bytes = 0;
  bool maintains = false;
  std::unique_ptr<FileLock> lock;
  std::optional<std::string> lock_text;
  state_.grow_limits();
  {
    LockGuard guard(state_.mutex);
    if (v.is_rolling() || v.suspended_until > state_.clock.now()) return;
    if (is_ahead && !state_.room.has_room_ahead(volume)) return;
    if (!is_ahead && log.active && log.active->fits(record_bytes, pages)) return;  // somebody was faster
    log.is_rolling = true;
    old = log.active;
    if (old) probe(Probe::kFileRolled);
    if (!is_ahead) log.active = nullptr;
    if (!is_ahead && old) old->is_full = true;
    header = {state_.store, state_.segments.take_number(), static_cast<std::uint64_t>(state_.clock.wall_unix_seconds()),
              state_.next_generation};
    device_id = v.device_id;
    capacity = std::max(state_.room.segment_bytes(volume), StoreRoom::segment_bytes_for(record_bytes, pages));
    lock_text = v.lock_text;
    lock = std::move(v.lock);  // nobody else rolls, and the store does not close meanwhile
  }
  // Each time: a directory below an empty mount point would take the segment, and fill the wrong disk.
  Result<Restored> restored = restore_directory(state_.files, v.directory, v.format, device_id, lock, lock_text);
  Status status = restored.status();
  if (restored.is_ok() && !restored->was_lost) mend_directory(v, *restored);
  std::shared_ptr<ActiveSegment> made;
  if (status.is_ok()) {
    Result<std::shared_ptr<ActiveSegment>> created = create_segment(state_.files, v, header, capacity, left_bytes);
    status = created.status();
    if (created.is_ok()) made = std::move(created).value();
  }
  if (status.code() == StatusCode::kOverloaded) free = state_.free_bytes(volume);
  std::vector<FilePtr> closed;
  LogLines lines;
  {
    LockGuard guard(state_.mutex);
    log.is_rolling = false;
    v.lock = std::move(lock);
    if (restored.is_ok()) {
      v.device_id = restored->device_id;
      take_lock(v, *restored);
      if (restored->was_lost) {
        forget_volume(volume, closed, lines);
        maintains = std::exchange(awaits_seal_, false);  // of one that is gone, perhaps
      }
    }
    if (made || left_bytes > 0) {  // what is left of one that failed holds nothing: remove_dead() takes it away
      SegmentInfo& info = state_.segments.add(header.segment, volume, header.first_generation);
      info.active = made;
      state_.segments.set_size(info, made ? capacity : left_bytes);
      if (made) state_.segments.open(info, made->file, closed);
    }
    if (made) {
      if (old) old->is_full = true;
      log.active = made;
    } else if (!is_ahead) {
      state_.note_failure(lines, volume, status, nullptr, free, capacity);
    }
  }
  if (old) settle(old, volume);
  if (maintains) state_.post([this] { steps_.go_on_with_maintenance(); });
  steps_.place_waiting();
}

// CLEARED is written again where it is missing: somebody deleted it, or a clear has not written it yet, or could not.
void SegmentLog::mend_directory(const Volume& volume, const Restored& restored) {
  bool has_cleared = false;
  {
    LockGuard guard(state_.mutex);
    has_cleared = !state_.cleared.empty();
  }
  const std::string cleared = join_path(volume.directory, kClearedName);
  if (has_cleared && state_.files.stat(cleared).status().code() == StatusCode::kNotFound) {
    state_.post([this] { steps_.write_cleared(); });
  }
  if (!restored.lacked_files) return;
  log_warning("storage/file", volume.directory +
                                  ": somebody deleted FORMAT or LOCK of the store while it runs; they are written "
                                  "again. Does something clean up there, such as systemd-tmpfiles?");
}

// A full segment whose last write has ended is sealed; if nothing in it is alive, it goes. While it is synced it waits:
// end_sync() goes on then.
void SegmentLog::settle(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) {
  if (claim_seal(*segment)) state_.post([this, segment, volume] { seal(segment, volume); });
}

void SegmentLog::settle_here(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) {
  if (claim_seal(*segment)) seal(segment, volume);
}

bool SegmentLog::claim_seal(ActiveSegment& segment) {
  LockGuard guard(state_.mutex);
  if (!segment.is_due() || !syncs_.try_emplace(segment.id).second) return false;
  return segment.is_sealing = true;
}

void SegmentLog::seal(const std::shared_ptr<ActiveSegment>& segment, unsigned volume) {
  Footer footer;
  footer.store = state_.store;
  footer.segment = segment->id;
  bool with_sync = state_.options.fsync != FsyncMode::kOff, is_broken = false;
  {
    LockGuard guard(state_.mutex);
    is_broken = segment->is_broken;
    footer.start = segment->end_bytes;
    footer.max_generation = segment->max_generation;
    footer.records = segment->records;
    state_.index.drop_unlinked_of(segment->id);
    state_.index.list_segment(segment->id, kMaxListed, footer.pages);
    SegmentInfo* const info = state_.segments.find(segment->id);
    if (info) {
      info->is_listed = true;
      info->left_out = info->damaged.size();
      with_sync = with_sync || info->has_durable;
      is_broken = is_broken || info->is_doubtful;
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
  LogLines lines;
  const std::uint64_t free = end.status().code() == StatusCode::kOverloaded ? state_.free_bytes(volume) : 0;
  {
    LockGuard guard(state_.mutex);
    if (!end.is_ok()) state_.note_failure(lines, volume, end.status(), segment, free);
    maintains = std::exchange(awaits_seal_, false) && !state_.is_finished;
    SegmentInfo* const info = state_.segments.find(segment->id);
    if (info) {
      const std::uint64_t bytes = end.is_ok() ? *end : std::max(segment->capacity_bytes, segment->end_bytes);
      state_.segments.set_size(*info, bytes);
      info->active = nullptr;
      if (!end.is_ok()) state_.copies.doubt(*info);  // perhaps it was the sync
      info->is_synced = gets_footer && with_sync && end.is_ok() && !info->is_doubtful;
      if (info->is_synced) state_.copies.synced(*info);
      is_dead = state_.index.live_pages(segment->id) == 0 && info->holds == 0;
      has_damage = info->has_damage_to_tell();
      const auto sync = syncs_.find(segment->id);
      if (sync != syncs_.end() && info->is_synced) sync->second.covered.swap(sync->second.next);
    }
  }
  if (is_dead) files_.remove(segment->id);
  end_sync(segment->id, Status::ok());
  if (has_damage) steps_.tell_damage(segment->id);
  if (maintains) return state_.post([this] { steps_.go_on_with_maintenance(); });
  steps_.place_waiting();
}

// ---- syncing: one fdatasync of a segment serves all who wait for it

void SegmentLog::wait_for_sync(std::vector<SegmentId> segments, std::uint64_t returns,
                               std::function<void(const Status&)> done) {
  auto wait = std::make_shared<SyncWait>();
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  std::vector<SegmentId> to_start;
  bool is_waiting = false;
  {
    LockGuard guard(state_.mutex);
    for (const SegmentId id : segments) {
      const SegmentInfo* const info = state_.segments.find(id);
      if (!info && returns != state_.copies.returns()) wait->status = earlier_sync_failed();
      if (!info || info->is_synced) continue;
      ++wait->left;
      const auto [sync, is_first] = syncs_.try_emplace(id);
      sync->second.next.push_back(wait);
      if (is_first) to_start.push_back(id);
    }
    is_waiting = wait->left > 0;
    if (is_waiting) wait->done = std::move(done);
  }
  if (!is_waiting) return done(wait->status);
  for (const SegmentId id : to_start) start_sync(id);
}

void SegmentLog::start_sync(SegmentId id) {
  IoOperation io;
  io.kind = IoOperation::Kind::kSyncData;
  unsigned volume = 0;
  std::uint64_t written = 0;
  bool is_doubtful = false;
  {
    LockGuard guard(state_.mutex);
    SegmentSync& sync = syncs_[id];
    sync.covered = std::move(sync.next);
    sync.next.clear();
    SegmentInfo* const info = state_.segments.find(id);
    if (info) {
      volume = info->volume;
      io.file = info->file;
      is_doubtful = info->is_doubtful;
      if (info->active) written = info->active->written_bytes();
      for (Replaced& replaced : info->replaced) replaced.is_syncing = true;
    }
  }
  if (is_doubtful) return end_sync(id, earlier_sync_failed());
  if (!io.file) {  // closed, or evicted meanwhile
    Result<FilePtr> opened = files_.open(id);
    if (opened.status().code() == StatusCode::kNotFound) {
      return end_sync(id, cancelled("file store: its segment was evicted or cleared before it was synced"));
    }
    if (!opened.is_ok()) return end_sync(id, opened.status());
    io.file = std::move(opened).value();
  }
  auto hold = std::make_shared<OperationGate::Ticket>(state_.gate.hold());
  io.done = [this, id, volume, written, hold](const Status& status) { synced(id, volume, written, status); };
  std::vector<IoOperation> batch;
  batch.push_back(std::move(io));
  const Status submitted = state_.volumes[volume].io->submit(std::move(batch));
  if (!submitted.is_ok()) end_sync(id, submitted);
}

// The fdatasync has ended.
void SegmentLog::synced(SegmentId id, unsigned volume, std::uint64_t written, const Status& status) {
  Status outcome = status;
  LogLines lines;
  const std::uint64_t free = status.code() == StatusCode::kOverloaded ? state_.free_bytes(volume) : 0;
  {
    LockGuard guard(state_.mutex);
    SegmentInfo* const info = state_.segments.find(id);
    if (!status.is_ok() && status.code() != StatusCode::kCancelled) {
      if (info) state_.copies.doubt(*info);
      state_.note_failure(lines, volume, status, info ? info->active : nullptr, free);
    } else if (status.is_ok() && info) {
      SegmentInfo& segment = *info;
      if (segment.is_doubtful) {
        outcome = earlier_sync_failed();
      } else if (segment.active) {
        segment.active->synced_bytes = std::max(segment.active->synced_bytes, written);
      } else {
        segment.is_synced = true;
      }
      if (!segment.is_doubtful) state_.copies.synced(segment);
    }
  }
  end_sync(id, outcome);
}

// Tells those who wait, and goes on to the segment's seal or its next sync. Comes without synced() where there was no
// fdatasync: then nothing is known about the segment that was not known before, and a later sync of it counts.
void SegmentLog::end_sync(SegmentId id, const Status& status) {
  std::vector<std::shared_ptr<SyncWait>> done;
  std::shared_ptr<ActiveSegment> due;
  unsigned volume = 0;
  bool again = false;
  {
    LockGuard guard(state_.mutex);
    const auto sync = syncs_.find(id);
    if (sync == syncs_.end()) return;
    for (const std::shared_ptr<SyncWait>& wait : sync->second.covered) {
      if (!status.is_ok()) wait->status = status;
      if (--wait->left == 0) done.push_back(wait);
    }
    sync->second.covered.clear();
    SegmentInfo* const info = state_.segments.find(id);
    if (info && info->active && info->active->is_due()) {
      due = info->active;
      due->is_sealing = true;
      volume = info->volume;
    } else {
      again = !sync->second.next.empty();
      if (!again) syncs_.erase(sync);
    }
  }
  if (due)
    state_.post([this, due, volume] { seal(due, volume); });  // first: those below may be what keeps the store open
  for (const std::shared_ptr<SyncWait>& wait : done) wait->done(wait->status);
  if (again) start_sync(id);
}

bool SegmentLog::seal(std::optional<LogKind> kind) {
  std::vector<EndedSegment> ended;
  {
    LockGuard guard(state_.mutex);
    ended = state_.end_active(kind);
    if (!is_seal_due()) return false;
  }
  for (const EndedSegment& each : ended) settle(each.segment, each.volume);
  return true;
}

bool SegmentLog::await_seal() {
  LockGuard guard(state_.mutex);
  return is_seal_due();
}

bool SegmentLog::is_seal_due() {
  return awaits_seal_ = std::any_of(state_.segments.begin(), state_.segments.end(), [](const auto& entry) {
           return entry.second.active && entry.second.active->is_full;
         });
}

void SegmentLog::finish() {
  std::vector<EndedSegment> ended;
  {
    LockGuard guard(state_.mutex);
    ended = state_.end_active();
    for (const EndedSegment& each : ended) each.segment->is_sealing = true;
  }
  for (const EndedSegment& each : ended) seal(each.segment, each.volume);
}

void SegmentLog::forget_volume(unsigned volume, std::vector<FilePtr>& closed, LogLines& lines) {
  std::vector<SegmentId> ids;
  for (const auto& [id, segment] : state_.segments) {
    if (segment.volume == volume) ids.push_back(id);
  }
  for (const SegmentId id : ids) state_.copies.forget(id, closed);
  state_.volumes[volume].stuck_files = 0;
  state_.volumes[volume].clean_again = TimePoint{};
  for (Volume::Log& log : state_.volumes[volume].logs) {  // what is still written to it is lost, too
    if (log.active) log.active->is_full = log.active->is_broken = true;
    log.active = nullptr;
  }
  lines.warning("storage/file", state_.volumes[volume].directory + " was deleted and made again; its pages are lost");
}

}  // namespace larder::file_store
