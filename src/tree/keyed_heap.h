// SPDX-License-Identifier: Apache-2.0
// A 4-ary min-heap of numbers by OrderKey. Whoever owns what the numbers name is told where each stands, so that any of
// them is removed or moved in O(log n). Keys are stored in the heap: sifting reads nothing else. Internal.
//
// `moved(id, at)` is called for each entry whose place has changed, and for a new one. Threads: confined. Cost: push,
// remove and update O(log n), and O(1) for what is put near the end; front O(1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/eviction_order.h"

namespace larder::tree {

class KeyedHeap {
 public:
  struct Entry {
    OrderKey key;
    std::uint32_t id = 0;
  };

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const Entry& front() const { return entries_.front(); }
  [[nodiscard]] const Entry& operator[](std::size_t at) const { return entries_[at]; }

  template <class Moved>
  void push(const Entry& entry, Moved moved) {
    entries_.push_back(entry);
    sift_up(entries_.size() - 1, entry, moved);
  }
  template <class Moved>
  void remove(std::size_t at, Moved moved) {
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at < entries_.size()) place(at, last, moved);
  }
  template <class Moved>
  void update(std::size_t at, const OrderKey& key, Moved moved) {
    place(at, {key, entries_[at].id}, moved);
  }
  [[nodiscard]] bool is_sound() const {
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].key < entries_[(i - 1) / kArity].key) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kArity = 4;

  template <class Moved>
  void place(std::size_t at, const Entry& entry, Moved moved) {
    if (at > 0 && entry.key < entries_[(at - 1) / kArity].key) {
      sift_up(at, entry, moved);
    } else {
      sift_down(at, entry, moved);
    }
  }
  template <class Moved>
  void put(std::size_t at, const Entry& entry, Moved moved) {
    entries_[at] = entry;
    moved(entry.id, at);
  }
  template <class Moved>
  void sift_up(std::size_t at, Entry entry, Moved moved) {
    while (at > 0) {
      const std::size_t parent = (at - 1) / kArity;
      if (entries_[parent].key <= entry.key) break;
      put(at, entries_[parent], moved);
      at = parent;
    }
    put(at, entry, moved);
  }
  template <class Moved>
  void sift_down(std::size_t at, Entry entry, Moved moved) {
    for (;;) {
      const std::size_t first = at * kArity + 1;
      if (first >= entries_.size()) break;
      const std::size_t last = std::min(first + kArity, entries_.size());
      std::size_t least = first;
      for (std::size_t i = first + 1; i < last; ++i) {
        if (entries_[i].key < entries_[least].key) least = i;
      }
      if (entry.key <= entries_[least].key) break;
      put(at, entries_[least], moved);
      at = least;
    }
    put(at, entry, moved);
  }

  std::vector<Entry> entries_;
};

}  // namespace larder::tree
