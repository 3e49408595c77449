// SPDX-License-Identifier: Apache-2.0
#include "tree/victim_queues.h"

#include <algorithm>
#include <cassert>

namespace larder::tree {

void VictimQueues::put(Heap& heap, std::size_t at, const Entry& entry) {
  heap[at] = entry;
  nodes_.at(entry.id).heap_at[place_] = static_cast<std::uint32_t>(at);
}

void VictimQueues::sift_up(Heap& heap, std::size_t at, Entry entry) {
  while (at > 0) {
    const std::size_t parent = (at - 1) / kArity;
    if (heap[parent].key <= entry.key) break;
    put(heap, at, heap[parent]);
    at = parent;
  }
  put(heap, at, entry);
}

void VictimQueues::sift_down(Heap& heap, std::size_t at, Entry entry) {
  for (;;) {
    const std::size_t first = at * kArity + 1;
    if (first >= heap.size()) break;
    const std::size_t last = std::min(first + kArity, heap.size());
    std::size_t least = first;
    for (std::size_t i = first + 1; i < last; ++i) {
      if (heap[i].key < heap[least].key) least = i;
    }
    if (entry.key <= heap[least].key) break;
    put(heap, at, heap[least]);
    at = least;
  }
  put(heap, at, entry);
}

Id VictimQueues::next_to_check() {
  if (size_ == 0) return kNoNode;
  constexpr std::size_t kQueues = 256;
  const std::size_t from = (checked_ + 1) % kQueues;
  // Behind the last word the first one again, for what stands in it before `from`.
  for (std::size_t i = 0; i <= filled_.size(); ++i) {
    const std::size_t word = (from / 64 + i) % filled_.size();
    const std::uint64_t bits = i == 0 ? filled_[word] & ~std::uint64_t{0} << (from % 64) : filled_[word];
    if (bits == 0) continue;
    checked_ = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
    break;
  }
  return heaps_[checked_].front().id;
}

void VictimQueues::push(Id id, std::uint8_t queue, const OrderKey& key) {
  if (heaps_.size() <= queue) heaps_.resize(queue + std::size_t{1});
  Heap& heap = heaps_[queue];
  heap.push_back({key, id});
  nodes_.at(id).queue_at[place_] = queue;
  sift_up(heap, heap.size() - 1, {key, id});
  filled_[queue / 64] |= std::uint64_t{1} << (queue % 64);
  ++size_;
}

void VictimQueues::remove(Id id) {
  assert(holds(id));
  Node& node = nodes_.at(id);
  const std::size_t at = node.heap_at[place_], queue = node.queue_at[place_];
  Heap& heap = heaps_[queue];
  node.heap_at[place_] = kNotInHeap;
  const Entry moved = heap.back();
  heap.pop_back();
  --size_;
  if (heap.empty()) filled_[queue / 64] &= ~(std::uint64_t{1} << (queue % 64));
  if (at == heap.size()) return;
  if (at > 0 && moved.key < heap[(at - 1) / kArity].key) {
    sift_up(heap, at, moved);
  } else {
    sift_down(heap, at, moved);
  }
}

void VictimQueues::update(Id id, std::uint8_t queue, const OrderKey& key) {
  assert(holds(id));
  const Node& node = nodes_.at(id);
  if (node.queue_at[place_] != queue) {
    remove(id);
    push(id, queue, key);
    return;
  }
  Heap& heap = heaps_[queue];
  const std::size_t at = node.heap_at[place_];
  if (key < heap[at].key) {
    sift_up(heap, at, {key, id});
  } else {
    sift_down(heap, at, {key, id});
  }
}

const OrderKey& VictimQueues::key_of(Id id) const {
  const Node& node = nodes_.at(id);
  return heaps_[node.queue_at[place_]][node.heap_at[place_]].key;
}

bool VictimQueues::holds(Id id) const {
  const Node& node = nodes_.at(id);
  const std::size_t at = node.heap_at[place_], queue = node.queue_at[place_];
  return queue < heaps_.size() && at < heaps_[queue].size() && heaps_[queue][at].id == id;
}

bool VictimQueues::is_sound() const {
  std::size_t count = 0;
  for (std::size_t queue = 0; queue < heaps_.size(); ++queue) {
    const Heap& heap = heaps_[queue];
    if (heap.empty() != ((filled_[queue / 64] >> (queue % 64) & 1) == 0)) return false;
    for (std::size_t i = 0; i < heap.size(); ++i) {
      if (!nodes_.exists(heap[i].id) || !holds(heap[i].id)) return false;
      if (i > 0 && heap[i].key < heap[(i - 1) / kArity].key) return false;
    }
    count += heap.size();
  }
  return count == size_;
}

}  // namespace larder::tree
