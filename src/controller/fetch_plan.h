// What a fetch can bring, and what is to be read for it.
//
// Pure looks at the tree and the host; the Prefetcher (prefetcher.h) acts on them. Threads: the cache thread.
#pragma once

#include <cstdint>
#include <vector>

#include "controller/fetch.h"
#include "pool/host_pools.h"
#include "tree/tree.h"

namespace larder {

struct FetchPlanner {
  const ModelSpec& model;
  const RadixTree& tree;
  const HostPools* host;  // null: only add_tree() and position_at()

  // The place `pages` from the root, on the path to `node`.
  [[nodiscard]] TreePosition position_at(NodeId node, std::uint64_t pages) const;
  // Adds what the tree has of the path to `node`: full of [0, tree_full), and the windows and states of [0, pages). One
  // entry per pool, `pages` long. `node` may end beyond them.
  void add_tree(NodeId node, std::uint64_t tree_full, std::uint64_t pages, std::vector<PoolPresence>& presence) const;
  // The restore points in (f.base, f.pages] that tree and storage have together. O(pages x pools).
  [[nodiscard]] OutcomeBits candidates(const Fetch& f, const ExistsResult& found) const;
  // Fills f.full_from and f.batches for f.target; answers which slots they need. Stops are `share` times further apart
  // than what is read for one, at least. O(pages).
  ComponentCounts plan(Fetch& f, const OutcomeBits& candidates, std::uint64_t batch_bytes, std::uint64_t share) const;
  // Host blocks of full in front of what the fetch adds: these stay, whatever else goes.
  [[nodiscard]] std::uint64_t held_blocks(const Fetch& f) const;

 private:
  [[nodiscard]] std::uint64_t bytes_of(ComponentKind c) const;  // of one slot: a page, or a state
  void drop_what_cannot_stand(const Fetch& f, std::vector<PoolPresence>& presence) const;
  void plan_stop(const Fetch& f, FetchBatch& stop, std::uint64_t& full_from) const;
};

}  // namespace larder
