// SPDX-License-Identifier: Apache-2.0
// The file store's life cycle, lookups and clears.
#include "storage/file/file_store.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace larder::file_store {
FileStore::FileStore(const FileStoreOptions& options, const BackendEnvironment& environment, OpenedStore opened)
    : options_(options),
      files_(*environment.files),
      clock_(*environment.clock),
      executor_(*environment.executor),
      store_(opened.store),
      gate_("file", options.queue_limit),
      index_(std::move(opened.index)),
      segments_(std::move(opened.segments)),
      next_segment_(opened.next_segment),
      next_generation_(opened.next_generation),
      cleared_(std::move(opened.cleared)),
      admission_(options.admission, environment.clock->now()),
      volumes_(std::move(opened.volumes)) {
  const bool is_direct = std::any_of(volumes_.begin(), volumes_.end(), [](const Volume& v) { return v.is_direct; });
  info_ = {"file", true, options.fsync != FsyncMode::kOff, true, is_direct ? kBlockBytes : 1};
  counters_.torn_tails = opened.torn_tails;
  counters_.corrupt = opened.corrupt;
  for (auto& [id, segment] : segments_) set_size(segment, std::exchange(segment.physical_bytes, 0));
  start_maintenance_if_high();
}

FileStore::~FileStore() {
  gate_.drain();
  finish();
}

Status FileStore::close(std::chrono::nanoseconds limit) {
  LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
  finish();
  return Status::ok();
}

bool FileStore::is_closing() {
  if (!gate_.is_closed()) return false;
  LockGuard guard(mutex_);
  return waiting_.empty();
}

// Nothing is in flight any more: seals what is open and lets the directories go.
void FileStore::finish() {
  {
    LockGuard guard(mutex_);
    if (std::exchange(is_finished_, true)) return;
  }
  for (unsigned i = 0; i < volumes_.size(); ++i) {
    for (Volume::Log& log : volumes_[i].logs) {
      std::shared_ptr<ActiveSegment> active;
      {
        LockGuard guard(mutex_);
        active = std::exchange(log.active, nullptr);
        if (active) active->is_full = active->is_sealing = true;
      }
      if (active) seal(active, i);
    }
  }
  std::vector<SegmentId> with_damage;  // where telling it has failed
  {
    LockGuard guard(mutex_);
    for (const auto& [id, segment] : segments_) {
      if (has_damage_to_tell(segment)) with_damage.push_back(id);
    }
  }
  for (const SegmentId id : with_damage) leave_out_damaged(id);
  std::vector<FilePtr> closed;
  std::vector<std::unique_ptr<FileLock>> locks;
  for (Volume& volume : volumes_) volume.io.reset();  // joins its thread
  LockGuard guard(mutex_);
  for (auto& [id, segment] : segments_) closed.push_back(std::move(segment.file));
  for (Volume& volume : volumes_) locks.push_back(std::move(volume.lock));
}

Status FileStore::submit_exists(ExistsRequest request, ExistsDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  Result<OperationGate::Ticket> ticket = gate_.enter_inline();
  if (!ticket.is_ok()) return ticket.status();
  ExistsResult result;
  result.presence.reserve(request.pools.size());
  for (const PoolName pool : request.pools) {
    result.presence.push_back({pool, Presence(request.keys.size(), false)});
  }
  {
    LockGuard guard(mutex_);  // once for all pools: the answer is of one moment
    for (PoolPresence& out : result.presence) {
      const IdentityId identity = index_.find_identity(identity_of(*request.scope, out.pool));
      if (identity != 0) index_.contains(identity, request.keys, out.present);
    }
  }
  ExistsOperation op(std::move(request), std::move(done), std::move(ticket).value());
  op.result = std::move(result);
  return Status::ok();
}

Status FileStore::register_memory(std::span<const Segment> regions) {
  const Result<OperationGate::Ticket> ticket = gate_.enter_inline();  // close() takes the queues away
  if (!ticket.is_ok()) return ticket.status();
  for (Volume& volume : volumes_) LARDER_RETURN_IF_ERROR(volume.io->register_memory(regions));
  return Status::ok();
}

