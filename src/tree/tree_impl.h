// SPDX-License-Identifier: Apache-2.0
// The inside of the radix tree. Internal to src/tree; tree.h is the contract.
//
// Where things are done:
//   tree.cc          façade, namespaces, views           walk.cc    match, locate, settle, touch
//   residency.cc     data of a node and its counters     lock.cc    locks of requests
//   structure.cc     making, splitting, removing nodes   ops.cc     attach, cover, finish_op
//   insert.cc        extend, insert_host                 evict.cc   eviction, flush
//   keys.cc          page keys                           tree_backlog.cc  what storage lacks
//   invariants.cc    check_invariants
//
// One rule keeps the rest simple: data enters and leaves a node only through residency.cc, which keeps the page
// counters, the victim heaps, the backlog and full_children right. Everybody else speaks in
// splits and attachments.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tree/child_table.h"
#include "tree/node.h"
#include "tree/op_registry.h"
#include "tree/tree.h"
#include "tree/tree_backlog.h"
#include "tree/tree_observer.h"
#include "tree/victim_queues.h"

namespace larder {

struct RadixTree::Impl {
  using Id = tree::Id;
  using Node = tree::Node;
  using Bits = tree::Bits;
  using SlotRun = tree::Run<std::uint32_t>;

  Impl(const TreeConfig& config, SlotSink& sink);

  // ---- walk.cc
  [[nodiscard]] MatchResult match(NamespaceId space, std::span<const TokenId> tokens) const;
  // The longest path beneath `start` that equals the tokens, regardless of data.
  [[nodiscard]] TreePosition walk(Id start, std::span<const TokenId> tokens) const;
  [[nodiscard]] Id find_child(Id parent, const TokenId* page) const;
  // The same on a walk: `hash` is that of the first page of `rest`, and becomes that of the page after the child's
  // edge, whose entry comes from memory while the child's tokens are compared.
  [[nodiscard]] Id descend(Id parent, std::span<const TokenId> rest, std::uint64_t& hash) const;
  [[nodiscard]] std::uint64_t first_hash(Id start, std::span<const TokenId> tokens) const;
  [[nodiscard]] std::uint64_t matched_pages(const Node& node, const TokenId* tokens, std::uint64_t pages) const;
  [[nodiscard]] WaysOn ways_on(const TreePosition& at, std::span<const TokenId> rest) const;
  void touch(const TreePosition& at, bool count_hit);
  void touch_window(Id node, bool exactly);
  void touch_state(Id node);
  void count_use(Id node);
  void note_prompt(NamespaceId space, std::span<const TokenId> tokens);
  [[nodiscard]] float uses_now(const Node& node) const;
  void recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
              std::span<CheckpointOrigin* const> origins);
  void touch_path(Id node, std::uint32_t hits);
  [[nodiscard]] bool is_fresh() const { return chooses && duel.ahead() == ReuseWay::kMru; }  // what is used now
  // The same by whom computed what is new at its end: priorities rise, and edges that are alike become one.
  void touch_own_path(Id node, std::int32_t priority);
  [[nodiscard]] Id settle(const TreePosition& at);
  void locate(Id node, ComponentKind c, std::uint64_t from, std::uint64_t to, std::vector<PageLocation>& out) const;
  // First page whose window data is needed to resume at page `end`.
  [[nodiscard]] std::uint64_t window_begin(std::uint64_t end) const { return end - std::min(end, window_pages); }

