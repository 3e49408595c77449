// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_writer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"

namespace larder::file_store {
Status PageWriter::submit(WriteRequest request, StorageBackend::WriteDone done) {
  LARDER_ASSIGN_OR_RETURN(const std::shared_ptr<WriteOperation> op,
                          begin_operation<WriteOperation>(state_.gate, std::move(request), std::move(done)));
  if (op->request.terms.caller_waits) {
    plan(op, true);
    return Status::ok();
  }
  const bool is_small = WriteGather::is_quick(op->request);
  bool goes_alone = false;
  if (is_small) {
    LockGuard guard(state_.mutex);
    goes_alone = gather_.claim_idle_disk();
  }
  if (!is_small || goes_alone) {
    const Status posted = state_.executor.post([this, op, goes_alone] {
      plan(op, true);
      if (!goes_alone) return;
      LockGuard guard(state_.mutex);
      gather_.give_up_claim();  // nothing of it was new
    });
    if (posted.is_ok()) return posted;
    if (!is_small) {
      op->disarm();
      return posted;
    }
    LockGuard guard(state_.mutex);
    gather_.give_up_claim();
  }
  plan(op, false);
  return Status::ok();
}

void PageWriter::plan(const std::shared_ptr<WriteOperation>& op, bool may_block) {
  RecordPtr record;
  std::uint64_t bytes = 0, most = kRecordTarget;
  bool is_first = true;
  {
    CallerGuard guard(state_.mutex, state_.callers);
    most = std::min(most, state_.room.largest_record());
  }
  const auto send = [&] {
    is_first = false;
    if (record && !record->groups.empty()) place_or_gather(std::move(record), may_block);
    record.reset();
    bytes = 0;
  };
  for (std::size_t g = 0; g < op->request.groups.size(); ++g) {
    state_.counters.writes.fetch_add(1, kRelaxed);
    const PageGroup& group = op->request.groups[g];
    std::uint64_t group_bytes = 0;
    for (const WriteItem& item : group.items) group_bytes += larder::payload_bytes(item.payload);
    if (bytes > 0 && bytes + group_bytes > most) send();
    if (record && record->pages.size() + group.items.size() > kMaxRecordPages) send();
    if (!record) {
      record = std::make_shared<WriteRecord>();
      record->op = op;
      record->is_durable = op->request.durable || state_.options.fsync == FsyncMode::kGroup;
    }
    const Status planned = plan_group(op, g, *record);
    if (planned.is_ok()) {
      bytes += group_bytes;
      continue;
    }
    op->result.groups[g] = planned;
    if (planned.code() == StatusCode::kOverloaded) steps_.start_maintenance();  // a full disk may have room by now
    count_refused(planned);
  }
  if (record) record->may_wait = may_block && is_first;
  send();
}

// Adds what is new of the group to the record. On error nothing was added.
Status PageWriter::plan_group(const std::shared_ptr<WriteOperation>& op, std::size_t group, WriteRecord& record) {
  const StoreScope& scope = *op->request.scope;
  const std::vector<WriteItem>& items = op->request.groups[group].items;
  LARDER_RETURN_IF_ERROR(check_group(scope, op->request.groups[group]));
  if (items.size() > kMaxRecordPages) return invalid_argument("file store: a group of more than 65536 pages");
  std::vector<std::size_t> missing;
  std::vector<SegmentId> duplicates_in;
  std::set<PoolName> new_pools;  // their identities have no number yet
  std::uint64_t new_bytes = 0;
  {
    CallerGuard guard(state_.mutex, state_.callers);
    if (record.groups.empty()) record.returns = state_.copies.returns();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const IdentityId identity = state_.index.find_identity(identity_of(scope, items[i].pool));
      PageLocation at;
      if (state_.copies.is_here(identity, items[i].key, larder::payload_bytes(items[i].payload), record.is_durable,
                                at)) {
        state_.index.touch(identity, items[i].key);
        duplicates_in.push_back(at.segment);
      } else {
        if (state_.copies.is_unread(at)) record.avoids = state_.segments.at(at.segment).volume;
        if (identity == 0) new_pools.insert(items[i].pool);
        missing.push_back(i);
        new_bytes += larder::payload_bytes(items[i].payload);
      }
    }
    if (!missing.empty()) {
      LARDER_RETURN_IF_ERROR(state_.room.check_new(new_bytes, missing.size()));
      std::vector<std::uint64_t> names;
      if (admission_.asks_names()) {
        const PageKey& last = items[missing.back()].key;
        for (const std::size_t i : missing) {
          if (items[i].key == last) names.push_back(offer_name(identity_of(scope, items[i].pool), last));
        }
      }
      LARDER_RETURN_IF_ERROR(admission_.admit(names, new_bytes, state_.clock.now()));
      if (!state_.options.evicts && state_.index.identities() + new_pools.size() > state_.options.max_identities) {
        return unsupported("file store: declined: too many namespaces, pools and layouts, and evict is off");
      }
      std::uint64_t evicted = 0;
      const Status has_numbers = state_.index.make_identity_room(new_pools.size(), evicted);
      state_.counters.evicted.fetch_add(evicted, kRelaxed);
      LARDER_RETURN_IF_ERROR(has_numbers);
    }
  }
  const std::uint32_t number = record.pages.empty() ? 0 : record.pages.back().group + 1;
  WriteRecord::GroupRef ref{op, group, record.pages.size(), record.pages.size(), missing.empty()};
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
  state_.counters.duplicate_writes.fetch_add(items.size() - (ref.end - ref.begin), kRelaxed);
  return Status::ok();
}

