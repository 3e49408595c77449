// SPDX-License-Identifier: Apache-2.0
// Requests that queue: what each keeps on the host until it starts, and whose turn it is to fetch.
//
// A request that still queues at the poll after its begin keeps what it will use in place (a hold), of half the
// prefetch capacity in all, so that what waits does not keep others from fetching. What was evicted all the same it may
// fetch again (may_ask_again()). Those that found no room take turns: with wait_complete one timer bounds the wait,
// that of the request that began first; with timeout each has its own, and the wait counts like that for a fetch.
// One for which the host has no room as yet (wait_complete, while requests run) waits in the same way, and asks storage
// again when there may be some, and not before (RoomWait).
//
// Threads: the cache thread. Ranks: the times that are told here only set timers, on which the ranks agree.
// Cost: O(1) or O(log requests); hold_what_is_there(): one match of the prompt.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "controller/config.h"
#include "controller/fetch.h"
#include "controller/host_room.h"
#include "controller/joint.h"
#include "controller/op_table.h"
#include "controller/request_table.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

// As it was when a fetch found no room that will come: what must change before the next one can fare better.
struct RoomWait {
  HostSpace needed;         // for what it fetches
  HostSpace with_path;      // ... and for what that is added to
  HostSpace in_reach;       // of its tenant: what is free, or could be made so
  HostSpace abandoned;      // that detached storages are still given
  std::uint32_t epoch = 0;  // of the storage, which may have been cleared, or be another by now
  std::uint64_t found = 0;  // pages: the best restore point
  std::uint64_t came = 0;   // pages, windows and states that ever came to the host, at the last look for a better one
};

struct QueuedRequest {
  RequestId id;
  std::uint64_t turn = 0;  // counts up: who began to queue first; after a retract, anew
  NamespaceId space;
  std::span<const TokenId> tokens;  // what it may reuse, whole pages; empty once it has started
  TimePoint begun;                  // where the time it may wait starts
  OpId waits_for;                   // a fetch; 0: it does not wait
  TimePoint waits_since;            // while it does, or has a limit of its own
  Nanos waited{0};                  // for fetches before: all of them have one limit
  OpId limit;                       // timer of its own, where it waits for a fetch that it joined, or its turn; 0: none
  std::vector<OpId> fetches;        // under way, that it wants
  FetchTrouble trouble = FetchTrouble::kNone;
  bool gave_up = false;  // it waited as long as it may: it starts with what is there

  // Pages.
  std::uint64_t fetched_from = 0, fetched_to = 0;  // that storage brought to the host
  std::uint64_t known = 0;                         // best restore point seen in any tier
  Reach reach;                                     // of tree and storage, as storage answered last
  std::uint64_t asked_from = ~std::uint64_t{0};    // least restore point in memory when it asked storage
  // What its last fetch did not get.
  HostSpace room_needed;
  bool was_refused = false;         // there was no capacity
  std::optional<RoomWait> lacks;    // set: there was no room, and it waits for that
  std::uint32_t short_fetches = 0;  // of which less came, or stayed, than storage had promised
  std::uint32_t tries = 0;          // fetches since it lost something; bounded by QueuedRequests::kMaxTries

  LockHandle hold;                // host
  std::uint64_t hold_blocks = 0;  // of it, counted against the capacity
};

class QueuedRequests {
 public:
  static constexpr std::uint32_t kMaxTries = 8;
  static constexpr std::size_t kMostNewcomers = 4096;
  // host: null: nothing is kept. All outlive this.
  QueuedRequests(const CacheConfig& config, const ModelSpec& model, HostPools* host, RadixTree& tree, OpTable& ops,
                 const HostRoom& room);

  QueuedRequest& enter(RequestId id, NamespaceId space, std::span<const TokenId> tokens, TimePoint now);
  [[nodiscard]] QueuedRequest* find(RequestId id);
  [[nodiscard]] const QueuedRequest* find(RequestId id) const;
  // Of these requests: one that has not started; one that waits for the fetch.
  [[nodiscard]] bool any_queues(std::span<const RequestId> ids) const;
  [[nodiscard]] bool any_waits_for(std::span<const RequestId> ids, OpId fetch) const;
  // Of these that have not left.
  void note_trouble(std::span<const RequestId> ids, FetchTrouble trouble);
  // It has its restore point: it keeps nothing and waits for no turn. With no fetch under way r is gone.
  void start(QueuedRequest& r);
  void leave(QueuedRequest& r);  // r is gone

