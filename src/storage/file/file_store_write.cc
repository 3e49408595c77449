// SPDX-License-Identifier: Apache-2.0
// The file store's writes: plan (what is new), place (where), write, publish.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "storage/file/file_store.h"

namespace larder::file_store {
namespace {

// Groups of one operation share a record up to this size: few heads, but many records in flight.
constexpr std::uint64_t kRecordTarget = std::uint64_t{4} << 20;

// Lays a record's bytes out as pieces of memory, in file order: large payloads as they are, the rest copied into one
// staging buffer whose pieces start and end at blocks.
class PieceBuilder {
 public:
  PieceBuilder(std::uint64_t staged_bytes, std::uint64_t start) : staging_(staged_bytes), at_(start) {}

  // The next staged byte belongs at `offset` of the file; what lies between is zero.
  void seek(std::uint64_t offset) {
    if (offset > at_) std::memset(staging_.data() + used_, 0, offset - at_);
    used_ += offset - at_;
    at_ = offset;
  }
  void stage(const void* bytes, std::size_t size) {
    if (size > 0) std::memcpy(staging_.data() + used_, bytes, size);
    used_ += size;
    at_ += size;
  }
  void flush() {
    if (used_ > flushed_) pieces_.push_back({staging_.data() + flushed_, used_ - flushed_});
    flushed_ = used_;
  }
  void direct(const Segment& piece) {
    if (piece.size > 0) pieces_.push_back(piece);
    at_ += piece.size;
  }
  [[nodiscard]] std::vector<Segment> take_pieces() { return std::move(pieces_); }
  [[nodiscard]] AlignedBuffer take_staging() { return std::move(staging_); }

