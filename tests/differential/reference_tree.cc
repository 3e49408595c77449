// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/reference_tree.h"

#include <algorithm>
#include <cmath>

namespace larder::differential {

Rules all_rules() {
  Rules rules;
  for (const DifferenceEntry& entry : all_differences()) rules.insert(entry.id);
  return rules;
}

ReferenceTree::ReferenceTree(const ReferenceShape& shape, Rules rules, DifferenceCounts& counts)
    : shape_(shape), rules_(std::move(rules)), counts_(counts) {}

Key ReferenceTree::pages_of(const std::vector<std::uint32_t>& tokens) const {
  Key key;
  for (std::size_t at = 0; at + shape_.page_size <= tokens.size(); at += shape_.page_size) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    key.emplace_back(first, first + static_cast<std::ptrdiff_t>(shape_.page_size));
  }
  return key;
}

// ---- lookup

std::vector<ReferenceTree::Step> ReferenceTree::walk(const std::string& extra, const Key& key) const {
  std::vector<Step> steps;
  const Node* node = &root_;
  for (std::size_t at = 0; at < key.size();) {
    const auto found = node->children.find({extra, key[at]});
    if (found == node->children.end()) break;
    Node* child = found->second.get();
    std::size_t pages = 0;
    while (pages < child->key.size() && at + pages < key.size() && child->key[pages] == key[at + pages]) ++pages;
    steps.push_back({child, pages});
    if (pages < child->key.size()) break;
    at += pages;
    node = child;
  }
  return steps;
}

// All components look at every node on the way: the window's run goes on where another says no.
bool ReferenceTree::accepts(const Step& step, bool host, std::optional<std::size_t>& window_run) const {
  const auto there = [&](std::size_t part) {
    return step.node->has(part, kOnDevice) || (host && step.node->has(part, kOnHost));
  };
  bool accepted = there(kFullPart);
  if (shape_.window_tokens != 0) {
    if (!there(kWindowPart)) {
      window_run = 0;
      accepted = false;
    } else if (window_run) {  // no value: nothing was missing since the root, however short that is
      *window_run += step.pages;
      accepted = accepted && *window_run * shape_.page_size >= shape_.window_tokens;
    }
  }
  if (shape_.has_state && !(step.is_whole() && there(kStatePart))) accepted = false;
  return accepted;
}

std::size_t ReferenceTree::best_of(const std::vector<Step>& steps, bool host) const {
  std::optional<std::size_t> window_run;
  std::size_t best = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (accepts(steps[i], host, window_run)) best = i + 1;
  }
  return best;
}

namespace {

template <class Steps>
std::size_t pages_in(const Steps& steps, std::size_t count) {
  std::size_t pages = 0;
  for (std::size_t i = 0; i < count; ++i) pages += steps[i].pages;
  return pages;
}

}  // namespace

ReferenceAnswer ReferenceTree::answer(const std::string& extra, const std::vector<std::uint32_t>& tokens) const {
  const std::vector<Step> steps = walk(extra, pages_of(tokens));
  return {pages_in(steps, steps.size()), pages_in(steps, best_of(steps, false)), pages_in(steps, best_of(steps, true))};
}

ReferenceAnswer ReferenceTree::match(const std::string& extra, const std::vector<std::uint32_t>& tokens) {
  const ReferenceAnswer found = answer(extra, tokens);
  ++now_;
  std::vector<Step> steps = walk(extra, pages_of(tokens));
  const std::size_t best = best_of(steps, true);
  if (!steps.empty() && !steps.back().is_whole()) {
    const bool is_best = best == steps.size();
    if (is_best || !differs(Difference::kLookupChangesNothing)) {
      steps.back().node = split(steps.back().node, steps.back().pages);
    }
  }
  if (best == 0) return found;
  Node* const node = steps[best - 1].node;
  refresh_window(node, false);
  refresh_state(node);
  refresh_path(node);
  return found;
}

ReferenceNode* ReferenceTree::node_at(const std::string& extra, const std::vector<std::uint32_t>& tokens,
                                      std::size_t end) {
  std::vector<std::uint32_t> head(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end * shape_.page_size));
  const std::vector<Step> steps = walk(extra, pages_of(head));
  if (steps.empty()) return &root_;
  return steps.back().is_whole() ? steps.back().node : split(steps.back().node, steps.back().pages);
}

// ---- shape

