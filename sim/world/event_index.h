// SPDX-License-Identifier: Apache-2.0
// What a router knows of a rank: built from the events of its cache alone, and compared with the cache.
//
// It is a router as they are: at times it has no room, at times it has lost the thread and wants all anew. Every event
// is held against what it knows: no page comes twice, and none goes that was not there.
//
// Blocks have the rank in their hashes. Here a page is also named by the tokens up to its end, its adapter and its
// salt, so that ranks which keep the same pages have the same digest.
//
// Threads: confined to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/rng.h"
#include "controller/kv_events.h"
#include "key/path_hash.h"
#include "tree/tree.h"

namespace larder::sim {

class EventIndex final : public KvEventSink {
 public:
  explicit EventIndex(std::uint64_t seed) : rng_(seed) {}

  [[nodiscard]] Wish wish() override;
  void take(std::vector<KvEvent> events) override;
  [[nodiscard]] bool wants_all_components() const override { return true; }

  // Empty; or how it differs from the tree, which has had no change since the last poll.
  [[nodiscard]] std::string compare(const RadixTree& tree) const;
  // Of all pages that are there, in any order. nullopt: it does not know them at present.
  [[nodiscard]] std::optional<std::uint64_t> digest() const;

 private:
  void apply(const KvEvent& event);
  void name_pages(const KvEvent& event);

  Rng rng_;
  // By component and tier.
  std::array<std::array<std::unordered_set<std::int64_t>, kTierCount>, kComponentCount> there_;
  std::unordered_map<std::int64_t, PathHash> paths_;  // to the end of every block that it has heard of
  std::uint64_t digest_ = 0;                          // sum over what is there
  bool knows_story_ = false;                          // it has begun
  bool is_deaf_ = true;                               // what happens may be held back
  std::string error_;
};

}  // namespace larder::sim
