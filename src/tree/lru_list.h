// Recency order of the nodes that hold swa or mamba data in one tier. Internal.
//
// Doubly linked through the nodes. Order of the list = order of Node::aux_tick, oldest first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tree/node.h"

namespace larder::tree {

class LruList {
 public:
  LruList(NodePool& nodes, ComponentKind c, Tier t) : nodes_(nodes), aux_(aux_of(c)), tier_(index_of(t)) {}

  [[nodiscard]] Id oldest() const { return oldest_; }
  [[nodiscard]] Id newest() const { return newest_; }
  [[nodiscard]] Id newer_than(Id id) const { return link(id).newer; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void push_newest(Id id) { insert_between(newest_, id, kNoNode); }
  void insert_before(Id id, Id newer) { insert_between(link(newer).older, id, newer); }
  void remove(Id id) {
    const LruLink gone = link(id);
    (gone.older == kNoNode ? oldest_ : link(gone.older).newer) = gone.newer;
    (gone.newer == kNoNode ? newest_ : link(gone.newer).older) = gone.older;
    link(id) = LruLink{};
    --size_;
  }

 private:
  [[nodiscard]] LruLink& link(Id id) { return nodes_.at(id).lru[aux_][tier_]; }
  [[nodiscard]] const LruLink& link(Id id) const { return nodes_.at(id).lru[aux_][tier_]; }
  void insert_between(Id older, Id id, Id newer) {
    link(id) = LruLink{older, newer};
    (older == kNoNode ? oldest_ : link(older).newer) = id;
    (newer == kNoNode ? newest_ : link(newer).older) = id;
    ++size_;
  }

  NodePool& nodes_;
  std::size_t aux_, tier_;
  Id oldest_ = kNoNode, newest_ = kNoNode;
  std::size_t size_ = 0;
};

}  // namespace larder::tree
