// SPDX-License-Identifier: Apache-2.0
// Which leaf of the index was used longest ago.
//
// Each leaf has one entry in the heap, which is no younger than its last use. So the top, once its entry is up to date,
// is the leaf used longest ago. A node number has at most one entry (IndexNode::in_heap), also over the lives of
// several nodes: the clock only goes forward, so what a former life left is no younger either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/file/node_table.h"

namespace larder::file_store {

class LeafHeap {
 public:
  // `node` is a leaf. Cost: amortised O(log nodes).
  void push(NodeTable& nodes, std::uint32_t node);
  // Takes out the leaf used longest ago; kNoNumber: no leaf was pushed that still is one.
  [[nodiscard]] std::uint32_t pop(NodeTable& nodes);

  [[nodiscard]] std::size_t memory_bytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  friend struct PageIndexCheck;  // page_index_check.cc
  static constexpr std::size_t kMinLimit = 1024;

  // 12 bytes: `node` was a leaf last used at `use`. A use since then makes the entry too old, and a child or the end of
  // the node makes it void; both are noticed when it is popped.
  struct Entry {
    std::uint32_t node = kNoNumber, use_low = 0, use_high = 0;
    Entry() = default;
    Entry(std::uint32_t number, std::uint64_t use)
        : node(number), use_low(static_cast<std::uint32_t>(use)), use_high(static_cast<std::uint32_t>(use >> 32)) {}
    [[nodiscard]] std::uint64_t use() const { return (std::uint64_t{use_high} << 32) | use_low; }
    // std heaps have the greatest on top; ours the one used longest ago.
    friend bool operator<(const Entry& a, const Entry& b) { return a.use() > b.use(); }
  };
  static_assert(sizeof(Entry) == 12);

  void prune(NodeTable& nodes);

  std::vector<Entry> entries_;
  std::size_t limit_ = kMinLimit;  // when reached, the void entries are removed
};

}  // namespace larder::file_store
