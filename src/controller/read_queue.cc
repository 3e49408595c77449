// SPDX-License-Identifier: Apache-2.0
#include "controller/read_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace larder {

void ReadQueue::attach_storage(StorageBackend* backend) {
  storage_ = backend;
  refuses_waiting_ = refuses_speculative_ = false;
  reads_ = 0;
}

void ReadQueue::note_ended(const FetchBatch& batch) {
  refuses_waiting_ = refuses_speculative_ = false;
  if (batch.is_submitted && reads_ > 0) --reads_;
}

void ReadQueue::give(const Fetch& f, FetchBatch& batch, bool is_waited_for) {
  // Its turn is behind those that wait like it, and a speculative one's behind all.
  const bool is_first = waiting_.empty() || (is_waited_for && waited_for_ == 0);
  if (is_first && submit(f, batch, is_waited_for)) return;
  waiting_.push_back(batch.op);
  waited_for_ += is_waited_for ? 1 : 0;
}

ReadRequest ReadQueue::read_of(const Fetch& f, const FetchBatch& batch) const {
  ReadRequest request;
  request.scope = spaces_.scope(f.space);
  request.terms = {f.urgency, f.deadline, f.cancel};
  const std::array<std::uint64_t, kComponentCount> first = {batch.begin, batch.window_from, batch.end - 1};
  for (const ComponentKind c : kAllComponents) {
    const std::vector<HostSlot>& slots = batch.slots[index_of(c)];
    if (slots.empty()) continue;
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        ReadItem item{pool->name, f.keys[first[index_of(c)] + i - f.key_from], {}};
        host_->append_page(pool->name, slots[i], item.payload);
        request.items.push_back(std::move(item));
      }
    }
  }
  return request;
}

bool ReadQueue::submit(const Fetch& f, FetchBatch& batch, bool is_waited_for) {
  if (is_waited_for ? refuses_waiting_ : refuses_speculative_) return false;
  ReadRequest request = read_of(f, batch);
  batch.bytes = 0;
  for (const ReadItem& item : request.items) batch.bytes += payload_bytes(item.payload);
  const std::size_t items = request.items.size();
  auto complete = ops_.completion_for(batch.op);
  const Status submitted =
      storage_->submit_read(std::move(request), [complete](ReadResult done) { complete(std::move(done)); });
  if (submitted.code() == StatusCode::kOverloaded) {
    refuses_speculative_ = true;
    refuses_waiting_ = refuses_waiting_ || is_waited_for;
    return false;
  }
  batch.is_submitted = true;
  ++reads_;
  // Each page has failed with it: requests are told why nothing came, and not that nothing is there.
  if (!submitted.is_ok()) complete(ReadResult{std::vector<Status>(items, submitted)});
  return true;
}

void ReadQueue::pump(const FetchOf& fetch_of, const IsWaitedFor& is_waited_for) {
  if (waiting_.empty()) return;
  if (reads_ == 0 || ++polls_ % kPatience == 0) refuses_waiting_ = refuses_speculative_ = false;
  if (refuses_waiting_) return;
  std::deque<OpId> left;
  waited_for_ = 0;
  for (const bool waits : {true, false}) {
    for (const OpId id : waiting_) {
      const Op* const op = ops_.find(id);
      Fetch& f = fetch_of(op->fetch);
      if (is_waited_for(f) != waits || submit(f, f.batches[op->batch], waits)) continue;
      left.push_back(id);
      waited_for_ += waits ? 1 : 0;
    }
  }
  waiting_ = std::move(left);
}

void ReadQueue::drop(const Fetch& f) {
  std::erase_if(waiting_, [&](OpId id) {
    if (ops_.find(id)->fetch != f.id) return false;
    ops_.completion_for(id)(ReadResult{});
    return true;
  });
}

}  // namespace larder
