// SPDX-License-Identifier: Apache-2.0
#include "bench/replay_tiers.h"

#include <algorithm>
#include <utility>

namespace larder {

TimePoint end_of_work(TimePoint begin, double seconds) {
  const std::chrono::duration<double> work(seconds);
  return work < kReplayEnd - begin ? begin + std::chrono::duration_cast<Nanos>(work) : kReplayEnd;
}

void ReplayLink::send(std::uint64_t bytes, Task done) {
  bytes_ += bytes;
  if (rate_ <= 0) return done();
  free_at_ = end_of_work(std::max(free_at_, clock_.now()), static_cast<double>(bytes) / rate_);
  clock_.after(free_at_ - clock_.now(), std::move(done));
}

ReplayTransfer::ReplayTransfer(const ModelSpec& model, sim::SimClock& clock, double bytes_per_second)
    : layers_(model.layer_count()), down_(clock, bytes_per_second), up_(clock, bytes_per_second) {
  for (const ComponentKind c : kAllComponents) {
    if (model.has(c)) slot_bytes_[index_of(c)] = host_slot_bytes(model, c);
  }
}

// Leases that a real engine takes are not: nobody writes to these pages.
Status ReplayTransfer::submit(TransferRequest request, Done done) {
  std::uint64_t bytes = 0;
  for (const ComponentKind c : kAllComponents) bytes += request.pairs[index_of(c)].size() * slot_bytes_[index_of(c)];
  ++*in_flight_;
  auto end = [gate = request.gate, id = request.id, layers = layers_, count = in_flight_, done = std::move(done)] {
    if (gate) gate->arrive(layers - 1);
    --*count;
    done(TransferDone{id, Status::ok(), {}, {}});
  };
  switch (request.direction) {
    case CopyDirection::kDeviceToHost: down_.send(bytes, std::move(end)); break;
    case CopyDirection::kHostToDevice: up_.send(bytes, std::move(end)); break;
    default: end();
  }
  return Status::ok();
}

ReplayStorage::ReplayStorage(sim::SimClock& clock, std::uint64_t capacity_bytes, double bytes_per_second)
    : capacity_(capacity_bytes), in_(clock, bytes_per_second), out_(clock, bytes_per_second) {}

PageKey ReplayStorage::name_of(PoolName pool, PageKey key) {
  key.bytes[0] = static_cast<std::uint8_t>(key.bytes[0] ^ static_cast<std::uint8_t>(pool));
  return key;
}

bool ReplayStorage::use(const PageKey& name) {
  const auto found = index_.find(name);
  if (found == index_.end()) return false;
  pages_.splice(pages_.end(), pages_, found->second);
  return true;
}

void ReplayStorage::keep(const PageKey& name, std::uint64_t bytes) {
  if (use(name)) return;
  pages_.push_back({name, bytes});
  index_.emplace(name, std::prev(pages_.end()));
  bytes_ += bytes;
  while (bytes_ > capacity_ && !pages_.empty()) {
    bytes_ -= pages_.front().bytes;
    index_.erase(pages_.front().key);
    pages_.pop_front();
  }
}

Status ReplayStorage::submit_exists(ExistsRequest request, ExistsDone done) {
  ExistsResult result;
  for (const PoolName pool : request.pools) {
    Presence present;
    for (const PageKey& key : request.keys) present.push_back(index_.contains(name_of(pool, key)));
    result.presence.push_back({pool, std::move(present)});
  }
  done(std::move(result));
  return Status::ok();
}

Status ReplayStorage::submit_read(ReadRequest request, ReadDone done) {
  ReadResult result;
  std::uint64_t bytes = 0;
  for (const ReadItem& item : request.items) {
    const bool is_there = use(name_of(item.pool, item.key));
    if (is_there) bytes += payload_bytes(item.payload);
    result.items.push_back(is_there ? Status::ok() : not_found("this page has left the storage"));
  }
  out_.send(bytes, [done = std::move(done), result = std::move(result)]() mutable { done(std::move(result)); });
  return Status::ok();
}

Status ReplayStorage::submit_write(WriteRequest request, WriteDone done) {
  std::uint64_t bytes = 0;
  for (const PageGroup& group : request.groups) {
    for (const WriteItem& item : group.items) {
      const std::uint64_t size = payload_bytes(item.payload);
      bytes += size;
      keep(name_of(item.pool, item.key), size);
    }
  }
  in_.send(bytes, [done = std::move(done), count = request.groups.size()] { done({std::vector<Status>(count)}); });
  return Status::ok();
}

Status ReplayStorage::submit_clear(std::shared_ptr<const StoreScope>, ClearDone done) {
  pages_.clear();
  index_.clear();
  bytes_ = 0;
  done(Status::ok());
  return Status::ok();
}

Status ReplayStorage::close(std::chrono::nanoseconds) { return Status::ok(); }

}  // namespace larder
