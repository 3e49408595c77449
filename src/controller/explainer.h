// SPDX-License-Identifier: Apache-2.0
// What a prompt would hit now, tier by tier, and why not more (rule 8).
//
//   explain() ─► the tree: device, host ─► which of its pages storage has ─► done() of the caller
//
// Touches nothing that another rank would have to do alike, because an operator asks one of them: no namespace is
// opened, no edge of the tree is hashed, and its operations have ids and places of their own (op_table.h).
//
// A storage that is detached may never answer: who waits for it is told so at once, and its operation waits alone.
//
// Threads: the cache thread. Limits: OpTable's max_explains wait for storage; more are answered without it.
// Errors: those of storage are in the report. Cost: a match, and O(pages x pools).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "controller/cache.h"
#include "controller/op_table.h"
#include "controller/space_table.h"
#include "pool/host_pools.h"
#include "storage/backend.h"
#include "tree/tree.h"

namespace larder {

class Explainer {
 public:
  using Done = std::function<void(Explanation)>;
  struct Parts {  // model, host, tree, spaces and ops outlive the explainer
    const ModelSpec& model;
    const HostPools* host;        // null: none
    const NamespaceScope& scope;  // layout and rank; copied
    const RadixTree& tree;
    const SpaceTable& spaces;
    OpTable& ops;
    std::uint32_t prefetch_threshold;  // tokens: a shorter gain is not fetched from storage
  };
  explicit Explainer(const Parts& parts);

  // As Cache::explain(). storage: null: none is attached.
  void explain(const BeginRequest& request, StorageBackend* storage, Done done);
  // Storage has answered, or failed. Nothing, if who asked was told of a cancel.
  void done(Op& op);
  // Those that wait are told why nothing will come; what they wait for is abandoned.
  void cancel_all(const std::string& why);

 private:
  [[nodiscard]] Explanation explain_memory(const BeginRequest& request, std::vector<PoolPresence>& presence) const;
  [[nodiscard]] ExistsRequest query_for(const BeginRequest& request, std::uint64_t pages) const;
  void add_tier_lines(Explanation& report, NodeId node, std::uint64_t pages) const;
  void add_restore_points(Explanation& report, const std::vector<PoolPresence>& presence, std::uint64_t pages) const;
  static void add_presence(ExplainOp& e, const ExistsResult& found);
  // What a request would get of it: a gain that is not worth a fetch is named, and left out.
  void add_storage(ExplainOp& e) const;

  const ModelSpec& model_;
  const HostPools* const host_;
  const NamespaceScope scope_;
  const RadixTree& tree_;
  const SpaceTable& spaces_;
  OpTable& ops_;
  const std::uint32_t prefetch_threshold_;
};

}  // namespace larder
