// SPDX-License-Identifier: Apache-2.0
// Memory of an engine that keeps its books itself: blocks for pages of full, of the window and for states, the same
// ones on every rank. They lie in device pools, so that pattern.h fills and compares them.
//
// Threads: confined to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "controller/page_places.h"
#include "sim/world/sim_rank.h"

namespace larder::sim {

// What a request has, by page; invalid: nothing. A state is named by its restore point.
struct EngineBlocks {
  std::vector<DeviceSlot> full, window;
  std::map<std::uint64_t, DeviceSlot> states;

  [[nodiscard]] std::uint64_t full_pages() const;                     // from 0 on, without a gap
  [[nodiscard]] std::uint64_t window_begin(std::uint64_t end) const;  // of its pages right before `end`
};

class BlockBooks {
 public:
  using Ranks = std::vector<std::unique_ptr<SimRank>>;
  BlockBooks(const ModelSpec& model, Ranks& ranks) : model_(model), ranks_(ranks) {}

  // Nullopt: none is free. A slot that ranks do not give alike is invalid.
  [[nodiscard]] std::optional<DeviceSlot> take(ComponentKind c);
  void give(ComponentKind c, DeviceSlot slot);  // invalid: nothing
  void give_all(EngineBlocks& blocks);
  // Pages from `pages` on, and states after it.
  void cut(EngineBlocks& blocks, std::uint64_t pages);
  // Blocks for pages [.., end) where there are none. False: not all were free; those that were taken stay.
  [[nodiscard]] bool fill_up(EngineBlocks& blocks, std::uint64_t full_from, std::uint64_t window_from,
                             std::uint64_t end);

 private:
  const ModelSpec& model_;
  Ranks& ranks_;
};

// Where the pages of a copy lie on one rank. Outlives the call that is given its places.
class BlockPlaces {
 public:
  BlockPlaces(const ModelSpec& model, SimRank& rank, const EngineBlocks& blocks, const PageNeeds& needs);
  [[nodiscard]] std::span<const PagePlace> places() const { return places_; }

 private:
  void add(SimRank& rank, const PoolSpec& pool, std::uint64_t page, DeviceSlot slot);
  std::deque<std::vector<Segment>> segments_;
  std::vector<PagePlace> places_;
};

}  // namespace larder::sim
