// SPDX-License-Identifier: Apache-2.0
// A PageObserver that believes nothing: the key of each page that it is told is hashed again, and what it knows to be
// there is compared with NaiveTree. For the tree's property test.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "key/page_key.h"
#include "tree/tree_naive_model.h"
#include "tree/tree_observer.h"
#include "tree/tree_test_support.h"

namespace larder::tree_test {

// Of a path of NaiveTree. Pages differ in their last token only, so that comparing has to look at all of a page.
inline Tokens tokens_of_path(const NaiveTree::Path& path, std::uint32_t page_size) {
  Tokens tokens((path.size() - 1) * page_size, 1);
  for (std::size_t i = 1; i < path.size(); ++i) tokens[i * page_size - 1] = static_cast<TokenId>(path[i]);
  return tokens;
}

class PageWitness final : public PageObserver {
 public:
  // seed: of the namespace that paths with 'B' are in.
  PageWitness(std::uint32_t page_size, const PageKey& seed) : page_size_(page_size), seed_(seed) {}

  void came(const PageChange& change) override { apply(change, true); }
  void went(const PageChange& change) override { apply(change, false); }

  // Empty: what it knows is what the model has published.
  [[nodiscard]] std::string compare(const NaiveTree& model) {
    if (!error_.empty()) return error_;
    std::size_t published = 0;
    for (const auto& [path, page] : model.pages) {
      for (std::size_t c = 0; c < kComponentCount; ++c) {
        for (std::size_t t = 0; t < kTierCount; ++t) {
          if (page.cells[c][t].state != NaiveTree::kPublished) continue;
          ++published;
          if (!there_.contains({c, t, key_of(path)})) return "nobody told of a page that came";
        }
      }
    }
    return published == there_.size() ? "" : "nobody told of a page that went";
  }
  void forget() { there_.clear(); }

 private:
  void apply(const PageChange& change, bool comes) {
    std::optional<PageKey> prior = change.before;
    // The first page of a prompt: the hash tells which namespace it is of.
    if (!prior && change.keys.front() != page_key(change.tokens.first(page_size_), prior)) prior = seed_;
    for (std::size_t i = 0; i < change.keys.size(); ++i) {
      prior = page_key(change.tokens.subspan(i * page_size_, page_size_), prior);
      if (*prior != change.keys[i]) error_ = "a page was told with a key that is not its own";
      const Place place = {index_of(change.component), static_cast<std::size_t>(change.tier), change.keys[i]};
      if (comes && lacks_parent(change, i)) error_ = "a page came before its parent";
      if (comes ? !there_.insert(place).second : there_.erase(place) == 0) {
        error_ = comes ? "a page came twice" : "a page went twice";
      }
    }
    if (change.tokens.size() != change.keys.size() * page_size_) error_ = "tokens and keys are not of the same pages";
  }

  [[nodiscard]] bool lacks_parent(const PageChange& change, std::size_t i) const {
    if (change.component != ComponentKind::kFull || change.tier == Tier::kHost) return false;  // the host has gaps
    if (i == 0 && !change.before) return false;
    const PageKey& parent = i == 0 ? *change.before : change.keys[i - 1];
    return !there_.contains({index_of(change.component), static_cast<std::size_t>(change.tier), parent});
  }

  const PageKey& key_of(const NaiveTree::Path& path) {
    const auto found = keys_.find(path);
    if (found != keys_.end()) return found->second;
    std::optional<PageKey> prior;
    if (path.size() > 2) {
      prior = key_of(path.substr(0, path.size() - 1));
    } else if (path[0] != 'A') {
      prior = seed_;
    }
    const Tokens tokens = tokens_of_path(path, page_size_);
    return keys_[path] = page_key(std::span(tokens).last(page_size_), prior);
  }

  using Place = std::tuple<std::size_t, std::size_t, PageKey>;  // component, tier
  const std::uint32_t page_size_;
  const PageKey seed_;
  std::set<Place> there_;
  std::map<NaiveTree::Path, PageKey> keys_;
  std::string error_;
};

}  // namespace larder::tree_test
