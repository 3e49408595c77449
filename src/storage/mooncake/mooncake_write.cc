// SPDX-License-Identifier: Apache-2.0
// How groups of pages are written.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "storage/mooncake/mooncake_jobs.h"
#include "storage/mooncake/object_names.h"
#include "storage/mooncake/store_codes.h"

namespace larder::mooncake {

void MooncakeBackend::run_write(const std::shared_ptr<WriteOperation>& op) {
  auto job = std::make_shared<WriteJob>();
  job->op = op;
  next_write_batch(job);
}

// Groups as long as there is room, and no page twice: of two groups with the same page the second finds it written.
void MooncakeBackend::next_write_batch(const std::shared_ptr<WriteJob>& job) {
  const WriteRequest& request = job->op->request;
  const std::uint64_t most = link_->staging().size();
  Batch batch;
  batch.kind = Batch::Kind::kWrite;
  std::set<std::string> names;
  job->objects.clear();
  job->groups.clear();
  job->twins = 0;
  for (; job->next_group < request.groups.size(); ++job->next_group) {
    const PageGroup& group = request.groups[job->next_group];
    Status status = check_group(*request.scope, group);
    std::vector<WriteJob::Object> objects;
    std::set<std::string> own;
    std::uint64_t bytes = 0, twins = 0;
    // From the anchor on, so that of twins the later one counts.
    for (auto item = group.items.rbegin(); status.is_ok() && item != group.items.rend(); ++item) {
      std::string name = object_name(*request.scope, item->pool, item->key);
      if (!own.insert(name).second) {
        ++twins;
        continue;
      }
      bytes += room_of(payload_bytes(item->payload));
      objects.push_back({job->next_group, &*item, objects.empty(), std::move(name)});
    }
    if (status.is_ok() && bytes > most) {
      status = invalid_argument("mooncake: a group of " + std::to_string(bytes) +
                                " bytes is larger than option 'staging_size' (" + std::to_string(most) + ")");
    }
    if (!status.is_ok()) {
      job->op->result.groups[job->next_group] = std::move(status);
      LockGuard guard(mutex_);
      ++stats_.write_errors;
      continue;
    }
    const bool has_room =
        batch.bytes + bytes <= limits_.join.bytes && job->objects.size() + objects.size() <= limits_.join.objects;
    const bool is_new = std::none_of(own.begin(), own.end(), [&](const auto& name) { return names.contains(name); });
    if (!job->groups.empty() && (!has_room || !is_new)) break;
    batch.bytes += bytes;
    job->twins += twins;
    job->groups.push_back({job->next_group, objects.size(), group_name(objects.front().name)});
    names.merge(own);
    std::move(objects.rbegin(), objects.rend(), std::back_inserter(job->objects));
  }
  if (job->groups.empty()) return;
  batch.names.assign(names.begin(), names.end());
  batch.begin = [this, job](std::uint64_t number, std::uint64_t offset) {
    job->number = number;
    job->offset = offset;
    fill_and_send(job);
  };
  batch.refuse = [this, job](const Status& why) { fail_write(*job, why); };
  push(std::move(batch));
}

void MooncakeBackend::fill_and_send(const std::shared_ptr<WriteJob>& job) {
  const StoreScope& scope = *job->op->request.scope;
  std::byte* const memory = link_->staging().data();
  std::vector<NamedObject> objects;
  std::uint64_t offset = job->offset;
  const std::uint64_t generation = next_generation_.fetch_add(1, std::memory_order_relaxed);
  for (const WriteJob::Object& object : job->objects) {
    const WriteItem& item = *object.item;
    Envelope envelope;
    envelope.pool = item.pool;
    envelope.flags = object.is_anchor ? kEnvelopeCommitMark : std::uint8_t{0};
    envelope.key = item.key;
    envelope.namespace_digest = scope.namespace_digest;
    envelope.layout_fingerprint = scope.fingerprint(item.pool);
    envelope.generation = generation;
    envelope.payload_bytes = payload_bytes(item.payload);
    envelope.group = object.group;
    envelope.checksum = gather_payload(item.payload, memory + offset + kEnvelopeBytes);
    const EnvelopeBytes head = encode_envelope(envelope);
    std::memcpy(memory + offset, head.data(), head.size());
    objects.push_back({object.name, {{0, offset, object_bytes(envelope.payload_bytes)}}});
    offset += room_of(envelope.payload_bytes);
  }
  std::vector<ObjectGroup> groups;
  for (const WriteJob::Group& group : job->groups) groups.push_back({group.tag, group.objects});
  calls_.put(
      std::move(objects), std::move(groups), job->has_more() ? Where::kElsewhere : Where::kHere,
      [this, job](const Codes& codes) { finish_write_batch(job, codes); },
      [this, job](const Status& why) {
        fail_write(*job, why);
        set_late(job->number);
      });
}

void MooncakeBackend::fail_write(WriteJob& job, const Status& why) {
  std::vector<Status>& groups = job.op->result.groups;
  for (const WriteJob::Group& group : job.groups) groups[group.group] = why;
  std::fill(groups.begin() + static_cast<std::ptrdiff_t>(job.next_group), groups.end(), why);
  const std::size_t failed = job.groups.size() + groups.size() - job.next_group;
  {
    LockGuard guard(mutex_);
    stats_.writes += failed;
    stats_.write_errors += failed;
  }
  calls_.post([op = std::move(job.op)] {});  // who waits is told there
}

void MooncakeBackend::finish_write_batch(const std::shared_ptr<WriteJob>& job, const Codes& codes) {
  if (!job->op) return end_batch(job->number, false);
  const std::shared_ptr<WriteOperation> op = job->op;  // the next batch may be refused, and the job over, below
  std::uint64_t duplicates = job->twins, errors = 0, bytes = 0;
  std::size_t at = 0;
  for (const WriteJob::Group& group : job->groups) {
    Status status = codes.is_ok() ? Status::ok() : codes.status();
    for (const std::size_t end = at + group.objects; at < end; ++at) {
      if (!status.is_ok()) continue;
      const std::int64_t code = (*codes)[at];
      if (code < 0) status = status_of(code, "writing a group of pages");
      if (code == kWasThere) ++duplicates;
      if (code == kWritten) bytes += object_bytes(payload_bytes(job->objects[at].item->payload));
    }
    if (!status.is_ok()) ++errors;
    job->op->result.groups[group.group] = std::move(status);
  }
  {
    LockGuard guard(mutex_);
    stats_.writes += job->groups.size();
    stats_.write_errors += errors;
    stats_.duplicate_writes += duplicates;
    stats_.written_bytes += bytes;
  }
  end_batch(job->number, job->has_more());
  next_write_batch(job);
}

}  // namespace larder::mooncake