 private:
  AlignedBuffer staging_;
  std::uint64_t used_ = 0, flushed_ = 0;
  std::uint64_t at_;  // of the file
  std::vector<Segment> pieces_;
};

// Bytes of a payload that are written from where they are.
std::uint64_t direct_bytes(const ListedPage& page, std::span<const Segment> payload) {
  const std::uint64_t size = page.location.payload_bytes;
  return size >= kBlockPayload && is_block_aligned(payload) ? size / kBlockBytes * kBlockBytes : 0;
}

void add_payload(PieceBuilder& out, std::span<const Segment> payload, std::uint64_t direct) {
  if (direct > 0) out.flush();
  for (const Segment& piece : payload) {
    const std::size_t size = std::min<std::uint64_t>(direct, piece.size);
    out.direct({piece.data, size});
    out.stage(piece.data + size, piece.size - size);
    direct -= size;
  }
}

}  // namespace

Status FileStore::submit_write(WriteRequest request, WriteDone done) {
  const auto begun = begin_operation<WriteOperation>(gate_, std::move(request), std::move(done));
  if (!begun.is_ok()) return begun.status();
  const std::shared_ptr<WriteOperation>& op = *begun;
  if (op->request.terms.caller_waits) {
    prepare_write(op, true);
    return Status::ok();
  }
  const bool is_small = is_quick(op->request);
  if (!is_small || claim_idle_disk()) {
    const Status posted = executor_.post([this, op] {
      prepare_write(op, true);
      LockGuard guard(mutex_);
      is_lone_coming_ = false;  // nothing of it was new
    });
    if (posted.is_ok()) return posted;
    if (!is_small) {
      op->disarm();
      return posted;
    }
  }
  prepare_write(op, false);
  return Status::ok();
}

void FileStore::prepare_write(const std::shared_ptr<WriteOperation>& op, bool may_block) {
  RecordPtr record;
  std::uint64_t bytes = 0, most = kRecordTarget;
  bool is_first = true;
  {
    LockGuard guard(mutex_);
    most = std::min(most, largest_record());
  }
  const auto send = [&] {
    is_first = false;
    if (record && !record->groups.empty()) place_or_gather(std::move(record), may_block);
    record.reset();
    bytes = 0;
  };
  for (std::size_t g = 0; g < op->request.groups.size(); ++g) {
    counters_.writes.fetch_add(1, kRelaxed);
    const PageGroup& group = op->request.groups[g];
    std::uint64_t group_bytes = 0;
    for (const WriteItem& item : group.items) group_bytes += larder::payload_bytes(item.payload);
    if (bytes > 0 && bytes + group_bytes > most) send();
    if (record && record->pages.size() + group.items.size() > kMaxRecordPages) send();
    if (!record) {
      record = std::make_shared<Record>();
      record->op = op;
      record->is_durable = op->request.durable || options_.fsync == FsyncMode::kGroup;
    }
    const Status planned = plan_group(op, g, *record);
    if (planned.is_ok()) {
      bytes += group_bytes;
      continue;
    }
    op->result.groups[g] = planned;
    if (planned.code() == StatusCode::kOverloaded) start_maintenance();  // a full disk may have room by now
    auto& counter = planned.code() == StatusCode::kUnsupported ? counters_.declined : counters_.write_errors;
    counter.fetch_add(1, kRelaxed);
  }
  if (record) record->may_wait = may_block && is_first;
  send();
}

// Adds what is new of the group to the record. On error nothing was added.
Status FileStore::plan_group(const std::shared_ptr<WriteOperation>& op, std::size_t group, Record& record) {
  const StoreScope& scope = *op->request.scope;
  const std::vector<WriteItem>& items = op->request.groups[group].items;
  LARDER_RETURN_IF_ERROR(check_group(scope, op->request.groups[group]));
  if (items.size() > kMaxRecordPages) return invalid_argument("file store: a group of more than 65536 pages");
  std::vector<std::size_t> missing;
  std::vector<SegmentId> duplicates_in;
  std::uint64_t new_bytes = 0;
  {
    LockGuard guard(mutex_);
    if (record.groups.empty()) record.returns = returns_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const IdentityId identity = index_.find_identity(identity_of(scope, items[i].pool));
      PageLocation at;
      if (is_here(identity, items[i].key, larder::payload_bytes(items[i].payload), record.is_durable, at)) {
        index_.touch(identity, items[i].key);
        duplicates_in.push_back(at.segment);
      } else {
        missing.push_back(i);
        new_bytes += larder::payload_bytes(items[i].payload);
      }
    }
    if (!missing.empty()) {
      // The room of the record, and of its line in the footer.
      const std::uint64_t most = largest_record();
      const std::uint64_t bytes = new_bytes + missing.size() * 2 * kPageBytes;
      if (bytes > most) {
        const std::string words = "file store: a group of " + std::to_string(new_bytes) + " bytes is larger than " +
                                  std::to_string(most) + ", the most that ";
        if (most_bytes() == options_.max_bytes) return invalid_argument(words + "max_size allows");
        refused_bytes_ = std::max(refused_bytes_, bytes);
        return overloaded(words + "the full disk has room for");
      }
      LARDER_RETURN_IF_ERROR(admission_.admit(items[missing.back()].key, new_bytes, clock_.now()));
    }
  }
  const std::uint32_t number = record.pages.empty() ? 0 : record.pages.back().group + 1;
  GroupRef ref{op, group, record.pages.size(), record.pages.size(), missing.empty()};
  for (const std::size_t i : missing) {
    if (!record.seen[items[i].pool].insert(items[i].key).second) continue;
    ListedPage page;
    page.identity = identity_of(scope, items[i].pool);
    page.key = items[i].key;
    page.parent = items[i].parent;
    page.group = number;
    page.location.payload_bytes = static_cast<std::uint32_t>(larder::payload_bytes(items[i].payload));
    page.location.checksum = payload_checksum(items[i].payload);
    record.pages.push_back(page);
    record.payloads.push_back(items[i].payload);
  }
  ref.end = record.pages.size();
  record.groups.push_back(ref);
  std::sort(duplicates_in.begin(), duplicates_in.end());
  duplicates_in.erase(std::unique(duplicates_in.begin(), duplicates_in.end()), duplicates_in.end());
  record.duplicates_in.insert(record.duplicates_in.end(), duplicates_in.begin(), duplicates_in.end());
  counters_.duplicate_writes.fetch_add(items.size() - (ref.end - ref.begin), kRelaxed);
  return Status::ok();
}

bool FileStore::is_here(IdentityId identity, const PageKey& key, std::uint64_t bytes, bool is_durable,
                        PageLocation& at) {
  if (!index_.find(identity, key, at) || at.payload_bytes != bytes) return false;
  if (!is_durable) return true;
  SegmentInfo& segment = segments_.at(at.segment);
  if (segment.is_doubtful) return false;
  if (segment.is_synced) return true;
  // With fsync = off, a segment is sealed unsynced if no durable write counts on it; then it is too late for one. Up to
  // then it never is: an earlier durable write may count on this copy, and the footer would not list it any more if
  // the index had another one, which is not synced yet.
  if (!segment.is_listed) segment.has_durable = true;
  return segment.has_durable || options_.fsync != FsyncMode::kOff;
}

