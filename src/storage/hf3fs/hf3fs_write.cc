// SPDX-License-Identifier: Apache-2.0
// Writes: reserve, move, confirm whole groups, release what failed and nothing else.
#include <map>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "storage/hf3fs/hf3fs_jobs.h"

namespace larder::hf3fs {
namespace {

// A reservation whose answer took longer is not used: before it is written, the page may have become another's.
Nanos time_to_begin(Nanos client_timeout) { return time_to_confirm(client_timeout) / 2; }

}  // namespace

void Hf3fsBackend::run_write(const std::shared_ptr<WriteOperation>& op) {
  auto job = std::make_shared<WriteJob>();
  job->op = op;
  if (op->request.terms.caller_waits) job->caller.emplace();
  job->session = {process_, next_operation_.fetch_add(1, std::memory_order_relaxed)};
  plan_write(*job);
  if (!claim_pages(*job)) return;
  if (const Status reserved = reserve_pages(*job); !reserved.is_ok()) {
    for (Status& status : job->groups) {
      if (status.is_ok()) status = reserved;
    }
    end_write(*job);
    return;
  }
  for (std::size_t group = 0; group < job->groups.size(); ++group) judge_group(*job, group);
  start_transfers(job);
  if (job->left.fetch_sub(1, std::memory_order_acq_rel) == 1) return end_write(*job);
  auto& caller = job->caller;
  if (caller && caller->wait(2 * options_.client_timeout)) end_write(*job);
}

bool Hf3fsBackend::claim_pages(const WriteJob& job) {
  LockGuard guard(mutex_);
  for (const WriteJob::Item& item : job.items) {
    if (!being_written_.contains({item.space.get(), item.key})) continue;
    job.op->request.terms.caller_waits = false;  // it goes on on another thread
    put_off_.push_back(job.op);
    return false;
  }
  for (const WriteJob::Item& item : job.items) being_written_.insert({item.space.get(), item.key});
  return true;
}

void Hf3fsBackend::end_write(WriteJob& job) {
  finish_write(job);
  std::vector<std::shared_ptr<WriteOperation>> next;
  {
    LockGuard guard(mutex_);
    for (const WriteJob::Item& item : job.items) being_written_.erase({item.space.get(), item.key});
    next.swap(put_off_);
  }
  for (std::shared_ptr<WriteOperation>& op : next) {
    post_finish([this, op = std::move(op)] { run_write(op); });
  }
}

// The items of all groups that can be written at all. The others have their status, and no items.
void Hf3fsBackend::plan_write(WriteJob& job) {
  const WriteRequest& request = job.op->request;
  for (std::size_t group = 0; group < request.groups.size(); ++group) {
    const std::size_t begin = job.items.size();
    Status status = check_group(*request.scope, request.groups[group]);
    for (const WriteItem& page : request.groups[group].items) {
      if (!status.is_ok()) break;
      if (spaces_.is_shared(*request.scope, page.pool) && !request.scope->is_writer(page.pool, page.key)) continue;
      Result<SpacePtr> space = spaces_.space_for(*request.scope, page.pool, payload_bytes(page.payload));
      status = space.status();
      if (!status.is_ok()) break;
      WriteJob::Item& item = job.items.emplace_back();
      item.group = group;
      item.page = &page;
      item.space = std::move(space).value();
      item.key = metadata_key(request.scope->namespace_digest, page.key);
      item.parent = metadata_key(request.scope->namespace_digest, page.parent);
    }
    if (!status.is_ok()) job.items.resize(begin);
    job.group_ends.push_back(job.items.size());
    job.groups.push_back(std::move(status));
  }
}

Status Hf3fsBackend::reserve_pages(WriteJob& job) {
  if (job.items.empty()) return Status::ok();
  Parts<ReserveItems> wanted;
  std::vector<Parts<ReserveItems>::Place> places(job.items.size());
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    WriteJob::Item& item = job.items[i];
    ReserveItems& part = wanted.part_of(item.space->name, places[i].part);
    places[i].index = part.items.size();
    part.items.push_back({view_of(item.key), item.page->parent.is_zero() ? std::string_view() : view_of(item.parent)});
  }
  job.asked = clock_.now();
  const auto answer = spaces_.call_service(
      [&] { return service_->reserve(job.session, wanted.all(), time_to_confirm(options_.client_timeout)); });
  if (!answer.is_ok()) return answer.status();
  LARDER_RETURN_IF_ERROR(
      check_shape(*answer, wanted.all(), [](const ReserveItems& part) { return part.items.size(); }));
  std::map<std::pair<const Space*, std::uint64_t>, std::size_t> writers;
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    WriteJob::Item& item = job.items[i];
    item.reserved = (*answer)[places[i].part][places[i].index];
    if (item.reserved.outcome != ReserveOutcome::kReserved) continue;
    // The same page twice in one request: the first to come writes it.
    const auto [writer, is_first] = writers.try_emplace({item.space.get(), item.reserved.ref.page}, i);
    if (!is_first) item.twin = writer->second;
  }
  return check_age(job);  // too old: they are released
}

