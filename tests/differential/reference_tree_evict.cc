// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

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
  const double used = std::round(node.used);  // a path is of one age
  switch (shape_.policy) {
    case ReferencePolicy::kLru: return {used};
    case ReferencePolicy::kLfu: return {hits, used};
    case ReferencePolicy::kSlru: return {hits >= 2 ? 1.0 : 0.0, used};
    case ReferencePolicy::kFifo: return {node.created, used};
    case ReferencePolicy::kMru: return {-used};
    case ReferencePolicy::kFilo: return {-node.created, used};
    case ReferencePolicy::kPriority: return {static_cast<double>(node.priority), used};
  }
  return {};
}

std::vector<ReferenceNode*> ReferenceTree::leaves(std::size_t tier, bool copies_too) const {
  std::vector<Node*> found;
  for (Node* node : nodes()) {
    if (is_leaf(*node, tier, copies_too)) found.push_back(node);
  }
  const auto key_of = [&](const Node& node) {
    std::vector<double> key = policy_key(node);
    const Slot last = node.parts[kFullPart].slots[tier]->back();
    const auto place = std::find(others_.begin(), others_.end(), last) - others_.begin();
    if (may_have_gaps() && tier == kOnHost) key.push_back(static_cast<double>(place));
    return key;
  };
  const auto older = [&](const Node* a, const Node* b) { return key_of(*a) < key_of(*b); };
  std::stable_sort(found.begin(), found.end(), older);
  return found;
}

ReferenceEvicted ReferenceTree::evict(std::size_t part, std::size_t tier, std::size_t count, Slots others) {
  ReferenceEvicted out;
  others_ = std::move(others);
  part == kFullPart ? evict_full(tier, count, out) : evict_listed(part, tier, count, out);
  return out;
}

void ReferenceTree::back_up_for_reference(Node* node) {
  back_up_node(*node, [&](std::size_t) { return own_slot_++; });
}

// Has the host not all that the device has?
bool ReferenceTree::lacks_copy(const Node& node) {
  for (std::size_t part = 0; part < 3; ++part) {
    if (node.has(part, kOnDevice) && !node.has(part, kOnHost)) return true;
  }
  return false;
}

// nullptr: none.
ReferenceNode* ReferenceTree::next_leaf(std::size_t tier) {
  std::vector<Node*> all = leaves(tier, false);
  if (tier == kOnDevice) std::erase_if(all, [&](const Node* at) { return !may_go(*at); });
  Node* leaf = all.empty() ? nullptr : all.front();
  if (tier == kOnHost) {
    const std::vector<Node*> with_copies = leaves(tier, true);
    Node* const first = with_copies.empty() ? nullptr : with_copies.front();
    return first != leaf && differs(Difference::kHostCopyEvictable) ? first : leaf;
  }
  if (!shape_.write_back || leaf == nullptr) return leaf;
  if (leaf->has(kFullPart, kOnHost)) {
    return lacks_copy(*leaf) && differs(Difference::kLeafWholeBackedUp) ? nullptr : leaf;
  }
  if (differs(Difference::kBackedFirst)) return nullptr;
  back_up_for_reference(leaf);
  return leaf;
}

void ReferenceTree::evict_full(std::size_t tier, std::size_t count, ReferenceEvicted& out) {
  while (out.freed < count) {
    Node* const leaf = next_leaf(tier);
    if (leaf == nullptr) break;
    const std::size_t need = count - out.freed;
    if (leaf->key.size() > need && differs(Difference::kEvictPages)) split(leaf, leaf->key.size() - need);
    const std::size_t pages = leaf->key.size();
    out.freed += pages;
    (leaf->has(kFullPart, 1 - tier) ? out.demoted : out.dropped) += pages;
    evict_leaf(leaf, tier);
  }
  if (!shape_.write_back || tier == kOnHost) return;
  std::size_t covered = out.freed;
  for (Node* leaf : leaves(tier, false)) {
    if (covered >= count) break;
    covered += leaf->key.size();
    const bool is_waited_for = lacks_copy(*leaf) && ours(Difference::kLeafWholeBackedUp);
    if (is_waited_for || !leaf->has(kFullPart, kOnHost)) out.needs_backup.push_back(leaf);
  }
}

std::vector<ReferenceNode*> ReferenceTree::hanging(const Node& leaf) const {
  std::vector<Node*> found;
  for (const auto& [key, child] : leaf.children) found.push_back(child.get());
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [key, child] : found[i]->children) found.push_back(child.get());
  }
  return found;
}

// Without a copy it takes along what hangs on it, unless somebody uses that.
bool ReferenceTree::may_go(const Node& leaf) const {
  const std::vector<Node*> below = hanging(leaf);
  return shape_.write_back || leaf.has(kFullPart, kOnHost) ||
         std::none_of(below.begin(), below.end(),
                      [](const Node* at) { return at->is_locked(kOnDevice) || at->is_locked(kOnHost); });
}

// All components of the tier at once. What the other tier has stays; without that the node goes.
void ReferenceTree::evict_leaf(Node* leaf, std::size_t tier) {
  if (tier == kOnDevice && !leaf->has(kFullPart, kOnHost)) {
    const std::vector<Node*> below = hanging(*leaf);
    for (auto at = below.rbegin(); at != below.rend(); ++at) evict_leaf(*at, kOnHost);
  }
  for (std::size_t part = 3; part-- > 0;) {
    if (leaf->has(part, tier)) drop(leaf, part, tier);
  }
  if (!leaf->has_any(kFullPart)) remove(leaf);
}

// Window and state: the least recently used first, leaves as a whole, tombstones inside.
void ReferenceTree::evict_listed(std::size_t part, std::size_t tier, std::size_t count, ReferenceEvicted& out) {
  const Lru order = lru(part, tier);
  std::size_t named = 0;  // slots
  for (Node* node : order) {
    if (out.freed + named >= count) break;
    if (node->parts[part].locks[tier] > 0) continue;
    if (waits_for_backup(node, part, tier)) {
      out.needs_backup.push_back(node);
      named += node->parts[part].slots[tier]->size();
      continue;
    }
    if (tier == kOnHost && node->has(part, kOnDevice)) counts_.meet(Difference::kHostCopyEvictable);
    evict_one_listed(node, part, tier, count - out.freed - named, out);
  }
}

bool ReferenceTree::waits_for_backup(Node* node, std::size_t part, std::size_t tier) {
  if (!shape_.write_back || tier == kOnHost || node->has(part, kOnHost)) return false;
  if (differs(Difference::kInnerBackedUp)) return true;
  if (is_leaf(*node, tier, false)) back_up_for_reference(node);
  return false;
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
  if (tier == kOnDevice && !node->has(kFullPart, kOnHost) && !node->children.empty()) whole = false;
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