ReferenceNode* ReferenceTree::split(Node* child, std::size_t pages) {
  Node* const parent = child->parent;
  const std::pair<std::string, Page> child_key{child->extra, child->key.front()};
  std::unique_ptr<Node> tail = std::move(parent->children[child_key]);
  auto head = std::make_unique<Node>();
  const auto cut = static_cast<std::ptrdiff_t>(pages);
  head->key.assign(child->key.begin(), child->key.begin() + cut);
  child->key.erase(child->key.begin(), child->key.begin() + cut);
  head->extra = child->extra;
  head->parent = parent;
  head->used = ours(Difference::kLookupChangesNothing) ? child->used : now_;
  head->created = child->created;
  head->hits = child->hits;
  head->priority = child->priority;
  for (const std::size_t part : {kFullPart, kWindowPart}) {  // the state stays at the end
    for (std::size_t tier = 0; tier < 2; ++tier) {
      std::optional<Slots>& slots = child->parts[part].slots[tier];
      if (!slots) continue;
      head->parts[part].slots[tier].emplace(slots->begin(), slots->begin() + cut);
      slots->erase(slots->begin(), slots->begin() + cut);
      Lru& list = lru(part, tier);
      const auto at = std::find(list.begin(), list.end(), child);
      if (at != list.end()) list.insert(at, head.get());
    }
  }
  split_locks(head.get(), child);
  child->parent = head.get();
  head->children[{child->extra, child->key.front()}] = std::move(tail);
  Node* const result = head.get();
  parent->children[child_key] = std::move(head);
  return result;
}

void ReferenceTree::split_locks(Node* head, Node* child) {
  for (auto& [id, lock] : locks_) {
    for (const std::size_t part : {kFullPart, kWindowPart}) {
      const std::size_t times = lock.held.count({child, part});
      if (times == 0) continue;
      if (lock.tier == kOnHost && (part == kFullPart || !differs(Difference::kHostLockSplits))) continue;
      for (std::size_t i = 0; i < times; ++i) hold(lock, head, part);
    }
  }
}

void ReferenceTree::merge_into_child(Node* upper) {
  Node* const parent = upper->parent;
  const std::pair<std::string, Page> upper_key{upper->extra, upper->key.front()};
  std::unique_ptr<Node> lower = std::move(upper->children.begin()->second);
  lower->key.insert(lower->key.begin(), upper->key.begin(), upper->key.end());
  for (const std::size_t part : {kFullPart, kWindowPart}) {
    for (std::size_t tier = 0; tier < 2; ++tier) {
      if (!upper->has(part, tier)) continue;
      Slots& slots = *lower->parts[part].slots[tier];
      const Slots& before = *upper->parts[part].slots[tier];
      slots.insert(slots.begin(), before.begin(), before.end());
      lru(part, tier).remove(upper);
    }
  }
  lower->parent = parent;
  parent->children[upper_key] = std::move(lower);  // ends `upper`
}

void ReferenceTree::take_shape(ReferenceNode& leaf, const std::set<std::size_t>& ends) {
  for (Node* node = &leaf; !node->is_root(); node = node->parent) {
    const std::size_t begin = node->begin(), end = node->end();
    for (auto cut = ends.upper_bound(begin); cut != ends.end() && *cut < end; ++cut) {
      Node* const head = split(node, *cut - node->begin());
      head->used = node->used;
    }
  }
  for (Node* node = &leaf; !node->is_root() && !node->parent->is_root();) {
    Node* const upper = node->parent;
    if (!ends.contains(upper->end()) && are_alike(*upper, *node)) {
      merge_into_child(upper);
    } else {
      node = upper;
    }
  }
}

// Could the two be one node? The same data, used at the same time, by nobody now, and next to each other in the order.
bool ReferenceTree::are_alike(const Node& upper, const Node& lower) const {
  bool alike = upper.children.size() == 1 && std::abs(upper.used - lower.used) < 0.5 && !upper.has_any(kStatePart) &&
               !upper.is_locked(kOnDevice) && !upper.is_locked(kOnHost);
  for (const std::size_t part : {kFullPart, kWindowPart}) {
    for (std::size_t tier = 0; tier < 2; ++tier) {
      alike = alike && upper.has(part, tier) == lower.has(part, tier);
      const Lru& list = lru_[part][tier];
      const auto at = std::find(list.begin(), list.end(), &upper);
      alike = alike && (at == list.end() || (std::next(at) != list.end() && *std::next(at) == &lower));
    }
  }
  return alike;
}

ReferenceNode* ReferenceTree::add_leaf(Node* parent, const std::string& extra, Key key) {
  auto leaf = std::make_unique<Node>();
  leaf->extra = extra;
  leaf->parent = parent;
  leaf->used = leaf->created = now_;
  leaf->key = std::move(key);
  Node* const result = leaf.get();
  parent->children[{extra, leaf->key.front()}] = std::move(leaf);
  return result;
}

void ReferenceTree::remove(Node* node) {
  for (auto& [id, lock] : locks_) {
    std::erase_if(lock.held, [&](const auto& entry) { return entry.first == node; });
  }
  Node* const parent = node->parent;
  const std::pair<std::string, Page> key{node->extra, node->key.front()};
  parent->children.erase(key);
}

// ---- slots and recency

bool ReferenceTree::is_listed(const Node& node, std::size_t part, std::size_t tier) const {
  if (part == kFullPart || !node.has(part, tier)) return false;
  return tier == kOnDevice || ours(Difference::kHostCopyEvictable) || !node.has(part, kOnDevice);
}

void ReferenceTree::make_newest(Node* node, std::size_t part, std::size_t tier) {
  lru(part, tier).remove(node);
  lru(part, tier).push_back(node);
}

