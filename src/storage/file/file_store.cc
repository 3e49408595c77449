// SPDX-License-Identifier: Apache-2.0
#include "storage/file/file_store.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace larder::file_store {

FileStore::FileStore(const FileStoreOptions& options, const BackendEnvironment& environment, OpenedStore opened)
    : state_(options, environment, std::move(opened)) {
  const bool is_direct =
      std::any_of(state_.volumes.begin(), state_.volumes.end(), [](const Volume& v) { return v.is_direct; });
  info_ = {"file", true, options.fsync != FsyncMode::kOff, true, is_direct ? kBlockBytes : 1};
  maintenance_.start_if_high();
}

FileStore::~FileStore() {
  state_.gate.drain();
  finish();
}

Status FileStore::close(std::chrono::nanoseconds limit) {
  LARDER_RETURN_IF_ERROR(state_.gate.close_within(limit));
  finish();
  return Status::ok();
}

// Without FORMAT the next opening would find no store, and without CLEARED pages would come back: so that is first.
void FileStore::keep_files(FileSystem& files, const Volume& volume, std::span<const Cleared> cleared) {
  const auto is_missing = [&](std::string_view name) {
    return files.stat(join_path(volume.directory, name)).status().code() == StatusCode::kNotFound;
  };
  const bool lacks_cleared = !cleared.empty() && is_missing(kClearedName);
  if (!lacks_cleared && !is_missing(kFormatName)) return;
  const Whereabouts found = find_volume(files, volume.directory, volume.format, volume.device_id);
  if (found.state != Whereabouts::State::kHere) return;
  if (!check_lock(files, volume.directory, volume.lock_text).is_ok()) return;
  Status kept;
  if (lacks_cleared) kept = replace_file(files, volume.directory, kClearedName, encode_cleared(cleared));
  if (kept.is_ok() && found.lacks_format) kept = write_format(files, volume.directory, volume.format);
  if (kept.is_ok()) return;
  log_warning("storage/file", volume.directory +
                                  ": somebody deleted FORMAT or CLEARED of the store, and they could not be written "
                                  "again: " +
                                  kept.to_string());
}

// Nothing is in flight any more: seals what is open and lets the directories go.
void FileStore::finish() {
  {
    LockGuard guard(state_.mutex);
    if (std::exchange(state_.is_finished, true)) return;
  }
  log_.finish();
  damage_.finish();
  std::vector<FilePtr> closed;
  std::vector<std::unique_ptr<FileLock>> locks;
  std::vector<Cleared> cleared;
  {
    LockGuard guard(state_.mutex);
    cleared = state_.cleared.entries();
  }
  for (Volume& volume : state_.volumes) {
    volume.io.reset();  // joins its thread
    keep_files(state_.files, volume, cleared);
  }
  LockGuard guard(state_.mutex);
  for (auto& [id, segment] : state_.segments) {
    if (segment.file) closed.push_back(state_.segments.close(segment));
  }
  for (Volume& volume : state_.volumes) locks.push_back(std::move(volume.lock));
}

Status FileStore::submit_read(ReadRequest request, ReadDone done) {
  return reader_.submit(std::move(request), std::move(done));
}

Status FileStore::submit_write(WriteRequest request, WriteDone done) {
  return writer_.submit(std::move(request), std::move(done));
}

Status FileStore::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  return clears_.submit(std::move(scope), std::move(done));
}

Status FileStore::submit_exists(ExistsRequest request, ExistsDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  LARDER_ASSIGN_OR_RETURN(OperationGate::Ticket ticket, state_.gate.enter_inline());
  ExistsResult result;
  result.presence.reserve(request.pools.size());
  for (const PoolName pool : request.pools) {
    result.presence.push_back({pool, Presence(request.keys.size(), false)});
  }
  {
    CallerGuard guard(state_.mutex, state_.callers);  // once for all pools: the answer is of one moment
    for (PoolPresence& out : result.presence) {
      const IdentityId identity = state_.index.find_identity(identity_of(*request.scope, out.pool));
      if (identity != 0) state_.index.contains(identity, request.keys, out.present);
    }
  }
  ExistsOperation op(std::move(request), std::move(done), std::move(ticket));
  op.result = std::move(result);
  return Status::ok();
}

Status FileStore::register_memory(std::span<const Segment> regions) {
  const Result<OperationGate::Ticket> ticket = state_.gate.enter_inline();  // close() takes the queues away
  if (!ticket.is_ok()) return ticket.status();
  for (Volume& volume : state_.volumes) LARDER_RETURN_IF_ERROR(volume.io->register_memory(regions));
  return Status::ok();
}

BackendStats FileStore::stats() const {
  BackendStats out;
  out.queued = state_.gate.in_flight();
  state_.counters.add_to(out);
  const TimePoint now = state_.clock.now();
  CallerGuard guard(state_.mutex, state_.callers);
  out.pages = state_.index.size() - state_.index.unlinked_pages();
  out.bytes = state_.index.payload_bytes();
  out.physical_bytes = state_.segments.physical_bytes();
  const std::uint64_t most = state_.room.most_bytes();
  out.capacity_bytes = most == StoreRoom::kUnlimited ? 0 : most;
  out.segments = state_.segments.size();
  for (const Volume& volume : state_.volumes) out.suspended_volumes += volume.suspended_until > now ? 1 : 0;
  return out;
}

}  // namespace larder::file_store
