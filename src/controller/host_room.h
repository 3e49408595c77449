// SPDX-License-Identifier: Apache-2.0
// Room on the host: who leaves when something is to come (step 7 of a prefix's life), and what comes back.
//
// The host is one byte budget, so one order decides across components: EvictionOrder::key_across() of the tree's order.
// Pages without bytes give markers and no blocks (pool/host_pools.h), so they leave when markers lack.
// What is locked or leased is no victim.
//
// Gently: a victim that storage lacks and gets soon is not taken while storage takes pages. The caller is told so
// (kWaitsForStores) and asks again later; for how long is bounded by StoreBacklog::may_wait().
//
// `who` needs the room: what the floors of other tenants keep from it stays (tree/tenant_book.h). The host has nothing
// that must come, so floors there are never broken.
//
// Threads: the cache thread. Ranks: all answers follow from the tree, the pools and agreed events.
// Cost: O(log leaves) per victim and O(1) per page that leaves.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "controller/cache.h"
#include "controller/store_backlog.h"
#include "pool/host_pools.h"
#include "transfer/transfer.h"
#include "tree/tree.h"

namespace larder {

enum class HostAnswer : std::uint8_t {
  kThere,           // there is room
  kWaitsForStores,  // there is none yet: storage is taking what would go
  kNone,            // there is none
};

enum class HostEffort : std::uint8_t {
  kNoLoss,  // takes what is free, and evicts what storage has
  kGently,  // evicts, but waits for storage (above)
  kAll,     // evicts
};

class HostRoom {
 public:
  struct Parts {  // all outlive the room
    const ModelSpec& model;
    HostPools* host;  // null: nothing but count_refusal() may be called
    RadixTree& tree;
    StoreBacklog& backlog;
    CacheCounters& counters;
  };
  explicit HostRoom(const Parts& parts);

  // Evicts until `counts` fit. Evicts nothing if everything would not do, as far as TierCounts can tell.
  [[nodiscard]] HostAnswer make(const ComponentCounts& counts, HostEffort effort, TenantId who = {});
  // The same, and takes the slots: counts[c] of them are appended to out[c]. Else nothing was taken.
  [[nodiscard]] HostAnswer take(const ComponentCounts& counts, HostEffort effort,
                                std::array<std::vector<HostSlot>, kComponentCount>& out, TenantId who = {});
  // What is free, or could be made so.
  [[nodiscard]] HostSpace in_reach(TenantId who = {}) const { return host_->available() + evictable(who); }
  // Once per poll: refusals for the sake of storage, since the last one, use up the patience of the backlog.
  void count_refusal();
  // Since the last poll copies from the device were refused so: what leaves there is room to come. Room for a fetch is
  // none.
  void note_copies_wait() { do_copies_wait_ = true; }
  [[nodiscard]] bool do_copies_wait() const { return do_copies_wait_; }

  // Slots that are the caller's own. One that is refused counts as an internal error.
  void give_back(ComponentKind c, std::span<const HostSlot> slots);
  // What the tree lets go of: counts as evicted.
  void let_go(ComponentKind c, std::span<const HostSlot> slots);
  void drop_leases(const std::vector<LeasedSlot>& leases);

 private:
  [[nodiscard]] HostAnswer refuse_for_stores();
  [[nodiscard]] HostSpace evictable(TenantId who) const;
  // One that gives some of what is missing.
  [[nodiscard]] std::optional<HostVictim> next_victim(const HostSpace& missing, const EvictFor& who) const;
  [[nodiscard]] bool takes_one_by_one() const { return tree_.weighs() || tree_.is_exclusive(); }
  [[nodiscard]] std::uint64_t share(const HostVictim& victim, std::uint64_t want, HostEffort effort) const;

  const ModelSpec& model_;
  HostPools* const host_;
  RadixTree& tree_;
  StoreBacklog& backlog_;
  CacheCounters& counters_;
  bool has_refused_ = false;  // for the sake of storage, since the last poll
  bool do_copies_wait_ = false;
};

}  // namespace larder