  // ---- residency.cc
  // The slots are in the node already; these make them count. add_published() tells of it, unless the caller will.
  void add_published(Id id, ComponentKind c, Tier t, bool tells = true);
  void add_pending(Id id, ComponentKind c, Tier t);
  void publish(Id id, ComponentKind c, Tier t);
  // Gives the slots to the sink and forgets them, pending or published.
  // goes_with_tier: drop_tier() drops all of the node there, and renews its keys once.
  void drop(Id id, ComponentKind c, Tier t, bool goes_with_tier = false);
  // Everything of the node in the tier.
  void drop_tier(Id id, Tier t);
  void tell_lost(Id id, ComponentKind c, Tier t);
  void tell_came(Id id, ComponentKind c, Tier t);
  [[nodiscard]] PageChange page_change(Id id, ComponentKind c, Tier t);
  void tell_pages(PageObserver& to);
  void set_slots(Id id, ComponentKind c, Tier t, SlotRun run);
  void give_back(ComponentKind c, Tier t, std::span<const std::uint32_t> slots);
  // Gives back those of `given` that are not the tree's own already (a caller that hands in a slot twice must not make
  // us free it under a reader).
  void give_back_duplicates(ComponentKind c, Tier t, std::span<const std::uint32_t> given, const std::uint32_t* own);
  // Corrects `locked` after the node came under its first operation or lost its last.
  void recount_covered(Id id, bool was_covered);
  [[nodiscard]] std::uint64_t& claims_of(const Node& node) { return spaces[node.space].claims; }
  [[nodiscard]] bool is_device_leaf(const Node& node) const;
  [[nodiscard]] bool may_leave_host(const Node& node) const;
  [[nodiscard]] std::uint64_t last_use(const Node& node, ComponentKind c, Tier t) const;
  [[nodiscard]] Facts facts(const Node& node, ComponentKind c, Tier t) const;
  [[nodiscard]] Facts plain_facts(const Node& node, ComponentKind c, Tier t) const;  // without weigh()
  // Where it stands among the victims of its tier.
  struct Place {
    std::uint8_t queue = 0;
    OrderKey key;
  };
  [[nodiscard]] Place place_of(const Node& node, ComponentKind c, Tier t) const;
  // Exclusive tiers: does the device have all that would leave the host with it?
  [[nodiscard]] bool is_spare(const Node& node, ComponentKind c, Tier t) const;
  // What orders that weigh are told beyond that.
  void weigh(const Node& node, Facts& facts) const;
  void refresh_leaf(Id id);                           // membership in the leaf heaps
  void refresh_leaf_key(Id id);                       // place in them, after the facts changed
  void refresh_held(Id id, ComponentKind c, Tier t);  // after the first lock, or the last unlock
  void set_state_place(Id id, Tier t);
  void set_leaves_device(Id id, bool leaves);
  void refresh_spares(Id id);  // after what it has on device or host has changed
  // The place among victims that its facts give it now.
  void push_victim(tree::VictimQueues& victims, Id id, ComponentKind c, Tier t);
  void update_victim(tree::VictimQueues& victims, Id id, ComponentKind c, Tier t);
  [[nodiscard]] double worth_of(std::uint8_t queue, std::uint64_t last_use, Tier t) const;
  // The same of many queues, by ascending numbers, and the last uses of their firsts.
  void worths_of(std::span<const std::uint8_t> queues, std::span<const std::uint64_t> last_uses, Tier t,
                 std::span<double> out) const;
  // Who leaves first: whose facts have changed unseen is put in the right queue before.
  [[nodiscard]] tree::VictimQueues::First first_victim(tree::VictimQueues& victims, ComponentKind c, Tier t,
                                                       const EvictFor& who);
  [[nodiscard]] TenantId tenant_of(const Node& node) const { return spaces[node.space].tenant; }
  // Counts data that came, went, or came into or out of use.
  void tally(const Node& node, ComponentKind c, Tier t, const TierCountsChange& by);
  // Puts the queues of tenants where what they hold by now puts them.
  void settle_standings();
  // May swa or mamba of the node be evicted now?
  [[nodiscard]] bool is_aux_victim(const Node& node, ComponentKind c, Tier t) const;
  void refresh_aux(Id id, ComponentKind c, Tier t);   // membership in its victim heap
  void refresh_aux(Id id);                            // of both components in both tiers
  void set_aux_tick(Id id, ComponentKind c, Tier t);  // used now
  [[nodiscard]] tree::VictimQueues& aux_heap(ComponentKind c, Tier t) {
    return aux_heaps[tree::aux_of(c)][tree::index_of(t)];
  }