void PageWriter::place_or_gather(RecordPtr record, bool may_block) {
  if (record->pages.empty()) return published(record);
  record->layout = lay_out_record(record->pages, 0);
  {
    CallerGuard guard(state_.mutex, state_.callers);
    if (gather_.take(record, state_.room.least_segment())) return;
  }
  place(std::move(record), may_block);
}

// A write has ended. Does not block, and does not recurse when writes end inside.
void PageWriter::place_gathered() {
  {
    LockGuard guard(state_.mutex);
    if (!gather_.begin_placing()) return;
  }
  for (;;) {
    std::vector<RecordPtr> parts;
    {
      LockGuard guard(state_.mutex);
      parts = gather_.next(state_.room.least_segment());
    }
    if (parts.empty()) return;
    place(join_records(std::move(parts)), false);
  }
}

void PageWriter::place(RecordPtr record, bool may_block) {
  if (record->pages.empty()) return published(record);
  if (record->layout.record_bytes == 0) record->layout = lay_out_record(record->pages, 0);
  for (bool has_rolled = false;; has_rolled = true) {
    unsigned volume = 0;
    Status why;
    Placed placed;
    bool is_ahead = false, may_grow = false;
    {
      CallerGuard guard(state_.mutex, state_.callers);
      placed = try_place(*record, volume, why);
      is_ahead =
          placed == Placed::kPlaced && record->op && !record->segment->has_asked && state_.room.has_room_ahead(volume);
      if (is_ahead) record->segment->has_asked = true;
      may_grow = placed == Placed::kRefused && record->op && state_.room.may_limits_grow(state_.clock.now());
      if (placed == Placed::kWaits || placed == Placed::kWaitsForRoll) state_.waiting.push_back(record);
    }
    switch (placed) {
      case Placed::kPlaced:
        write(record);
        if (is_ahead) log_.roll_ahead(volume);
        // Not before: cleaning would take the room that was made for the record.
        if (has_rolled) steps_.start_maintenance_if_high();
        return;
      case Placed::kWaits: probe(Probe::kFileWaitedForRoom); return steps_.start_maintenance();
      case Placed::kWaitsForRoll: return;
      case Placed::kRefused:
        if (may_grow) steps_.start_maintenance();
        return fail(*record, why);
      case Placed::kRoll:
        if (!may_block) return place_later(std::move(record));
        break;
    }
    log_.roll(volume, record->log(), record->layout.record_bytes, record->pages.size());
  }
}

