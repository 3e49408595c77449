// What an operation in flight carries. The rooms fill and read it; op_table.h keeps it and never looks inside.
//
// Owned by the cache thread. Outlives the request that wanted it: buffers belong to the operation until it ends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "controller/cache.h"
#include "controller/space_table.h"
#include "key/page_key.h"
#include "storage/backend.h"
#include "transfer/transfer.h"
#include "tree/tree.h"

namespace larder {

enum class OpKind : std::uint8_t { kLoad, kStateCopy, kBackup, kExists, kRead, kStore, kTimer, kExplain };
inline constexpr std::size_t kOpKindCount = 8;

// A prefetch from its existence query to its adoption. Outlives its request (rule 3: buffers belong to the operation).
struct Prefetch {
  std::vector<RequestId> requests;  // who wants it, the one that began it first; empty: all of them were aborted
  NamespaceId space;
  SpaceTable::Use space_use;    // none: of an explanation, which is one rank's own
  std::vector<TokenId> tokens;  // whole pages, up to the last that may be reused
  std::vector<PageKey> keys;    // of pages [key_from, pages)
  std::uint64_t key_from = 0;
  std::uint64_t pages = 0;
  std::uint64_t base = 0;         // best restore point of the tree when it began
  std::uint64_t tree_full = 0;    // pages of full the tree had, in whatever tier
  std::uint64_t full_from = 0;    // from here on pages of full are read: tree_full, or before it (prefetch_counts())
  std::uint64_t target = 0;       // restore point being fetched
  std::uint64_t swa_from = 0;     // first window page fetched
  bool waits_for_room = false;    // reserve_prefetch(): the host has none now, and will have
  std::uint64_t room_needed = 0;  // blocks that reserve_prefetch() tried to get last
  // Keep full in place until the wait is over (timer_done): [0, tree_full) in some tier, [0, full_from) on the host as
  // far as it is there.
  LockHandle device_lock, host_lock;
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  std::vector<LeasedSlot> leases;
  std::vector<std::pair<PoolName, std::uint64_t>> items;  // (pool, page) of each read item
  std::uint64_t blocks = 0;                               // host blocks held, for the capacity limit
  TimePoint begun;                                        // where the wait that `timer` bounds starts
  OpId timer;
  Urgency urgency = Urgency::kWaiting;        // kSpeculative: nobody waits
  TimePoint deadline = TimePoint::max();      // for the storage's queue: when those that wait go on without
  std::shared_ptr<std::atomic<bool>> cancel;  // for the storage's queue: `requests` became empty
  std::uint32_t epoch = 0;                    // of the storage it reads
  TimePoint read_begun;                       // for the metrics
  std::uint64_t bytes = 0;                    // of the read, for the metrics
};

// A write to storage, of one namespace (store_backlog.h). Its pages are kept on the host (locked and leased), but not
// on the device: a storage that hangs must not take the device from the engine.
struct Store {
  struct Piece {  // pages [begin, end of node) of a path; more than one node once it was split
    NodeId node;  // locked with all of these pages: the tree forgets none of it, nor merges it with what is around
    std::uint64_t begin = 0;
    LockHandle lock;
    bool has_window = false;  // asked for: of all its pages
    bool has_state = false;   // asked for: at its end
  };
  struct Group {              // of the request
    std::size_t piece = 0;    // whose pages it has: place in `pieces`
    std::uint64_t pages = 0;  // of full
  };
  std::vector<Piece> pieces;  // parents first
  std::vector<Group> groups;  // one or more of each piece, in order
  WriteRequest request;       // until it is submitted
  std::vector<LeasedSlot> leases;
  std::uint64_t blocks = 0;  // that it keeps on the host
  std::uint32_t attempts = 0;
  std::uint32_t epoch = 0;
  std::uint64_t taken_before = 0;  // StoreBacklog::taken_ when its first attempt began
  TimePoint not_before;            // retry back-off
  TimePoint submitted;             // for the metrics
  std::uint64_t bytes = 0;
};

struct ExplainOp {
  std::function<void(Explanation)> done;
  Explanation report;
  std::vector<PoolPresence> presence;
  std::uint64_t pages = 0;
};

using Completion = std::variant<std::monostate, TransferDone, ExistsResult, ReadResult, WriteResult>;

struct Op {
  OpId id;
  OpKind kind = OpKind::kLoad;
  RequestId request;                   // kLoad, kStateCopy; kTimer: who waits for its turn to fetch
  LockHandle host_lock;                // kLoad: keeps the source
  std::unique_ptr<Prefetch> prefetch;  // kExists, kRead
  std::unique_ptr<Store> store;
  std::unique_ptr<ExplainOp> explain;
  Completion completion;  // this rank's, once it arrived
  TimePoint due;          // kTimer
  OpId guards;            // kTimer: the query or read whose wait it bounds; 0: the wait of `request` for its turn
  bool reported = false;
  bool is_abandoned = false;     // its storage was detached, and nobody waits for it: it holds its buffers, no more
  std::uint32_t attachment = 0;  // which attach gave it its storage
  std::uint64_t pages = 0;       // kLoad: full pages, for the counter
  TimePoint begun;               // kLoad: for the metrics
  std::uint64_t transfer = 0;    // kLoad, kBackup of a connector: its TransferId
};

}  // namespace larder
