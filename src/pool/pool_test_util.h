// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of pool/ and transfer/: models of any geometry, and memory that runs out on demand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "model/model_spec.h"
#include "model/presets.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "pool/page_table.h"

namespace larder::pool_test {

template <class T>
[[nodiscard]] T take(Result<T> result) {
  if (!result) throw std::runtime_error(result.status().to_string());
  return std::move(result).value();
}

[[nodiscard]] inline ModelSpec preset(std::string_view name) { return take(preset_model(name)); }

[[nodiscard]] inline std::vector<std::string> tiny_preset_names() {
  std::vector<std::string> names;
  for (const PresetInfo& info : all_presets()) {
    if (info.is_tiny) names.push_back(info.name);
  }
  return names;
}

// A model with the given pools and nothing else; not one that finalize_model() would make.
[[nodiscard]] inline ModelSpec model_of(std::uint32_t layers, std::vector<PoolSpec> pools) {
  ModelSpec model;
  model.id = "hand-made";
  model.layers.assign(layers, LayerKind::kAttention);
  model.pools = std::move(pools);
  return model;
}

[[nodiscard]] inline PoolSpec pool_of(PoolName name, ComponentKind component, bool is_anchor,
                                      std::vector<std::uint32_t> layers, std::vector<PlaneSpec> planes) {
  PoolSpec pool;
  pool.name = name;
  pool.component = component;
  pool.is_anchor = is_anchor;
  pool.layers = std::move(layers);
  pool.planes = std::move(planes);
  return pool;
}

// Odd sizes on purpose: pieces that straddle blocks, planes that differ, layers without bytes.
[[nodiscard]] inline ModelSpec random_model(Rng& rng) {
  const auto number = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::uint32_t>(rng.between(low, high));
  };
  const std::uint32_t layers = number(1, 6);
  const auto random_pool = [&](PoolName name, ComponentKind component, bool is_anchor) {
    std::vector<std::uint32_t> owned;
    for (std::uint32_t l = 0; l < layers; ++l) {
      if (rng.chance(2, 3)) owned.push_back(l);
    }
    if (owned.empty()) owned.push_back(number(0, layers - 1));
    std::vector<PlaneSpec> planes(number(1, 3));
    for (PlaneSpec& plane : planes) {
      plane.name = "p";
      plane.dtype = rng.chance(1, 2) ? Dtype::kU8 : Dtype::kBf16;
      plane.rows = number(1, 9);
      plane.heads = number(1, 4);
      plane.head_dim = number(1, 40);
    }
    return pool_of(name, component, is_anchor, owned, planes);
  };
  std::vector<PoolSpec> pools;
  if (rng.chance(1, 2)) pools.push_back(random_pool(PoolName::kIndexer, ComponentKind::kFull, false));
  pools.push_back(random_pool(PoolName::kKv, ComponentKind::kFull, true));
  if (rng.chance(1, 2)) pools.push_back(random_pool(PoolName::kSwa, ComponentKind::kSwa, true));
  if (rng.chance(1, 2)) {
    // One byte per page: its slot is the smallest, so blocks have 64 bytes and every page above is cut.
    PlaneSpec tiny{.name = "s", .dtype = Dtype::kU8, .rows = 1, .heads = 1, .head_dim = 1};
    pools.push_back(pool_of(PoolName::kMamba, ComponentKind::kMamba, true, {number(0, layers - 1)}, {tiny}));
  }
  return model_of(layers, std::move(pools));
}

// What an engine keeps of a page table: brought up to date by what it is told has changed, and by nothing else.
struct StaleTable {
  std::vector<DeviceSlot> full, swa;
  DeviceSlot state;
  std::uint64_t version = 0;
  std::size_t uploaded = 0;  // entries

