// SPDX-License-Identifier: Apache-2.0
// Loads: host -> memory of the engine, up to a restore point of a lookup.
//
// The host slots that a load reads are leased until it has ended, whatever becomes of its lookup (rule 3).
//
// Threads: the cache thread. Ranks: a load that fails on one has failed on all. Cost: connector.h.
#pragma once

#include <cstdint>
#include <vector>

#include "controller/cache_metrics.h"
#include "controller/connector.h"
#include "controller/host_room.h"
#include "controller/lookups.h"
#include "controller/op_table.h"
#include "controller/page_copy.h"
#include "controller/transfer_table.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class Loads {
 public:
  struct Parts {  // all outlive the loads
    const ModelSpec& model;
    HostPools& host;
    RadixTree& tree;
    HostRoom& room;
    OpTable& ops;
    PageCopier& copier;
    Clock& clock;
    CacheCounters& counters;
    CacheMetrics& metrics;
  };
  explicit Loads(const Parts& parts);

  // Arguments as in Connector::load(). `id` names no transfer yet; `lookup` has leased `point`.
  [[nodiscard]] Status begin(TransferId id, const Lookups::Lookup& lookup, const LoadPoint& point,
                             const LoadRequest& request);
  void done(Op& op, bool is_ok);
  // As Connector::load_result().
  [[nodiscard]] Result<LoadResult> take_result(TransferId id) { return loads_.take_result(id); }
  // Those whose result can be taken, each once; as many as there is room for.
  std::size_t take_ended(std::span<ConnectorEvent> out) { return loads_.take_ended(out); }
  [[nodiscard]] bool note_ended() { return loads_.note_ended(); }
  [[nodiscard]] bool has(TransferId id) const { return loads_.has(id); }
  [[nodiscard]] std::size_t size() const { return loads_.size(); }  // under way, or with a result to take

 private:
  struct Load : ConnectorTransfer<LoadResult> {
    std::vector<LeasedSlot> leases;
    std::uint64_t new_pages = 0;  // of full
    TimePoint begun;
  };
  struct Slots {  // where on the host the bytes are
    std::array<std::vector<PageLocation>, kComponentCount> of;
    std::array<std::uint64_t, kComponentCount> first{};  // page of of[c][0]
  };
  [[nodiscard]] Result<Slots> find_slots(const Lookups::Lookup& lookup, const LoadPoint& point) const;
  [[nodiscard]] Status lease(Load& load, const Slots& slots);
  [[nodiscard]] Result<std::shared_ptr<PageCopy>> make_copy(const LoadPoint& point, const Slots& slots,
                                                            const LoadRequest& request) const;

  const ModelSpec& model_;
  HostPools& host_;
  RadixTree& tree_;
  HostRoom& room_;
  OpTable& ops_;
  PageCopier& copier_;
  Clock& clock_;
  CacheCounters& counters_;
  CacheMetrics& metrics_;
  TransferTable<Load> loads_;
};

}  // namespace larder
