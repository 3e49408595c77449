// SPDX-License-Identifier: Apache-2.0
// A fetch: what is read from storage for one prompt, from its existence query to its adoption. The Prefetcher fills and
// reads it.
//
//   pages   base      tree_full    full_from ............................. target
//           │         │            │ batch │ batch │ batch+stop │ batch │ batch+stop
//           restore   full in the  └─ read in this order, several at once ─┘
//           point of  tree ends
//           the tree
//
// A stop is a restore point at which the fetch is worth something when it gets no further: there the window's pages and
// the state are read as well. Where full alone is a restore point, every batch ends at a stop.
//
// Outlives its requests (rule 3: buffers belong to the operation until it ends). Owned by the cache thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/strong.h"
#include "controller/joint.h"
#include "controller/rank_group.h"
#include "controller/space_table.h"
#include "key/page_key.h"
#include "pool/host_pools.h"
#include "storage/backend.h"
#include "transfer/transfer.h"
#include "tree/tree.h"

namespace larder {

// What kept a request from what storage may have. The worst of its fetches counts.
enum class FetchTrouble : std::uint8_t {
  kNone,
  kNotFetched,  // too little to ask for, or the host had no room, or there was no place among the operations
  kLate,        // its wait was over before storage had answered, or brought all
  kFailed,      // storage answered with an error
  kDamaged,     // what came failed its checksum
};

struct FetchBatch {
  enum class State : std::uint8_t { kPlanned, kReading, kArrived, kOver };  // kOver: it has given all of its slots away

  std::uint64_t begin = 0, end = 0;  // pages of full; may be none where it ends at a stop
  bool is_stop = false;              // restore point `end`:
  std::uint64_t window_begin = 0;    //   the first page of its window
  std::uint64_t window_from = 0;     //   the first of them that is read
  bool reads_state = false;          //   the state at `end` is read
  State state = State::kPlanned;
  std::array<std::vector<HostSlot>, kComponentCount> slots;  // of its pages, of [window_from, end), of the state
  std::vector<LeasedSlot> leases;                            // while it is read
  OpId op;
  bool is_submitted = false;  // storage has it, or had it
  std::uint64_t bytes = 0;
  // Agreed by the ranks: a bit for each slot that it was given, in order.
  OutcomeBits arrived;

  // Slots that it needs, whatever it has given away by now.
  [[nodiscard]] ComponentCounts needs() const {
    return {static_cast<std::uint32_t>(end - begin), static_cast<std::uint32_t>(end - window_from),
            reads_state ? 1u : 0u};
  }
  [[nodiscard]] bool has(ComponentKind c, std::size_t place) const {
    for (std::size_t i = 0; i < index_of(c); ++i) place += needs()[i];
    return has_bit(arrived, place);
  }
  [[nodiscard]] std::size_t slot_count() const { return needs()[0] + needs()[1] + needs()[2]; }
  // Pages of full from `begin` on that have come without a gap.
  [[nodiscard]] std::uint64_t run() const;
  [[nodiscard]] bool is_whole() const { return run() == end - begin; }
};

// One question of the existence query (fetch_query.h).
struct QueryPart {
  OpId op;
  std::uint64_t begin = 0, end = 0;  // pages
  bool is_submitted = false, is_answered = false;
  // Agreed by the ranks: for each pool of the model, in its order, a bit for each page, in words. In one more word
  // whether storage has answered all of them.
  OutcomeBits found{};
};

// The way of a fetch in batches. They are cut one after another, as slots are taken for them.
struct FetchCut {
  std::vector<std::uint64_t> stops{};  // ascending, the target last; none: nothing is planned
  std::size_t next = 0;                // of them: batches end at those before it
  std::uint64_t from = 0;              // pages of full before it are in a batch, or need none
  std::uint64_t most = 1;              // pages of full in a batch

