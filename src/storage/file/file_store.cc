// The file store's reads, lookups and life cycle.
#include "storage/file/file_store.h"

#include <algorithm>
#include <utility>

namespace larder::file_store {
namespace {

constexpr std::size_t kMaxBuffers = 1024;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Fills the buffers from the file, whatever number of calls that takes. kCorrupt: the file ends before.
Status read_buffers(File& file, std::vector<std::span<std::byte>>& buffers, std::uint64_t offset) {
  std::span<std::span<std::byte>> left(buffers);
  while (!left.empty()) {
    const Result<std::size_t> got = file.readv_at(left.first(std::min(left.size(), kMaxBuffers)), offset);
    if (!got.is_ok()) return got.status();
    if (*got == 0) return corrupt("read " + file.path() + ": the file ends inside a page");
    offset += *got;
    for (std::size_t done = *got; done > 0;) {
      const std::size_t step = std::min(done, left.front().size());
      left.front() = left.front().subspan(step);
      done -= step;
      if (left.front().empty()) left = left.subspan(1);
    }
  }
  return Status::ok();
}

PageIdentity identity_of(const StoreScope& scope, PoolName pool) {
  return {scope.namespace_digest, scope.fingerprint(pool), pool};
}

}  // namespace

FileStore::FileStore(const FileStoreOptions& options, const BackendEnvironment& environment, OpenedStore opened)
    : options_(options),
      files_(*environment.files),
      clock_(*environment.clock),
      executor_(*environment.executor),
      gate_("file", options.queue_limit),
      index_(std::move(opened.index)),
      segments_(std::move(opened.segments)),
      lock_(std::move(opened.lock)),
      writer_(*environment.files, options.directory, opened.store, opened.next_generation, opened.next_group),
      cleared_(std::move(opened.cleared)),
      next_segment_(opened.next_segment) {
  info_ = {"file", true, options.fsync != FsyncMode::kOff, true, 1};
  counters_.torn_tails = opened.torn_tails;
  counters_.corrupt = opened.corrupt;
}

FileStore::~FileStore() {
  gate_.close();
  (void)gate_.wait_idle(std::chrono::nanoseconds(-1));
  finish();
}

Status FileStore::close(std::chrono::nanoseconds limit) {
  gate_.close();
  if (!gate_.wait_idle(std::max(limit, std::chrono::nanoseconds(0)))) {
    return deadline_exceeded("storage backend 'file': operations are still in flight");
  }
  finish();
  return Status::ok();
}

void FileStore::finish() {
  std::unique_ptr<FileLock> lock;
  {
    LockGuard guard(mutex_);
    lock = std::move(lock_);
  }
  if (!lock) return;  // done already
  seal_active();
  std::vector<FilePtr> closed;
  LockGuard guard(mutex_);
  for (const SegmentId id : segments_.ids()) closed.push_back(std::move(segments_.find(id)->file));
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
      if (identity == 0) continue;
      for (std::size_t i = 0; i < request.keys.size(); ++i) out.present[i] = index_.contains(identity, request.keys[i]);
    }
  }
  ExistsOperation op(std::move(request), std::move(done), std::move(ticket).value());
  op.result = std::move(result);
  return Status::ok();
}

Status FileStore::submit_read(ReadRequest request, ReadDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  Result<OperationGate::Ticket> ticket = gate_.enter();
  if (!ticket.is_ok()) return ticket.status();
  auto op = std::make_shared<ReadOperation>(std::move(request), std::move(done), std::move(ticket).value());
  preset_cancelled(*op);
  const auto next = std::make_shared<std::atomic<std::size_t>>(0);
  const std::size_t tasks = std::clamp<std::size_t>(op->request.items.size(), 1, options_.read_tasks);
  for (std::size_t i = 0; i < tasks; ++i) {
    const Status posted = executor_.post([this, op, next] { run_reads(*op, *next); });
    if (posted.is_ok()) continue;
    if (i > 0) break;  // the tasks posted so far do all of it
    op->disarm();
    return posted;
  }
  return Status::ok();
}

void FileStore::run_reads(ReadOperation& op, std::atomic<std::size_t>& next) {
  const std::size_t count = op.request.items.size();
  for (std::size_t i = next.fetch_add(1, kRelaxed); i < count; i = next.fetch_add(1, kRelaxed)) {
    op.result.items[i] = read_item(*op.request.scope, op.request.items[i]);
  }
}

