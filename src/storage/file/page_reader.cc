// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"

namespace larder::file_store {
namespace {

// More items than this are looked up and submitted by a task, not by the caller.
constexpr std::size_t kInlineItems = 4;
constexpr std::uint64_t kRunBytes = 1 << 20;

std::uint64_t round_down(std::uint64_t n) { return n / kBlockBytes * kBlockBytes; }
std::uint64_t round_up(std::uint64_t n) { return align_up(n, kBlockBytes); }

// The others say that the read was not tried.
bool is_of_the_disk(StatusCode code) { return code != StatusCode::kOverloaded && code != StatusCode::kCancelled; }

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
struct PageReader::Run {
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
  bool has_unread = false;           // a read of one of them has failed
  AlignedBuffer bounce;
};

Status PageReader::submit(ReadRequest request, StorageBackend::ReadDone done) {
  LARDER_ASSIGN_OR_RETURN(const std::shared_ptr<ReadOperation> op,
                          begin_operation<ReadOperation>(state_.gate, std::move(request), std::move(done)));
  if (op->request.terms.caller_waits) {
    start(op);
    return Status::ok();
  }
  if (op->request.items.size() <= kInlineItems) {
    std::vector<Planned> plan = look_up(*op);
    const bool all_open = std::all_of(plan.begin(), plan.end(), [](const Planned& p) { return p.file != nullptr; });
    if (all_open) {
      submit_plan(op, std::move(plan));
      return Status::ok();
    }
  }
  return post_operation(state_.executor, op, [this](const std::shared_ptr<ReadOperation>& of) { start(of); });
}

void PageReader::start(const std::shared_ptr<ReadOperation>& op) {
  std::vector<Planned> plan = look_up(*op);
  for (Planned& read : plan) {
    if (read.file) continue;
    Result<FilePtr> opened = files_.open(read.location.segment);
    if (opened.is_ok()) {
      for (Planned& other : plan) {
        if (other.location.segment == read.location.segment) other.file = *opened;
      }
    } else {
      op->result.items[read.item] = opened.status();
      if (opened.status().code() != StatusCode::kNotFound) damage_.note_unread(read.location);
    }
  }
  std::erase_if(plan, [this](const Planned& read) {
    if (!read.file) state_.counters.read_errors.fetch_add(1, kRelaxed);
    return read.file == nullptr;
  });
  submit_plan(op, std::move(plan));
}

// The pages that are here; the others get their status.
std::vector<PageReader::Planned> PageReader::look_up(ReadOperation& op) {
  std::vector<Planned> plan;
  plan.reserve(op.request.items.size());
  CallerGuard guard(state_.mutex, state_.callers);
  for (std::size_t i = 0; i < op.request.items.size(); ++i) {
    const ReadItem& item = op.request.items[i];
    const IdentityId identity = state_.index.find_identity(identity_of(*op.request.scope, item.pool));
    PageLocation location;
    SegmentInfo* const segment =
        state_.index.find(identity, item.key, location) ? state_.segments.find(location.segment) : nullptr;
    if (!segment || location.payload_bytes != larder::payload_bytes(item.payload)) {
      op.result.items[i] = not_found("page is not in the file store");
      continue;
    }
    state_.index.touch(identity, item.key);
    state_.segments.use(*segment);
    plan.push_back({i, location, segment->volume, segment->file, state_.copies.is_unread(location)});
  }
  return plan;
}

void PageReader::submit_plan(const std::shared_ptr<ReadOperation>& op, std::vector<Planned> plan) {
  const std::size_t count = op->request.items.size();
  state_.counters.reads.fetch_add(count, kRelaxed);
  for (const Status& status : op->result.items) {
    if (status.code() == StatusCode::kNotFound) state_.counters.read_misses.fetch_add(1, kRelaxed);
  }
  std::sort(plan.begin(), plan.end(), [](const Planned& a, const Planned& b) {
    return std::pair(a.location.segment, a.location.offset) < std::pair(b.location.segment, b.location.offset);
  });
  std::vector<std::shared_ptr<Run>> runs;
  for (const Planned& read : plan) add_to_runs(op, read, runs);
  submit_runs(std::move(runs));
}

// Appends the page to the last run if it follows it in the file, else makes a new run.
void PageReader::add_to_runs(const std::shared_ptr<ReadOperation>& op, const Planned& read,
                             std::vector<std::shared_ptr<Run>>& runs) {
  const std::span<const Segment> payload = op->request.items[read.item].payload;
  const std::uint64_t begin = read.location.offset, size = read.location.payload_bytes;
  if (size == 0) {  // a mark: its being listed is all there is
    op->result.items[read.item] = Status::ok();
    state_.counters.read_hits.fetch_add(1, kRelaxed);
    return;
  }
  const bool is_direct = state_.volumes[read.volume].is_direct;
  const bool bounces = is_direct && (begin % kBlockBytes != 0 || !is_block_aligned(payload));
  Run* last = runs.empty() ? nullptr : runs.back().get();
  const bool follows = last && last->file == read.file && last->is_bounced == bounces &&
                       begin + size - last->begin <= kRunBytes && begin >= last->end &&
                       (bounces ? begin - last->end < kBlockBytes : begin == last->end && !needs_tail(*last));
  if (!follows) {
    runs.push_back(std::make_shared<Run>());
    last = runs.back().get();
    last->op = op;
    last->file = read.file;
    last->volume = read.volume;
    last->begin = begin;
    last->is_bounced = bounces;
  }
  last->end = begin + size;
  last->has_unread = last->has_unread || read.was_unread;
  last->items.push_back({read.item, read.location, 0, size});
}

// Direct pages whose last block is not whole: the tail goes through the bounce buffer, and nothing can follow it.
bool PageReader::needs_tail(const Run& run) const {
  return state_.volumes[run.volume].is_direct && !run.is_bounced && run.end % kBlockBytes != 0;
}

// The operation of a run: where its bytes go.
IoOperation PageReader::make_io(Run& run) const {
  IoOperation io;
  io.kind = IoOperation::Kind::kRead;
  io.file = run.file;
  io.offset = run.begin;
  if (run.is_bounced) {
    io.offset = round_down(run.begin);
    run.bounce = AlignedBuffer(round_up(run.end) - io.offset);
    io.buffers.push_back({run.bounce.data(), run.bounce.size()});
    for (Run::Item& item : run.items) {
      item.copy_from = item.location.offset - io.offset;
      item.copy_at = 0;
    }
    return io;
  }
  const std::uint64_t tail = needs_tail(run) ? run.end % kBlockBytes : 0;
  for (Run::Item& item : run.items) {
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

void PageReader::submit_runs(std::vector<std::shared_ptr<Run>> runs) {
  if (runs.size() == 1 && runs[0]->op->request.terms.caller_waits) {  // more than one: they had better go together
    IoOperation io = make_io(*runs[0]);
    return finish_run(*runs[0], run_operation(io));
  }
  std::map<unsigned, std::vector<IoOperation>> by_volume;
  std::map<unsigned, std::vector<std::shared_ptr<Run>>> of_volume;
  for (std::shared_ptr<Run>& run : runs) {
    IoOperation io = make_io(*run);
    io.done = [this, run](const Status& status) { finish_run(*run, status); };
    by_volume[run->volume].push_back(std::move(io));
    of_volume[run->volume].push_back(std::move(run));
  }
  for (auto& [volume, operations] : by_volume) {
    const Status submitted = state_.volumes[volume].io->submit(std::move(operations));
    if (submitted.is_ok()) continue;
    for (const std::shared_ptr<Run>& run : of_volume[volume]) finish_run(*run, submitted);
  }
}

void PageReader::finish_run(Run& run, const Status& status) {
  if (!status.is_ok() && run.items.size() > 1) {  // a bad sector must not cost its neighbours
    std::vector<std::shared_ptr<Run>> alone;
    for (const Run::Item& item : run.items) {
      auto one = std::make_shared<Run>();
      one->op = run.op;
      one->file = run.file;
      one->volume = run.volume;
      one->begin = item.location.offset;
      one->end = item.location.offset + item.location.payload_bytes;
      one->is_bounced = run.is_bounced;
      one->has_unread = run.has_unread;
      one->items.push_back({item.index, item.location, 0, item.location.payload_bytes});
      alone.push_back(std::move(one));
    }
    probe(Probe::kFileSplitRead);
    return submit_runs(std::move(alone));
  }
  for (const Run::Item& item : run.items) {
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
      state_.counters.read_hits.fetch_add(1, kRelaxed);
      if (run.has_unread) damage_.note_read(item.location);
    } else if (result.code() == StatusCode::kCorrupt) {
      state_.counters.corrupt.fetch_add(1, kRelaxed);
      damage_.drop(identity_of(*run.op->request.scope, wanted.pool), wanted.key, item.location);
    } else {
      state_.counters.read_errors.fetch_add(1, kRelaxed);
      files_.close_failed(item.location.segment, run.file);
      if (is_of_the_disk(result.code())) damage_.note_unread(item.location);
    }
    run.op->result.items[item.index] = std::move(result);
  }
  run.op.reset();
}

}  // namespace larder::file_store