// Gives the record its place and writes it, or keeps it until there is room. A thread that must not block leaves the
// making of a segment to the executor.
void FileStore::place(RecordPtr record, bool may_block) {
  if (record->pages.empty()) return record_published(record);
  if (record->layout.record_bytes == 0) record->layout = lay_out_record(record->pages, 0);
  for (bool has_rolled = false;; has_rolled = true) {
    unsigned volume = 0;
    Status why;
    Placed placed;
    bool is_ahead = false, may_grow = false;
    {
      LockGuard guard(mutex_);
      placed = try_place(*record, volume, why);
      is_ahead = placed == Placed::kPlaced && record->op && !record->segment->has_asked && may_roll_ahead(volume);
      if (is_ahead) record->segment->has_asked = true;
      may_grow = placed == Placed::kRefused && record->op && may_limits_grow();
      if (placed == Placed::kWaits || placed == Placed::kWaitsForRoll) waiting_.push_back(record);
    }
    switch (placed) {
      case Placed::kPlaced:
        write_record(record);
        if (is_ahead) roll_ahead(volume);
        // Not before: cleaning would take the room that was made for the record.
        if (has_rolled) start_maintenance_if_high();
        return;
      case Placed::kWaits: probe(Probe::kFileWaitedForRoom); return start_maintenance();
      case Placed::kWaitsForRoll: return;
      case Placed::kRefused:
        if (may_grow) start_maintenance();
        return fail_record(*record, why);
      case Placed::kRoll:
        if (!may_block) return place_later(std::move(record));
        break;
    }
    roll(volume, record->log(), record->layout.record_bytes, record->pages.size());
  }
}

// The operation keeps the store open until all of this is over, also when its write ends before place() does: unlike
// post(), this takes no place of the queue. (Only operations come here: cleaning may block where it is.)
void FileStore::place_later(RecordPtr record) {
  std::shared_ptr<WriteOperation> op = record->op;
  const auto run = [this, op = std::move(op), record = std::move(record)] { place(record, true); };
  if (!executor_.post(run).is_ok()) run();  // a full executor: better late than never
}

// Volumes take turns, so that a long prefix is read from all of them at once.
FileStore::Placed FileStore::try_place(Record& record, unsigned& volume, Status& why) {
  const std::uint64_t bytes = record.layout.record_bytes;
  const TimePoint now = clock_.now();
  bool is_rolling = false, lacks_room = false, is_suspended = false;
  std::optional<unsigned> at_its_limit;
  const std::uint64_t own = segment_bytes_for(bytes, record.pages.size());
  why = Status::ok();
  if (full_volume_ && record.op) return Placed::kWaits;  // a segment is about to go
  // What a clear has removed is not written again: a segment that is made after it holds nothing of it.
  for (const ListedPage& page : record.pages) {
    if (record.op || !is_cleared(page)) continue;
    record.is_cleared = true;
    why = cancelled("file store: its namespace was cleared meanwhile");
    return Placed::kRefused;
  }
  for (std::size_t i = 0; i < volumes_.size(); ++i) {
    volume = static_cast<unsigned>((next_volume_ + i) % volumes_.size());
    Volume& v = volumes_[volume];
    if (v.suspended_until > now) {
      is_suspended = true;
      why = v.last_error;
      continue;
    }
    const Volume::Log& log = v.log(record.log());
    const ActiveSegment* active = log.active.get();
    if (!active || !active->fits(bytes, record.pages.size())) {
      if (log.is_rolling) {
        is_rolling = true;
        continue;
      }
      const std::uint64_t needed = std::max(segment_bytes(volume), own);
      if (is_too_large(volume, own)) {
        why = overloaded("file store: the write is larger than half of what the full disk has room for");
      } else if (!has_room(needed, !record.op)) {
        lacks_room = true;
      } else if (!has_disk_room(volume, needed)) {
        at_its_limit = volume;
      } else if (v.is_rolling()) {
        is_rolling = true;  // that of the other log
      } else {
        return Placed::kRoll;
      }
      continue;
    }
    next_volume_ = volume + 1;
    take_place(record, volume);
    return Placed::kPlaced;
  }
  if (is_rolling) return Placed::kWaitsForRoll;
  const bool others_take_nothing = is_suspended || !are_disks_limited();
  std::uint64_t live = 0;
  if (!lacks_room && at_its_limit && others_take_nothing && record.op && emptiest_segment(*at_its_limit, live) != 0) {
    full_volume_ = at_its_limit;  // so it makes room by itself
    return Placed::kWaits;
  }
  lacks_room = lacks_room || (at_its_limit && are_disks_limited());
  if (lacks_room && record.op) return Placed::kWaits;
  if (lacks_room || at_its_limit) {
    record.lacks_room = true;
    why = overloaded(record.op ? "file store: the disk has no room" : "file store: no room to move pages to");
  } else if (is_suspended) {
    why = Status(why.code(), "file store: writing is suspended after an error, and tried again soon: " + why.message());
  }
  return Placed::kRefused;
}

