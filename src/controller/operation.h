// SPDX-License-Identifier: Apache-2.0
// What an operation in flight carries. The rooms fill and read it; op_table.h keeps it and never looks inside.
//
// Owned by the cache thread. Outlives the request that wanted it: buffers belong to the operation until it ends.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "controller/cache.h"
#include "controller/space_table.h"
#include "key/page_key.h"
#include "pool/host_pools.h"
#include "storage/backend.h"
#include "transfer/transfer.h"
#include "tree/tree.h"

namespace larder {

enum class OpKind : std::uint8_t { kLoad, kStateCopy, kBackup, kExists, kRead, kStore, kTimer, kExplain };
inline constexpr std::size_t kOpKindCount = 8;

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
  HostSpace space;  // that it keeps on the host
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
  RequestId request;      // kLoad, kStateCopy; kTimer: who waits for its turn to fetch
  RequestId source;       // kStateCopy of a fork: whose pages are read
  LockHandle host_lock;   // kLoad: keeps the source
  OpId fetch;             // kExists, kRead: of which fetch; kTimer: whose wait it bounds, 0: of `request`
  std::size_t batch = 0;  // kRead
  std::unique_ptr<Store> store;
  std::unique_ptr<ExplainOp> explain;
  Completion completion;  // this rank's, once it arrived
  TimePoint due;          // kTimer
  bool reported = false;
  bool is_abandoned = false;     // its storage was detached, and nobody waits for it: it holds its buffers, no more
  std::uint32_t attachment = 0;  // which attach gave it its storage
  std::uint64_t pages = 0;       // kLoad: full pages, for the counter
  TimePoint begun;               // kLoad: for the metrics
  std::uint64_t transfer = 0;    // kLoad, kBackup of a connector: its TransferId
};

}  // namespace larder
