// SPDX-License-Identifier: Apache-2.0
// The inside of the radix tree: rooms, each of which knows those above it. Internal to src/tree; tree.h is the
// contract.
//
//   TreeState    the nodes, and what is counted of them        PathKeys     keys and hashes of paths
//   Victims      who leaves each tier, in which order          Residency    data of a node comes and goes
//   Structure    nodes are made, cut, joined, removed          Matcher      what of a prompt is there
//   Uses         what a use makes younger                      Locks        locks of requests
//   Operations   copies under way                              Insertion    what was computed, or fetched
//   Eviction     what leaves, and flush                        TreeCheck    the invariants
#pragma once

#include "tree/eviction.h"
#include "tree/insertion.h"
#include "tree/locks.h"
#include "tree/matcher.h"
#include "tree/operations.h"
#include "tree/path_keys.h"
#include "tree/residency.h"
#include "tree/structure.h"
#include "tree/tree.h"
#include "tree/tree_check.h"
#include "tree/tree_state.h"
#include "tree/uses.h"
#include "tree/victims.h"

namespace larder::tree {

struct TreeRooms {
  TreeRooms(const TreeConfig& config, SlotSink& sink) : state(config), residency(state, keys, victims, sink) {}

  TreeState state;
  PathKeys keys{state};
  Victims victims{state};
  Residency residency;
  Structure structure{state, keys, victims};
  Matcher matcher{state};
  Uses uses{state, keys, victims, structure};
  Locks locks{state, victims, structure};
  Operations operations{state, residency, structure};
  Insertion insertion{state, keys, residency, structure, matcher, uses, locks};
  Eviction eviction{state, victims, residency, structure};
  TreeCheck check{state, victims, matcher, operations};
};

}  // namespace larder::tree
