// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

#include <algorithm>
#include <cassert>

namespace larder {
namespace {

constexpr std::array<std::string_view, kAllLayerKinds.size()> kLayerKindNames = {
    "attention", "sliding_attention", "mla", "mla_dsa", "gdn", "mamba2", "short_conv", "v4_window", "v4_c4", "v4_c128",
};

}  // namespace

std::string_view layer_kind_name(LayerKind k) {
  const auto index = static_cast<std::size_t>(k);
  assert(index < kLayerKindNames.size());
  return index < kLayerKindNames.size() ? kLayerKindNames[index] : std::string_view("?");
}

std::optional<LayerKind> parse_layer_kind(std::string_view s) {
  const auto it = std::find(kLayerKindNames.begin(), kLayerKindNames.end(), s);
  if (it == kLayerKindNames.end()) return std::nullopt;
  return kAllLayerKinds[static_cast<std::size_t>(it - kLayerKindNames.begin())];
}

bool ModelSpec::has(ComponentKind c) const {
  return std::any_of(pools.begin(), pools.end(), [&](const PoolSpec& pool) { return pool.component == c; });
}

const PoolSpec* ModelSpec::find_pool(PoolName name) const {
  const auto it = std::find_if(pools.begin(), pools.end(), [&](const PoolSpec& pool) { return pool.name == name; });
  return it == pools.end() ? nullptr : &*it;
}

std::vector<const PoolSpec*> ModelSpec::pools_of(ComponentKind c) const {
  std::vector<const PoolSpec*> found;
  for (const PoolSpec& pool : pools) {
    if (pool.component == c) found.push_back(&pool);
  }
  return found;
}

const PoolSpec& ModelSpec::anchor(ComponentKind c) const {
  const auto it = std::find_if(pools.begin(), pools.end(),
                               [&](const PoolSpec& pool) { return pool.component == c && pool.is_anchor; });
  assert(it != pools.end());
  return *it;
}

std::size_t ModelSpec::slot_bytes(ComponentKind c) const {
  std::size_t bytes = 0;
  for (const PoolSpec& pool : pools) {
    if (pool.component == c) bytes += pool.page_bytes();
  }
  return bytes;
}

std::uint32_t ModelSpec::window_pages_at(std::uint64_t page) const {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(page, window_pages()));
}

std::uint32_t ModelSpec::window_pages() const {
  if (!has(ComponentKind::kSwa)) return 0;
  return (dims.window + page_size - 1) / page_size;
}

std::uint32_t ModelSpec::layer_count() const {
  if (!layers.empty()) return static_cast<std::uint32_t>(layers.size()) + draft.layers;
  std::uint32_t count = 0;
  for (const PoolSpec& pool : pools) count = std::max(count, pool.layers.empty() ? 0 : pool.layers.back() + 1);
  return count;
}

bool ModelSpec::is_rank_replicated() const {
  return std::all_of(pools.begin(), pools.end(),
                     [](const PoolSpec& pool) { return pool.scope == RankScope::kReplicated; });
}

bool ModelSpec::is_rank_mixed() const {
  const auto is_replicated = [](const PoolSpec& pool) { return pool.scope == RankScope::kReplicated; };
  return !is_rank_replicated() && std::any_of(pools.begin(), pools.end(), is_replicated);
}

}  // namespace larder
