// SPDX-License-Identifier: Apache-2.0
// Storage -> host, for requests that queue: what each of them fetches, waits for, and keeps on the host until it
// starts.
//
//   enter() ─► storage's joint pages? ─► host slots ─► reads, in batches ─► adoption ─► start() ─► leave()
//              FetchQuery                FetchRoom     ReadQueue           FetchAdopter
//                                                           │
//                        the policy's limit is over ────────┴─► adoption of what has come so far
//
// A request is waiting until its fetch has brought what the request can use, or until its policy's limit: then it takes
// what has come, as far as that is a restore point, and no further batch begins for it. One that joined the fetch of
// another later asks for itself, if it has time left. Batches under way go on, and what they bring is adopted for the
// next request. best_effort never waits; start() takes what has come. A request that finds the host full, or no place
// among the operations, asks again when its turn comes (asks_again()): prefetches hold at most prefetch_capacity of the
// host, and what requests keep there while they queue half of that.
//
// Batches (fetch.h) are about prefetch_batch_bytes of full; kBatchesInFlight of a fetch are under way at once. So slow
// storage is not asked for what comes too late, and its breaker sees short reads that succeed.
//
// Long prompts. Keys are hashed, storage is asked, slots are taken and pages are adopted in pieces, as far as the
// poll's budget reaches (work_budget.h); what is left waits in one queue of fetches, each of which has its turn. A call
// hashes at most kAtOnce pages. Of the fetches that have begun, each has an operation under way, work in that queue, or
// waits for a place among the operations (op_table.h).
//
// Threads: the cache thread. Ranks: everything is decided by agreed events and by calls that all ranks make alike, but
// the deadline that storage's queue is told.
// Cost: O(tokens of the prompt) to copy and match them where a fetch begins, a piece for each event, and in pump() what
// the budget has; join: for the fetches under way of the same length and last page (with full alone: of the same first
// page).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "controller/cache.h"
#include "controller/cache_metrics.h"
#include "controller/fetch.h"
#include "controller/fetch_adopter.h"
#include "controller/fetch_plan.h"
#include "controller/fetch_query.h"
#include "controller/fetch_room.h"
#include "controller/fetch_turns.h"
#include "controller/host_room.h"
#include "controller/join_index.h"
#include "controller/joint.h"
#include "controller/loss_log.h"
#include "controller/op_table.h"
#include "controller/queued_requests.h"
#include "controller/read_queue.h"
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
    LossLog& losses;
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
  // Would enter() ask storage for it? space: nullopt: nothing of it is cached.
  [[nodiscard]] bool would_fetch(std::optional<NamespaceId> space, std::span<const TokenId> tokens) const;
  // At its turn: does it wait (again), because what it could have used was evicted, or its fetch found no room? For a
  // place among the operations, as long as the policy says.
  // found: the best restore point of the tree, pages.
  [[nodiscard]] bool asks_again(RequestId id, std::uint64_t found);
  enum class WaitsFor : std::uint8_t {
    kNothing,
    kStorage,
    kTurn,  // asks_again() would find that it has none yet
    kRoom,  // the same, on the host; requests that run will give it back
  };
  [[nodiscard]] WaitsFor waits_for(RequestId id) const;
  // best_effort: hands the tree what has come so far. Before the request looks for its restore point.
  void take_arrived(RequestId id);
  struct Fetched {
    std::uint64_t from = 0, to = 0;  // pages that storage brought for it
    std::uint64_t known = 0;         // pages: the best restore point seen in any tier
    FetchTrouble trouble = FetchTrouble::kNone;
    bool is_under_way = false;  // a fetch of it goes on
    bool is_open = false;       // storage has not said yet what it has
    Reach reach{};              // of tree and storage, as storage answered last
  };
  // It has its restore point, and queues no more. What was fetched for it until now.
  Fetched start(RequestId id);
  // Those that queue let go what they keep on the host: the device needs the pages above it.
  void drop_holds() { queue_.drop_holds(); }
  // Fetches that nobody queues for any more let go what they keep in place: the device needs it. What is under way goes
  // on, and is adopted if what it continues is still there. drops_speculative: those that nobody waits for, too.
  void drop_unwanted(bool drops_speculative);
  // The same for those of a request that starts while they go on (best_effort), or of all for one that runs: what waits
  // for storage holds it up no longer, and what was on the device alone may have to be computed again. Only if there is
  // room without them: suffices() is asked meanwhile.
  bool yields_device(std::optional<RequestId> starts, const std::function<bool()>& suffices);
  // It is over. What is under way for it goes on, and is adopted for the next one.
  void finish(RequestId id);
  // The same, and it wants nothing any more. What storage has not begun it need not begin, if nobody else wants it.
  void leave(RequestId id);
  // Until it starts.
  [[nodiscard]] Fetched fetched(RequestId id) const;

  // ---- events. outcome_of(): this rank's answer; done: the agreed one.
  [[nodiscard]] OutcomeBits outcome_of(const Op& op);  // kExists, kRead
  void exists_done(const Op& op, const OutcomeBits& bits);
  void read_done(const Op& op, const OutcomeBits& bits);
  void timer_done(const Op& timer);

  // Gives storage the batches that its queue had no room for, and goes on with what did not fit into earlier polls.
  // Once per poll, after the events.
  void pump();

  // Fetches have work left that a poll goes on with, although no operation of theirs may be under way.
  [[nodiscard]] bool has_steps() const { return !turns_.empty(); }
  // Host slots that fetches hold.
  [[nodiscard]] std::array<std::uint64_t, kComponentCount> slots_held() const;

 private:
  static constexpr std::size_t kBatchesInFlight = 32;
  static constexpr std::uint64_t kAtOnce = 256;  // pages that a call hashes

  // ---- prefetcher.cc: who wants what, and what storage has of it
  [[nodiscard]] bool can_fetch() const;
  // has_turn: the capacity limit is for those that still queue.
  void ask(QueuedRequest& r, bool has_turn);
  [[nodiscard]] bool join(QueuedRequest& r, std::uint64_t base);
  // Is more to be begun for it?
  [[nodiscard]] bool is_wanted(const Fetch& f) const;
  // Goes on with what the fetch does by itself; in pump(), if the budget has nothing left. has_place: an operation of
  // it ends now, and another may take its place.
  void step(Fetch& f, bool has_place);
  void take_room(Fetch& f, bool has_place);
  void go_without_room(Fetch& f);
  [[nodiscard]] bool lacks_room(const QueuedRequest& r) const {
    return queue_.lacks_room(r, backlog_, is_engine_busy_);
  }
  void give_up(Fetch& f, RequestId id);

  // ---- prefetch_read.cc: what comes
  void begin_batches(Fetch& f, bool has_place);
  void end_planned(Fetch& f);
  // False: there is more to adopt, in a later step.
  bool adopt_arrived(Fetch& f);
  void use_what_came(Fetch& f);
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
  LossLog& losses_;
  const std::function<bool()> is_engine_busy_;
  const FetchPlanner planner_;

  StorageBackend* storage_ = nullptr;
  QueuedRequests queue_;
  FetchQuery query_;
  FetchRoom fetch_room_;
  FetchAdopter adopter_;
  ReadQueue reads_;
  std::map<std::uint64_t, Fetch> fetches_;  // by id: ranks iterate alike
  JoinIndex joinable_;
  FetchTurns turns_;
};

}  // namespace larder
