// SPDX-License-Identifier: Apache-2.0
// What a fetch has brought, given to the tree: the largest restore point that has come whole so far.
//
// At most a piece in one call (work_budget.h). What is given ahead of its restore point is full alone; windows and the
// state follow with the last piece. While the fetch holds its path, what it has given is locked, too: the rest stands
// on it.
//
// Threads: the cache thread. Ranks: by the tree and agreed events alone. Cost: O(pages given), and a comparison of the
// tokens before them.
#pragma once

#include <cstdint>

#include "controller/cache.h"
#include "controller/fetch.h"
#include "controller/fetch_plan.h"
#include "controller/fetch_room.h"
#include "controller/op_table.h"
#include "controller/store_backlog.h"
#include "tree/tree.h"

namespace larder {

class FetchAdopter {
 public:
  struct Parts {  // all outlive this
    const ModelSpec& model;
    RadixTree& tree;
    OpTable& ops;
    const StoreBacklog& backlog;
    CacheCounters& counters;
    const FetchPlanner& planner;
    FetchRoom& room;
  };
  explicit FetchAdopter(const Parts& parts) : parts_(parts) {}

  void attach_storage(bool is_attached) { is_attached_ = is_attached; }
  struct Given {
    std::uint64_t pages = 0;  // the tree has so many now; 0: it was given none
    bool is_all = true;       // of what can be given now
  };
  [[nodiscard]] Given adopt(Fetch& f);
  // The batch has been read. bits: the agreed outcome, as Prefetcher::outcome_of() makes it. What storage has not got
  // any more is no copy that the tree may count on.
  void forget_lost(const Fetch& f, const FetchBatch& batch, const OutcomeBits& bits);

 private:
  struct Goal {
    std::uint64_t pages = 0;  // a restore point; f.adopted: there is nothing to give
    std::size_t stop = 0;     // the batch that brings what it needs beside full
  };
  [[nodiscard]] Goal goal_of(const Fetch& f) const;
  // Gives [.., pages) with what batch `last` has for its stop, or, if that is not the goal's, full alone.
  [[nodiscard]] bool give(Fetch& f, std::size_t last, std::uint64_t pages, bool is_stop);
  void mark_stored(NodeId node, const Fetch& f, const FetchBatch& last, std::uint64_t pages, bool is_stop);

  const Parts parts_;
  bool is_attached_ = false;
};

}  // namespace larder