  [[nodiscard]] bool is_over() const { return next == stops.size(); }
  // Up to the next stop, which ends a batch, but `most` pages at most. Precondition: !is_over().
  [[nodiscard]] FetchBatch cut();
};

struct Fetch {
  enum class State : std::uint8_t {
    kAsking,   // keys are hashed, and storage is asked what it has of them
    kTaking,   // host slots are taken for what it has
    kReading,  // batches are under way, or will be
    kEnding,   // no batch begins any more; those under way keep their slots until they end
  };
  OpId id;     // of the first part of its existence query
  OpId timer;  // bounds the wait of its requests; 0: it is over, and with it the locks
  State state = State::kAsking;
  std::vector<RequestId> requests;  // who wants it, the one that began it first; empty: all of them are gone
  NamespaceId space;
  SpaceTable::Use space_use;
  std::vector<TokenId> tokens;  // whole pages, up to the last that may be reused
  std::vector<PageKey> keys;    // of pages from key_from on, as far as storage was asked
  std::uint64_t key_from = 0;
  std::deque<QueryPart> parts;  // of the query that are under way, in order
  std::uint64_t asked = 0;      // pages before it have a part, or had one
  JointScan scan;               // of what they brought
  ReachScan reach;              // ... and how far some of it goes where no restore point follows
  OutcomeBits candidates;       // restore points that tree and storage have together, as far as was scanned
  std::uint64_t pages = 0;
  std::uint64_t base = 0;         // best restore point of the tree when it began
  std::uint64_t tree_full = 0;    // pages of full the tree had, in whatever tier
  std::uint64_t full_from = 0;    // from here on pages of full are read: tree_full, or before it (plan())
  std::uint64_t target = 0;       // restore point being fetched
  std::uint64_t adopted = 0;      // best restore point so far: base, then what was adopted
  std::uint64_t full_to = 0;      // pages of full before it are the tree's: full_from, then what was adopted
  bool waits_for_room = false;    // the host has none now, and will have
  HostSpace room_needed;          // that it tried to get last
  std::uint64_t upto = 0;         // kTaking: the largest restore point that it tries to get room for
  std::uint32_t tries = 0;        // kTaking: how often there was none
  FetchCut cut;                   // kTaking
  std::size_t with_slots = 0;     // kTaking: batches before it have their slots
  std::uint32_t store_waits = 0;  // kTaking: how often it waited for storage to take what would go
  bool steps = false;             // it waits for a poll's budget, or for the next poll, to go on (FetchTurns)
  bool waits_for_place = false;   // it has batches, of which none is under way, for there was no place for one
  // Keep full in place until the wait is over: [0, tree_full) in some tier, [0, full_from) on the host as far as it is
  // there.
  LockHandle device_lock, host_lock;
  LockHandle adopted_lock;                    // host, while `device_lock` is held: what was adopted and is built on
  std::vector<FetchBatch> batches;            // in chain order
  std::size_t first = 0;                      // batches before it are over
  std::size_t arrived = 0;                    // batches before it have ended
  std::size_t next = 0;                       // batches from it on are planned
  std::uint64_t come = 0;                     // the last stop before `arrived`: it can be adopted
  bool is_broken = false;                     // a page has not come: nothing behind it can ever be adopted
  std::size_t reading = 0;                    // batches under way
  std::uint64_t blocks = 0;                   // host blocks held, for the capacity limit
  TimePoint begun;                            // where the wait that `timer` bounds starts
  std::uint32_t epoch = 0;                    // of the storage it reads: StoreBacklog::epoch()
  Urgency urgency = Urgency::kWaiting;        // kSpeculative: nobody waits
  TimePoint deadline = TimePoint::max();      // for storage's queue: when those that wait go on without
  std::shared_ptr<std::atomic<bool>> cancel;  // for storage's queue: nobody wants it any more
  TimePoint read_begun;                       // for the metrics
  std::uint64_t bytes = 0;                    // that were read and adopted, for the metrics
  bool is_detached = false;                   // its storage was
};

// The pages at which a fetch of [from, target) stops, ascending, `target` last: of the restore points `candidates`,
// those at least `gap` pages from the stop before and from the target.
[[nodiscard]] std::vector<std::uint64_t> choose_stops(const OutcomeBits& candidates, std::uint64_t from,
                                                      std::uint64_t target, std::uint64_t gap);
}  // namespace larder