void ReferenceTree::set(Node* node, std::size_t part, std::size_t tier, Slots slots) {
  node->parts[part].slots[tier] = std::move(slots);
  if (is_listed(*node, part, tier)) make_newest(node, part, tier);
  if (tier == kOnDevice && !is_listed(*node, part, kOnHost)) lru(part, kOnHost).remove(node);
}

void ReferenceTree::drop(Node* node, std::size_t part, std::size_t tier) {
  free(part, tier, *node->parts[part].slots[tier]);
  node->parts[part].slots[tier].reset();
  lru(part, tier).remove(node);
  const bool was_hidden = tier == kOnDevice && is_listed(*node, part, kOnHost) && !ours(Difference::kHostCopyEvictable);
  if (was_hidden) make_newest(node, part, kOnHost);
}

void ReferenceTree::free(std::size_t part, std::size_t tier, const Slots& slots) {
  freed_[part][tier].insert(slots.begin(), slots.end());
}

void ReferenceTree::refresh_path(Node* node) {
  double used = now_;
  for (; !node->is_root(); node = node->parent, used -= 1e-5) node->used = used;
}

void ReferenceTree::refresh_state(Node* node) {
  for (std::size_t tier = 0; tier < 2; ++tier) {
    const bool counts = tier == kOnDevice || ours(Difference::kHostCopyEvictable);
    if (counts && is_listed(*node, kStatePart, tier)) make_newest(node, kStatePart, tier);
  }
}

std::vector<ReferenceNode*> ReferenceTree::nodes_in_last(Node* node, std::size_t pages) const {
  std::vector<Node*> found;
  for (std::size_t seen = 0; !node->is_root() && seen < pages; node = node->parent) {
    found.push_back(node);
    seen += node->key.size();
  }
  return found;
}

// The end of the path becomes the newest, what is above it a little older.
void ReferenceTree::refresh_windows_of(const std::vector<Node*>& upwards) {
  for (auto at = upwards.rbegin(); at != upwards.rend(); ++at) {
    for (std::size_t tier = 0; tier < 2; ++tier) {
      const bool counts = tier == kOnDevice || ours(Difference::kHostCopyEvictable);
      if (counts && is_listed(**at, kWindowPart, tier)) make_newest(*at, kWindowPart, tier);
    }
  }
}

// A window, and a page more, in whole nodes. Production: the pages of the window. An insertion that nobody has used yet
// refreshes the nodes that reach into the window.
void ReferenceTree::refresh_window(Node* node, bool inserted) {
  if (shape_.window_tokens == 0) return;
  const auto reach = [](const std::vector<Node*>& nodes) {
    std::size_t begin = nodes.front()->end();
    for (const Node* at : nodes) {
      if (at->has_any(kWindowPart)) begin = at->begin();
    }
    return begin;
  };
  const std::size_t from = node->end() - std::min(node->end(), shape_.window_pages());
  const std::size_t bound = (shape_.window_tokens + shape_.page_size - 1) / shape_.page_size + 1;
  const std::vector<Node*> whole = nodes_in_last(node, bound);
  if (reach(whole) >= from || !differs(Difference::kUseExactWindow)) return refresh_windows_of(whole);
  const std::vector<Node*> window = nodes_in_last(node, node->end() - from);
  Node* const top = window.back();
  if (!inserted && top->begin() < from && top->has_any(kWindowPart)) split(top, from - top->begin());
  refresh_windows_of(window);
}

// ---- for whoever compares

std::vector<ReferenceNode*> ReferenceTree::nodes() const {
  std::vector<ReferenceNode*> found;
  for (const auto& [key, child] : root_.children) found.push_back(child.get());
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [key, child] : found[i]->children) found.push_back(child.get());
  }
  return found;
}

std::vector<std::uint32_t> ReferenceTree::tokens_to(const ReferenceNode& node) const {
  std::vector<std::uint32_t> tokens;
  if (!node.is_root()) tokens = tokens_to(*node.parent);
  for (const Page& page : node.key) tokens.insert(tokens.end(), page.begin(), page.end());
  return tokens;
}

std::size_t ReferenceTree::count(std::size_t part, std::size_t tier) const {
  std::size_t total = 0;
  for (const ReferenceNode* node : nodes()) {
    if (node->has(part, tier)) total += node->parts[part].slots[tier]->size();
  }
  return total;
}

std::string ReferenceTree::broken_invariant() const {
  for (const ReferenceNode* node : nodes()) {
    if (!node->has_any(kFullPart)) return "a dead node";
    for (std::size_t tier = 0; tier < 2; ++tier) {
      const bool may_hang = may_have_gaps() && tier == kOnHost;
      const bool above = may_hang || node->parent->is_root() || node->parent->has(kFullPart, tier);
      if (node->has(kFullPart, tier) && !above) return "full without its parent's";
      for (std::size_t part = 0; part < 3; ++part) {
        if (node->has(part, tier) && !node->has(kFullPart, tier)) return "window or state without full";
        const Lru& list = lru_[part][tier];
        const auto times = std::count(list.begin(), list.end(), node);
        if (times != (is_listed(*node, part, tier) ? 1 : 0)) return "a list has a node too often, or not at all";
      }
    }
  }
  return {};
}

}  // namespace larder::differential
