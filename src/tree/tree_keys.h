// SPDX-License-Identifier: Apache-2.0
// Keys and hashes of a RadixTree's paths: RadixTree::keys(). They are made when somebody asks for them, and kept with
// the nodes: each token is hashed once.
//
// Ownership: part of its tree, which it must not outlive. Threads: the cache thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/strong.h"
#include "key/page_key.h"
#include "key/path_hash.h"

namespace larder {

namespace tree {
struct TreeRooms;
}
struct TreePosition;

class TreeKeys {
 public:
  explicit TreeKeys(tree::TreeRooms& rooms) : rooms_(rooms) {}
  TreeKeys(const TreeKeys&) = delete;
  TreeKeys& operator=(const TreeKeys&) = delete;

  // Keys of the edge's pages, hashed on first use and kept; hashes missing ancestors first. Never re-hashes. Empty: the
  // root, or no node.
  [[nodiscard]] std::span<const PageKey> of_edge(NodeId node);
  // The key of the last page at or above the node (nullopt: the node is the root, and its namespace has no seed).
  [[nodiscard]] std::optional<PageKey> last(NodeId node);
  // The same work in pieces: hashes at most `most` pages that lack their keys, at and above the node, from the top; an
  // edge that is longer is split. Returns how many; 0: of_edge() and last() of the node hash nothing any more.
  // O(nodes of the path above the first that has its keys).
  std::uint64_t hash(NodeId node, std::uint64_t most);
  // Of all tokens before the position, which is in its node or above it. Amortized O(tokens that were never hashed).
  [[nodiscard]] PathHash path_hash(const TreePosition& at);

 private:
  tree::TreeRooms& rooms_;
};

}  // namespace larder
