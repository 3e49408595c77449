// SPDX-License-Identifier: Apache-2.0
// One node of the radix tree, and the pool it lives in. Internal to src/tree.
//
// Layout: five cache lines. Line 0 is read by each walk, up or down; a use writes line 1; who chooses a victim reads
// the first three.
// Threads: confined to the cache thread. Ids are u32 indices; 0 is "no node". References stay valid until release().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/strong.h"
#include "key/page_key.h"
#include "key/path_hash.h"
#include "model/pool_spec.h"
#include "tree/run.h"
#include "tree/tree.h"

namespace larder::tree {

using Id = std::uint32_t;
inline constexpr Id kNoNode = 0;
inline constexpr std::uint32_t kNotInHeap = 0xffffffffu;
inline constexpr std::uint32_t kNoLink = 0;
inline constexpr std::uint64_t kTicksOfUse = 1024;

[[nodiscard]] constexpr std::size_t index_of(Tier t) { return static_cast<std::size_t>(t); }
using larder::index_of;

// One bit per (component, tier).
using Bits = std::uint8_t;
[[nodiscard]] constexpr Bits bit_of(ComponentKind c, Tier t) {
  return static_cast<Bits>(1u << (index_of(t) * kComponentCount + index_of(c)));
}
inline constexpr Bits kFullDevice = bit_of(ComponentKind::kFull, Tier::kDevice);
inline constexpr Bits kSwaDevice = bit_of(ComponentKind::kSwa, Tier::kDevice);
inline constexpr Bits kMambaDevice = bit_of(ComponentKind::kMamba, Tier::kDevice);
inline constexpr Bits kFullHost = bit_of(ComponentKind::kFull, Tier::kHost);
inline constexpr Bits kSwaHost = bit_of(ComponentKind::kSwa, Tier::kHost);
inline constexpr Bits kMambaHost = bit_of(ComponentKind::kMamba, Tier::kHost);
inline constexpr Bits kMambaBits = kMambaDevice | kMambaHost;
[[nodiscard]] constexpr Bits clear_bits(Bits from, Bits bits) { return static_cast<Bits>(from & ~bits); }

inline constexpr std::array<Tier, kTierCount> kAllTiers = {Tier::kDevice, Tier::kHost};
[[nodiscard]] constexpr Tier other_tier(Tier t) { return t == Tier::kDevice ? Tier::kHost : Tier::kDevice; }

// Index of swa / mamba among the components that leave by themselves, least recently used first.
inline constexpr std::size_t kAuxCount = 2;
[[nodiscard]] constexpr std::size_t aux_of(ComponentKind c) { return index_of(c) - 1; }

// Where a node's places in victim heaps are kept: the leaves of each tier, then swa and mamba of each.
inline constexpr std::size_t kHeapPlaces = kTierCount + kAuxCount * kTierCount;
[[nodiscard]] constexpr std::size_t leaf_place(Tier t) { return index_of(t); }
[[nodiscard]] constexpr std::size_t aux_place(ComponentKind c, Tier t) {
  return kTierCount + aux_of(c) * kTierCount + index_of(t);
}

// Lists of nodes on the host that storage lacks (tree_backlog.h): those that wait to be given to it, and those that it
// could not take.
enum class Backlog : std::uint8_t { kOut, kWaiting, kResting };

struct alignas(64) Node {
  // Line 0: read by every walk.
  Run<TokenId> tokens;          // of the edge: pages * page_size
  std::uint64_t begin = 0;      // pages from the root
  std::uint64_t edge_hash = 0;  // key in the child table
  std::uint32_t pages = 0;      // of the edge; 0 only for roots
  Id parent = kNoNode;          // kNoNode only for roots
  Bits present = 0;             // data attached, pending or published
  Bits pending = 0;             // subset of present: not published yet
  Bits complete = 0;            // subset of pending: its copy is done, it waits for what it stands on
  bool alive = false;
  bool host_gap = false;            // adopted on the host beneath a parent without host data (see I2)
  Bits stored = 0;                  // of what was on the host: what storage has under stored_epoch
  bool in_backed_heap = false;      // which device heap holds it, if any
  bool is_fresh : 1 = false;        // Facts::is_fresh
  bool leaves_device : 1 = false;   // exclusive tiers: copied to the host to leave the device, and not used since
  bool is_storing : 1 = false;      // storage is being given it: in neither list
  bool rests : 1 = false;           // storage could not take it: in the list of those that rest
  bool declined : 1 = false;        // stored_epoch and `stored` say what storage was asked to take, and it declined
  Backlog backlog = Backlog::kOut;  // which list of nodes that storage lacks holds it, if any
  Bits left_host = 0;  // while the device has it: the host has judged it worth least, and nobody has used it since
  std::array<std::uint32_t, kTierCount> full_children{};  // children with full (or pending) there
  Id first_child = kNoNode;

  // Line 1: recency, locks, places among victims.
  std::uint64_t full_tick = 0;
  std::uint32_t hits = 0;
  std::int32_t priority = 0;
  std::array<std::array<std::uint32_t, kTierCount>, kComponentCount> locks{};            // claims on the edge's pages
  std::array<std::uint32_t, kHeapPlaces> heap_at = {kNotInHeap, kNotInHeap, kNotInHeap,  // leaf_place(), aux_place()
                                                    kNotInHeap, kNotInHeap, kNotInHeap};