Status FileStore::read_item(const StoreScope& scope, const ReadItem& item) {
  counters_.reads.fetch_add(1, kRelaxed);
  const PageIdentity identity = identity_of(scope, item.pool);
  const std::size_t wanted = larder::payload_bytes(item.payload);
  PageLocation location;
  FilePtr file;
  {
    LockGuard guard(mutex_);
    const bool found = index_.find(index_.find_identity(identity), item.key, location);
    if (!found || location.payload_bytes != wanted) {
      counters_.read_misses.fetch_add(1, kRelaxed);
      return not_found("page is not in the file store");
    }
    segments_.touch(location.segment);
    if (const SegmentTable::Segment* segment = segments_.find(location.segment)) file = segment->file;
  }
  if (!file) {
    Result<FilePtr> opened = open_for_read(location.segment);
    if (!opened.is_ok()) {
      const bool is_gone = opened.status().code() == StatusCode::kNotFound;  // evicted meanwhile, or deleted by hand
      if (is_gone) drop_page(identity, item.key, location.generation);
      (is_gone ? counters_.read_misses : counters_.read_errors).fetch_add(1, kRelaxed);
      return opened.status();
    }
    file = std::move(opened).value();
  }
  const ExpectedPage expected{item.pool, item.key, identity.namespace_digest, identity.layout_fingerprint, wanted};
  Status status = read_page(*file, expected, location, item.payload);
  if (status.is_ok()) {
    counters_.read_hits.fetch_add(1, kRelaxed);
  } else if (status.code() == StatusCode::kCorrupt) {
    counters_.corrupt.fetch_add(1, kRelaxed);
    drop_page(identity, item.key, location.generation);
  } else {
    counters_.read_errors.fetch_add(1, kRelaxed);
  }
  return status;
}

Result<FilePtr> FileStore::open_for_read(SegmentId segment) {
  Result<std::unique_ptr<File>> opened = files_.open(join_path(options_.directory, segment_name(segment)), {});
  if (!opened.is_ok()) return opened.status();
  FilePtr file = std::move(opened).value();
  std::vector<FilePtr> closed;  // closes behind the lock
  LockGuard guard(mutex_);
  segments_.keep_open(segment, file, closed);
  return file;
}

Status FileStore::read_page(File& file, const ExpectedPage& expected, const PageLocation& location,
                            std::span<const Segment> payload) {
  EnvelopeBytes envelope;
  std::vector<std::span<std::byte>> buffers;
  buffers.reserve(payload.size() + 1);
  buffers.emplace_back(envelope);
  for (const Segment& piece : payload) {
    if (piece.size != 0) buffers.emplace_back(piece.data, piece.size);
  }
  LARDER_RETURN_IF_ERROR(read_buffers(file, buffers, location.offset));
  return verify_page(expected, envelope, payload);
}

void FileStore::drop_page(const PageIdentity& identity, const PageKey& key, std::uint64_t generation) {
  LockGuard guard(mutex_);
  (void)index_.erase(index_.find_identity(identity), key, generation);
}

Status FileStore::submit_write(WriteRequest request, WriteDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  Result<OperationGate::Ticket> ticket = gate_.enter();
  if (!ticket.is_ok()) return ticket.status();
  auto op = std::make_shared<WriteOperation>(std::move(request), std::move(done), std::move(ticket).value());
  preset_cancelled(*op);
  const Status posted = executor_.post([this, op] {
    Job job{op, {}, nullptr};
    for (const PageGroup& group : op->request.groups) {
      std::vector<Checksum128>& checksums = job.checksums.emplace_back();
      for (const WriteItem& item : group.items) checksums.push_back(payload_checksum(item.payload));
    }
    enqueue(std::move(job));
  });
  if (!posted.is_ok()) op->disarm();
  return posted;
}

Status FileStore::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  if (!done) return invalid_argument("storage request without a callback");
  Result<OperationGate::Ticket> ticket = gate_.enter();
  if (!ticket.is_ok()) return ticket.status();
  auto op = std::make_shared<ClearOperation>(std::move(scope), std::move(done), std::move(ticket).value());
  preset_cancelled(*op);
  const Status posted = executor_.post([this, op] { enqueue({nullptr, {}, op}); });
  if (!posted.is_ok()) op->disarm();
  return posted;
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
  out.corrupt = value(counters_.corrupt);
  out.evicted = value(counters_.evicted);
  out.torn_tails = value(counters_.torn_tails);
  LockGuard guard(mutex_);
  out.pages = index_.size();
  out.bytes = index_.payload_bytes();
  out.physical_bytes = segments_.total_bytes();
  return out;
}

}  // namespace larder::file_store