  // ---- what it keeps
  void hold_what_is_there(QueuedRequest& r);
  // The same in the next hold_what_queues(), if it queues still: one that starts at once has nothing to keep.
  void hold_later(const QueuedRequest& r);
  void hold_what_queues(WorkBudget& budget);
  // `blocks` of the host were counted already, and become its own.
  void hold(QueuedRequest& r, const TreePosition& at, std::uint64_t blocks);
  void drop_holds();  // of all of them

  // ---- capacity, host blocks
  [[nodiscard]] std::uint64_t capacity() const;
  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }  // that fetches and holds take
  void add_blocks(std::uint64_t blocks) { blocks_ += blocks; }
  void drop_blocks(std::uint64_t blocks) { blocks_ -= blocks; }
  [[nodiscard]] std::uint64_t least_gain() const;  // pages: a shorter gain is not fetched

  // ---- waits
  [[nodiscard]] bool waits() const { return config_.prefetch_policy != PrefetchPolicy::kBestEffort; }
  // For a fetch of `tokens`; 0: they are not known yet.
  [[nodiscard]] Nanos wait_limit(std::uint64_t tokens) const;
  // Where the time that a fetch begun now may take starts: all fetches of a request have one limit.
  [[nodiscard]] TimePoint wait_begun(const QueuedRequest& r, TimePoint now) const;
  // It wants what the fetch brings, and waits for it, if the policy waits.
  void join(QueuedRequest& r, Fetch& f, TimePoint now);
  // It joined the fetch, whose own timer is that of another request.
  void limit_wait(QueuedRequest& r, OpId fetch, TimePoint due);
  void end_wait(QueuedRequest& r, TimePoint now);

  // ---- turns
  // wait_complete takes turns while requests run: fetches of everyone at once would push each other out of the host.
  [[nodiscard]] bool takes_turns(const std::function<bool()>& is_engine_busy) const {
    return config_.prefetch_policy == PrefetchPolicy::kWaitComplete && is_engine_busy();
  }
  [[nodiscard]] bool may_ask_again(QueuedRequest& r, std::uint64_t found) const;
  // For a fetch: a place among the operations, and, before its turn, capacity. What r holds is not in its own way.
  [[nodiscard]] bool has_room_for(const QueuedRequest& r, bool has_turn) const {
    return (has_turn || blocks_ - r.hold_blocks < capacity()) && ops_.places().has_room(OpKind::kExists);
  }
  void wait_for_turn(QueuedRequest& r, TimePoint now);
  // It has its turn.
  void take_turn(QueuedRequest& r, TimePoint now);
  [[nodiscard]] bool waits_for_turn(const QueuedRequest& r) const;
  // The timer is due: whose wait it ended. Null: nobody's.
  [[nodiscard]] QueuedRequest* end_turn_wait(const Op& timer);

  // ---- room
  // Of one that lacks room: what there is now. What must change is counted from here.
  void note_room(RequestId id, const StoreBacklog& backlog);
  // It waits for room, and there is nothing new: a fetch would find as little as the last one did.
  [[nodiscard]] bool lacks_room(const QueuedRequest& r, const StoreBacklog& backlog,
                                const std::function<bool()>& is_engine_busy) const;
  // Once per poll: who waits for room may find more in the tree, now that `came` (RoomWait) is another number. Looks at
  // some, and at the others in the next poll.
  void look_at_what_came(std::uint64_t came, WorkBudget& budget);

 private:
  void drop_hold(QueuedRequest& r);
  void drop_limit(QueuedRequest& r);
  void drop_turn(const QueuedRequest& r);
  void arm_timer();

  const CacheConfig& config_;
  const ModelSpec& model_;
  HostPools* const host_;
  RadixTree& tree_;
  OpTable& ops_;
  const HostRoom& room_;
  RequestTable<QueuedRequest> requests_;
  std::set<std::uint64_t> holders_;  // ids: ranks let go in one order
  std::deque<RequestId> newcomers_;  // hold_later(), kMostNewcomers at most
  std::uint64_t blocks_ = 0;
  std::uint64_t next_turn_ = 1;
  std::set<std::pair<std::uint64_t, std::uint64_t>> turns_;  // (turn, id) of those that wait for their turn to fetch
  std::pair<std::uint64_t, std::uint64_t> looked_at_{};      // of those, by the last look_at_what_came()
  OpId turn_timer_;                                          // for the first of them; 0: none
};

}  // namespace larder
