// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/probe.h"

namespace larder::file_store {
namespace {

constexpr unsigned kMostYields = 1000;

}  // namespace

void StoreCounters::add_to(BackendStats& out) const {
  const auto value = [](const std::atomic<std::uint64_t>& counter) { return counter.load(kRelaxed); };
  out.reads = value(reads);
  out.read_hits = value(read_hits);
  out.read_misses = value(read_misses);
  out.read_errors = value(read_errors);
  out.writes = value(writes);
  out.write_errors = value(write_errors);
  out.duplicate_writes = value(duplicate_writes);
  out.declined = value(declined);
  out.corrupt = value(corrupt);
  out.evicted = value(evicted);
  out.moved = value(moved);
  out.torn_tails = value(torn_tails);
  out.written_bytes = value(written_bytes);
}

StoreState::StoreState(const FileStoreOptions& with, const BackendEnvironment& environment, OpenedStore opened)
    : options(with),
      files(*environment.files),
      clock(*environment.clock),
      executor(*environment.executor),
      store(opened.store),
      gate("file", with.queue_limit),
      volumes(std::move(opened.volumes)),
      index(std::move(opened.index)),
      segments(std::move(opened.segments), opened.next_segment, volumes.size(), with.open_files),
      copies(with.fsync, index, segments),
      room(options, volumes, segments, index),
      cleared(std::move(opened.cleared)),
      next_generation(opened.next_generation) {
  counters.torn_tails = opened.torn_tails;
  counters.corrupt = opened.corrupt;
}

void StoreState::post(Task task) {
  auto hold = std::make_shared<OperationGate::Ticket>(gate.hold());
  auto step = std::make_shared<Task>(std::move(task));
  const auto run = [hold, step] { (*step)(); };
  if (!executor.post(run).is_ok()) run();  // a full executor: better late than never
}

Status StoreState::check_here(unsigned volume) {
  const Volume& v = volumes[volume];
  std::uint64_t device_id = 0;
  std::optional<std::string> lock_text;
  {
    LockGuard guard(mutex);
    device_id = v.device_id;
    lock_text = v.lock_text;
  }
  const Whereabouts found = find_volume(files, v.directory, v.format, device_id);
  if (found.state == Whereabouts::State::kAway) return found.why;
  return check_lock(files, v.directory, lock_text);
}

std::uint64_t StoreState::free_bytes(unsigned volume) const {
  const Result<SpaceInfo> space = files.space(volumes[volume].directory);
  return space.is_ok() ? space->free_bytes : StoreRoom::kUnlimited;
}

void StoreState::grow_limits() {
  for (unsigned i = 0; i < volumes.size(); ++i) {
    {
      LockGuard guard(mutex);
      if (!room.wants_to_grow(i, awaited_bytes(), clock.now())) continue;
    }
    const std::uint64_t free = free_bytes(i);
    LockGuard guard(mutex);
    room.grow(i, free, clock.now());
  }
}

void StoreState::note_failure(LogLines& lines, unsigned volume, const Status& why,
                              const std::shared_ptr<ActiveSegment>& segment, std::uint64_t free, std::uint64_t asked) {
  Volume& v = volumes[volume];
  const TimePoint now = clock.now();
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
  if (is_full && !room.note_full_disk(lines, volume, asked, free, now)) return;
  // The first failure in a row is answered by a new segment at once; the next ones wait longer and longer.
  if (++v.write_failures < 2) return;
  probe(Probe::kFileSuspended);
  v.back_off = v.back_off == Nanos(0) ? kFirstBackOff : std::min(v.back_off * 2, kLongestBackOff);
  v.suspended_until = now + v.back_off;
  lines.warning("storage/file", "writing to " + v.directory + " is suspended: " + why.to_string());
}

std::vector<EndedSegment> StoreState::end_active(std::optional<LogKind> kind) {
  std::vector<EndedSegment> ended;
  for (unsigned i = 0; i < volumes.size(); ++i) {
    for (const LogKind each : {LogKind::kNew, LogKind::kMoved}) {
      Volume::Log& log = volumes[i].log(each);
      if (!log.active || (kind && kind != each)) continue;
      log.active->is_full = true;
      ended.push_back({std::exchange(log.active, nullptr), i});
    }
  }
  return ended;
}

std::uint64_t StoreState::awaited_bytes() const {
  if (waiting.empty()) return 0;
  const WriteRecord& first = *waiting.front();
  return StoreRoom::segment_bytes_for(first.layout.record_bytes, first.pages.size());
}

void StoreState::let_callers_go_first() const {
  for (unsigned i = 0; i < kMostYields && callers.load(kRelaxed) > 0; ++i) std::this_thread::yield();
}

bool StoreState::is_closing() const {
  if (!gate.is_closed()) return false;
  LockGuard guard(mutex);
  return waiting.empty();
}

}  // namespace larder::file_store