void FileStore::take_place(Record& record, unsigned volume) {
  const std::shared_ptr<ActiveSegment>& active = volumes_[volume].log(record.log()).active;
  ActiveSegment& segment = *active;
  record.volume = volume;
  record.segment = active;
  record.start = segment.end_bytes;
  record.synced_bytes = segment.synced_bytes;
  segment.end_bytes += record.layout.record_bytes;
  segment.pages += record.pages.size();
  segment.writing.push_back(record.start);
  ++segment.records;
  if (record.op) ++writes_in_flight_;
  is_lone_coming_ = false;
  record.is_alone = record.may_wait && writes_in_flight_ == 1;
  SegmentInfo& info = segments_.at(segment.id);
  info.has_durable = info.has_durable || record.is_durable;
  for (ListedPage& page : record.pages) {
    page.location.segment = segment.id;
    page.location.offset += record.start;
    if (record.op) page.location.generation = next_generation_++;
    segment.max_generation = std::max(segment.max_generation, page.location.generation);
  }
  if (!record.op) admission_.spend(record.layout.record_bytes, clock_.now());
}

void FileStore::write_record(const RecordPtr& record) {
  RecordHead head;
  head.store = store_;
  head.segment = record->segment->id;
  head.start = record->start;
  head.record_bytes = record->layout.record_bytes;
  head.synced_bytes = record->synced_bytes;
  head.pages = std::move(record->pages);
  const std::vector<std::byte> bytes = encode_record_head(head);
  record->pages = std::move(head.pages);
  std::uint64_t staged = record->layout.record_bytes;
  for (std::size_t i = 0; i < record->pages.size(); ++i) staged -= direct_bytes(record->pages[i], record->payloads[i]);
  PieceBuilder pieces(staged, record->start);
  pieces.stage(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < record->pages.size(); ++i) {
    const ListedPage& page = record->pages[i];
    if (page.location.payload_bytes == 0) continue;
    pieces.seek(page.location.offset);
    add_payload(pieces, record->payloads[i], direct_bytes(page, record->payloads[i]));
  }
  pieces.seek(record->start + record->layout.record_bytes);
  pieces.flush();
  IoOperation io;
  io.kind = IoOperation::Kind::kWrite;
  io.file = record->segment->file;
  io.offset = record->start;
  io.buffers = pieces.take_pieces();
  record->staging = pieces.take_staging();
  io.done = [this, record](const Status& status) { record_written(record, status); };
  counters_.written_bytes.fetch_add(record->layout.record_bytes, kRelaxed);
  // Nothing else is under way, and this thread may wait: two changes of threads less than through the queue.
  if (record->is_alone) return record_written(record, run_operation(io));
  std::vector<IoOperation> batch;
  batch.push_back(std::move(io));
  const Status submitted = volumes_[record->volume].io->submit(std::move(batch));
  if (submitted.is_ok()) return;
  const bool is_full = submitted.code() == StatusCode::kOverloaded;  // the queue; the disk would be meant below
  record_written(record, is_full ? unavailable("file store: " + submitted.message()) : submitted);
}

void FileStore::record_written(const RecordPtr& record, const Status& status) {
  record->staging = AlignedBuffer();
  const std::uint64_t free = status.code() == StatusCode::kOverloaded ? free_bytes(record->volume) : 0;
  {
    LockGuard guard(mutex_);
    ActiveSegment& segment = *record->segment;
    std::erase(segment.writing, record->start);
    if (record->op) --writes_in_flight_;
    if (status.is_ok() || defect(Defect::kFailedWriteVisible)) {
      volumes_[record->volume].write_failures = volumes_[record->volume].unexplained_full = 0;
      volumes_[record->volume].back_off = Nanos(0);
      publish(*record);
      if (!record->moved_from.empty()) moving_ = record;
    } else {
      note_failure(record->volume, status, record->segment, free);
    }
  }
  settle(record->segment, record->volume);
  place_gathered();  // first: the disk is faster than the callbacks
  if (!status.is_ok() && !defect(Defect::kFailedWriteVisible)) return fail_record(*record, status);
  record_published(record);
}

