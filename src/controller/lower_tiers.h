// SPDX-License-Identifier: Apache-2.0
// Host and storage, beneath whoever owns the device: what the two façades do alike.
//
//                      Cache                        Connector
//                        └── own operations, own rooms ──┘
//                                      │
//   LowerTiers  ── tree, namespaces, operations, StoreBacklog, HostRoom, Prefetcher, in the order in which they are
//   made
//      poll():  collect ─► agree ─► apply what ended, in the agreed order ─► pump
//                                     ├── queries, reads, their timers ─► Prefetcher
//                                     ├── writes, rests                ─► StoreBacklog
//                                     └── all other operations         ─► Parts::own_done
//
// Composes and decides nothing: what is fetched, stored or evicted the rooms know. A façade makes it first and lets its
// own rooms work with these.
//
// Threads: the cache thread. Ranks: every rank makes the same calls in the same order; rank_group.h.
// Lifetime: the rooms are good as long as this is. Operations that have not ended when it goes end in their backend;
// their buffers are the host pools', which outlive it.
// Cost: poll() at most config.poll_budget units of work and one piece (work_budget.h): what ended, and the pumps of the
// two rooms. It says that there is more, and does not wait the next time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/host_room.h"
#include "controller/kv_events.h"
#include "controller/loss_log.h"
#include "controller/miss_reasons.h"
#include "controller/op_table.h"
#include "controller/prefetcher.h"
#include "controller/space_opener.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"
#include "controller/tenants.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class LowerTiers final : private SlotSink {
 public:
  struct Parts {  // model, host, device, clock, metrics and ranks outlive this
    const ModelSpec& model;
    HostPools* host;  // null: no host tier, and no storage
    Clock& clock;
    MetricsRegistry* metrics;             // may be null
    RankGroup* ranks;                     // null: one rank
    const DevicePools* device = nullptr;  // of which the tree has pages; null: none
    NamespaceScope scope;                 // layout and rank
    bool allows_host_gaps = false;
    // An operation of the façade has ended: kLoad, kStateCopy, kBackup, kExplain. is_ok: on all ranks. It is erased
    // after that.
    std::function<void(Op& op, bool is_ok)> own_done;
    // Whether requests run that will give host pages back.
    std::function<bool()> is_engine_busy;
    // Slots that the tree lets go, inside tree operations: must not call the tree. Null: it has nothing on a device.
    std::function<void(ComponentKind c, std::span<const DeviceSlot> slots)> free_device;
    KvEventSink* events = nullptr;  // outlives this; null: nobody wants to know of pages
  };
  // config: outlives this; policies may change.
  LowerTiers(const CacheConfig& config, Parts parts);

  // ---- the frame of both façades; contracts as in Cache
  bool poll(Nanos wait);
  std::uint64_t flush();
  // flush(), and no lookup finds any more what is held, or still comes from what is under way: open_space() gives other
  // namespaces. Returns pages of full that could be found.
  std::uint64_t renew();
  [[nodiscard]] Status attach_storage(StorageBackend& backend);
  void detach_storage();
  [[nodiscard]] bool storage_idle() const;
  // No operation but timers is under way, and no fetch has work left for a poll.
  [[nodiscard]] bool idle() const { return ops_.has_timers_only() && !prefetcher_.has_steps(); }
  void storage_cleared();
  [[nodiscard]] CacheCounters counters() const;
  // host_slots: live ones that are the façade's own, in nobody's tree and of no fetch.
  [[nodiscard]] Status check_invariants(const std::array<std::uint64_t, kComponentCount>& host_slots) const;
  // As SpaceOpener::open().
  [[nodiscard]] Result<NamespaceId> open_space(const std::string& adapter, const std::string& salt) {
    return space_opener_.open(adapter, salt);
  }
  // Not ok: this rank has lost the others, and says why.
  [[nodiscard]] const Status& parted() const { return ops_.parted(); }
  [[nodiscard]] StorageBackend* storage() const { return storage_; }  // null: none is attached

  [[nodiscard]] std::uint32_t page_size() const { return parts_.model.page_size; }  // tokens

  // ---- the rooms
  [[nodiscard]] RadixTree& tree() { return tree_; }
  [[nodiscard]] const RadixTree& tree() const { return tree_; }
  [[nodiscard]] SpaceTable& spaces() { return spaces_; }
  [[nodiscard]] const SpaceTable& spaces() const { return spaces_; }
  [[nodiscard]] OpTable& ops() { return ops_; }
  [[nodiscard]] const OpTable& ops() const { return ops_; }
  [[nodiscard]] CacheCounters& counts() { return counters_; }  // to count in; counters() has all of them
  [[nodiscard]] CacheMetrics& metrics() { return metrics_; }
  [[nodiscard]] StoreBacklog& backlog() { return backlog_; }
  [[nodiscard]] HostRoom& host_room() { return host_room_; }
  [[nodiscard]] Prefetcher& prefetcher() { return prefetcher_; }
  [[nodiscard]] const Prefetcher& prefetcher() const { return prefetcher_; }
  [[nodiscard]] LossLog& losses() { return losses_; }
  [[nodiscard]] const Tenants& tenants() const { return tenants_; }
  [[nodiscard]] const MissReasons& miss_reasons() const { return reasons_; }

 private:
  [[nodiscard]] OutcomeBits outcome_of(const Op& op);
  void apply(const AgreedEvent& event);
  [[nodiscard]] Status check_host_slots(const std::array<std::uint64_t, kComponentCount>& own) const;
  // SlotSink: what the tree lets go
  void free_device(ComponentKind c, std::span<const DeviceSlot> slots) override;
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override { host_room_.let_go(c, slots); }

  const Parts parts_;
  LossLog losses_;
  RadixTree tree_;
  SpaceTable spaces_;  // before ops_, prefetcher_ and the façade's rooms, which use it to their end
  std::optional<KvEventRecorder> events_;
  OpTable ops_;
  CacheCounters counters_;
  Tenants tenants_;
  SpaceOpener space_opener_;
  CacheMetrics metrics_;
  StoreBacklog backlog_;
  HostRoom host_room_;
  Prefetcher prefetcher_;
  MissReasons reasons_;
  StorageBackend* storage_ = nullptr;
};

}  // namespace larder
