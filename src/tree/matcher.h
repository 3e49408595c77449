// SPDX-License-Identifier: Apache-2.0
// What of a prompt the tree has. Changes nothing.
//
// Internal to src/tree. Threads: confined to the cache thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tree/tree_state.h"

namespace larder::tree {

class Matcher {
 public:
  explicit Matcher(const TreeState& state) : state_(state) {}

  // RadixTree::match().
  [[nodiscard]] MatchResult match(NamespaceId space, std::span<const TokenId> tokens) const;
  // The longest path beneath `start` that equals the tokens, regardless of data.
  [[nodiscard]] TreePosition walk(Id start, std::span<const TokenId> tokens) const;
  // The child whose edge begins with that page; kNoNode: there is none.
  [[nodiscard]] Id find_child(Id parent, const TokenId* page) const;
  // As RadixTree has them.
  [[nodiscard]] RadixTree::WaysOn ways_on(const TreePosition& at, std::span<const TokenId> rest) const;
  void locate(Id node, ComponentKind c, std::uint64_t from, std::uint64_t to, std::vector<PageLocation>& out) const;

 private:
  [[nodiscard]] const Node& node(Id id) const { return state_.node(id); }
  // find_child() on a walk: `hash` is that of the first page of `rest`, and becomes that of the page after the child's
  // edge, whose entry comes from memory while the child's tokens are compared.
  [[nodiscard]] Id descend(Id parent, std::span<const TokenId> rest, std::uint64_t& hash) const;
  [[nodiscard]] std::uint64_t first_hash(Id start, std::span<const TokenId> tokens) const;
  [[nodiscard]] std::uint64_t matched_pages(const Node& node, const TokenId* tokens, std::uint64_t pages) const;

  const TreeState& state_;
};

}  // namespace larder::tree
