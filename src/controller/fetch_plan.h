// SPDX-License-Identifier: Apache-2.0
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
  const HostPools* host;  // null: only add_tree()

  // Adds what the tree has of [begin, tree_full) on the path to `node`, where all of full is there. One entry per pool,
  // which counts from `begin`, up to `pages`. `node` may end behind tree_full. O(pages x pools + nodes).
  void add_tree(NodeId node, std::uint64_t tree_full, std::uint64_t pages, std::vector<PoolPresence>& presence,
                std::uint64_t begin = 0) const;
  // What tree and storage have together of a part of the query. O(pages of it x pools + nodes of the tree's path).
  [[nodiscard]] std::vector<PoolPresence> presence_of(const Fetch& f, const QueryPart& part) const;
  // Fills f.full_from and f.cut for f.target; answers which slots its batches need. Stops are `share` times further
  // apart than what is read for one, at least; a batch has at most `batch_pages` of full. O(stops + pages / 64).
  ComponentCounts plan(Fetch& f, std::uint64_t batch_bytes, std::uint64_t batch_pages, std::uint64_t share) const;
  // The next one of f.cut, with what is read at its stop. O(1) beyond what the tree has.
  [[nodiscard]] FetchBatch next_batch(Fetch& f) const;
  // The largest restore point in (after, the stop's end] that has come whole. O(batches and a window before it).
  [[nodiscard]] std::uint64_t restore_point_of(const Fetch& f, std::size_t stop, std::uint64_t after) const;
  // Of full in front of what the fetch adds: this stays, whatever else goes.
  [[nodiscard]] HostSpace held_space(const Fetch& f) const;

 private:
  [[nodiscard]] std::uint64_t bytes_of(ComponentKind c) const;  // of one slot: a page, or a state
  void drop_what_cannot_stand(const Fetch& f, const QueryPart& part, std::vector<PoolPresence>& presence) const;
  void plan_stop(const Fetch& f, FetchBatch& stop, std::uint64_t& full_from) const;
};

}  // namespace larder
