// SPDX-License-Identifier: Apache-2.0
// Opens namespaces, and closes idle ones when there are too many (space_table.h has the line in which they stand).
//
// Threads: the cache thread. Ranks: what is closed follows from agreed events and from calls that all ranks make alike.
// Cost: O(log namespaces) for one that is open; closing one costs a look at the 4096 oldest idle ones at most, and
// O(what is cached of it).
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
  };
  SpaceOpener(std::uint32_t max_namespaces, const Parts& parts);

  // kOverloaded: max_namespaces are in use, or the 4096 oldest idle ones have an operation in flight.
  [[nodiscard]] Result<NamespaceId> open(const std::string& adapter, const std::string& salt);

 private:
  void close_idle();
  [[nodiscard]] std::optional<NamespaceId> next_to_close();

  const std::uint32_t max_namespaces_;
  const ModelSpec& model_;
  const NamespaceScope scope_;
  RadixTree& tree_;
  SpaceTable& table_;
  Tenants& tenants_;
  CacheCounters& counters_;
};

}  // namespace larder
