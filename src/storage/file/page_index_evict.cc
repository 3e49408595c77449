// SPDX-License-Identifier: Apache-2.0
// Links between nodes, and who is evicted next. Nothing here walks along a chain.
#include <algorithm>

#include "storage/file/page_index.h"

namespace larder::file_store {

// --- links ---

// The first link stays: a key is a digest over its parent's, so another parent would be wrong.
void PageIndex::set_parent(std::uint32_t node, const PageKey& parent) {
  const std::uint32_t namespace_id = nodes_[node].namespace_id;
  if (nodes_[node].parent != kNone || parent.is_zero() || parent == nodes_[node].key) return;
  const bool guessed =
      last_node_ != kNone && nodes_[last_node_].namespace_id == namespace_id && nodes_[last_node_].key == parent;
  const std::uint32_t number = guessed ? last_node_ : nodes_.find_or_make(namespace_id, parent);
  nodes_[node].parent = number;
  ++nodes_[number].children;
}

// The parent may become a leaf; a ghost goes with its last child.
void PageIndex::leave_parent(std::uint32_t node) {
  const std::uint32_t number = nodes_[node].parent;
  if (number == kNone) return;
  nodes_[node].parent = kNone;
  IndexNode& parent = nodes_[number];
  if (--parent.children > 0) return;
  if (parent.first_page == kNone) {
    nodes_.free(number);
  } else {
    leaves_.push(nodes_, number);
  }
}

// The node has no pages any more: a ghost if it has children (what is before it is of no use to them now), else it
// goes.
void PageIndex::node_emptied(std::uint32_t node) {
  const IndexNode& gone = nodes_[node];
  if (gone.parent != kNone) {
    IndexNode& parent = nodes_[gone.parent];
    parent.last_use = std::max(parent.last_use, gone.last_use);
    leave_parent(node);
  }
  if (gone.children == 0) nodes_.free(node);
}

// --- victims ---

// kNone: there are no pages.
std::uint32_t PageIndex::pop_victim() {
  const std::uint32_t leaf = leaves_.pop(nodes_);
  if (leaf != kNone) return leaf;
  cut_cycle();
  return leaves_.pop(nodes_);
}

// There are pages but no leaf: so each node has a child, and as ghosts have no parent, a child with pages. Then each
// node has exactly one child and one parent: all are on cycles, and cutting anywhere makes a leaf.
void PageIndex::cut_cycle() {
  for (std::uint32_t passed = 0; passed < nodes_.made(); ++passed) {
    const std::uint32_t number = cut_cursor_ < nodes_.made() ? cut_cursor_ : 0;
    cut_cursor_ = number + 1;
    if (nodes_[number].namespace_id == 0 || nodes_[number].parent == kNone) continue;
    leave_parent(number);
    return;
  }
}

Status PageIndex::make_identity_room(std::size_t identities, std::uint64_t& evicted) {
  const auto has_room = [&] { return identities_.size() + identities <= most_identities_; };
  for (std::size_t i = 0; i < kMostNodesForRoom && !has_room() && page_count_ > 0; ++i) {
    evicted += evict_coldest().pages;
  }
  return has_room() ? Status::ok() : too_many_identities();
}

PageIndex::Evicted PageIndex::evict_coldest() {
  Evicted out;
  const std::uint32_t number = page_count_ == 0 ? kNone : pop_victim();
  if (number == kNone) return out;
  const IndexNode& victim = nodes_[number];
  while (victim.first_page != kNone) {
    ++out.pages;
    out.payload_bytes += pages_[victim.first_page].payload_bytes;
    remove_page(victim.first_page);
  }
  return out;
}

}  // namespace larder::file_store
