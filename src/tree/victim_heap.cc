// SPDX-License-Identifier: Apache-2.0
#include "tree/victim_heap.h"

#include <algorithm>
#include <cassert>

namespace larder::tree {

void VictimHeap::put(std::size_t at, const Entry& entry) {
  entries_[at] = entry;
  nodes_.at(entry.id).heap_at[place_] = static_cast<std::uint32_t>(at);
}

void VictimHeap::sift_up(std::size_t at, Entry entry) {
  while (at > 0) {
    const std::size_t parent = (at - 1) / kArity;
    if (entries_[parent].key <= entry.key) break;
    put(at, entries_[parent]);
    at = parent;
  }
  put(at, entry);
}

void VictimHeap::sift_down(std::size_t at, Entry entry) {
  for (;;) {
    const std::size_t first = at * kArity + 1;
    if (first >= entries_.size()) break;
    const std::size_t last = std::min(first + kArity, entries_.size());
    std::size_t least = first;
    for (std::size_t i = first + 1; i < last; ++i) {
      if (entries_[i].key < entries_[least].key) least = i;
    }
    if (entry.key <= entries_[least].key) break;
    put(at, entries_[least]);
    at = least;
  }
  put(at, entry);
}

void VictimHeap::push(Id id, const OrderKey& key) {
  entries_.push_back({key, id});
  sift_up(entries_.size() - 1, {key, id});
}

void VictimHeap::remove(Id id) {
  const std::size_t at = nodes_.at(id).heap_at[place_];
  assert(holds(id));
  nodes_.at(id).heap_at[place_] = kNotInHeap;
  const Entry moved = entries_.back();
  entries_.pop_back();
  if (at == entries_.size()) return;
  if (at > 0 && moved.key < entries_[(at - 1) / kArity].key) {
    sift_up(at, moved);
  } else {
    sift_down(at, moved);
  }
}

void VictimHeap::update(Id id, const OrderKey& key) {
  const std::size_t at = nodes_.at(id).heap_at[place_];
  assert(holds(id));
  if (key < entries_[at].key) {
    sift_up(at, {key, id});
  } else {
    sift_down(at, {key, id});
  }
}

bool VictimHeap::holds(Id id) const {
  const std::size_t at = nodes_.at(id).heap_at[place_];
  return at < entries_.size() && entries_[at].id == id;
}

bool VictimHeap::is_sound() const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!nodes_.exists(entries_[i].id) || !holds(entries_[i].id)) return false;
    if (i > 0 && entries_[i].key < entries_[(i - 1) / kArity].key) return false;
  }
  return true;
}

}  // namespace larder::tree
