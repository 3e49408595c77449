// SPDX-License-Identifier: Apache-2.0
// The requests of a cache, from begin() to their end; and the open steps of those that are over.
//
//   add() ─► queues (kReady; Prefetcher knows what it waits for) ─► run() ─► release() ─► queues again, or forget()
//                                                                                          └─► open steps: departed,
//                                                                                              until each has ended
// Threads: the cache thread. Ownership: RunningRequest. Limits: max_requests of both kinds.
// Cost: O(1) beside what RunningRequest costs; check_slots() O(slots).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "controller/cache.h"
#include "controller/device_room.h"
#include "controller/op_table.h"
#include "controller/request_table.h"
#include "controller/running_request.h"
#include "controller/space_table.h"
#include "controller/step_events.h"
#include "pool/device_pools.h"
#include "tree/tree.h"

namespace larder {

struct PageSpan {
  std::uint64_t from = 0, to = 0;  // pages; none: from == to

  [[nodiscard]] std::uint64_t before(std::uint64_t end) const { return std::min(to, end) - std::min({from, to, end}); }
  // The least span that has both.
  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    *this = from == to ? PageSpan{begin, end} : PageSpan{std::min(from, begin), std::max(to, end)};
  }
};

// Everything a request holds.
struct Request : RequestText {
  explicit Request(const RunningParts& parts) : run(parts) {}

  [[nodiscard]] bool has_started() const { return phase == RequestPhase::kLoading || phase == RequestPhase::kRunning; }
  // What it may reuse of its tokens.
  [[nodiscard]] std::span<const TokenId> whole_pages(std::uint32_t page_size) const {
    return std::span<const TokenId>(tokens).first(reusable_tokens() / page_size * page_size);
  }

  RequestId id;
  SpaceTable::Use space_use;
  RequestPhase phase = RequestPhase::kReady;  // but kPrefetching, which the Prefetcher knows

  std::uint32_t retracts = 0;
  bool is_told = false;  // it has computed with what it found before a retract: that stays its answer
  // Until it is told, what its starts brought to the device, and what of that storage had brought to the host.
  PageSpan brought, from_storage;
  std::uint32_t restarts = 0;  // 1: uses the device only, its host copy could not be loaded; more: nothing

  // While it runs.
  RunningRequest run;
  bool has_computed = false;  // a step was completed
  bool is_starved = false;    // its last step was refused because requests fill the device
  OpId load, state_copy;      // 0: none in flight
  std::uint32_t forks = 0;    // whose copies read what it would write next
  CachedTokens cached;
};

class Requests {
 public:
  struct Parts {  // all outlive the requests
    const ModelSpec& model;
    DevicePools& device;
    RadixTree& tree;
    SpaceTable& spaces;
    const OpTable& ops;
    DeviceRoom& room;
    StepEvents& events;
    CacheCounters& counters;
    std::uint32_t chunk_pages;  // of chunked_prefill_tokens
    bool has_ranks = false;     // this is one of several
  };
  // config: outlives this; its policies may change.
  Requests(const CacheConfig& config, const Parts& parts);

  // ---- who is there
  // Whether add() may: kInvalidArgument, kOverloaded as in Cache::begin().
  [[nodiscard]] Status check(const BeginRequest& request) const;
  Request& add(NamespaceId space, const BeginRequest& request);
  // Of both kinds: kOverloaded at the limit.
  [[nodiscard]] Status check_count() const;
  // Another request with the same text; it queues, and asks storage for nothing.
  Request& add_fork(const Request& from);
  [[nodiscard]] Request* find(RequestId id);
  [[nodiscard]] const Request* find(RequestId id) const;
  [[nodiscard]] bool empty() const { return requests_.empty() && departed_.empty(); }
  [[nodiscard]] std::uint32_t running() const { return running_; }  // in kLoading or kRunning

  // ---- their lives
  void run(Request& r, RequestPhase phase);  // kLoading or kRunning; its RunningRequest has begun
  // Hands the tree what was computed. Not while it loads (the pages are not right yet), and not once this rank has lost
  // the others: then nobody decides anything.
  void hand_over(Request& r);
  // Gives back everything it holds on the device. A late completion finds no one waiting.
  void release(Request& r);
  // It is over: what its open steps may touch stays until they have ended.
  void forget(Request& r);
  // The cache is closing: lets go of all. each: before the request is gone.
  void close(const std::function<void(RequestId)>& each);

  // ---- steps: contracts as in Cache
  [[nodiscard]] Result<StepGrant> prepare_step(RequestId id, std::uint64_t until);
  [[nodiscard]] Status complete_step(StepToken step, std::span<const TokenId> tokens,
                                     std::shared_ptr<DeviceEvent> over);
  [[nodiscard]] Status cancel_step(StepToken step, std::shared_ptr<DeviceEvent> over);

  // Every live slot of the device is the tree's, a request's or an open step's. O(everything).
  [[nodiscard]] Status check_slots() const;

 private:
  [[nodiscard]] Status end_departed(StepToken step, bool completes);

  const CacheConfig& config_;
  DevicePools& device_;
  RadixTree& tree_;
  SpaceTable& spaces_;
  const OpTable& ops_;
  DeviceRoom& room_;
  StepEvents& events_;
  ComponentCounts in_limbo_{};  // before those that count in it
  const RunningParts running_parts_;
  RequestTable<Request> requests_;
  struct Departed {  // a request that is over, while steps of it are open
    StepLedger ledger;
    SpaceTable::Use space_use;  // what is in limbo is locked in the namespace
  };
  std::map<std::uint64_t, Departed> departed_;
  std::uint64_t next_ = 1;
  std::uint32_t running_ = 0;
};

}  // namespace larder
