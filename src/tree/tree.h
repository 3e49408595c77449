// SPDX-License-Identifier: Apache-2.0
// The unified radix tree: where each component of each cached prefix is.
//
// Purpose: turns token sequences into positions, and positions into slots. It knows the device and host tiers; storage
// is asked by key (keys()). It moves no bytes and frees slots only through SlotSink.
//
// Picture: an edge is a run of whole pages; a node stands at the end of its edge and owns, per component and tier,
//   full   one slot per page of the edge, or nothing: the backbone, a node without full in any tier is deleted
//   swa    one slot per page of the edge, or nothing: a tombstone
//   mamba  one slot, the checkpoint at the node's end, or nothing
// Residency is uniform over an edge; wherever it would not be, the edge is split at a page boundary. A split makes a
// new *parent* for the head; the old NodeId keeps the tail, so a NodeId always names the same end position. Tokens and
// slots of an edge live in shared arrays, so a split moves no tokens and no slots. NodeId{} (0) names no node.
// A NodeId is good as long as its node is locked, covered or pending; otherwise any eviction may end it.
//
// Invariants (check_invariants; after every step in tests):
//   I1 full on the device => parent's full on the device
//   I2 full on the host => parent's full on the host, except with `allow_host_gaps` (write_back), and where a prefetch
//      was adopted beneath a parent that was on the device only
//   I3 swa / mamba in a tier => full in that tier at that node
//   I4 every node except roots holds published full data in some tier
//   I5 full lock of a node on the device >= sum over its children. A lock is a claim on pages: it counts whether or not
//      data is there, data that arrives comes under it, and a claimed node is never deleted
//   I6 victim heaps hold exactly what may leave a tier, each at its own key: of full its leaves, and on the host of
//      exclusive tiers also what the device has, too; of swa and mamba what is published, not locked and not covered
//   I7 page counters per component and tier equal the sums over nodes
//   I8 no slot appears twice in a tier
//   I9 children are found through the child table from their first page; nothing else is in it
//   I10 the lists of backlog() hold exactly the nodes that storage lacks under the tracked epoch and is not being
//      given, each after its ancestors
//   I11 claims of a namespace equal the sum over its nodes
//   I12 what a tenant holds equals the sum over the nodes of its namespaces, and its queues stand where that puts them
// I1 to I3 speak of published data; pending data is published only when it would keep them (see finish_op).
//
// Threads: confined to the cache thread. No recursion on depth. Clock-free: recency is a logical tick.
// Cost: match O(pages walked) with one 64-bit hash per *node* and a memcmp of the tokens; insert_host the same, and
// O(new pages); extend O(new pages + nodes on the path); split O(1); evict O(log victims) per node and O(1) per page;
// lock and touch O(nodes on the path). A path of n tokens that one request computed has n / 8,192 nodes, and those that
// states, forks, locks and copies under way need.
// Source: SGLang's UnifiedRadixCache (components, tombstones, two anchors); ours differs in the joint restore point, in
// read-only matching, and in page-exact trimming of victims.
// Limits: 2^31 pages per insertion; nodes <= pages held; about 320 bytes per node, 4 bytes per token and per slot, 32
// bytes per page whose key was asked for; namespaces until they are closed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "key/page_key.h"
#include "key/path_hash.h"
#include "model/model_spec.h"
#include "model/restore_point.h"
#include "policy/eviction_policies.h"
#include "pool/tier.h"
#include "tree/tenant_book.h"
#include "tree/tree_keys.h"
#include "tree/tree_observer.h"
#include "tree/tree_spaces.h"