// The operation keeps the store open until all of this is over, also when its write ends before place() does: unlike
// post(), this takes no place of the queue. (Only operations come here: cleaning may block where it is.)
void PageWriter::place_later(RecordPtr record) {
  std::shared_ptr<WriteOperation> op = record->op;
  const auto run = [this, op = std::move(op), record = std::move(record)] { place(record, true); };
  if (!state_.executor.post(run).is_ok()) run();  // a full executor: better late than never
}

// Volumes take turns, so that a long prefix is read from all of them at once.
PageWriter::Placed PageWriter::try_place(WriteRecord& record, unsigned& volume, Status& why) {
  const std::uint64_t bytes = record.layout.record_bytes;
  const TimePoint now = state_.clock.now();
  bool is_rolling = false, lacks_room = false, is_suspended = false;
  std::optional<unsigned> at_its_limit;
  const std::uint64_t own = StoreRoom::segment_bytes_for(bytes, record.pages.size());
  why = Status::ok();
  if (state_.room.full_volume && record.op) return Placed::kWaits;  // a segment is about to go
  // What a clear has removed is not written again: a segment that is made after it holds nothing of it.
  for (const ListedPage& page : record.pages) {
    if (record.op || !state_.cleared.covers(page)) continue;
    record.is_cleared = true;
    why = cancelled("file store: its namespace was cleared meanwhile");
    return Placed::kRefused;
  }
  const unsigned first = record.avoids ? *record.avoids + 1 : next_volume_;  // so that the avoided one comes last
  for (std::size_t i = 0; i < state_.volumes.size(); ++i) {
    volume = static_cast<unsigned>((first + i) % state_.volumes.size());
    Volume& v = state_.volumes[volume];
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
      const std::uint64_t needed = std::max(state_.room.segment_bytes(volume), own);
      if (state_.room.is_too_large(volume, own)) {
        why = overloaded("file store: the write is larger than half of what the full disk has room for");
      } else if (!state_.room.has_room(needed, !record.op)) {
        lacks_room = true;
      } else if (!state_.room.has_disk_room(volume, needed)) {
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
  const bool others_take_nothing = is_suspended || !state_.room.are_disks_limited();
  if (!lacks_room && at_its_limit && others_take_nothing && record.op &&
      state_.room.emptiest_segment(at_its_limit, now).id != 0) {
    state_.room.full_volume = at_its_limit;  // so it makes room by itself
    return Placed::kWaits;
  }
  lacks_room = lacks_room || (at_its_limit && state_.room.are_disks_limited());
  if (lacks_room && record.op) return Placed::kWaits;
  if (lacks_room || at_its_limit) {
    record.lacks_room = true;
    why = overloaded(record.op ? "file store: the disk has no room" : "file store: no room to move pages to");
    if (record.op && !state_.options.evicts) why = declined_as_full();
  } else if (is_suspended) {
    why = Status(why.code(), "file store: writing is suspended after an error, and tried again soon: " + why.message());
  }
  return Placed::kRefused;
}

void PageWriter::take_place(WriteRecord& record, unsigned volume) {
  const std::shared_ptr<ActiveSegment>& active = state_.volumes[volume].log(record.log()).active;
  ActiveSegment& segment = *active;
  record.volume = volume;
  record.segment = active;
  record.start = segment.end_bytes;
  record.synced_bytes = segment.synced_bytes;
  segment.end_bytes += record.layout.record_bytes;
  segment.pages += record.pages.size();
  segment.writing.push_back(record.start);
  ++segment.records;
  gather_.write_begun(record.op != nullptr);
  record.is_alone = record.may_wait && gather_.is_one_being_written();
  SegmentInfo& info = state_.segments.at(segment.id);
  info.has_durable = info.has_durable || record.is_durable;
  for (ListedPage& page : record.pages) {
    page.location.segment = segment.id;
    page.location.offset += record.start;
    if (record.op) page.location.generation = state_.next_generation++;
    segment.max_generation = std::max(segment.max_generation, page.location.generation);
  }
  if (!record.op) admission_.spend(record.layout.record_bytes, state_.clock.now());
}

void PageWriter::write(const RecordPtr& record) {
  IoOperation io = write_of(record);
  state_.counters.written_bytes.fetch_add(record->layout.record_bytes, kRelaxed);
  // Nothing else is under way, and this thread may wait: two changes of threads less than through the queue.
  if (record->is_alone) return written(record, run_operation(io));
  std::vector<IoOperation> batch;
  batch.push_back(std::move(io));
  const Status submitted = state_.volumes[record->volume].io->submit(std::move(batch));
  if (submitted.is_ok()) return;
  if (submitted.code() != StatusCode::kOverloaded) return written(record, submitted);
  // The queue is full, and no disk is to blame. ("Overloaded" would be a full disk.)
  const Status refused = unavailable("file store: " + submitted.message());
  if (gives_place_back(*record)) {
    log_.settle(record->segment, record->volume);
    place_gathered();
    return fail(*record, refused);
  }
  if (!record->op) return written(record, refused);  // cleaning gives up for now: its steps fill the queue, too
  // It has others behind it, and a hole would look like damage after a crash.
  IoOperation again = write_of(record);
  written(record, run_operation(again));
}

IoOperation PageWriter::write_of(const RecordPtr& record) {
  IoOperation io;
  io.kind = IoOperation::Kind::kWrite;
  io.file = record->segment->file;
  io.offset = record->start;
  io.buffers = encode_record(*record, state_.store);
  io.done = [this, record](const Status& status) { written(record, status); };
  return io;
}

// False: another record has its place behind it.
bool PageWriter::gives_place_back(WriteRecord& record) {
  CallerGuard guard(state_.mutex, state_.callers);
  ActiveSegment& segment = *record.segment;
  if (segment.end_bytes != record.start + record.layout.record_bytes) return false;
  segment.end_bytes = record.start;
  std::erase(segment.writing, record.start);
  --segment.records;
  segment.pages -= record.pages.size();
  if (record.op) gather_.write_ended();
  record.staging = AlignedBuffer();
  state_.counters.written_bytes.fetch_sub(record.layout.record_bytes, kRelaxed);
  return true;
}

void PageWriter::written(const RecordPtr& record, const Status& status) {
  LogLines lines;
  record->staging = AlignedBuffer();
  const std::uint64_t free = status.code() == StatusCode::kOverloaded ? state_.free_bytes(record->volume) : 0;
  {
    CallerGuard guard(state_.mutex, state_.callers);
    ActiveSegment& segment = *record->segment;
    std::erase(segment.writing, record->start);
    if (record->op) gather_.write_ended();
    if (status.is_ok() || defect(Defect::kFailedWriteVisible)) {
      state_.volumes[record->volume].write_failures = state_.volumes[record->volume].unexplained_full = 0;
      state_.volumes[record->volume].back_off = Nanos(0);
      publish(*record);
      if (!record->moved_from.empty()) state_.copies.begin_move(record);
    } else {
      state_.note_failure(lines, record->volume, status, record->segment, free);
    }
  }
  log_.settle(record->segment, record->volume);
  place_gathered();  // first: the disk is faster than the callbacks
  if (!status.is_ok() && !defect(Defect::kFailedWriteVisible)) {
    const bool is_full = status.code() == StatusCode::kOverloaded && !state_.options.evicts;
    return fail(*record, is_full ? declined_as_full() : status);
  }
  published(record);
}

// All groups of the record become visible at once. A group may count on a page of one before it of its operation.
// Two writes of a page may have been under way at once. The copy that came first stays, and a durable write waits for
// its segment, too: a footer lists the copy that the index has, and no other.
void PageWriter::publish(WriteRecord& record) {
  Status lost, full;  // of the record; of the groups of one operation, from the first that the index had no room for
  const WriteOperation* of = nullptr;
  SegmentInfo* const home = state_.segments.find(record.segment->id);
  const bool is_lost = !home;  // its directory was deleted
  const bool is_doubtful = !is_lost && home->is_doubtful;
  if (is_lost) lost = unavailable("file store: its segment was deleted meanwhile");
  if (is_doubtful && record.is_durable) lost = earlier_sync_failed();  // and replaces nothing
  for (const WriteRecord::GroupRef& group : record.groups) {
    Status& status = group.op->result.groups[group.group];
    const std::span<const ListedPage> pages =
        std::span<const ListedPage>(record.pages).subspan(group.begin, group.end - group.begin);
    if (std::exchange(of, group.op.get()) != group.op.get()) full = lost;
    status = full;
    bool any_cleared = false;
    for (const ListedPage& page : pages) any_cleared = any_cleared || state_.cleared.covers(page);
    if (any_cleared) {
      probe(Probe::kFileCleared);
      status = cancelled("file store: its namespace was cleared meanwhile");
      continue;
    }
    for (const ListedPage& page : pages) {
      PageLocation at;
      const IdentityId identity = state_.index.find_identity(page.identity);
      if (state_.copies.is_here(identity, page.key, page.location.payload_bytes, record.is_durable, at)) {
        record.duplicates_in.push_back(at.segment);
      } else if (status.is_ok()) {
        status = state_.copies.insert(page, record.is_durable, at);
      }
    }
    full = status;
  }
  for (std::size_t i = 0; i < record.moved_from.size() && !is_lost && !is_doubtful; ++i) {
    const ListedPage& page = record.pages[i];
    if (state_.cleared.covers(page)) continue;
    if (state_.index.move(page.identity, page.key, record.moved_from[i], page.location)) {
      state_.counters.moved.fetch_add(1, kRelaxed);
      probe(Probe::kFileCleaned);
    }
  }
}

// What comes behind the write: the sync of a durable one, then the end of its operation.
void PageWriter::published(const RecordPtr& record) {
  if (!record->is_durable || defect(Defect::kDurableWithoutSync)) return finish(*record, Status::ok());
  std::vector<SegmentId> segments = record->duplicates_in;
  if (record->segment) segments.push_back(record->segment->id);
  const auto done = [this, record](const Status& status) { finish(*record, status); };
  log_.wait_for_sync(std::move(segments), record->returns, done);
}

void PageWriter::finish(WriteRecord& record, const Status& synced) {
  if (record.op) {
    for (const WriteRecord::GroupRef& group : record.groups) {
      Status& status = group.op->result.groups[group.group];
      if (record.pages.empty()) status = Status::ok();  // all of it was here
      if (status.is_ok()) status = synced;
      if (!status.is_ok()) state_.counters.write_errors.fetch_add(1, kRelaxed);
    }
  }
  if (record.moved) {
    LockGuard guard(state_.mutex);
    state_.copies.end_move(record, synced.is_ok());
  }
  if (record.moved) std::exchange(record.moved, nullptr)(synced);
  record.let_go();  // with the operations that have ended
}

void PageWriter::count_refused(const Status& why) {
  auto& counter = why.code() == StatusCode::kUnsupported ? state_.counters.declined : state_.counters.write_errors;
  counter.fetch_add(1, kRelaxed);
}

void PageWriter::fail(WriteRecord& record, const Status& why) {
  if (record.op) {
    for (const WriteRecord::GroupRef& group : record.groups) {
      // A group that needed nothing new does not fail with its neighbours.
      const bool is_here = group.is_here && !record.is_durable;
      group.op->result.groups[group.group] = is_here ? Status::ok() : why;
      if (!is_here) count_refused(why);
    }
  }
  if (record.moved) std::exchange(record.moved, nullptr)(why);
  record.let_go();  // with the operations that have ended
}

void PageWriter::place_waiting() {
  std::deque<RecordPtr> records;
  {
    LockGuard guard(state_.mutex);
    records.swap(state_.waiting);
  }
  if (records.empty()) return;
  state_.post([this, records = std::move(records)]() mutable {
    for (RecordPtr& record : records) place(std::move(record), true);
  });
}

}  // namespace larder::file_store
