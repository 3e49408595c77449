// SPDX-License-Identifier: Apache-2.0
// The file store's reads: pages of one request that lie next to each other are fetched together, straight into the
// caller's memory where that is aligned, and verified when they are there.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

// More items than this are looked up and submitted by a task, not by the caller.
constexpr std::size_t kInlineItems = 4;
constexpr std::uint64_t kRunBytes = 1 << 20;

std::uint64_t round_down(std::uint64_t n) { return n / kBlockBytes * kBlockBytes; }
std::uint64_t round_up(std::uint64_t n) { return align_up(n, kBlockBytes); }

// Fills [at, end) of the pieces' bytes.
void copy_into(std::span<const Segment> payload, std::uint64_t at, std::span<const std::byte> from) {
  for (const Segment& piece : payload) {
    if (from.empty()) return;
    if (at >= piece.size) {
      at -= piece.size;
      continue;
    }
    const std::size_t size = std::min<std::size_t>(piece.size - at, from.size());
    std::memcpy(piece.data + at, from.data(), size);
    from = from.subspan(size);
    at = 0;
  }
}

}  // namespace

// One operation of the io queue. Direct pages have their own buffers in `io`; the others lie in `bounce`.
struct FileStore::ReadRun {
  struct Item {
    std::size_t index = 0;  // in the request
    PageLocation location;
    std::uint64_t copy_from = 0;  // in `bounce`
    std::uint64_t copy_at = 0;    // of the payload: [copy_at, payload_bytes) comes from the bounce buffer
  };
  std::shared_ptr<ReadOperation> op;
  FilePtr file;
  unsigned volume = 0;
  std::vector<Item> items;
  std::uint64_t begin = 0, end = 0;  // of the file, payload bytes
  bool is_bounced = false;           // all of it
  AlignedBuffer bounce;
};

Status FileStore::submit_read(ReadRequest request, ReadDone done) {
  const auto begun = begin_operation<ReadOperation>(gate_, std::move(request), std::move(done));
  if (!begun.is_ok()) return begun.status();
  const std::shared_ptr<ReadOperation>& op = *begun;
  if (op->request.terms.caller_waits) {
    start_read(op);
    return Status::ok();
  }
  if (op->request.items.size() <= kInlineItems) {
    std::vector<PlannedRead> plan = plan_reads(*op);
    const bool all_open = std::all_of(plan.begin(), plan.end(), [](const PlannedRead& p) { return p.file != nullptr; });
    if (all_open) {
      submit_plan(op, std::move(plan));
      return Status::ok();
    }
  }
  return post_operation(executor_, op, [this](const std::shared_ptr<ReadOperation>& of) { start_read(of); });
}

void FileStore::start_read(const std::shared_ptr<ReadOperation>& op) {
  std::vector<PlannedRead> plan = plan_reads(*op);
  for (PlannedRead& read : plan) {
    if (read.file) continue;
    Result<FilePtr> opened = open_segment(read.location.segment);
    if (opened.is_ok()) {
      for (PlannedRead& other : plan) {
        if (other.location.segment == read.location.segment) other.file = *opened;
      }
    } else {
      op->result.items[read.item] = opened.status();
    }
  }
  std::erase_if(plan, [this](const PlannedRead& read) {
    if (!read.file) counters_.read_errors.fetch_add(1, kRelaxed);
    return read.file == nullptr;
  });
  submit_plan(op, std::move(plan));
}

// The pages that are here; the others get their status.
std::vector<FileStore::PlannedRead> FileStore::plan_reads(ReadOperation& op) {
  std::vector<PlannedRead> plan;
  plan.reserve(op.request.items.size());
  LockGuard guard(mutex_);
  for (std::size_t i = 0; i < op.request.items.size(); ++i) {
    const ReadItem& item = op.request.items[i];
    const IdentityId identity = index_.find_identity(identity_of(*op.request.scope, item.pool));
    PageLocation location;
    const auto segment = index_.find(identity, item.key, location) ? segments_.find(location.segment) : segments_.end();
    if (segment == segments_.end() || location.payload_bytes != larder::payload_bytes(item.payload)) {
      op.result.items[i] = not_found("page is not in the file store");
      continue;
    }
    index_.touch(identity, item.key);
    segment->second.last_use = ++uses_;
    plan.push_back({i, location, segment->second.volume, segment->second.file});
  }
  return plan;
}

