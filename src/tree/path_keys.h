// SPDX-License-Identifier: Apache-2.0
// Keys and hashes of the tree's paths, made when somebody asks for them and kept in the nodes: each token is hashed
// once, and once more for each split above it.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "key/page_key.h"
#include "key/path_hash.h"
#include "tree/tree_state.h"

namespace larder::tree {

class PathKeys : private TreeRoom {
 public:
  explicit PathKeys(TreeState& state) : TreeRoom(state) {}

  // Of the pages of its edge. Empty: the root, or no node.
  [[nodiscard]] std::span<const PageKey> page_keys(Id id);
  // Of the last page of its path; of a root the seed of its namespace.
  [[nodiscard]] std::optional<PageKey> last_key(Id id);
  // Precondition: the keys of its parent are there.
  void hash_edge(Id id);
  // What the caller says is believed: it has hashed the same tokens.
  void keep_keys(Id id, std::span<const PageKey> keys);

  // Of all tokens up to the end of the edge, or up to its begin.
  [[nodiscard]] PathHash hash_at_end(Id id);
  [[nodiscard]] PathHash hash_at_begin(Id id);
  [[nodiscard]] PathHash hash_at(const TreePosition& at);

 private:
  std::vector<Id> unhashed_;  // scratch of hash_at_end()
};

}  // namespace larder::tree
