// SPDX-License-Identifier: Apache-2.0
#include "storage/file/leaf_heap.h"

#include <algorithm>
#include <cassert>

namespace larder::file_store {

void LeafHeap::push(NodeTable& nodes, std::uint32_t node) {
  assert(nodes[node].is_leaf());
  if (nodes[node].in_heap != 0) return;
  if (entries_.size() >= limit_) prune(nodes);
  nodes[node].in_heap = 1;
  entries_.emplace_back(node, nodes[node].last_use);
  std::push_heap(entries_.begin(), entries_.end());
}

// Growing chains leave void entries behind. Half of the limit is pushed between two calls.
void LeafHeap::prune(NodeTable& nodes) {
  std::size_t kept = 0;
  for (const Entry& entry : entries_) {
    IndexNode& node = nodes[entry.node];
    node.in_heap = node.is_leaf() ? 1 : 0;
    if (node.in_heap != 0) entries_[kept++] = Entry(entry.node, node.last_use);
  }
  entries_.resize(kept);
  std::make_heap(entries_.begin(), entries_.end());
  limit_ = std::max(kMinLimit, 2 * entries_.size());
}

std::uint32_t LeafHeap::pop(NodeTable& nodes) {
  while (!entries_.empty()) {
    const Entry top = entries_.front();
    std::pop_heap(entries_.begin(), entries_.end());
    entries_.pop_back();
    IndexNode& node = nodes[top.node];
    node.in_heap = 0;
    if (!node.is_leaf()) continue;
    if (top.use() == node.last_use) return top.node;
    push(nodes, top.node);
  }
  return kNoNumber;
}

}  // namespace larder::file_store
