// Storage -> host, for requests that queue: what each of them fetches, waits for, and keeps on the host until it
// starts.
//
//   enter() ─► storage's joint pages? ─► host slots ─► reads, in batches ─► adoption ─► start() ─► leave()
//                                                           │
//                        the policy's limit is over ────────┴─► adoption of what has come so far
//
// A request is waiting until its fetch has brought what the request can use, or until its policy's limit: then it takes
// what has come, as far as that is a restore point, and no further batch begins for it. One that joined the fetch of
// another has a limit of its own. Batches under way go on, and what they bring is adopted for the next request.
// best_effort never waits; start() takes what has come. A request that finds the host full asks again when its turn
// comes (asks_again()): prefetches hold at most prefetch_capacity of the host, and what requests keep there while they
// queue half of that.
//
// Batches (fetch.h) are about prefetch_batch_bytes of full; kBatchesInFlight of a fetch are under way at once. So slow
// storage is not asked for what comes too late, and its breaker sees short reads that succeed.
//
// Threads: the cache thread. Ranks: everything is decided by agreed events and by calls that all ranks make alike, but
// the deadline that storage's queue is told.
// Cost: O(pages) where a fetch begins, is planned and is adopted; O(items) for each batch; join: for the fetches
// under way of the same length and last page (with full alone: of the same first page).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/fetch.h"
#include "controller/fetch_plan.h"
#include "controller/host_room.h"
#include "controller/op_table.h"
#include "controller/queued_requests.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

class Prefetcher {
 public:
  struct Parts {  // all outlive the prefetcher
    const ModelSpec& model;
    HostPools* host;  // null: nothing is ever fetched or kept
    RadixTree& tree;
    OpTable& ops;
    SpaceTable& spaces;
    Clock& clock;
    StoreBacklog& backlog;
    CacheCounters& counters;
    CacheMetrics& metrics;
    HostRoom& room;
    // Whether requests run that will give host pages back.
    std::function<bool()> is_engine_busy;
  };
  Prefetcher(const CacheConfig& config, const Parts& parts);

  // ---- the storage
  void attach_storage(StorageBackend& backend);
  // No batch begins any more; what is under way is waited for until `due` at most.
  void detach_storage(TimePoint due);

  // ---- requests that queue
  // The request begins to queue. tokens: what it may reuse of its prompt, whole pages; they stay until start() or
  // leave().
  void enter(RequestId id, NamespaceId space, std::span<const TokenId> tokens);
  [[nodiscard]] bool is_waiting(RequestId id) const;
  // At its turn: does it wait (again), because what it could have used was evicted, or its fetch found no room?
  // found: the best restore point of the tree, pages.
  [[nodiscard]] bool asks_again(RequestId id, std::uint64_t found);
  // best_effort: hands the tree what has come so far. Before the request looks for its restore point.
  void take_arrived(RequestId id);
  // It has its restore point, and queues no more.
  void start(RequestId id);
  // Those that queue let go what they keep on the host: the device needs the pages above it.
  void drop_holds() { queue_.drop_holds(); }
  // It is over. What is under way for it goes on, and is adopted for the next one.
  void finish(RequestId id);
  // The same, and it wants nothing any more. What storage has not begun it need not begin, if nobody else wants it.
  void leave(RequestId id);
  struct Fetched {
    std::uint64_t from = 0, to = 0;  // pages that storage brought for it
    std::uint64_t known = 0;         // pages: the best restore point seen in any tier
  };
  [[nodiscard]] Fetched fetched(RequestId id) const;

  // ---- events. outcome_of(): this rank's answer; done: the agreed one.
  [[nodiscard]] OutcomeBits outcome_of(const Op& op) const;  // kExists, kRead
  void exists_done(const Op& op, const OutcomeBits& bits);
  void read_done(const Op& op, const OutcomeBits& bits);
  void timer_done(const Op& timer);

  // Gives storage the batches that its queue had no room for. Once per poll, after the events.
  void pump();

  // Host slots that fetches hold.
  [[nodiscard]] std::array<std::uint64_t, kComponentCount> slots_held() const;

 private:
  static constexpr std::size_t kBatchesInFlight = 32;
  // What is read for earlier stops is at most one part in so many of the full pages in front of them.
  static constexpr std::uint64_t kStopShare = 8;

  // ---- prefetcher.cc: who wants what, and what storage has of it
  [[nodiscard]] bool can_fetch() const;
  [[nodiscard]] bool waits() const { return config_.prefetch_policy != PrefetchPolicy::kBestEffort; }
  [[nodiscard]] Nanos wait_limit(std::uint64_t tokens) const;
  // has_turn: the capacity limit is for those that still queue.
  void ask(QueuedRequest& r, bool has_turn);
  [[nodiscard]] bool join(QueuedRequest& r, std::uint64_t base);
  [[nodiscard]] bool serves_any_head() const;
  [[nodiscard]] std::uint64_t join_key(NamespaceId space, std::span<const TokenId> tokens) const;
  [[nodiscard]] TimePoint wait_begun(const QueuedRequest& r) const;
  void add_request(Fetch& f, QueuedRequest& r);
  void collect_keys(Fetch& f, const TreePosition& walked);
  void submit_query(Fetch& f, Op& op);
  // Takes host slots for the largest restore point that fits. False: none does, and f.room_needed says what was tried
  // last; or, where that is 0, nothing is worth fetching.
  [[nodiscard]] bool reserve(Fetch& f, const OutcomeBits& candidates);
  void hand_out(Fetch& f, std::array<std::vector<HostSlot>, kComponentCount>& slots);
  void hold_host_path(Fetch& f);
  void go_without_room(Fetch& f);
  void give_up(Fetch& f, RequestId id);

  // ---- prefetch_read.cc: what comes
  void begin_batches(Fetch& f);
  void begin_batch(Fetch& f, FetchBatch& batch);
  [[nodiscard]] ReadRequest read_of(const Fetch& f, const FetchBatch& batch) const;
  [[nodiscard]] bool submit_batch(const Fetch& f, FetchBatch& batch);
  void end_planned(Fetch& f);
  [[nodiscard]] std::uint64_t restore_point_of(const Fetch& f, std::size_t stop, std::uint64_t after) const;
  void adopt_arrived(Fetch& f);
  [[nodiscard]] bool adopt(Fetch& f, std::size_t stop, std::uint64_t pages);
  void mark_adopted(NodeId node, const Fetch& f, const FetchBatch& stop, std::uint64_t pages);
  void give_back(FetchBatch& batch);
  void release_served(Fetch& f);
  void use_arrived(Fetch& f, QueuedRequest& r);
  void let_go(Fetch& f);
  void end_if_over(Fetch& f);
  void abandon(Fetch& f);

  const CacheConfig& config_;
  const ModelSpec& model_;
  HostPools* const host_;
  RadixTree& tree_;
  OpTable& ops_;
  SpaceTable& spaces_;
  Clock& clock_;
  StoreBacklog& backlog_;
  CacheCounters& counters_;
  CacheMetrics& metrics_;
  HostRoom& room_;
  const std::function<bool()> is_engine_busy_;
  const FetchPlanner planner_;

  StorageBackend* storage_ = nullptr;
  QueuedRequests queue_;
  std::map<std::uint64_t, Fetch> fetches_;                         // by id: ranks iterate alike
  std::unordered_map<std::uint64_t, std::vector<OpId>> joinable_;  // fetches in the order of their ids, by join_key()
  std::deque<OpId> unsubmitted_;                                   // batches under way that storage has yet to take
};

}  // namespace larder