void FileStore::submit_plan(const std::shared_ptr<ReadOperation>& op, std::vector<PlannedRead> plan) {
  const std::size_t count = op->request.items.size();
  counters_.reads.fetch_add(count, kRelaxed);
  for (const Status& status : op->result.items) {
    if (status.code() == StatusCode::kNotFound) counters_.read_misses.fetch_add(1, kRelaxed);
  }
  std::sort(plan.begin(), plan.end(), [](const PlannedRead& a, const PlannedRead& b) {
    return std::pair(a.location.segment, a.location.offset) < std::pair(b.location.segment, b.location.offset);
  });
  std::vector<std::shared_ptr<ReadRun>> runs;
  for (const PlannedRead& read : plan) add_to_runs(op, read, runs);
  submit_runs(std::move(runs));
}

// Appends the page to the last run if it follows it in the file, else makes a new run.
void FileStore::add_to_runs(const std::shared_ptr<ReadOperation>& op, const PlannedRead& read,
                            std::vector<std::shared_ptr<ReadRun>>& runs) {
  const std::span<const Segment> payload = op->request.items[read.item].payload;
  const std::uint64_t begin = read.location.offset, size = read.location.payload_bytes;
  if (size == 0) {  // a mark: its being listed is all there is
    op->result.items[read.item] = Status::ok();
    counters_.read_hits.fetch_add(1, kRelaxed);
    return;
  }
  const bool is_direct = volumes_[read.volume].is_direct;
  const bool bounces = is_direct && (begin % kBlockBytes != 0 || !is_block_aligned(payload));
  ReadRun* last = runs.empty() ? nullptr : runs.back().get();
  const bool follows = last && last->file == read.file && last->is_bounced == bounces &&
                       begin + size - last->begin <= kRunBytes && begin >= last->end &&
                       (bounces ? begin - last->end < kBlockBytes : begin == last->end && !needs_tail(*last));
  if (!follows) {
    runs.push_back(std::make_shared<ReadRun>());
    last = runs.back().get();
    last->op = op;
    last->file = read.file;
    last->volume = read.volume;
    last->begin = begin;
    last->is_bounced = bounces;
  }
  last->end = begin + size;
  last->items.push_back({read.item, read.location, 0, size});
}

// Direct pages whose last block is not whole: the tail goes through the bounce buffer, and nothing can follow it.
bool FileStore::needs_tail(const ReadRun& run) const {
  return volumes_[run.volume].is_direct && !run.is_bounced && run.end % kBlockBytes != 0;
}

// The operation of a run: where its bytes go.
IoOperation FileStore::make_io(ReadRun& run) const {
  IoOperation io;
  io.kind = IoOperation::Kind::kRead;
  io.file = run.file;
  io.offset = run.begin;
  if (run.is_bounced) {
    io.offset = round_down(run.begin);
    run.bounce = AlignedBuffer(round_up(run.end) - io.offset);
    io.buffers.push_back({run.bounce.data(), run.bounce.size()});
    for (ReadRun::Item& item : run.items) {
      item.copy_from = item.location.offset - io.offset;
      item.copy_at = 0;
    }
    return io;
  }
  const std::uint64_t tail = needs_tail(run) ? run.end % kBlockBytes : 0;
  for (ReadRun::Item& item : run.items) {
    std::uint64_t left = item.location.payload_bytes - (&item == &run.items.back() ? tail : 0);
    for (const Segment& piece : run.op->request.items[item.index].payload) {
      const std::uint64_t size = std::min<std::uint64_t>(left, piece.size);
      if (size > 0) io.buffers.push_back({piece.data, size});
      left -= size;
    }
  }
  if (tail > 0) {
    run.bounce = AlignedBuffer(kBlockBytes);
    io.buffers.push_back({run.bounce.data(), kBlockBytes});
    run.items.back().copy_from = 0;
    run.items.back().copy_at = run.items.back().location.payload_bytes - tail;
  }
  return io;
}

void FileStore::submit_runs(std::vector<std::shared_ptr<ReadRun>> runs) {
  if (runs.size() == 1 && runs[0]->op->request.terms.caller_waits) {  // more than one: they had better go together
    IoOperation io = make_io(*runs[0]);
    return finish_run(*runs[0], run_operation(io));
  }
  std::map<unsigned, std::vector<IoOperation>> by_volume;
  std::map<unsigned, std::vector<std::shared_ptr<ReadRun>>> of_volume;
  for (std::shared_ptr<ReadRun>& run : runs) {
    IoOperation io = make_io(*run);
    io.done = [this, run](const Status& status) { finish_run(*run, status); };
    by_volume[run->volume].push_back(std::move(io));
    of_volume[run->volume].push_back(std::move(run));
  }
  for (auto& [volume, operations] : by_volume) {
    const Status submitted = volumes_[volume].io->submit(std::move(operations));
    if (submitted.is_ok()) continue;
    for (const std::shared_ptr<ReadRun>& run : of_volume[volume]) finish_run(*run, submitted);
  }
}

