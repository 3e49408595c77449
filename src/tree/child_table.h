// SPDX-License-Identifier: Apache-2.0
// All children of all nodes in one open-addressing table: (parent, first page of the edge) -> child. Internal.
//
// Linear probing, load at most 5/8, deletion by shifting back (no tombstones, so probes stay short for ever).
// The table stores 64-bit hashes only: whoever looks up verifies parent and tokens, so a collision costs time, never
// a wrong answer. Cost: one cache line per lookup as a rule; growth doubles and rehashes (16 bytes per entry, no node
// is read).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/strong.h"
#include "tree/node.h"

namespace larder::tree {

// Hash of the first page of an edge below `parent`. page_size 1 gets an integer mix: hashing 4 bytes would cost more
// than the rest of the step.
[[nodiscard]] std::uint64_t edge_hash(Id parent, const TokenId* page, std::uint32_t page_size);

class ChildTable {
 public:
  ChildTable() : entries_(kMinimum), mask_(kMinimum - 1) {}

  // First entry with this hash for which `verify(id)` is true; kNoNode if there is none.
  template <class Verify>
  [[nodiscard]] Id find(std::uint64_t hash, Verify verify) const {
    for (std::size_t i = hash & mask_; entries_[i].id != kNoNode; i = (i + 1) & mask_) {
      if (entries_[i].hash == hash && verify(entries_[i].id)) return entries_[i].id;
    }
    return kNoNode;
  }
  // Begins to fetch what find() will read first.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&entries_[hash & mask_]); }
  void insert(std::uint64_t hash, Id id);
  // Precondition: the entry is there.
  void erase(std::uint64_t hash, Id id);
  void replace(std::uint64_t hash, Id old_id, Id new_id);

  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kMinimum = 64;
  struct Entry {
    std::uint64_t hash = 0;
    Id id = kNoNode;
  };
  [[nodiscard]] std::size_t index_of_entry(std::uint64_t hash, Id id) const;
  void grow();

  std::vector<Entry> entries_;
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace larder::tree
