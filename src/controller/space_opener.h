// SPDX-License-Identifier: Apache-2.0
// Opens namespaces, and closes idle ones when there are too many (space_table.h has the line in which they stand).
//
//   open() ─► found by its name ─┬─► idle, and there are too many ──────────────────────► closed
//                                └─► retire(): found by nobody ─► nobody holds any of it ──┘ close_retired()
//
// Those that are retired do not count as open: each has a lookup, a transfer or an operation that holds it, and these
// are bounded.
//
// Threads: the cache thread. Ranks: what is closed follows from agreed events and from calls that all ranks make alike.
// Cost: O(log namespaces) for one that is open. Else closing idle ones until its name has its places (SpaceTable), at
// most one for each of these; closing one costs a look at the 4096 oldest idle ones at most, and O(what is cached of
// it).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "controller/cache.h"
#include "controller/space_table.h"
#include "controller/tenants.h"
#include "model/model_spec.h"
#include "tree/tree.h"

namespace larder {

class SpaceOpener {
 public:
  struct Parts {  // model, tree, table, tenants and counters outlive the opener
    const ModelSpec& model;
    const NamespaceScope& scope;  // layout and rank; copied
    RadixTree& tree;
    SpaceTable& table;
    Tenants& tenants;
    CacheCounters& counters;
    bool has_group = false;  // all ranks write the same pages, so that each can write its share of replicated ones
  };
  SpaceOpener(std::uint32_t max_namespaces, const Parts& parts);

  // kOverloaded: the places of max_namespaces are in use, or the 4096 oldest idle ones have an operation in flight.
  [[nodiscard]] Result<NamespaceId> open(const std::string& adapter, const std::string& salt);
  // What anybody uses, or has cached: from now on its name opens another namespace. O(namespaces and what is cached).
  void retire();
  // Those that are retired and that nobody holds. O(retired), and O(what is cached of those that go).
  void close_retired();

 private:
  bool close_idle();  // false: none may be
  void close(NamespaceId id);
  [[nodiscard]] std::optional<NamespaceId> next_to_close();

  const std::uint32_t max_namespaces_;
  const ModelSpec& model_;
  const NamespaceScope scope_;
  RadixTree& tree_;
  SpaceTable& table_;
  Tenants& tenants_;
  CacheCounters& counters_;
  const bool has_group_;
};

}  // namespace larder
