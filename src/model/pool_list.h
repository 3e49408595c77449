// SPDX-License-Identifier: Apache-2.0
// A model as a list of pools: for an engine that knows the memory it wants cached, and no layers of ours.
//
//   component full   what a token's page keeps for ever: kv, an indexer, compressed pools, a draft's KV
//   component swa    what only the last `window` tokens need
//   component mamba  recurrent states: one slot is a checkpoint of all pools of the component, of whatever kinds
//
// Each component has one anchor, whose pages the others follow. A model has one window length: pools of another one
// would be a component of their own (kUnsupported says so; no model that we know of has two).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder {

struct PoolList {
  std::string id;                // with `revision`: part of every page key
  std::string revision = "1";    // of the model and of what its bytes mean: whatever the pools do not say
  std::uint32_t page_size = 64;  // tokens
  std::uint32_t window = 0;      // tokens; 0: no pool is of component swa
  // In any order. A pool without planes is a marker (an anchor whose pages are only found or not).
  std::vector<PoolSpec> pools{};
};

// The model, its pools in storage order, as if it had been derived from layers. ModelSpec::layers stays empty: the
// reference engine cannot compute it. Errors name the pool: kInvalidArgument: no pool of component full; none or
// several anchors in a component; a name twice; layers that are not ascending, or none; a hit policy that its component
// does not have; a plane with a zero; a page of 4 GiB; a window without a pool, or a pool without one.
[[nodiscard]] Result<ModelSpec> model_of_pools(PoolList list);

}  // namespace larder
