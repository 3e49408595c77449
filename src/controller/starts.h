// SPDX-License-Identifier: Apache-2.0
// From a ready request to a running one: restore point, reservation, load-back (steps 1 and 3 of a prefix's life).
//
//   choose() ─► the largest joint restore point ─► lock ─► room, slots ─► its page table ─► copies under way
//                                                   └── kOverloaded: nothing is held; again, later
//
//   pages   0 ...... device_pages ............... pages .................. pages_at_start()
//           full: │ on the device │ from the host │ its own, to be computed │
//           window:                  [window_from, pages), wherever each is
//           state:                          at `pages`: copied into one of its own, which it works on
//
// The engine computes while pages still come: it waits at the LayerGate for each layer. Only a checkpoint that is
// copied on the device beside a load is waited for whole (kLoading).
//
// Threads: the cache thread. Ranks: by the tree, the pools and agreed events. Errors: as in Cache::start(). A copy that
// fails makes its request fail (RunningRequest::loaded()), and the tree drops what did not come.
// Cost: a match of the prompt, O(pages) for the table, and what room costs (device_room.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "controller/backups.h"
#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/device_copies.h"
#include "controller/device_room.h"
#include "controller/loss_log.h"
#include "controller/miss_reasons.h"
#include "controller/op_table.h"
#include "controller/prefetcher.h"
#include "controller/requests.h"
#include "pool/device_pools.h"
#include "tree/tree.h"

namespace larder {

class Starts {
 public:
  struct Parts {  // all outlive the starts
    const ModelSpec& model;
    DevicePools& device;
    bool has_host;
    RadixTree& tree;
    OpTable& ops;
    Prefetcher& prefetcher;
    DeviceRoom& room;
    Backups& backups;
    DeviceCopies& copies;
    Requests& requests;
    LossLog& losses;
    const MissReasons& reasons;
    Clock& clock;
    CacheCounters& counters;
    CacheMetrics& metrics;
    std::uint32_t chunk_pages;  // of chunked_prefill_tokens
  };
  // config: outlives this; its policies may change.
  Starts(const CacheConfig& config, const Parts& parts);

  // As Cache::start().
  [[nodiscard]] Result<CachedTokens> start(Request& r);
  // Room for one more to run: kOverloaded, or ok.
  [[nodiscard]] Status check_admission() const;
  // Pages that a request begins to run with.
  [[nodiscard]] std::uint64_t pages_at_start(const Request& r) const;
  // A copy has ended; is_ok: on all ranks.
  void load_done(Op& op, bool is_ok);
  void state_copy_done(const Op& op, bool is_ok);

 private:
  using Slots = std::array<std::vector<DeviceSlot>, kComponentCount>;
  struct Restore {                           // where the request resumes, and what is there
    NodeId node;                             // at `pages`; it is at least there
    std::uint64_t pages = 0;                 // resume here
    std::uint64_t device_pages = 0;          // of full, already on the device
    std::uint64_t device_point = 0;          // where it would resume if there were the device alone
    std::uint64_t window_from = 0;           // first page of the window
    std::vector<PageLocation> full, window;  // [0, pages), [window_from, pages)
    PageLocation state;
    StopReason reason = StopReason::kNone;
    ComponentKind component = ComponentKind::kFull;
    Miss miss;
    std::uint64_t fork = 0;
    [[nodiscard]] bool loads() const;
  };
  [[nodiscard]] Status check_places() const;
  [[nodiscard]] Result<Restore> choose(Request& r);
  void locate(Restore& restore) const;
  [[nodiscard]] ComponentCounts slots_for(const Request& r, const Restore& restore) const;
  [[nodiscard]] Status admit(Request& r, const Restore& restore);
  [[nodiscard]] Status take_slots(Request& r, const ComponentCounts& counts, Slots& out);
  [[nodiscard]] Status attach(const Op& op, const Restore& restore, Slots& slots, TransferRequest& load);
  void recall(Request& r, const Restore& restore, std::vector<PlannedCheckpoint>& plan);
  void fill_table(Request& r, const Restore& restore, const TransferRequest& load, const Slots& slots);
  void copy_state(Request& r, const Restore& restore, bool loads, TransferRequest& load);
  void account(Request& r, const Restore& restore, const Prefetcher::Fetched& fetched);

  const CacheConfig& config_;
  const ModelSpec& model_;
  DevicePools& device_;
  const bool has_host_;
  RadixTree& tree_;
  OpTable& ops_;
  Prefetcher& prefetcher_;
  DeviceRoom& room_;
  Backups& backups_;
  DeviceCopies& copies_;
  Requests& requests_;
  LossLog& losses_;
  const MissReasons& reasons_;
  Clock& clock_;
  CacheCounters& counters_;
  CacheMetrics& metrics_;
  const std::uint32_t chunk_pages_;
};

}  // namespace larder