Status Hf3fsBackend::check_age(const WriteJob& job) const {
  const Nanos age = clock_.now() - job.asked;
  if (age <= time_to_begin(options_.client_timeout) || defect(Defect::kOldReservationWritten)) return Status::ok();
  probe(Probe::kHf3fsOldReservation);
  return deadline_exceeded("hf3fs: reserving pages and opening their files took too long");
}

// Can the group be written now?
void Hf3fsBackend::judge_group(WriteJob& job, std::size_t group) {
  Status& status = job.groups[group];
  for (std::size_t i = job.group_begin(group); i < job.group_ends[group] && status.is_ok(); ++i) {
    const WriteJob::Item& item = job.items[i];
    switch (item.reserved.outcome) {
      case ReserveOutcome::kReserved:
        if (item.twin != WriteJob::kNone) status = job.groups[job.items[item.twin].group];
        break;
      case ReserveOutcome::kStored: break;
      case ReserveOutcome::kBusy: status = overloaded("hf3fs: the page is being written by another process"); break;
      case ReserveOutcome::kFull:
        status = overloaded("hf3fs: namespace " + item.space->name.text() + " is full, and all of it is in use");
        break;
    }
  }
}

void Hf3fsBackend::start_transfers(const std::shared_ptr<WriteJob>& job) {
  for (std::size_t i = 0; i < job->items.size(); ++i) {
    const WriteJob::Item& item = job->items[i];
    const bool is_mine = item.reserved.outcome == ReserveOutcome::kReserved && item.twin == WriteJob::kNone;
    if (is_mine && job->groups[item.group].is_ok()) start_transfer(job, i);
  }
}

