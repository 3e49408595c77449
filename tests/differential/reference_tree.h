// SPDX-License-Identifier: Apache-2.0
// The reference system's radix tree with components, device and host tier, after its published rules.
//
// Plain on purpose: nodes with maps and vectors, leaves found by looking at every node. A node has a run of pages; per
// component (full, window, state) and tier it has slots or nothing. Where production differs on purpose, the rule has a
// switch named after its entry in differences.h; a switch that is on makes this tree do as production does, and counts
// whenever the rule of the reference would have led elsewhere. With all switches off it is the reference.
//
// Two facts of production's are taken from outside, because no caller is promised them: which slots are handed in, and
// (take_shape) where its nodes are cut.
// Threads: confined. Cost: whatever it takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/differential/differences.h"

namespace larder::differential {

using Slot = std::uint32_t;
using Slots = std::vector<Slot>;
using Page = std::vector<std::uint32_t>;  // its tokens
using Key = std::vector<Page>;
inline constexpr std::size_t kFullPart = 0, kWindowPart = 1, kStatePart = 2;  // components
inline constexpr std::size_t kOnDevice = 0, kOnHost = 1;                      // tiers

struct ReferenceNode {
  struct Part {
    std::array<std::optional<Slots>, 2> slots;  // by tier; state: one
    std::array<int, 2> locks{};
  };
  Key key;
  std::string extra;  // namespace
  ReferenceNode* parent = nullptr;
  std::map<std::pair<std::string, Page>, std::unique_ptr<ReferenceNode>> children;
  std::array<Part, 3> parts;
  double used = 0;  // when; a parent is used a little before its child
  double created = 0;
  std::uint64_t hits = 0;
  int priority = 0;

  [[nodiscard]] bool is_root() const { return parent == nullptr; }
  [[nodiscard]] bool has(std::size_t part, std::size_t tier) const { return parts[part].slots[tier].has_value(); }
  [[nodiscard]] bool has_any(std::size_t part) const { return has(part, kOnDevice) || has(part, kOnHost); }
  [[nodiscard]] bool is_locked(std::size_t tier) const {
    return parts[0].locks[tier] > 0 || parts[1].locks[tier] > 0 || parts[2].locks[tier] > 0;
  }
  [[nodiscard]] std::size_t end() const { return is_root() ? 0 : parent->end() + key.size(); }
  [[nodiscard]] std::size_t begin() const { return end() - key.size(); }
};

enum class ReferencePolicy : std::uint8_t { kLru, kLfu, kSlru, kFifo, kMru, kFilo, kPriority };

struct ReferenceShape {
  std::size_t page_size = 1;      // tokens
  std::size_t window_tokens = 0;  // 0: no window
  bool has_state = false;
  ReferencePolicy policy = ReferencePolicy::kLru;
  bool write_back = false;  // nothing is backed up before it is evicted

  [[nodiscard]] std::size_t window_pages() const { return (window_tokens + page_size - 1) / page_size; }
};

// Which rules are production's.
using Rules = std::set<Difference>;
[[nodiscard]] Rules all_rules();

struct ReferenceAnswer {
  std::size_t walked = 0;  // pages that are in the tree
  std::size_t device = 0;  // where a request may resume with what the device has
  std::size_t any = 0;     // ... with what device or host has
};

struct ReferenceInsert {
  std::string extra;
  std::vector<std::uint32_t> tokens;  // whole pages
  std::size_t owned_from = 0;         // pages: the tree's already; a node ends there
  Slots full;                         // one per page
  std::size_t window_from = 0;        // pages before it have left the window
  Slots window;                       // one per page
  std::optional<Slot> state;          // at the end
  int priority = 0;
  bool used = false;  // production was told that the request will use it; the reference takes that for granted
};
struct ReferenceInserted {
  std::size_t fresh = 0, duplicate = 0, recovered = 0;  // pages
  bool took_state = false;
};

struct ReferenceEvicted {
  std::size_t freed = 0, demoted = 0, dropped = 0;  // slots of the component that was asked for
  std::vector<ReferenceNode*> needs_backup;         // write_back: what would cover the rest; good until the next call
};

// What went back to the pools: [part][tier].
using FreedSlots = std::array<std::array<std::multiset<Slot>, 2>, 3>;

class ReferenceTree {
 public:
  ReferenceTree(const ReferenceShape& shape, Rules rules, DifferenceCounts& counts);