namespace larder {

// Gets back every slot the tree lets go. Called inside tree operations; must not call the tree.
class SlotSink {
 public:
  virtual ~SlotSink() = default;
  virtual void free_device(ComponentKind c, std::span<const DeviceSlot> slots) = 0;
  virtual void free_host(ComponentKind c, std::span<const HostSlot> slots) = 0;
};

struct TreeConfig {
  std::uint32_t page_size = 64;     // tokens
  std::uint32_t window_tokens = 0;  // of the swa component; 0: the model has none
  bool has_mamba = false;
  EvictionPolicy policy = EvictionPolicy::kLru;
  std::shared_ptr<const EvictionOrder> order;  // who leaves a tier, instead of `policy`; null: as `policy` says
  bool allow_host_gaps = false;                // write_back
  bool is_exclusive = false;  // what the device has, too, is the first to leave the host, which has gaps, too
  // A page, a window page, a checkpoint: what orders that weigh compare.
  std::array<std::uint64_t, kComponentCount> slot_bytes = {1, 1, 1};
  std::array<std::uint64_t, kComponentCount> host_blocks = {1, 1, 1};  // of a slot on the host: what tenants hold there
  std::array<bool, kComponentCount> host_keeps = {true, true, true};   // who may have a copy on the host
};
[[nodiscard]] TreeConfig tree_config_for(const ModelSpec& model, EvictionPolicy policy, bool write_back,
                                         std::shared_ptr<const EvictionOrder> order = nullptr);

// A place on a path: `pages` from the root; inside the edge of `node` when it is less than the node's end.
struct TreePosition {
  NodeId node;
  std::uint64_t pages = 0;
};

struct TierMatch {
  TreePosition at;  // the largest joint restore point of this tier view
  // Why not longer, relative to `walked`: full ends here; or the window alone would have allowed more, so the state is
  // missing; or else the window is.
  StopReason reason = StopReason::kNone;
  ComponentKind component = ComponentKind::kFull;  // the component that stopped it
};
struct MatchResult {
  TreePosition walked;  // longest path of the tree that equals the tokens (ends inside an edge or at a node)
  TierMatch device;     // every component on the device (pending data does not count)
  TierMatch any;        // every component on device or host, page by page (rule 2: published copies only)
  // Pages of full that are on device / on device or host from 0, regardless of window and state: where they part from
  // the restore points is where recurrent state or window is missing (the branch position of a fork checkpoint).
  std::uint64_t full_device_pages = 0;
  std::uint64_t full_any_pages = 0;
  bool meets_load = false;  // the walk met data that is on its way to the device: waiting may lengthen the match
};

struct PageLocation {
  DeviceSlot device;  // valid: published on the device
  HostSlot host;      // valid: published on the host
};

struct Checkpoint {
  std::uint64_t page = 0;  // the state after page*page_size tokens, counted from the root
  DeviceSlot slot;
  CheckpointOrigin origin{};
};
struct ExtendRequest {                        // what was computed after the end of a path that the caller holds
  std::uint64_t from = 0;                     // page where it begins, which is where the caller's lock ends
  std::span<const TokenId> tokens{};          // whole pages, from there on
  std::span<const DeviceSlot> full{};         // one per page, all given to the tree
  std::span<const DeviceSlot> swa{};          // one per page or empty; invalid: out of window
  std::span<const Checkpoint> checkpoints{};  // ascending by page, all after `from`
  std::int32_t priority = 0;                  // that of the path becomes the maximum
};
struct InsertResult {
  NodeId node;                        // stands at the end of the tokens
  std::uint64_t new_pages = 0;        // full pages that became the tree's
  std::uint64_t duplicate_pages = 0;  // full pages that the tree had: the given slots went to the sink
  std::uint64_t recovered_pages = 0;  // swa tombstones and evicted full pages filled again
  std::uint32_t checkpoints_kept = 0;
};

struct HostInsertRequest {  // adoption of a prefetch: bytes are on the host, verified
  NamespaceId space;
  std::span<const TokenId> tokens{};  // whole pages, from position 0
  std::uint64_t from = 0;             // pages [0, from) are in the tree already (kInternal otherwise)
  std::span<const HostSlot> full{};   // pages from, from+1, ... to the end of tokens
  // The last swa.size() pages of tokens; may start before `from`. Pages without full on the host take none.
  std::span<const HostSlot> swa{};
  HostSlot state;  // checkpoint at the end of tokens; invalid: none
  // Of the pages of `full`, or none: the tree keeps those of pages that are new to it, and does not hash them again.
  std::span<const PageKey> keys{};
};

struct LockParts {
  bool full = true, swa = true, mamba = true;
  bool own_pages = false;  // host: full and swa of the pages that are the node's now, all of them, and of no others
};
// What unlock needs. Trivially copyable; use it exactly once.
struct LockHandle {
  NodeId node;
  Tier tier = Tier::kDevice;
  LockParts parts;
  std::uint64_t window_from = 0;  // first page whose swa is locked; of own pages: and whose full is
  bool held = false;
};

// Spans are good until the next call that is not const. Data under way is in them, marked pending.
struct NodeView {
  NodeId parent;
  NamespaceId space;
  std::uint64_t begin = 0, end = 0;                                 // pages from the root
  std::span<const TokenId> tokens;                                  // of the edge
  std::array<std::span<const DeviceSlot>, kComponentCount> device;  // empty: not there. mamba: one entry
  std::array<std::span<const HostSlot>, kComponentCount> host;
  std::array<bool, kComponentCount> device_pending{}, host_pending{};
  std::uint32_t hits = 0;
  std::uint32_t stored_epoch = 0;    // attach epoch of the storage that has what is on the host; 0: none
  std::uint32_t declined_epoch = 0;  // attach epoch of the storage that declined what is on the host; 0: none
  bool is_unstored = false, is_storing = false, rests = false;  // waits in backlog(), is being given, rests
  bool has_children = false;
};

// What becomes of a victim on the device that has no host copy, or, being a leaf, takes a window or a state with it
// that has none.
enum class VictimRule : std::uint8_t {
  kDrop,         // it is deleted (with what only the host has beneath it, if nobody uses it)
  kBackUpFirst,  // it is returned in needs_backup and stays
  kBackUpWorth,  // for a host that is full: as kBackUpFirst, but what the host would evict before all that it has is
                 // deleted. It is what the host has evicted, as a rule: copied, it would only be evicted again. Where
                 // restore points are weighed, so is what the host has evicted and nobody has used since. What storage
                 // waits for (TreeBacklog::set_wanted()) is returned nevertheless.
};
struct EvictResult {
  std::uint64_t freed = 0;                 // slots of the asked component
  std::uint64_t demoted = 0, dropped = 0;  // of those: a copy remains in the other tier / nothing remains
  std::uint64_t from_floors = 0;           // of those: what tenants lost although they were below their floors
  std::vector<NodeId> needs_backup;        // oldest first, at most as many as would cover the shortfall
};

struct HostVictim {
  NodeId node;
  ComponentKind component{};
  OrderKey across;   // EvictionOrder::key_across()
  double worth = 0;  // EvictionOrder::worth(); 0 of an order that does not weigh; less than 0: the device has it, too
  std::uint8_t rank = 0;  // smaller ones leave before all others: who is over its ceiling, within its bounds, one's own
};

class TreeBacklog;

class RadixTree {
 public:
  RadixTree(const TreeConfig& config, SlotSink& sink);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // ---- what has a contract of its own
  [[nodiscard]] TreeSpaces& spaces() { return spaces_; }  // namespaces: tree_spaces.h
  [[nodiscard]] const TreeSpaces& spaces() const { return spaces_; }
  [[nodiscard]] TreeKeys& keys() { return keys_; }                 // keys and hashes of paths: tree_keys.h
  [[nodiscard]] TreeObservers& observers() { return observers_; }  // who is told what comes and goes: tree_observer.h
  // What storage lacks of what is on the host: tree_backlog.h.
  [[nodiscard]] TreeBacklog& backlog();
  [[nodiscard]] const TreeBacklog& backlog() const;
  // What tenants hold: tenant_book.h. open() and close() are the caller's; the tree counts.
  [[nodiscard]] TenantBook& tenants();
  [[nodiscard]] const TenantBook& tenants() const;