  // ---- structure.cc
  [[nodiscard]] Id make_root(std::uint32_t space);
  [[nodiscard]] Id add_leaf(Id parent, std::span<const TokenId> tokens);
  // Cuts the edge at `page` (inside it). Returns the new parent, which has the head; `id` keeps the tail.
  Id split(Id id, std::uint64_t page);
  void split_residency(Id head, Id tail);
  // Precondition: no children, no data, no claims.
  void remove_node(Id id);
  void link_child(Id parent, Id child);
  void unlink_child(Id child);
  // Empties a run of the node. If that leaves its array sparse, the ancestors that share it move to a smaller one.
  void release_slots(Id id, ComponentKind c, Tier t);
  template <class RunOf>
  void compact_ancestors(Id id, RunOf run_of, std::uint64_t items_per_page);
  // Makes one edge of two if nothing tells them apart: undoes splits, and joins what one request computed in pieces.
  // `id` goes, its only child keeps its id. Edges that were never one grow to kMergedTokens. False: nothing was done.
  // Cost: O(pages of the child) on average, O(pages of both) at worst; O(1) for the halves of one edge.
  bool merge_into_only_child(Id id);
  // The same, of the two halves of one edge only.
  void undo_split(Id id);
  [[nodiscard]] bool may_merge(const Node& upper, const Node& lower) const;
  [[nodiscard]] bool are_alike(const Node& upper, const Node& lower) const;
  [[nodiscard]] bool is_told_apart(const Node& upper, const Node& lower) const;
  [[nodiscard]] static bool have_same_locks(const Node& upper, const Node& lower);
  [[nodiscard]] bool are_one_array(const Node& upper, const Node& lower) const;
  void merge_runs(Node& upper, Node& lower);

  // ---- lock.cc
  [[nodiscard]] LockHandle lock(Id id, Tier t, LockParts parts);
  void unlock(LockHandle& handle);
  // Locks swa of pages [from, end of the node), with a split where they begin.
  void lock_window(Id id, Tier t, std::uint64_t from);
  // To a node at or beneath its own; of the device, with full. O(nodes between them and of both windows).
  void move_lock(LockHandle& handle, Id to);
  void add_lock(Id id, ComponentKind c, Tier t);
  void drop_lock(Id id, ComponentKind c, Tier t);