  // Only whole pages of `tokens` count. No side effects.
  [[nodiscard]] ReferenceAnswer answer(const std::string& extra, const std::vector<std::uint32_t>& tokens) const;
  // The same, and what was found counts as used.
  ReferenceAnswer match(const std::string& extra, const std::vector<std::uint32_t>& tokens);
  ReferenceInserted insert(const ReferenceInsert& request);
  // Pages [from, from + full.size()) of the path, which end at a node of it before; the window's last pages; the state.
  void insert_host(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t from,
                   const Slots& full, const Slots& window, std::optional<Slot> state, bool used);

  // Device to host, parents first: everything on the path to `end` that no copy of full stands beneath. Calls for a
  // slot of (part) once per page or state, in the order of the path.
  template <class NewSlot>
  void back_up(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end, NewSlot new_slot);

  // One node: the parts of it that have no copy, with new slots.
  template <class NewSlot>
  void back_up_node(ReferenceNode& node, NewSlot new_slot);

  // Host to device, for what a request needs that resumes at `end`: pages by part that are loaded, in order. The slots
  // come in the same shape. (The reference loads whole nodes of a window. Which of its pages are loaded is for the
  // caller of production's tree to say, so there is nothing to compare: here they are those of the window.)
  struct LoadPlan {
    std::array<std::vector<std::size_t>, 3> pages;  // state: the page before its position
  };
  [[nodiscard]] LoadPlan plan_load(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end);
  void load_back(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end,
                 const std::array<Slots, 3>& slots);

  // Where the host has gaps, two pieces of one path may be leaves of the same age, and nobody promises an
  // order: `others` says in which order production gave slots back.
  ReferenceEvicted evict(std::size_t part, std::size_t tier, std::size_t count, Slots others = {});

  // Protects what a request that resumes at `end` pages of the path uses. Names the lock.
  std::size_t lock(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end,
                   std::size_t tier);
  void unlock(std::size_t id);
  void release_window(std::size_t id);  // and the state; full stays locked

  FreedSlots take_freed() { return std::exchange(freed_, {}); }

  // Every node but the root, parents first.
  [[nodiscard]] std::vector<ReferenceNode*> nodes() const;
  // The tokens of the path that ends at the node.
  [[nodiscard]] std::vector<std::uint32_t> tokens_to(const ReferenceNode& node) const;
  // Cuts the path to `leaf` at these positions (pages), its end among them, and nowhere else if the pieces are alike.
  void take_shape(ReferenceNode& leaf, const std::set<std::size_t>& ends);
  // A node's data is uniform over its pages and stands on what it needs; empty: all is well.
  [[nodiscard]] std::string broken_invariant() const;
  // Pages (states) in a tier.
  [[nodiscard]] std::size_t count(std::size_t part, std::size_t tier) const;

 private:
  using Node = ReferenceNode;
  using Lru = std::list<Node*>;  // oldest first
  struct Lock {
    std::size_t tier = 0;
    std::multiset<std::pair<Node*, std::size_t>> held;  // (node, part)
  };
  struct Step {  // of a walk: so many pages of a node
    Node* node = nullptr;
    std::size_t pages = 0;
    [[nodiscard]] bool is_whole() const { return pages == node->key.size(); }
  };

  [[nodiscard]] bool ours(Difference d) const { return rules_.contains(d); }
  // On the host: a piece of a path may be there, and what is above it not.
  [[nodiscard]] bool may_have_gaps() const { return shape_.write_back || ours(Difference::kAdoptBeneathDevice); }
  // The outcomes of the two rules differ; true: do as production.
  bool differs(Difference d) {
    counts_.meet(d);
    return ours(d);
  }
  [[nodiscard]] Key pages_of(const std::vector<std::uint32_t>& tokens) const;
  [[nodiscard]] std::vector<Step> walk(const std::string& extra, const Key& key) const;
  // Steps up to the last one that all components accept; host: data on the host counts, too.
  [[nodiscard]] std::size_t best_of(const std::vector<Step>& steps, bool host) const;
  [[nodiscard]] bool accepts(const Step& step, bool host, std::optional<std::size_t>& window_run) const;
  // A node that ends at `end` pages of the path.
  Node* node_at(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end);

  Node* split(Node* child, std::size_t pages);  // returns the new parent, which has the first `pages`
  void split_locks(Node* head, Node* child);
  void hold(Lock& lock, Node* node, std::size_t part);
  void merge_into_child(Node* upper);
  [[nodiscard]] bool are_alike(const Node& upper, const Node& lower) const;
  Node* add_leaf(Node* parent, const std::string& extra, Key key);
  void remove(Node* node);