  // From here on the host may have gaps (I2), as with TreeConfig::allow_host_gaps: the write policy became write_back.
  // For good, because gaps stay when the policy changes back.
  void allow_host_gaps();

  // ---- lookup. Read-only: no split, no recency. `tokens` may end inside a page; only whole pages count. An unknown
  // namespace matches nothing, at NodeId{}. No allocation.
  [[nodiscard]] MatchResult match(NamespaceId space, std::span<const TokenId> tokens) const;
  // How `rest`, the tokens after a position, goes on there: tokens that equal one of the ways on from it, and whether
  // there is a way on. Looks at kMostWaysOn of them. A node that is gone: none.
  struct WaysOn {
    std::uint64_t equal = 0;
    bool any = false;
  };
  static constexpr std::size_t kMostWaysOn = 64;
  [[nodiscard]] WaysOn ways_on(const TreePosition& at, std::span<const TokenId> rest) const;
  // Marks the use of a restore point: full of the path, swa of its window, the checkpoint at it, and nothing else.
  // Splits there and where the window begins, so that what was not used stays as old as it is.
  void touch(const TreePosition& at, bool count_hit);
  // A request comes with this prompt: once for each (of an engine, for each lookup), before its restore point is
  // touched. Nothing is done unless the order chooses (EvictionOrder::chooses()). O(pages), and as ReuseDuel::use().
  void note_prompt(NamespaceId space, std::span<const TokenId> tokens);
  // What is remembered of checkpoints at these pages (ascending, behind `at`), which are to be taken: their uses before
  // they were evicted, and their paths. `rest` are the tokens after `at`; the request that has them would have resumed
  // at the last one that is remembered, or on a page behind it where an earlier request has ended. That teaches what
  // its kind is worth, and is a use of those that are taken again. Kinds are left as they are. Nothing is done if the
  // order does not weigh. O(tokens up to the last page), and a look into a table for each page. Returns whether an
  // earlier request ended where this one resumes or would have resumed: it is a later turn.
  bool recall(const TreePosition& at, std::span<const TokenId> rest, std::span<const std::uint64_t> pages,
              std::span<CheckpointOrigin* const> origins);
  // Splits so that a node stands exactly at the position; returns it (the root for 0 pages). A position taken before
  // other splits still works. NodeId{}: the position's node is gone.
  [[nodiscard]] NodeId settle(const TreePosition& at);

