// SPDX-License-Identifier: Apache-2.0
// Reads: find with a lease, move, verify, drop what was wrong.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/probe.h"
#include "storage/hf3fs/hf3fs_jobs.h"

namespace larder::hf3fs {
namespace {

// A lease ends after the transfer that it is for, whatever became of it.
Nanos lease_for(Nanos client_timeout) { return 2 * client_timeout + std::chrono::seconds(1); }

}  // namespace

void Hf3fsBackend::run_read(const std::shared_ptr<ReadOperation>& op) {
  auto job = std::make_shared<ReadJob>();
  job->op = op;
  if (op->request.terms.caller_waits) job->caller.emplace();
  job->items.resize(op->request.items.size());
  const Status found = find_pages(*job);
  if (!found.is_ok()) {
    op->result.items.assign(job->items.size(), found);
    LockGuard guard(mutex_);
    stats_.reads += job->items.size();
    stats_.read_errors += job->items.size();
    return;
  }
  for (std::size_t i = 0; i < job->items.size(); ++i) {
    if (job->items[i].space) start_read(job, i);
  }
  if (job->left.fetch_sub(1, std::memory_order_acq_rel) == 1) return end_read(job);
  auto& caller = job->caller;
  if (caller && caller->wait(2 * options_.client_timeout)) finish_read(*job);
}

// Fills in where each page is; those that are nowhere have their status.
Status Hf3fsBackend::find_pages(ReadJob& job) {
  const ReadRequest& request = job.op->request;
  Parts<MetadataKeys> wanted;
  std::vector<Parts<MetadataKeys>::Place> places(job.items.size());
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    const ReadItem& asked = request.items[i];
    ReadJob::Item& item = job.items[i];
    job.op->result.items[i] = not_found("page is not in the hf3fs backend");
    if (request.scope->fingerprint(asked.pool).is_zero()) continue;
    Result<SpacePtr> space = spaces_.space_for(*request.scope, asked.pool, payload_bytes(asked.payload));
    if (!space.is_ok()) {
      job.op->result.items[i] = space.status();
      continue;
    }
    item.space = std::move(space).value();
    item.key = metadata_key(request.scope->namespace_digest, asked.key);
    MetadataKeys& part = wanted.part_of(item.space->name, places[i].part);
    places[i].index = part.keys.size();
    part.keys.push_back(view_of(item.key));
  }
  if (wanted.all().empty()) return Status::ok();
  const auto found =
      spaces_.call_service([&] { return service_->find(wanted.all(), lease_for(options_.client_timeout)); });
  if (!found.is_ok()) return found.status();
  LARDER_RETURN_IF_ERROR(check_shape(*found, wanted.all(), [](const MetadataKeys& part) { return part.keys.size(); }));
  for (std::size_t i = 0; i < job.items.size(); ++i) {
    if (!job.items[i].space) continue;
    const std::optional<PageRef>& ref = (*found)[places[i].part][places[i].index];
    if (ref) {
      job.items[i].ref = *ref;
    } else {
      job.items[i].space = nullptr;
    }
  }
  return Status::ok();
}

void Hf3fsBackend::start_read(const std::shared_ptr<ReadJob>& job, std::size_t number) {
  ReadJob::Item& item = job->items[number];
  const ReadRequest& request = job->op->request;
  const ReadItem& asked = request.items[number];
  Status& status = job->op->result.items[number];
  Result<std::shared_ptr<PageFiles>> files = files_of(*item.space, PageTransfer::Kind::kRead);
  if (!files.is_ok()) {
    status = not_declined(files.status());
    item.is_wrong = status.code() == StatusCode::kNotFound;  // a key without a file
    return;
  }
  PageTransfer transfer;
  transfer.kind = PageTransfer::Kind::kRead;
  transfer.files = std::move(files).value();
  transfer.address = item.space->slots.address_of(item.ref.page);
  transfer.envelope = {asked.pool,
                       0,
                       asked.key,
                       request.scope->namespace_digest,
                       request.scope->fingerprint(asked.pool),
                       item.ref.generation,
                       payload_bytes(asked.payload),
                       {},
                       0};
  transfer.payload = asked.payload;
  transfer.done = [this, job, number](const TransferEnd& end) {
    job->op->result.items[number] = not_declined(end.status);
    const StatusCode code = end.status.code();
    job->items[number].is_wrong = code == StatusCode::kCorrupt || code == StatusCode::kNotFound;
    if (job->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (job->caller && job->caller->wake()) return;
    end_read(job);
  };
  job->left.fetch_add(1, std::memory_order_relaxed);
  const Status submitted = store_->submit(std::move(transfer));
  if (submitted.is_ok()) return;
  status = submitted;
  job->left.fetch_sub(1, std::memory_order_relaxed);  // never the last: run_read() holds one
}

void Hf3fsBackend::end_read(const std::shared_ptr<ReadJob>& job) {
  const bool any_wrong = std::any_of(job->items.begin(), job->items.end(), [](const auto& i) { return i.is_wrong; });
  if (!any_wrong) return finish_read(*job);
  post_finish([this, job] { finish_read(*job); });
}

void Hf3fsBackend::finish_read(ReadJob& job) {
  std::vector<ConfirmItem> wrong;
  std::uint64_t found = 0;
  for (const ReadJob::Item& item : job.items) {
    found += item.space ? 1 : 0;
    if (item.is_wrong) probe(Probe::kHf3fsWrongPage);
    if (item.is_wrong) wrong.push_back({&item.space->name, view_of(item.key), item.ref});
  }
  // Only while the key is still at that page and generation: what was written anew meanwhile stays.
  if (!wrong.empty()) (void)service_->remove(wrong);
  std::optional<std::string> share;
  {
    LockGuard guard(mutex_);
    for (const Status& status : job.op->result.items) count_read(stats_, status);
    share = wrong_share_.add(found, wrong.size(), clock_.now());
  }
  if (!share) return;
  log_warning("storage/hf3fs", *share + " that the metadata service names are not in the files " +
                                   options_.file_path_prefix +
                                   ".*: does another folder share this service, or is a part of the files lost?");
}

}  // namespace larder::hf3fs