  Lru& lru(std::size_t part, std::size_t tier) { return lru_[part][tier]; }
  void set(Node* node, std::size_t part, std::size_t tier, Slots slots);
  void drop(Node* node, std::size_t part, std::size_t tier);
  void free(std::size_t part, std::size_t tier, const Slots& slots);
  void make_newest(Node* node, std::size_t part, std::size_t tier);
  [[nodiscard]] bool is_listed(const Node& node, std::size_t part, std::size_t tier) const;
  void refresh_path(Node* node);
  void refresh_window(Node* node, bool inserted);
  void refresh_windows_of(const std::vector<Node*>& upwards);
  void refresh_state(Node* node);
  // Nodes upwards from `node` that reach into the last `pages` of its path.
  [[nodiscard]] std::vector<Node*> nodes_in_last(Node* node, std::size_t pages) const;

  struct Slice {  // of an insertion, over one node that was there
    const ReferenceInsert& request;
    std::size_t from = 0, pages = 0;

    [[nodiscard]] std::size_t end() const { return from + pages; }
    [[nodiscard]] Slots part_of(const Slots& slots, std::size_t first) const;  // [first, end())
  };
  void insert_over(Node* node, const Slice& slice, ReferenceInserted& result);
  void recover_window(Node* node, const Slice& slice, ReferenceInserted& result);
  Node* insert_rest(Node* parent, const ReferenceInsert& request, const Key& key);
  bool finish_insert(Node* end, std::optional<Slot> state, std::size_t tier, bool used);
  void fill_host_window(Node* end, std::size_t from, const Slots& window);

  // copies_too: host copies of what the device has may be leaves as well.
  [[nodiscard]] bool is_leaf(const Node& node, std::size_t tier, bool copies_too) const;
  [[nodiscard]] std::vector<double> policy_key(const Node& node) const;
  [[nodiscard]] std::vector<Node*> leaves(std::size_t tier, bool copies_too) const;  // oldest first
  [[nodiscard]] static bool lacks_copy(const Node& node);
  [[nodiscard]] Node* next_leaf(std::size_t tier);
  // What hangs on a leaf of the device that has no copy, and is on the host: empty as a rule.
  [[nodiscard]] std::vector<Node*> hanging(const Node& leaf) const;
  [[nodiscard]] bool may_go(const Node& leaf) const;
  [[nodiscard]] bool waits_for_backup(Node* node, std::size_t part, std::size_t tier);
  void back_up_for_reference(Node* node);
  void evict_full(std::size_t tier, std::size_t count, ReferenceEvicted& out);
  void evict_listed(std::size_t part, std::size_t tier, std::size_t count, ReferenceEvicted& out);
  void evict_one_listed(Node* node, std::size_t part, std::size_t tier, std::size_t need, ReferenceEvicted& out);
  void evict_leaf(Node* leaf, std::size_t tier);
  void tombstone(Node* node, std::size_t part, std::size_t tier);

  ReferenceShape shape_;
  Rules rules_;
  DifferenceCounts& counts_;
  Node root_;
  std::array<std::array<Lru, 2>, 3> lru_;
  std::map<std::size_t, Lock> locks_;
  std::size_t next_lock_ = 1;
  double now_ = 0;
  FreedSlots freed_;
  Slots others_;
  Slot own_slot_ = 1'000'000'000;  // of copies that the reference makes by itself
};

template <class NewSlot>
void ReferenceTree::back_up(const std::string& extra, const std::vector<std::uint32_t>& tokens, std::size_t end,
                            NewSlot new_slot) {
  std::vector<Node*> path;
  for (Node* node = node_at(extra, tokens, end); !node->is_root(); node = node->parent) path.push_back(node);
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    if (!(*at)->has(kFullPart, kOnHost)) back_up_node(**at, new_slot);
  }
}

template <class NewSlot>
void ReferenceTree::back_up_node(ReferenceNode& node, NewSlot new_slot) {
  for (std::size_t part = 0; part < 3; ++part) {
    if (!node.has(part, kOnDevice) || node.has(part, kOnHost)) continue;
    Slots slots;
    for (std::size_t i = 0; i < node.parts[part].slots[kOnDevice]->size(); ++i) slots.push_back(new_slot(part));
    set(&node, part, kOnHost, slots);
  }
}

}  // namespace larder::differential