  // Line 2: what else decides who leaves.
  std::array<std::array<std::uint64_t, kTierCount>, kAuxCount> aux_tick{};
  std::uint32_t first_link = kNoLink;  // operations that cover the node (op_registry.h)
  std::uint32_t space = 0;
  // Of its checkpoint, if it has one: what orders that weigh know of it.
  float uses = 0;             // by later requests, at uses_at
  std::uint32_t uses_at = 0;  // tick / kTicksOfUse
  CheckpointKind kind{};
  std::array<std::uint8_t, kHeapPlaces> queue_at{};  // by heap_at's places: which queue
  Id next_sibling = kNoNode, prev_sibling = kNoNode;

  // Lines 3 and 4: data.
  std::uint64_t created = 0;
  std::array<std::array<Run<std::uint32_t>, kTierCount>, 2> slots;  // [full, swa][tier]: one slot per page
  std::array<std::uint32_t, kTierCount> state = {DeviceSlot::kNone, DeviceSlot::kNone};  // mamba, by tier
  Run<PageKey> keys;                                                                     // empty until asked for
  std::uint32_t stored_epoch = 0;
  std::uint32_t own_locks = 0;  // of `locks` of full on the host: a split gives them to both halves
  Id unstored_before = kNoNode, unstored_after = kNoNode;
  std::optional<PathHash> path_hash;  // of all tokens up to the edge's end; empty until asked for

  [[nodiscard]] std::uint64_t end() const { return begin + pages; }
  [[nodiscard]] bool is_root() const { return pages == 0; }
  [[nodiscard]] Bits published() const { return clear_bits(present, pending); }
  [[nodiscard]] bool has(Bits bits) const { return (published() & bits) == bits; }
  [[nodiscard]] bool has_some(Bits bits) const { return (published() & bits) != 0; }
  [[nodiscard]] std::uint32_t lock_count(ComponentKind c, Tier t) const { return locks[index_of(c)][index_of(t)]; }
  [[nodiscard]] bool claimed(Tier t) const {
    const std::size_t i = index_of(t);
    return (locks[0][i] | locks[1][i] | locks[2][i]) != 0;
  }
  [[nodiscard]] std::uint64_t lock_sum() const {
    std::uint64_t sum = 0;
    for (const auto& tiers : locks) sum += std::uint64_t{tiers[0]} + tiers[1];
    return sum;
  }
  [[nodiscard]] bool is_covered() const { return first_link != kNoLink || pending != 0; }
  // Slots of a component in a tier: one per page, or one for mamba.
  [[nodiscard]] std::uint32_t units(ComponentKind c) const { return c == ComponentKind::kMamba ? 1 : pages; }
  [[nodiscard]] const std::uint32_t* slot_data(ComponentKind c, Tier t) const {
    return c == ComponentKind::kMamba ? &state[index_of(t)] : slots[index_of(c)][index_of(t)].data();
  }
};
static_assert(sizeof(Node) == 320);

// Chunked, so that nodes never move and growth copies nothing.
class NodePool {
 public:
  NodePool() { (void)take(); }  // node 0 is "no node" and stays dead

  [[nodiscard]] Id allocate() {
    const Id id = take();
    at(id).alive = true;
    ++live_;
    return id;
  }
  void release(Id id) {
    at(id) = Node{};
    at(id).next_sibling = free_;
    free_ = id;
    --live_;
  }
  [[nodiscard]] Node& at(Id id) { return chunks_[id >> kChunkBits][id & kChunkMask]; }
  [[nodiscard]] const Node& at(Id id) const { return chunks_[id >> kChunkBits][id & kChunkMask]; }
  [[nodiscard]] bool exists(Id id) const { return id < next_ && at(id).alive; }
  [[nodiscard]] std::uint64_t live() const { return live_; }
  [[nodiscard]] Id end_id() const { return next_; }  // ids are below it

 private:
  static constexpr unsigned kChunkBits = 9;
  static constexpr Id kChunkMask = (1u << kChunkBits) - 1;

  [[nodiscard]] Id take() {
    if (free_ != kNoNode) {
      const Id id = free_;
      free_ = at(id).next_sibling;
      at(id).next_sibling = kNoNode;
      return id;
    }
    if ((next_ & kChunkMask) == 0) chunks_.push_back(std::make_unique<Node[]>(kChunkMask + 1));
    return next_++;
  }

  std::vector<std::unique_ptr<Node[]>> chunks_;
  Id next_ = 0;
  Id free_ = kNoNode;
  std::uint64_t live_ = 0;
};

struct Space {
  std::optional<PageKey> seed;
  Id root = kNoNode;         // kNoNode: closed, its number waits to be used again
  std::uint64_t claims = 0;  // locks on its nodes, of each component and tier, and nodes that are covered
  TenantId tenant{};         // whose it is (tenant_book.h)
  bool is_retired = false;   // TreeSpaces::retire()
};

// The node after `id` among those of its namespace, parents before children, without a stack. kNoNode: it is the last.
[[nodiscard]] inline Id next_in_space(const NodePool& nodes, Id id) {
  if (nodes.at(id).first_child != kNoNode) return nodes.at(id).first_child;
  while (id != kNoNode && nodes.at(id).next_sibling == kNoNode) id = nodes.at(id).parent;
  return id == kNoNode ? kNoNode : nodes.at(id).next_sibling;
}

}  // namespace larder::tree
