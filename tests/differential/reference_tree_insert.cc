// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/differential/reference_tree.h"

namespace larder::differential {

Slots ReferenceTree::Slice::part_of(const Slots& slots, std::size_t first) const {
  return {slots.begin() + static_cast<std::ptrdiff_t>(first), slots.begin() + static_cast<std::ptrdiff_t>(end())};
}

ReferenceInserted ReferenceTree::insert(const ReferenceInsert& request) {
  ++now_;
  ReferenceInserted result;
  const Key key = pages_of(request.tokens);
  const std::vector<Step> steps = walk(request.extra, key);
  Node* at = &root_;
  std::size_t total = 0;
  for (const Step& step : steps) {
    at = step.is_whole() ? step.node : split(step.node, step.pages);
    at->used = now_;
    at->priority = std::max(at->priority, request.priority);
    ++at->hits;
    insert_over(at, {request, total, step.pages}, result);
    total += step.pages;
  }
  if (total < key.size()) {
    result.fresh = key.size() - total;
    at = insert_rest(at, request, {key.begin() + static_cast<std::ptrdiff_t>(total), key.end()});
  }
  // Pieces that were cut off meanwhile, and the new ones.
  for (Node* node = at; !node->is_root(); node = node->parent) {
    node->used = std::max(node->used, now_);
    node->priority = std::max(node->priority, request.priority);
  }
  result.took_state = finish_insert(at, request.state, kOnDevice, request.used);
  return result;
}

// The request's pages over a node that is there already. What comes back to the device takes the request's slots, the
// rest are duplicates; a tombstone of the window is filled from where the request still has it.
void ReferenceTree::insert_over(Node* node, const Slice& slice, ReferenceInserted& result) {
  const ReferenceInsert& request = slice.request;
  if (slice.end() <= request.owned_from) return;
  const bool had_window = node->has(kWindowPart, kOnDevice);
  const std::size_t windowed_from = std::max(slice.from, request.window_from);
  if (had_window && windowed_from < slice.end()) {
    free(kWindowPart, kOnDevice, slice.part_of(request.window, windowed_from));
  }
  if (!node->has(kFullPart, kOnDevice)) {
    set(node, kFullPart, kOnDevice, slice.part_of(request.full, slice.from));
    result.recovered += slice.pages;
    if (!had_window) recover_window(node, slice, result);
    return;
  }
  result.duplicate += slice.pages;
  const bool recovers = shape_.window_tokens != 0 && !had_window && request.window_from < slice.end();
  // The window's slots of the reference hang on those of full: it takes both, unless full is locked.
  const bool takes_both =
      recovers && node->parts[kFullPart].locks[kOnDevice] == 0 && !differs(Difference::kRecoveryKeepsFull);
  if (takes_both) {
    Slots& own = *node->parts[kFullPart].slots[kOnDevice];
    const Slots given = slice.part_of(request.full, slice.from);
    for (std::size_t page = windowed_from; page < slice.end(); ++page) {
      free(kFullPart, kOnDevice, {own[page - slice.from]});
      own[page - slice.from] = given[page - slice.from];
    }
    const auto first = request.full.begin() + static_cast<std::ptrdiff_t>(slice.from);
    free(kFullPart, kOnDevice, {first, first + static_cast<std::ptrdiff_t>(windowed_from - slice.from)});
  } else {
    free(kFullPart, kOnDevice, slice.part_of(request.full, slice.from));
  }
  if (recovers) recover_window(node, slice, result);
}

void ReferenceTree::recover_window(Node* node, const Slice& slice, ReferenceInserted& result) {
  const std::size_t from = std::max(slice.from, slice.request.window_from);
  if (shape_.window_tokens == 0 || from >= slice.end()) return;
  if (from > slice.from) split(node, from - slice.from)->used = now_;
  set(node, kWindowPart, kOnDevice, slice.part_of(slice.request.window, from));
  result.recovered += slice.end() - from;
}

ReferenceNode* ReferenceTree::insert_rest(Node* parent, const ReferenceInsert& request, const Key& key) {
  const std::size_t from = parent->end(), end = from + key.size();
  const Slice slice{request, from, key.size()};
  Node* const leaf = add_leaf(parent, request.extra, key);
  leaf->priority = request.priority;
  leaf->hits = 1;
  set(leaf, kFullPart, kOnDevice, slice.part_of(request.full, from));
  if (shape_.window_tokens == 0 || request.window_from >= end) return leaf;
  const std::size_t windowed_from = std::max(from, request.window_from);
  if (windowed_from > from) split(leaf, windowed_from - from);
  set(leaf, kWindowPart, kOnDevice, slice.part_of(request.window, windowed_from));
  // A leaf of more than a window is cut, so that a lock of it holds a window only; production cuts when it locks.
  if (!ours(Difference::kLockExactWindow) && leaf->key.size() > shape_.window_pages()) {
    split(leaf, leaf->key.size() - shape_.window_pages());
  }
  return leaf;
}

bool ReferenceTree::finish_insert(Node* end, std::optional<Slot> state, std::size_t tier, bool used) {
  bool took_state = false;
  if (state) {
    took_state = !end->has(kStatePart, tier);
    took_state ? set(end, kStatePart, tier, {*state}) : free(kStatePart, tier, {*state});
  }
  refresh_window(end, true);
  if (used) refresh_window(end, false);
  refresh_state(end);
  return took_state;
}

void ReferenceTree::insert_host(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t from,
                                const Slots& full, const Slots& window, std::optional<Slot> state, bool used) {
  ++now_;
  const Key key = pages_of(tokens);
  Node* const parent = node_at(extra, tokens, from);
  Node* const leaf = add_leaf(parent, extra, {key.begin() + static_cast<std::ptrdiff_t>(from), key.end()});
  set(leaf, kFullPart, kOnHost, full);
  fill_host_window(leaf, key.size() - window.size(), window);
  (void)finish_insert(leaf, state, kOnHost, used);
  refresh_path(leaf);
}

// From the end upwards; what is there already goes back.
void ReferenceTree::fill_host_window(Node* end, std::size_t from, const Slots& window) {
  for (Node* node = end; !node->is_root() && node->end() > from; node = node->parent) {
    if (!node->has(kWindowPart, kOnHost) && node->begin() < from) split(node, from - node->begin());
    const std::size_t first = std::max(from, node->begin());
    const auto begin = window.begin() + static_cast<std::ptrdiff_t>(first - from);
    Slots slots(begin, begin + static_cast<std::ptrdiff_t>(node->end() - first));
    if (node->has(kWindowPart, kOnHost)) {
      free(kWindowPart, kOnHost, slots);
    } else {
      set(node, kWindowPart, kOnHost, std::move(slots));
    }
  }
}

// ---- host to device

ReferenceTree::LoadPlan ReferenceTree::plan_load(const std::string& extra, const std::vector<std::uint32_t>& tokens,
                                                 std::size_t end) {
  LoadPlan plan;
  Node* const node = node_at(extra, tokens, end);
  if (node->is_root()) return plan;
  const auto put_front = [](std::vector<std::size_t>& pages, const Node& at, std::size_t from) {
    for (std::size_t page = at.end(); page-- > from;) pages.insert(pages.begin(), page);
  };
  for (Node* at = node; !at->is_root() && !at->has(kFullPart, kOnDevice); at = at->parent) {
    put_front(plan.pages[kFullPart], *at, at->begin());
  }
  if (shape_.window_tokens != 0) {
    const std::size_t from = end - std::min(end, shape_.window_pages());
    for (Node* at : nodes_in_last(node, shape_.window_pages())) {
      if (at->has(kWindowPart, kOnDevice) || !at->has(kWindowPart, kOnHost)) continue;
      put_front(plan.pages[kWindowPart], *at, std::max(from, at->begin()));
    }
  }
  if (!node->has(kStatePart, kOnDevice) && node->has(kStatePart, kOnHost)) plan.pages[kStatePart] = {end - 1};
  return plan;
}

void ReferenceTree::load_back(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end,
                              const std::array<Slots, 3>& slots) {
  const LoadPlan plan = plan_load(extra, tokens, end);
  std::vector<Node*> path;
  const std::vector<std::size_t>& window = plan.pages[kWindowPart];
  if (!window.empty() && window.front() != 0) (void)node_at(extra, tokens, window.front());  // may begin inside a node
  for (Node* node = node_at(extra, tokens, end); !node->is_root(); node = node->parent) path.push_back(node);
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    for (std::size_t part = 0; part < 3; ++part) {
      Slots own;
      for (std::size_t i = 0; i < plan.pages[part].size(); ++i) {
        const std::size_t page = plan.pages[part][i];
        const bool here = part == kStatePart ? page + 1 == (*at)->end() : page >= (*at)->begin() && page < (*at)->end();
        if (here) own.push_back(slots[part][i]);
      }
      if (!own.empty()) set(*at, part, kOnDevice, std::move(own));
    }
  }
}

