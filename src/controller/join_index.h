// SPDX-License-Identifier: Apache-2.0
// Fetches that a request may join, by the prompt that they are for.
//
// Only the same reusable prompt can be joined, or the head of it where every page is a restore point (full alone): of a
// longer one, storage brings the state and the window of its own end. So prompts are found by their length and last
// page, or by their first page. A hash: the caller compares the tokens.
//
// Threads: the cache thread. Cost: O(page).
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/strong.h"
#include "controller/joint.h"
#include "model/model_spec.h"

namespace larder {

class JoinIndex {
 public:
  explicit JoinIndex(const ModelSpec& model) : model_(model), serves_any_head_(needs_full_alone(model)) {}

  [[nodiscard]] bool serves_any_head() const { return serves_any_head_; }
  void add(NamespaceId space, std::span<const TokenId> tokens, OpId fetch) {
    fetches_[key(space, tokens)].push_back(fetch);
  }
  void erase(NamespaceId space, std::span<const TokenId> tokens, OpId fetch) {
    const auto at = fetches_.find(key(space, tokens));
    std::erase(at->second, fetch);
    if (at->second.empty()) fetches_.erase(at);
  }
  // In the order in which they were added. Good until the next call that is not const.
  [[nodiscard]] std::span<const OpId> find(NamespaceId space, std::span<const TokenId> tokens) const {
    const auto at = fetches_.find(key(space, tokens));
    return at == fetches_.end() ? std::span<const OpId>{} : std::span<const OpId>(at->second);
  }

 private:
  [[nodiscard]] std::uint64_t key(NamespaceId space, std::span<const TokenId> tokens) const {
    const std::span<const TokenId> page =
        serves_any_head_ ? tokens.first(model_.page_size) : tokens.last(model_.page_size);
    return XXH3_64bits_withSeed(page.data(), page.size_bytes(),
                                space.v + (serves_any_head_ ? 0 : std::uint64_t{tokens.size()} << 32));
  }
  const ModelSpec& model_;
  const bool serves_any_head_;
  std::unordered_map<std::uint64_t, std::vector<OpId>> fetches_;  // looked up, never iterated
};

}  // namespace larder