  void update(const PageTable& table) {
    const PageTable::Changes changes = table.changed_since(version);
    const auto copy = [&](const std::vector<DeviceSlot>& from, const std::vector<PageRange>& ranges,
                          std::vector<DeviceSlot>& to) {
      to.resize(from.size());
      for (const PageRange& range : ranges) {
        for (std::uint64_t i = range.from; i < range.to; ++i, ++uploaded) to[i] = from[i];
      }
    };
    copy(table.full, changes.full, full);
    copy(table.swa, changes.swa, swa);
    if (changes.state) state = table.state;
    version = table.version();
  }
  [[nodiscard]] std::string difference(const PageTable& table) const {
    if (full != table.full) return "full pages of a copy of the page table are not those of the table";
    if (swa != table.swa) return "window pages of a copy of the page table are not those of the table";
    return state == table.state ? "" : "the state of a copy of the page table is not that of the table";
  }
};

// How an engine may lay out what it lends.
enum class Lending : std::uint8_t { kLayerTensors, kPlanesInBlock, kLayersInBlock };
inline constexpr std::array<Lending, 3> kAllLendings = {Lending::kLayerTensors, Lending::kPlanesInBlock,
                                                        Lending::kLayersInBlock};

// An engine's memory for `slots` of each component: a tensor for each layer and plane; one for each layer, with the
// planes of a page side by side; or one for each component, with all of a slot in a block.
class LentBytes {
 public:
  LentBytes(const ModelSpec& model, const ComponentCounts& slots, Lending lending) {
    constexpr std::size_t kGap = 64;  // bytes of the engine's own behind each page; they stay as they are
    for (const ComponentKind c : kAllComponents) {
      if (slots[index_of(c)] == 0) continue;
      std::vector<LentPlane> block;  // their base is an offset yet
      std::size_t bytes = 0;
      const auto end_block = [&] {
        for (LentPlane& plane : block) plane.slot_stride = bytes + kGap;
        add_region(block, (bytes + kGap) * slots[index_of(c)]);
        block.clear();
        bytes = 0;
      };
      for (const PoolSpec* pool : model.pools_of(c)) {
        for (std::size_t layer = 0; layer < pool->layers.size(); ++layer) {
          for (std::size_t plane = 0; plane < pool->planes.size(); ++plane) {
            block.push_back({pool->name, layer, plane, reinterpret_cast<std::byte*>(bytes), 0});
            bytes += (pool->planes[plane].layer_bytes() + 15) / 16 * 16;
            if (lending == Lending::kLayerTensors) end_block();
          }
          if (lending == Lending::kPlanesInBlock && !block.empty()) end_block();
        }
      }
      if (!block.empty()) end_block();
    }
  }

  std::vector<LentPlane> planes;
  std::vector<std::vector<std::byte>> regions;

 private:
  void add_region(const std::vector<LentPlane>& block, std::size_t bytes) {
    regions.emplace_back(bytes, std::byte{0xE7});
    for (LentPlane plane : block) {
      plane.base = regions.back().data() + reinterpret_cast<std::uintptr_t>(plane.base);
      planes.push_back(plane);
    }
  }
};

class RefusingMemory final : public MemorySource {
 public:
  Result<std::unique_ptr<Memory>> allocate(std::size_t) override { return overloaded("no memory today"); }
};

[[nodiscard]] inline std::size_t smallest_budget(const ModelSpec& model) {
  std::array<std::size_t, kComponentCount> slots{};
  for (const ComponentKind c : kAllComponents) slots[index_of(c)] = host_slot_bytes(model, c);
  const std::size_t block = choose_block_bytes(slots);
  return (*std::max_element(slots.begin(), slots.end()) + block - 1) / block * block;
}

// Shuffles the free blocks by giving slots out and back in random order, so that new slots are scattered.
inline void scatter(HostPools& pools, Rng& rng) {
  std::vector<std::pair<ComponentKind, HostSlot>> held;
  for (bool has_taken = true; has_taken;) {
    has_taken = false;
    for (const ComponentKind c : kAllComponents) {
      if (pools.blocks_per_slot(c) == 0) continue;
      if (const auto slot = pools.allocate(c)) {
        held.emplace_back(c, *slot);
        has_taken = true;
      }
    }
  }
  rng.shuffle(std::span(held));
  for (const auto& [c, slot] : held) EXPECT_TRUE(pools.free(c, slot).is_ok());
}

}  // namespace larder::pool_test
