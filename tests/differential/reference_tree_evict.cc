#include <algorithm>

#include "tests/differential/reference_tree.h"

namespace larder::differential {

// Device: nothing beneath it is on the device. Host: nothing beneath it is on the host, and it is not on the device.
bool ReferenceTree::is_leaf(const Node& node, std::size_t tier, bool copies_too) const {
  if (!node.has(kFullPart, tier) || node.is_locked(tier)) return false;
  for (const auto& [key, child] : node.children) {
    if (child->has(kFullPart, tier)) return false;
  }
  const bool elsewhere = node.has(kFullPart, 1 - tier);
  if (tier == kOnHost && elsewhere && !copies_too) return false;
  // Where nothing would remain, a claim on the other tier keeps the node.
  return elsewhere || !ours(Difference::kClaimPages) || !node.is_locked(1 - tier);
}

std::vector<double> ReferenceTree::policy_key(const Node& node) const {
  const auto hits = static_cast<double>(node.hits);
  switch (shape_.policy) {
    case ReferencePolicy::kLru: return {node.used};
    case ReferencePolicy::kLfu: return {hits, node.used};
    case ReferencePolicy::kSlru: return {hits >= 2 ? 1.0 : 0.0, node.used};
    case ReferencePolicy::kFifo: return {node.created};
    case ReferencePolicy::kMru: return {-node.used};
    case ReferencePolicy::kFilo: return {-node.created};
    case ReferencePolicy::kPriority: return {static_cast<double>(node.priority), node.used};
  }
  return {};
}

ReferenceNode* ReferenceTree::oldest_leaf(std::size_t tier, bool copies_too) const {
  Node* oldest = nullptr;
  for (Node* node : nodes()) {
    if (is_leaf(*node, tier, copies_too) && (oldest == nullptr || policy_key(*node) < policy_key(*oldest)))
      oldest = node;
  }
  return oldest;
}

ReferenceEvicted ReferenceTree::evict(std::size_t part, std::size_t tier, std::size_t count) {
  ReferenceEvicted out;
  part == kFullPart ? evict_full(tier, count, out) : evict_listed(part, tier, count, out);
  return out;
}

void ReferenceTree::evict_full(std::size_t tier, std::size_t count, ReferenceEvicted& out) {
  while (out.freed < count) {
    Node* leaf = oldest_leaf(tier, false);
    if (tier == kOnHost) {
      Node* const with_copies = oldest_leaf(tier, true);
      if (with_copies != leaf && differs(Difference::kHostCopyEvictable)) leaf = with_copies;
    }
    if (leaf == nullptr) return;
    const std::size_t need = count - out.freed;
    if (leaf->key.size() > need && differs(Difference::kEvictPages)) split(leaf, leaf->key.size() - need);
    const std::size_t pages = leaf->key.size();
    out.freed += pages;
    (leaf->has(kFullPart, 1 - tier) ? out.demoted : out.dropped) += pages;
    evict_leaf(leaf, tier);
  }
}

// All components of the tier at once. What the other tier has stays; without that the node goes.
void ReferenceTree::evict_leaf(Node* leaf, std::size_t tier) {
  for (std::size_t part = 3; part-- > 0;) {
    if (leaf->has(part, tier)) drop(leaf, part, tier);
  }
  if (!leaf->has_any(kFullPart)) remove(leaf);
}

// Window and state: the least recently used first, leaves as a whole, tombstones inside.
void ReferenceTree::evict_listed(std::size_t part, std::size_t tier, std::size_t count, ReferenceEvicted& out) {
  const Lru order = lru(part, tier);
  for (Node* node : order) {
    if (out.freed >= count) return;
    if (node->parts[part].locks[tier] > 0) {
      if (lru(part, tier).back() != node && differs(Difference::kLockedIsRecent)) make_newest(node, part, tier);
      continue;
    }
    if (tier == kOnHost && node->has(part, kOnDevice)) counts_.meet(Difference::kHostCopyEvictable);
    evict_one_listed(node, part, tier, count - out.freed, out);
  }
}

void ReferenceTree::evict_one_listed(Node* node, std::size_t part, std::size_t tier, std::size_t need,
                                     ReferenceEvicted& out) {
  const std::size_t pages = node->key.size(), window = shape_.window_pages();
  if (part == kWindowPart && pages > need && pages - need >= window && differs(Difference::kWindowHeadFirst)) {
    node = split(node, need);
  }
  const std::size_t slots = node->parts[part].slots[tier]->size();
  const bool copy_remains = node->has(part, 1 - tier);
  out.freed += slots;
  (copy_remains ? out.demoted : out.dropped) += slots;
  bool whole = is_leaf(*node, tier, false);
  if (whole && copy_remains && differs(Difference::kLeafKeepsFull)) whole = false;
  whole ? evict_leaf(node, tier) : tombstone(node, part, tier);
}

// Inside the tree a component takes along those below it: window takes the state.
void ReferenceTree::tombstone(Node* node, std::size_t part, std::size_t tier) {
  drop(node, part, tier);
  if (part != kWindowPart || !node->has(kStatePart, tier) || node->parts[kStatePart].locks[tier] > 0) return;
  if (node->has(kWindowPart, 1 - tier) && differs(Difference::kStateWithWindowCopy)) return;
  drop(node, kStatePart, tier);
}

}  // namespace larder::differential