Status FileStore::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  if (scope && scope->namespace_digest.is_zero()) return invalid_argument("file store: no namespace has a digest of 0");
  const auto run = [this](const std::shared_ptr<ClearOperation>& op) {
    {
      LockGuard guard(mutex_);
      clears_.push_back(op);
    }
    run_clears();
  };
  return submit_operation<ClearOperation>(gate_, executor_, std::move(scope), std::move(done), run);
}

// One at a time: each rewrites CLEARED.
void FileStore::run_clears() {
  {
    LockGuard guard(mutex_);
    if (is_clearing_) return;
    is_clearing_ = true;
  }
  for (;;) {
    std::shared_ptr<ClearOperation> op;
    {
      LockGuard guard(mutex_);
      if (clears_.empty()) {
        is_clearing_ = false;
        return;
      }
      op = std::move(clears_.front());
      clears_.pop_front();
    }
    op->result = run_clear(op->request.get());
  }
}

// The pages are gone from the index first, so that no read finds them from here on; then the disk is told.
Status FileStore::run_clear(const StoreScope* scope) {
  const Digest256 which = scope ? scope->namespace_digest : Digest256{};
  std::vector<std::byte> bytes;
  std::vector<EndedSegment> full;
  {
    LockGuard guard(mutex_);
    forget_settled_clears();
    if (!scope) cleared_.clear();
    std::erase_if(cleared_, [&](const Cleared& c) { return c.namespace_digest == which; });
    if (cleared_.size() >= kMaxCleared) {
      return overloaded("file store: " + std::to_string(kMaxCleared) +
                        " namespaces are cleared and still on disk; clear the whole store instead");
    }
    cleared_.push_back({which, ++next_generation_});  // above the first generation of every segment that is there
    if (scope) {
      (void)index_.drop_namespace(which);
    } else {
      index_.clear();
      full = end_active();  // so that they can go
    }
    for (auto& [id, segment] : segments_) settle_replaced(segment, false);
    bytes = encode_cleared(cleared_);
  }
  Status status;
  for (unsigned i = 0; i < volumes_.size(); ++i) {
    Status written = check_here(i);  // below an empty mount point it would be kept from the disk that has the pages
    if (written.is_ok()) written = replace_file(files_, volumes_[i].directory, kClearedName, bytes);
    if (!written.is_ok()) status = written;
  }
  for (const EndedSegment& ended : full) settle(ended.segment, ended.volume);
  remove_dead();  // what would not go is tried again
  return status;
}

// Entries that no segment is older than have done their work.
void FileStore::forget_settled_clears() {
  std::uint64_t oldest = next_generation_;
  for (const auto& [id, segment] : segments_) oldest = std::min(oldest, segment.first_generation);
  std::erase_if(cleared_, [oldest](const Cleared& c) { return c.generation <= oldest; });
}

BackendStats FileStore::stats() const {
  BackendStats out;
  out.queued = gate_.in_flight();
  const auto value = [](const std::atomic<std::uint64_t>& counter) { return counter.load(kRelaxed); };
  out.reads = value(counters_.reads);
  out.read_hits = value(counters_.read_hits);
  out.read_misses = value(counters_.read_misses);
  out.read_errors = value(counters_.read_errors);
  out.writes = value(counters_.writes);
  out.write_errors = value(counters_.write_errors);
  out.duplicate_writes = value(counters_.duplicate_writes);
  out.declined = value(counters_.declined);
  out.corrupt = value(counters_.corrupt);
  out.evicted = value(counters_.evicted);
  out.moved = value(counters_.moved);
  out.torn_tails = value(counters_.torn_tails);
  out.written_bytes = value(counters_.written_bytes);
  const TimePoint now = clock_.now();
  LockGuard guard(mutex_);
  out.pages = index_.size();
  out.bytes = index_.payload_bytes();
  out.physical_bytes = physical_bytes_;
  out.capacity_bytes = most_bytes() == kUnlimited ? 0 : most_bytes();
  out.segments = segments_.size();
  for (const Volume& volume : volumes_) out.suspended_volumes += volume.suspended_until > now ? 1 : 0;
  return out;
}

}  // namespace larder::file_store