  // ---- insert.cc
  struct InsertTally {
    std::uint64_t known_pages = 0;  // of the path, before the insertion
    std::uint64_t fresh = 0, duplicate = 0, recovered = 0;
  };
  [[nodiscard]] Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request);
  [[nodiscard]] Result<InsertResult> insert_host(const HostInsertRequest& request);
  [[nodiscard]] Status check_extend(const LockHandle& held, const ExtendRequest& request) const;
  [[nodiscard]] Status check_extend_path(const TreePosition& walked, std::uint64_t from) const;
  [[nodiscard]] Status check_insert_host(const HostInsertRequest& request) const;
  // Fills full of pages [from, from + slots.size()) of the path to `node` where it is missing.
  void fill_full(Id node, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally);
  // The same for swa tombstones; returns the node to go on from, upwards.
  Id fill_window(Id node, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally);
  Id fill_window_edge(Id node, Tier t, std::uint64_t low, std::uint64_t high, std::span<const std::uint32_t> given,
                      SlotRun& run, std::span<const std::uint32_t> all, InsertTally& tally);
  void fill_windows(Id node, std::uint64_t from, std::span<const DeviceSlot> slots, InsertTally& tally);
  struct NewCheckpoint {
    std::uint64_t page = 0;
    std::uint32_t slot = 0;
    CheckpointOrigin origin{};
  };
  [[nodiscard]] bool add_checkpoint(Id& cursor, Tier t, const NewCheckpoint& checkpoint);
  [[nodiscard]] std::uint32_t add_checkpoints(Id end, std::span<const Checkpoint> checkpoints);
  // New leaf below `parent` with full data in the tier; slots are one per page of tokens, and keys where they are
  // known.
  [[nodiscard]] Id add_full_leaf(Id parent, Tier t, std::span<const TokenId> tokens,
                                 std::span<const std::uint32_t> slots, std::int32_t priority,
                                 std::span<const PageKey> keys = {});

  // ---- ops.cc
  [[nodiscard]] Status attach_device(OpId op, Id node, ComponentKind c, std::uint64_t from,
                                     std::span<const DeviceSlot> slots);
  [[nodiscard]] Status check_attach_device(Id node, ComponentKind c, std::uint64_t from, std::uint64_t to) const;
  [[nodiscard]] Status attach_host(OpId op, Id node, ComponentKind c, std::span<const HostSlot> slots);
  void attach_pending(OpId op, Id node, ComponentKind c, Tier t, SlotRun run);
  void put_under(OpId op, Id node, Bits bits);
  void cover(OpId op, Id node);
  [[nodiscard]] std::vector<NodeId> finish_op(OpId op, bool ok);
  enum class Readiness : std::uint8_t { kPublish, kWait, kDiscard };
  // May a completed copy be published, given what it stands on (its parent, or full of its own node)?
  [[nodiscard]] Readiness readiness(const Node& node, ComponentKind c, Tier t) const;
  void finish_data(Id id, ComponentKind c, Tier t, bool ok);
  void resolve_all(Tier t);
  void push_dependents(Id id, Tier t);

  // ---- evict.cc
  [[nodiscard]] EvictResult evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule, const EvictFor& who);
  [[nodiscard]] EvictResult evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who);
  // One eviction: what is asked, and what it has come to.
  struct Eviction {
    ComponentKind component;
    Tier tier;
    std::uint64_t slots;
    VictimRule rule;
    EvictFor who;
    EvictResult out{};
    [[nodiscard]] std::uint64_t missing() const { return slots - std::min(slots, out.freed); }
  };
  void evict_device_leaves(Eviction& eviction);
  void name_victim(Id id, EvictResult& out);
  void name_device_leaves(Eviction& eviction);
  void evict_host_full(Eviction& eviction);
  void evict_aux(Eviction& eviction);
  // Of `most` slots those that may go before the standing of the victim's tenant changes.
  [[nodiscard]] std::uint64_t most_of(Id id, const Eviction& eviction, std::uint64_t most) const;
  static void count_freed(tree::VictimQueues::Rank rank, std::uint64_t freed, EvictResult& out);
  // Slots of the component that went.
  std::uint64_t evict_aux_of(Id id, ComponentKind c, Tier t, std::uint64_t need, EvictResult& out);
  [[nodiscard]] tree::VictimQueues::First next_device_leaf(const EvictFor& who);
  [[nodiscard]] bool is_judged(const tree::VictimQueues::First& first, Tier t) const;
  [[nodiscard]] bool stays_for_backup(Id id, ComponentKind c, VictimRule rule);
  [[nodiscard]] bool is_next_to_leave_host(Id id, ComponentKind c);
  [[nodiscard]] bool is_worth_less_than(const Node& node, ComponentKind c, const tree::VictimQueues::First& victim,
                                        ComponentKind victims) const;
  [[nodiscard]] Id cut_host_victim(const tree::VictimQueues::First& first, std::uint64_t pages);
  void trim_leaf(Id id, std::uint64_t pages);
  [[nodiscard]] bool evict_device_leaf(Id id);
  void evict_from_host(Id id);
  [[nodiscard]] bool remove_host_descendants(Id id);
  void tombstone(Id id, ComponentKind c, Tier t);
  [[nodiscard]] tree::VictimQueues::First next_host_victim(ComponentKind c, const EvictFor& who);
  std::uint64_t flush();
  std::uint64_t flush(Id root);
  void flush_node(Id id);

  // ---- keys.cc
  [[nodiscard]] std::span<const PageKey> page_keys(Id id);
  [[nodiscard]] std::optional<PageKey> last_key(Id id);
  void hash_edge(Id id);
  std::uint64_t hash_keys(Id id, std::uint64_t most);
  void keep_keys(Id id, std::span<const PageKey> keys);
  // Of all tokens up to the end of the edge, or up to its begin. Kept in the nodes, so each token is hashed once, and
  // once more for each split above it.
  [[nodiscard]] PathHash hash_at_end(Id id);
  [[nodiscard]] PathHash hash_at_begin(Id id);
  [[nodiscard]] PathHash hash_at(const TreePosition& at);

  // ---- invariants.cc
  struct Census;
  [[nodiscard]] Status check_invariants() const;
  [[nodiscard]] Status check_shape(Id id) const;
  [[nodiscard]] Status check_residency(Id id) const;
  [[nodiscard]] Status check_queues(Id id, Census& census) const;
  [[nodiscard]] Status count_node(Id id, Census& census) const;
  // I6: of an order that weighs, nothing that is worth nothing waits among what is worth something.
  [[nodiscard]] bool is_overrated(const tree::VictimQueues& victims, Id id, ComponentKind c, Tier t) const;
  [[nodiscard]] Status check_lists(const Census& census) const;
  [[nodiscard]] Status check_tenants(const Census& census) const;
  [[nodiscard]] Status check_totals(const Census& census) const;

  [[nodiscard]] Node& node(Id id) { return nodes.at(id); }
  [[nodiscard]] const Node& node(Id id) const { return nodes.at(id); }
  [[nodiscard]] Id root_of(NamespaceId space) const {
    return space.v < spaces.size() ? spaces[space.v].root : tree::kNoNode;
  }
  [[nodiscard]] std::uint64_t open_spaces() const { return spaces.size() - closed_spaces.size(); }
  [[nodiscard]] std::uint64_t pages_in(std::span<const TokenId> tokens) const { return tokens.size() / page_size; }

  // A merged edge is as long as the longest chunk that engines compute at once, so who works node by node (a copy, a
  // write to storage) meets none that is longer than those.
  static constexpr std::uint64_t kMergedTokens = 8192;

  // constant after construction
  TreeConfig config;                 // but allow_host_gaps, which may become true
  const std::uint32_t page_size;     // tokens
  const std::uint64_t window_pages;  // of swa; 0: the model has none
  const EvictionOrderPtr given_order;
  const EvictionOrder* const order;  // that, or what it names for models without recurrent state
  const bool weighs;                 // RadixTree::weighs()
  const bool chooses;                // the order does
  CheckpointStats stats;             // what it has learnt; owned by the cache thread
  ReuseDuel duel;                    // the same, where the order chooses
  SlotSink& sink;
  TreeObserver* observer = nullptr;
  PageObserver* page_observer = nullptr;

  // owned by the cache thread
  tree::NodePool nodes;
  tree::ChildTable table;
  tree::VictimQueues device_backed, device_unbacked;  // device leaves with and without a host copy
  tree::VictimQueues host_full;                       // may_leave_host()
  std::array<std::array<tree::VictimQueues, kTierCount>, tree::kAuxCount> aux_heaps;
  tree::OpRegistry ops;
  std::array<std::array<TierCounts, kTierCount>, kComponentCount> counts{};
  std::vector<tree::Space> spaces;
  TreeBacklog backlog;
  TenantBook tenants;
  std::vector<std::uint32_t> closed_spaces;  // numbers to use again, the last closed first
  std::unordered_map<PageKey, std::uint32_t> space_of_seed;
  std::optional<std::uint32_t> unseeded_space;
  std::uint64_t tick = 0;  // logical time; grows with every use, and by a token for each token that is computed
  std::uint32_t victims_asked = 0;
  bool is_judging = false;       // what drop() takes from the host now was worth least there
  bool has_evicted = false;      // so one tier at least has been full
  std::uint64_t most_pages = 0;  // of full that a tier, or both where they are exclusive, has held
  std::uint64_t waiting = 0;     // (node, component, tier) that are complete but not published

  // scratch, so that hot paths do not allocate; each is used by one function at a time
  std::vector<Id> path, unhashed;
  std::vector<std::pair<Id, Bits>> to_resolve;
};

}  // namespace larder