// All groups of the record become visible at once. A group may count on a page of one before it.
// Two writes of a page may have been under way at once. The copy that came first stays, and a durable write waits for
// its segment, too: a footer lists the copy that the index has, and no other.
void FileStore::publish(Record& record) {
  Status full;
  const auto home = segments_.find(record.segment->id);
  const bool is_lost = home == segments_.end();  // its directory was deleted
  const bool is_doubtful = !is_lost && home->second.is_doubtful;
  if (is_lost) full = unavailable("file store: its segment was deleted meanwhile");
  if (is_doubtful && record.is_durable) full = earlier_sync_failed();  // and replaces nothing
  for (const GroupRef& group : record.groups) {
    Status& status = group.op->result.groups[group.group];
    const std::span<const ListedPage> pages =
        std::span<const ListedPage>(record.pages).subspan(group.begin, group.end - group.begin);
    status = full;
    bool any_cleared = false;
    for (const ListedPage& page : pages) any_cleared = any_cleared || is_cleared(page);
    if (any_cleared) {
      probe(Probe::kFileCleared);
      status = cancelled("file store: its namespace was cleared meanwhile");
      continue;
    }
    for (const ListedPage& page : pages) {
      PageLocation at;
      const IdentityId identity = index_.find_identity(page.identity);
      if (is_here(identity, page.key, page.location.payload_bytes, record.is_durable, at)) {
        record.duplicates_in.push_back(at.segment);
      } else if (status.is_ok()) {
        const bool replaces = record.is_durable && at.segment != 0;
        if (replaces && at.generation > page.location.generation) {
          (void)index_.erase(identity, page.key, at.generation);
        }
        status = index_.insert(page.identity, page.key, page.parent, page.location);
        if (replaces && status.is_ok()) hold(page, at);
      }
    }
    full = status;
  }
  for (std::size_t i = 0; i < record.moved_from.size() && !is_lost && !is_doubtful; ++i) {
    const ListedPage& page = record.pages[i];
    if (is_cleared(page)) continue;
    if (index_.move(page.identity, page.key, record.moved_from[i], page.location)) {
      counters_.moved.fetch_add(1, kRelaxed);
      probe(Probe::kFileCleaned);
    }
  }
}

// What was moved lies where it was, too, as long as that segment is not removed. A page that went or was written anew
// meanwhile stays as it is.
void FileStore::take_back(const Record& record) {
  for (std::size_t i = 0; i < record.moved_from.size(); ++i) {
    const ListedPage& page = record.pages[i];
    if (!segments_.contains(record.moved_from[i].segment)) continue;  // its directory was deleted
    if (index_.move(page.identity, page.key, page.location, record.moved_from[i])) ++returns_;
  }
}

bool FileStore::is_cleared(const ListedPage& page) const {
  return is_in(cleared_, page.identity.namespace_digest, page.location.generation);
}

// What comes behind the write: the sync of a durable one, then the end of its operation.
void FileStore::record_published(const RecordPtr& record) {
  if (record->is_durable && !defect(Defect::kDurableWithoutSync)) return wait_for_sync(record);
  finish_record(*record, Status::ok());
}

void FileStore::finish_record(Record& record, const Status& synced) {
  if (record.op) {
    for (const GroupRef& group : record.groups) {
      Status& status = group.op->result.groups[group.group];
      if (record.pages.empty()) status = Status::ok();  // all of it was here
      if (status.is_ok()) status = synced;
      if (!status.is_ok()) counters_.write_errors.fetch_add(1, kRelaxed);
    }
  }
  if (record.moved) {
    LockGuard guard(mutex_);
    if (!synced.is_ok()) take_back(record);
    moving_.reset();
  }
  if (record.moved) std::exchange(record.moved, nullptr)(synced);
  record.groups.clear();  // with the operations that have ended
  record.op.reset();
}

void FileStore::fail_record(Record& record, const Status& why) {
  if (record.op) {
    for (const GroupRef& group : record.groups) {
      // A group that needed nothing new does not fail with its neighbours.
      const bool is_here = group.is_here && !record.is_durable;
      group.op->result.groups[group.group] = is_here ? Status::ok() : why;
      if (!is_here) counters_.write_errors.fetch_add(1, kRelaxed);
    }
  }
  if (record.moved) std::exchange(record.moved, nullptr)(why);
  record.groups.clear();  // with the operations that have ended
  record.op.reset();
}

void FileStore::place_waiting() {
  std::deque<RecordPtr> records;
  {
    LockGuard guard(mutex_);
    records.swap(waiting_);
  }
  if (records.empty()) return;
  post([this, records = std::move(records)]() mutable {
    for (RecordPtr& record : records) place(std::move(record), true);
  });
}

}  // namespace larder::file_store
