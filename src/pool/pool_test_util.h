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