  // Appends the locations of pages [from, to) of the path that ends at `node` (to <= node's end). mamba: from/to
  // ignored, one entry.
  void locate(NodeId node, ComponentKind c, std::uint64_t from, std::uint64_t to, std::vector<PageLocation>& out) const;
  [[nodiscard]] NodeView view(NodeId node) const;
  [[nodiscard]] bool exists(NodeId node) const;

  // ---- locks of requests. Locked data is never evicted; splits keep locks exact.
  // device: full on the whole path, swa of the window before node, mamba of the node (absent data is simply not locked,
  // until it arrives).
  // host: full, swa of the window, mamba of the node itself (leaf-first eviction protects what is above).
  // own_pages: splits nothing, and locks what a later split puts above the node as well. For who reads all of an edge.
  [[nodiscard]] LockHandle lock(NodeId node, Tier tier, LockParts parts);
  void unlock(LockHandle& handle);  // clears held; a second call is a no-op

  // ---- insertion (step 5 of a prefix's life). Not ok: nothing was taken, the slots are still the caller's.
  // kInvalidArgument: not whole pages, spans of the wrong length, an unknown namespace.
  // kInternal: the tree does not have the pages before `from`.
  // Recency: the path, the window and the state at the end become the newest.
  //
  // What was computed on the device. `held` is a lock of full on the device, and ends at page `from` (kInvalidArgument
  // otherwise): of the root, for who begins at 0. On ok it has moved to the new end, as if it had been taken there; not
  // ok: it is as it was. Others may have brought some of the pages meanwhile: their slots stay, the given ones go back.
  // kConflict: full on the path, or the window from the one before `from` on, or the state at `from` is pending on the
  // device. The new pages were computed from it, or would be duplicates of it: finish its op first.
  // On the way edges of the path that nothing tells apart become one, of up to 8,192 tokens, so that a prompt computed
  // in chunks is not a node per chunk for ever: NodeIds of the path above the new end may go, unless a lock ends there.
  // Cost: O(new pages + nodes of the path and of its windows); it compares no token before the new ones.
  [[nodiscard]] Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request);
  // What a prefetch brought to the host.
  [[nodiscard]] Result<InsertResult> insert_host(const HostInsertRequest& request);

