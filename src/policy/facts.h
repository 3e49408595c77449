// SPDX-License-Identifier: Apache-2.0
// What a policy is told of cached data before it decides: facts of one component of one tree node in one tier.
//
// Plain values, by which every rank decides alike. All of them are facts that keep their value while nobody uses the
// data: an edge may be cut or joined at any time, so its length is none of them. A new fact is a new field, which its
// owner fills (RadixTree::facts()) and keeps right: keys that were made of an old value must be made again.
#pragma once

#include <cstdint>

#include "base/strong.h"
#include "model/pool_spec.h"
#include "pool/tier.h"

namespace larder {

struct Facts {
  ComponentKind component = ComponentKind::kFull;
  Tier tier = Tier::kDevice;
  NamespaceId space{};         // model, adapter and tenant
  std::uint64_t last_use = 0;  // ticks of the tree, which grow with every use
  std::uint64_t created = 0;   // ticks: when the tokens came to the tree
  std::uint64_t end = 0;       // pages from the root: what its request had computed up to here
  std::uint32_t hits = 0;      // uses by later requests; 0 for swa and mamba, whose uses are not counted
  std::int32_t priority = 0;   // the highest that a request brought; 0 for swa and mamba
};

}  // namespace larder