// ---- locks

void ReferenceTree::hold(Lock& lock, Node* node, std::size_t part) {
  lock.held.insert({node, part});
  ++node->parts[part].locks[lock.tier];
}

std::size_t ReferenceTree::lock(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end,
                                std::size_t tier) {
  Lock lock{tier, {}};
  Node* const node = node_at(extra, tokens, end);
  const auto take = [&](Node* at, std::size_t part) {
    if (at->has(part, tier) || differs(Difference::kClaimPages)) hold(lock, at, part);
  };
  if (shape_.window_tokens != 0 && !node->is_root()) {
    const std::size_t from = end - std::min(end, shape_.window_pages());
    std::vector<Node*> whole;  // until a window's worth of what is there
    std::size_t covered = 0;
    for (Node* at = node; !at->is_root() && covered * shape_.page_size < shape_.window_tokens; at = at->parent) {
      if (!at->has(kWindowPart, tier)) continue;
      whole.push_back(at);
      covered += at->key.size();
    }
    const bool alike = whole.empty() || whole.back()->begin() >= from;
    if (!alike && !differs(Difference::kLockExactWindow)) {
      for (Node* at : whole) hold(lock, at, kWindowPart);
    } else {
      Node* const top = nodes_in_last(node, end - from).back();
      if (top->begin() < from) split(top, from - top->begin());
      for (Node* at : nodes_in_last(node, end - from)) take(at, kWindowPart);
    }
  }
  for (Node* at = node; !at->is_root(); at = at->parent) {
    take(at, kFullPart);
    if (tier == kOnHost) break;
  }
  if (shape_.has_state && !node->is_root()) take(node, kStatePart);
  locks_[next_lock_] = std::move(lock);
  return next_lock_++;
}

void ReferenceTree::unlock(std::size_t id) {
  const auto found = locks_.find(id);
  for (const auto& [node, part] : found->second.held) --node->parts[part].locks[found->second.tier];
  locks_.erase(found);
}

void ReferenceTree::release_window(std::size_t id) {
  Lock& lock = locks_[id];
  std::erase_if(lock.held, [&](const auto& entry) {
    if (entry.second == kFullPart) return false;
    --entry.first->parts[entry.second].locks[lock.tier];
    return true;
  });
}

}  // namespace larder::differential