  // ---- copies under way. Attached slots are owned by the tree at once but *published* only by finish_op(ok).
  // A pending node is covered in both tiers. A split while pending keeps both halves under the op.
  // Attaches device slots to pages [from, from + slots.size()) of the path to `node` (load-back); splits as needed.
  // mamba: `from` is ignored, one slot. kConflict: some of it is there already or pending, or what it stands on is
  // neither (full before `from`; full of the same pages): nothing was attached. kNotFound, kInvalidArgument: the same.
  [[nodiscard]] Status attach_device(OpId op, NodeId node, ComponentKind c, std::uint64_t from,
                                     std::span<const DeviceSlot> slots);
  // Attaches host slots to one node's edge (backup): slots.size() == its pages (1 for mamba). kConflict as above; full
  // stands on the parent's full on the host, unless gaps are allowed.
  [[nodiscard]] Status attach_host(OpId op, NodeId node, ComponentKind c, std::span<const HostSlot> slots);
  // Keeps a node's data where it is while an operation reads it (storage write).
  void cover(OpId op, NodeId node);
  // Ends the op: publishes (ok) or detaches and frees (not ok) what it attached, and uncovers. Returns the nodes that
  // it covers now (both halves after splits), parents before children. Unknown op: empty. Data whose base (I1 to I3) is
  // still pending under another op stays pending and covered until that one ends, and is then published or freed with
  // it. So a node returned by finish_op(ok) may still be pending: ask view().
  std::vector<NodeId> finish_op(OpId op, bool ok);

  // ---- eviction. `who` needs the room: what tenants' bounds keep from it stays (tenant_book.h).
  // Frees at least `slots` device slots of the component if it can, oldest by policy first, with or without a host
  // copy: those in needs_backup are in the same order, and what comes after them stays.
  // full: leaves, trimmed from their tail page-exactly; a node's other components on the device go with its full.
  // swa / mamba: LRU order. Inner nodes become tombstones; if the window has no copy on the host, the node's state,
  // whose restore point it was, goes along. A leaf whose swa / mamba has no copy is evicted altogether: without it, it
  // serves nobody. A stretch of swa longer than window + needed loses its head only.
  [[nodiscard]] EvictResult evict_device(ComponentKind c, std::uint64_t slots, VictimRule rule,
                                         const EvictFor& who = {});
  // The same on the host; what is also on the device stays there (demoted); a node left with nothing is deleted.
  [[nodiscard]] EvictResult evict_host(ComponentKind c, std::uint64_t slots, const EvictFor& who = {});
  // What would leave the host next of a component, by order(), to choose across components in a shared budget.
  [[nodiscard]] std::optional<HostVictim> next_host_victim(ComponentKind c, const EvictFor& who = {});
  // The order does, and the model has recurrent state and no windows: only then is worth other than 0.
  [[nodiscard]] bool weighs() const;
  [[nodiscard]] bool is_exclusive() const;  // TreeConfig
  // What policies know of the node's data, there or not. Precondition: exists(node).
  [[nodiscard]] Facts facts(NodeId node, ComponentKind c, Tier t) const;
  // Drops everything that is neither locked nor covered, nor needed by what is. Returns nodes left (roots not counted).
  std::uint64_t flush();

  [[nodiscard]] const TierCounts& counts(ComponentKind c, Tier t) const;
  [[nodiscard]] std::uint64_t node_count() const;  // without roots
  // Walks everything; kInternal names the invariant, the node and the values. O(tree).
  [[nodiscard]] Status check_invariants() const;

 private:
  const std::unique_ptr<tree::TreeRooms> rooms_;
  TreeSpaces spaces_;
  TreeKeys keys_;
  TreeObservers observers_;
};

}  // namespace larder
