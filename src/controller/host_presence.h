// SPDX-License-Identifier: Apache-2.0
// What the host has of a path, as restore points count it.
//
// Threads: the cache thread. Cost: O(nodes on the path + pages x pools).
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "model/restore_point.h"
#include "tree/tree.h"

namespace larder {

// The node of the path to `node` whose edge has the last of its first `pages` pages.
[[nodiscard]] TreePosition position_on_path(const RadixTree& tree, NodeId node, std::uint64_t pages);

// Pages [0, to.pages) of the path that are published on the host: an entry of that length for each pool of the model.
[[nodiscard]] std::vector<PoolPresence> host_presence(const RadixTree& tree, const ModelSpec& model,
                                                      const TreePosition& to);
// The component's entry: that of its anchor; all its pools are alike. Null: the model has no such component.
[[nodiscard]] const Presence* presence_of(const ModelSpec& model, const std::vector<PoolPresence>& presence,
                                          ComponentKind c);

}  // namespace larder
