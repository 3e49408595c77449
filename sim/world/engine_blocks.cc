// SPDX-License-Identifier: Apache-2.0
#include "sim/world/engine_blocks.h"

#include <algorithm>

namespace larder::sim {
namespace {

// The pieces of a page in the order of the host layout (controller/page_places.h).
void append_pieces(const DevicePools& memory, const PoolSpec& pool, HostLayout layout, DeviceSlot slot,
                   std::vector<Segment>& out) {
  const std::size_t layers = pool.layers.size();
  const auto base = [&](std::size_t layer, std::size_t plane) { return memory.page(pool.name, layer, plane, slot); };
  if (layout == HostLayout::kLayerFirst) {
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::size_t p = 0; p < pool.planes.size(); ++p) out.push_back({base(l, p), pool.planes[p].layer_bytes()});
    }
    return;
  }
  for (std::size_t p = 0; p < pool.planes.size(); ++p) {
    const PlaneSpec& plane = pool.planes[p];
    if (layout == HostLayout::kPageFirstDirect) {
      for (std::size_t l = 0; l < layers; ++l) out.push_back({base(l, p), plane.layer_bytes()});
      continue;
    }
    const bool by_head = layout == HostLayout::kPageHead;
    const std::size_t size = by_head ? plane.head_bytes() : plane.row_bytes();
    for (std::size_t head = 0; head < (by_head ? plane.heads : 1); ++head) {
      for (std::size_t row = 0; row < plane.rows; ++row) {
        for (std::size_t l = 0; l < layers; ++l) {
          out.push_back({base(l, p) + row * plane.row_bytes() + head * plane.head_bytes(), size});
        }
      }
    }
  }
}

}  // namespace

std::uint64_t EngineBlocks::full_pages() const {
  const auto gap = std::find_if(full.begin(), full.end(), [](DeviceSlot slot) { return !slot.valid(); });
  return static_cast<std::uint64_t>(gap - full.begin());
}

std::uint64_t EngineBlocks::window_begin(std::uint64_t end) const {
  if (end > window.size()) return end;
  while (end > 0 && window[end - 1].valid()) --end;
  return end;
}

std::optional<DeviceSlot> BlockBooks::take(ComponentKind c) {
  std::optional<DeviceSlot> taken;
  for (const auto& rank : ranks_) {
    const std::optional<DeviceSlot> slot = rank->memory().allocate(c);
    if (rank == ranks_.front()) taken = slot;
    if (slot != taken) return DeviceSlot{};
  }
  return taken;
}

void BlockBooks::give(ComponentKind c, DeviceSlot slot) {
  for (const auto& rank : ranks_) {
    if (slot.valid()) (void)rank->memory().free(c, slot);
  }
}

void BlockBooks::give_all(EngineBlocks& blocks) { cut(blocks, 0); }

void BlockBooks::cut(EngineBlocks& blocks, std::uint64_t pages) {
  for (; blocks.full.size() > pages; blocks.full.pop_back()) give(ComponentKind::kFull, blocks.full.back());
  for (; blocks.window.size() > pages; blocks.window.pop_back()) give(ComponentKind::kSwa, blocks.window.back());
  for (auto it = blocks.states.upper_bound(pages); it != blocks.states.end(); it = blocks.states.erase(it)) {
    give(ComponentKind::kMamba, it->second);
  }
}

bool BlockBooks::fill_up(EngineBlocks& blocks, std::uint64_t full_from, std::uint64_t window_from, std::uint64_t end) {
  const auto fill = [&](ComponentKind c, std::vector<DeviceSlot>& slots, std::uint64_t from) {
    slots.resize(std::max<std::size_t>(slots.size(), end));
    for (std::uint64_t page = from; page < end; ++page) {
      if (slots[page].valid()) continue;
      const std::optional<DeviceSlot> slot = take(c);
      if (!slot) return false;
      slots[page] = *slot;
    }
    return true;
  };
  return fill(ComponentKind::kFull, blocks.full, full_from) &&
         (!model_.has(ComponentKind::kSwa) || fill(ComponentKind::kSwa, blocks.window, window_from));
}

BlockPlaces::BlockPlaces(const ModelSpec& model, SimRank& rank, const EngineBlocks& blocks, const PageNeeds& needs) {
  for (const PoolSpec& pool : model.pools) {
    if (pool.page_bytes() == 0) continue;
    if (pool.component == ComponentKind::kMamba) {
      for (const std::uint64_t point : needs.states) add(rank, pool, point - 1, blocks.states.at(point));
      continue;
    }
    const bool is_full = pool.component == ComponentKind::kFull;
    const std::vector<DeviceSlot>& slots = is_full ? blocks.full : blocks.window;
    for (std::uint64_t page = is_full ? needs.full_from : needs.window_from; page < needs.end; ++page) {
      add(rank, pool, page, slots.at(page));
    }
  }
}

void BlockPlaces::add(SimRank& rank, const PoolSpec& pool, std::uint64_t page, DeviceSlot slot) {
  append_pieces(rank.memory(), pool, rank.layout(), slot, segments_.emplace_back());
  places_.push_back({pool.name, page, segments_.back()});
}

}  // namespace larder::sim