void Hf3fsBackend::start_transfer(const std::shared_ptr<WriteJob>& job, std::size_t number) {
  WriteJob::Item& item = job->items[number];
  const StoreScope& scope = *job->op->request.scope;
  Result<std::shared_ptr<PageFiles>> files = files_of(*item.space, PageTransfer::Kind::kWrite);
  item.is_moved = true;
  item.end = {files.is_ok() ? check_age(*job) : files.status(), false};  // opening may have taken long
  if (!item.end.status.is_ok()) return;
  const bool is_last = number + 1 == job->group_ends[item.group];
  PageTransfer transfer;
  transfer.kind = PageTransfer::Kind::kWrite;
  transfer.files = std::move(files).value();
  transfer.address = item.space->slots.address_of(item.reserved.ref.page);
  transfer.envelope = {item.page->pool,
                       is_last ? kEnvelopeCommitMark : std::uint8_t{0},
                       item.page->key,
                       scope.namespace_digest,
                       scope.fingerprint(item.page->pool),
                       item.reserved.ref.generation,
                       payload_bytes(item.page->payload),
                       {},
                       job->session.operation};
  transfer.payload = item.page->payload;
  transfer.done = [this, job, number](TransferEnd end) {
    job->items[number].end = std::move(end);
    if (job->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (job->caller && job->caller->wake()) return;
    post_finish([this, job] { end_write(*job); });
  };
  job->left.fetch_add(1, std::memory_order_relaxed);
  const Status submitted = store_->submit(std::move(transfer));
  if (submitted.is_ok()) return;
  item.end = {submitted, false};
  job->left.fetch_sub(1, std::memory_order_relaxed);  // never the last: run_write() holds one
}

// What the transfers came to, per group; then one call of the service for all of them.
void Hf3fsBackend::finish_write(WriteJob& job) {
  ConfirmRequest request{job.session, {}, {}, job.op->request.durable};
  std::vector<std::size_t> numbers;  // of the groups in `request`
  std::uint64_t duplicates = 0, written_bytes = 0;
  for (std::size_t group = 0; group < job.groups.size(); ++group) {
    Status& status = job.groups[group];
    const std::size_t begin = job.group_begin(group), end = job.group_ends[group];
    take_status_of_twins(job, group);
    for (std::size_t i = begin; i < end && status.is_ok(); ++i) {
      if (job.items[i].is_moved && !defect(Defect::kFailedTransferConfirmed)) status = job.items[i].end.status;
    }
    std::vector<ConfirmItem> confirmed;
    for (std::size_t i = begin; i < end; ++i) {
      const WriteJob::Item& item = job.items[i];
      const bool is_stored = item.reserved.outcome == ReserveOutcome::kStored;
      if (is_stored || item.twin != WriteJob::kNone) ++duplicates;
      if (item.twin != WriteJob::kNone) continue;
      const ConfirmItem entry{&item.space->name, view_of(item.key), item.reserved.ref};
      // Whoever stored it need not have asked for that: now it must survive a power cut of the service, too.
      if (is_stored && request.durable && status.is_ok()) confirmed.push_back(entry);
      if (item.reserved.outcome != ReserveOutcome::kReserved) continue;
      if (status.is_ok()) {
        confirmed.push_back(entry);
        written_bytes += transfer_bytes(payload_bytes(item.page->payload));
      } else if (!item.end.may_land_later ||
                 defect(Defect::kLateWriteReleased)) {  // else the service frees it when it cannot land any more
        request.release.push_back(entry);
        probe(Probe::kHf3fsGroupFailed);
      } else {
        probe(Probe::kHf3fsLateWrite);
      }
    }
    if (confirmed.empty()) continue;
    request.groups.push_back(std::move(confirmed));
    numbers.push_back(group);
  }
  if (!request.groups.empty() || !request.release.empty()) confirm(job, request, numbers);
  for (std::size_t group = 0; group < job.groups.size(); ++group) take_status_of_twins(job, group);
  remove_other_lengths(job);
  for (Status& status : job.groups) status = not_declined(status);
  job.op->result.groups = job.groups;
  LockGuard guard(mutex_);
  for (const Status& status : job.groups) ++(status.is_ok() ? stats_.writes : stats_.write_errors);
  stats_.duplicate_writes += duplicates;
  stats_.written_bytes += written_bytes;
}

void Hf3fsBackend::confirm(WriteJob& job, const ConfirmRequest& request, const std::vector<std::size_t>& groups) {
  const Result<std::vector<Status>> answer = service_->confirm(request);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Status& status = job.groups[groups[i]];
    if (!answer.is_ok()) {
      status = service_failure(answer.status());
    } else if (i >= answer->size()) {
      status = unavailable("hf3fs: the metadata service's answer is too short");
    } else {
      status = (*answer)[i];
    }
    if (status.code() == StatusCode::kNotFound) status = cancelled("hf3fs: cleared, or too late to be confirmed");
  }
}

// A page that another group of this request writes: without it, this group is not there either.
void Hf3fsBackend::take_status_of_twins(WriteJob& job, std::size_t group) {
  Status& status = job.groups[group];
  for (std::size_t i = job.group_begin(group); i < job.group_ends[group] && status.is_ok(); ++i) {
    const std::size_t twin = job.items[i].twin;
    if (twin != WriteJob::kNone) status = job.groups[job.items[twin].group];
  }
}

// One layout has one length of pages, so there is nothing to do; but a caller who gives another length replaces.
void Hf3fsBackend::remove_other_lengths(const WriteJob& job) {
  std::map<const Space*, std::vector<SpacePtr>> others;
  for (const WriteJob::Item& item : job.items) {
    const auto [entry, is_new] = others.try_emplace(item.space.get());
    const Digest256& fingerprint = job.op->request.scope->fingerprint(item.space->pool);
    if (is_new) entry->second = spaces_.others_like(*item.space, fingerprint);
  }
  std::vector<ConfirmItem> old;
  for (const WriteJob::Item& item : job.items) {
    if (!job.groups[item.group].is_ok()) continue;
    for (const SpacePtr& other : others[item.space.get()]) old.push_back({&other->name, view_of(item.key), PageRef{}});
  }
  if (!old.empty()) (void)service_->remove(old);
}

}  // namespace larder::hf3fs