void FileStore::finish_run(ReadRun& run, const Status& status) {
  if (!status.is_ok() && run.items.size() > 1) {  // a bad sector must not cost its neighbours
    std::vector<std::shared_ptr<ReadRun>> alone;
    for (const ReadRun::Item& item : run.items) {
      auto one = std::make_shared<ReadRun>();
      one->op = run.op;
      one->file = run.file;
      one->volume = run.volume;
      one->begin = item.location.offset;
      one->end = item.location.offset + item.location.payload_bytes;
      one->is_bounced = run.is_bounced;
      one->items.push_back({item.index, item.location, 0, item.location.payload_bytes});
      alone.push_back(std::move(one));
    }
    probe(Probe::kFileSplitRead);
    return submit_runs(std::move(alone));
  }
  for (const ReadRun::Item& item : run.items) {
    const ReadItem& wanted = run.op->request.items[item.index];
    Status result = status;
    if (status.is_ok()) {
      copy_into(wanted.payload, item.copy_at,
                {run.bounce.data() + item.copy_from, item.location.payload_bytes - item.copy_at});
      const bool is_right =
          defect(Defect::kChecksumSkipped) || payload_checksum(wanted.payload) == item.location.checksum;
      if (!is_right) probe(Probe::kFileChecksum);
      if (!is_right) result = corrupt("file store: the payload's checksum differs from the record's");
    }
    if (result.is_ok()) {
      counters_.read_hits.fetch_add(1, kRelaxed);
    } else if (result.code() == StatusCode::kCorrupt) {
      counters_.corrupt.fetch_add(1, kRelaxed);
      drop_page(identity_of(*run.op->request.scope, wanted.pool), wanted.key, item.location);
    } else {
      counters_.read_errors.fetch_add(1, kRelaxed);
      close_segment(run.file, item.location.segment);
    }
    run.op->result.items[item.index] = std::move(result);
  }
  run.op.reset();
}

// A read of it failed. A file that was open when its disk went away never works again; one that is opened anew may.
void FileStore::close_segment(const FilePtr& file, SegmentId id) {
  FilePtr closed;  // closes behind the lock
  LockGuard guard(mutex_);
  const auto segment = segments_.find(id);
  if (segment == segments_.end() || segment->second.active || segment->second.file != file) return;
  closed = std::move(segment->second.file);
  --open_files_;
}

// Not ok: the volume is not where it should be, and what is not found there says nothing.
Status FileStore::check_here(unsigned volume) {
  const Volume& v = volumes_[volume];
  std::uint64_t device_id = 0;
  {
    LockGuard guard(mutex_);
    device_id = v.device_id;
  }
  const Whereabouts found = find_volume(files_, v.directory, v.format, device_id);
  return found.state == Whereabouts::State::kAway ? found.why : Status::ok();
}

Result<FilePtr> FileStore::open_segment(SegmentId id) {
  std::string path;
  OpenOptions options;
  unsigned number = 0;
  {
    LockGuard guard(mutex_);
    const auto segment = segments_.find(id);
    if (segment == segments_.end()) return not_found("page is not in the file store");  // evicted meanwhile
    if (segment->second.file) return segment->second.file;
    number = segment->second.volume;
    const Volume& volume = volumes_[number];
    path = join_path(volume.directory, segment_name(id));
    options.direct = volume.is_direct;
  }
  Result<std::unique_ptr<File>> opened = files_.open(path, options);
  if (opened.status().code() == StatusCode::kNotFound) LARDER_RETURN_IF_ERROR(check_here(number));
  std::vector<FilePtr> closed;  // closes behind the lock
  LockGuard guard(mutex_);
  const auto segment = segments_.find(id);
  if (!opened.is_ok()) {
    // Deleted behind our back: its pages are gone, and their room with them.
    if (opened.status().code() == StatusCode::kNotFound && segment != segments_.end()) forget_segment(id, closed);
    return opened.status();
  }
  FilePtr file = std::move(opened).value();
  if (segment != segments_.end() && !segment->second.file) {
    segment->second.file = file;
    ++open_files_;
    trim_open_files(closed);
  }
  return file;
}

// Closes the files used longest ago until the bound is kept.
void FileStore::trim_open_files(std::vector<FilePtr>& closed) {
  while (open_files_ > options_.open_files) {
    SegmentInfo* oldest = nullptr;
    for (auto& [id, segment] : segments_) {
      if (!segment.file || segment.active) continue;
      if (!oldest || segment.last_use < oldest->last_use) oldest = &segment;
    }
    if (!oldest) return;
    closed.push_back(std::move(oldest->file));
    oldest->file = nullptr;
    --open_files_;
  }
}

}  // namespace larder::file_store
