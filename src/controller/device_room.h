// SPDX-License-Identifier: Apache-2.0
// Room on the device: who leaves when something is to come (step 7 of a prefix's life), and what comes back.
//
// Victims leave in the order of the policy, so the device holds what it would hold without a host:
//
//   enough is free ───────────────────────────────────────────────────────────────────► ok
//   everything evicted would not do, and fetches that nobody waits for have let go ───► kOverloaded, nothing went
//   victims that have a host copy go; those that the host wants get theirs first ─────► kOverloaded, until it is there
//   what is still missing goes without one: a full host never stops the engine ───────► ok
//   it stands above what a detached storage writes, or what queued requests keep there: they let go ► ok
//   what is fetched, and not waited for, continues it on the host: the fetch lets go ───────────────► ok
//   all that is left is below the floors of other tenants: what runs takes it, counters.floors_broken ──► ok
//
// A request that is to start waits (kOverloaded) while others run that will end, before it breaks a floor.
//
// Writes to storage keep host pages in place. While storage takes pages they are waited for, 128 times in the life of a
// request at most: a storage that is slow costs some time, one that hangs costs cached pages and next to no time.
//
// Threads: the cache thread. Ranks: by the tree, the pools and agreed events. Errors: kOverloaded says that there is
// no room now. Cost: O(log leaves) per victim and O(1) per page that leaves; a copy, what Backups takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "controller/backups.h"
#include "controller/cache_metrics.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/prefetcher.h"
#include "controller/running_request.h"
#include "controller/step_events.h"
#include "controller/store_backlog.h"
#include "pool/device_pools.h"
#include "tree/tree.h"

namespace larder {

class DeviceRoom final : public StepRoom {
 public:
  struct Parts {  // all outlive the room
    const ModelSpec& model;
    DevicePools& device;
    HostPools* host;  // null: none
    RadixTree& tree;
    OpTable& ops;
    StoreBacklog& backlog;
    HostRoom& host_room;
    Prefetcher& prefetcher;
    Backups& backups;
    StepEvents& events;
    Clock& clock;
    CacheCounters& counters;
    CacheMetrics& metrics;
  };
  // config: outlives this; its policies may change.
  DeviceRoom(const CacheConfig& config, const Parts& parts);

  // ---- room
  // Would evicting everything that may leave for `who` do? What is locked or covered now comes free in its own time.
  [[nodiscard]] bool could_make(ComponentKind c, std::uint32_t count, const EvictFor& who = {}) const;
  // make_room() for all components, for a request that starts; nothing goes if one of them finds none. others_run: then
  // it waits for them before it breaks floors.
  [[nodiscard]] Status make_all(RequestId starts, RoomSeeker& who, const ComponentCounts& counts, bool others_run);
  // For one that runs: it breaks floors before it is refused.
  [[nodiscard]] Status make_room(RoomSeeker& who, ComponentKind c, std::uint32_t count, bool may_wait) override;
  [[nodiscard]] bool is_room_coming(ComponentKind c) override;
  // A request lets the path to `node` go: what of it is being copied to the host can leave after that.
  void path_let_go(NodeId node);
  // Nodes whose copies are waited for, each once for each component that waits and once for those that were let go.
  [[nodiscard]] std::size_t nodes_awaited() const;

  // ---- slots
  // The caller's own. One that is refused counts as an internal error.
  void give_back(ComponentKind c, DeviceSlot slot) override { give_back_all(c, {&slot, 1}); }
  void give_back_all(ComponentKind c, std::span<const DeviceSlot> slots);
  // What the tree lets go of.
  void let_go(ComponentKind c, std::span<const DeviceSlot> slots);
  [[nodiscard]] Result<InsertResult> extend(LockHandle& held, const ExtendRequest& request,
                                            StepLedger* keeper) override;
  void committed(NodeId node, std::uint64_t from) override { backups_.by_policy(node, from); }

 private:
  EvictResult evict(ComponentKind c, std::uint32_t slots, VictimRule rule, const EvictFor& who);
  [[nodiscard]] Status make(RoomSeeker& seeker, ComponentKind c, std::uint32_t count, bool may_wait,
                            bool breaks_floors);
  // Drops, in this order, until `missing` says 0: victims without a copy, what keeps others in place, others' floors.
  template <class Missing>
  void drop_victims(ComponentKind c, const EvictFor& who, Missing missing);
  [[nodiscard]] VictimRule gentle_rule(ComponentKind c) const;
  void note_what_storage_wants();
  [[nodiscard]] bool has_tenants() const { return tree_.tenants().is_known(TenantId{1}); }
  [[nodiscard]] bool waits_for_copies(RoomSeeker& seeker, ComponentKind c, const std::vector<NodeId>& victims);
  [[nodiscard]] bool back_up(RoomSeeker& seeker, ComponentKind c, const std::vector<NodeId>& victims);
  void note_copied_path(NodeId at, std::set<NodeId>& out) const;  // nodes from `at` up that are being copied to host
  [[nodiscard]] bool are_copied(std::set<NodeId>& nodes) const;   // any of them, still

  const CacheConfig& config_;
  const ModelSpec& model_;
  DevicePools& device_;
  HostPools* const host_;
  RadixTree& tree_;
  OpTable& ops_;
  StoreBacklog& backlog_;
  HostRoom& host_room_;
  Prefetcher& prefetcher_;
  Backups& backups_;
  StepEvents& events_;
  Clock& clock_;
  CacheCounters& counters_;
  CacheMetrics& metrics_;
  std::array<std::set<NodeId>, kComponentCount> leaving_;  // nodes whose copies were begun to make room
  std::set<NodeId> handed_over_;                           // being copied, and let go by their request
  StepLedger* keeper_ = nullptr;  // while the tree is given pages: where those go that it has already
};

}  // namespace larder
