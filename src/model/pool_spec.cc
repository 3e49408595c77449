// SPDX-License-Identifier: Apache-2.0
#include "model/pool_spec.h"

#include <cassert>

namespace larder {
namespace {

// Names by enum value. The spelling is an external contract (storage keys, metrics, configuration): never change one.
constexpr std::array<std::string_view, kComponentCount> kComponentNames = {"full", "swa", "mamba"};
constexpr std::array<std::string_view, kPoolNameCount> kPoolNames = {
    "kv",
    "mamba",
    "swa",
    "indexer",
    "deepseek_v4_c4",
    "deepseek_v4_c4_indexer",
    "deepseek_v4_c128",
    "deepseek_v4_c4_state",
    "deepseek_v4_c4_indexer_state",
    "deepseek_v4_c128_state",
    "draft",
    "auxiliary_swa",
    "deepseek_v4_c1",
    "deepseek_v4_c1_indexer",
    "deepseek_v4_c1_indexer_scale",
    "deepseek_v4_c2",
    "deepseek_v4_c2_indexer",
    "deepseek_v4_c2_indexer_scale",
    "deepseek_v4_c4_indexer_scale",
    "deepseek_v4_c4_rope",
    "deepseek_v4_c128_rope",
    "draft_indexer",
    "draft_swa",
};
constexpr std::array<std::string_view, 2> kHitPolicyNames = {"all_pages", "trailing_pages"};
constexpr std::array<std::string_view, 5> kDtypeNames = {"f32", "bf16", "f16", "fp8_e4m3", "u8"};
constexpr std::array<std::size_t, 5> kDtypeBytes = {4, 2, 2, 1, 1};
constexpr std::array<std::string_view, 4> kHostLayoutNames = {"layer_first", "page_first", "page_first_direct",
                                                              "page_head"};

template <std::size_t N, class Enum>
std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  assert(index < N);
  return index < N ? names[index] : std::string_view("?");
}

template <class Enum, std::size_t N>
std::optional<Enum> parse_name(const std::array<std::string_view, N>& names, std::string_view text) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// Bytes of one layer of the planes before `plane`: where that plane starts in a page with one layer.
std::size_t layer_bytes_before(const PoolSpec& pool, std::size_t plane) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < plane; ++i) bytes += pool.planes[i].layer_bytes();
  return bytes;
}

}  // namespace

std::string_view component_name(ComponentKind c) { return name_of(kComponentNames, c); }
std::string_view pool_name(PoolName p) {
  static const std::vector<std::string> open_names = [] {
    std::vector<std::string> names;
    for (std::size_t number = kPoolNameCount; number < kPoolNumberCount; ++number) {
      names.push_back("pool_" + std::to_string(number));
    }
    return names;
  }();
  const auto number = static_cast<std::size_t>(p);
  if (number < kPoolNameCount) return kPoolNames[number];
  return number < kPoolNumberCount ? std::string_view(open_names[number - kPoolNameCount]) : std::string_view("?");
}
std::optional<PoolName> parse_pool_name(std::string_view s) { return parse_name<PoolName>(kPoolNames, s); }
std::optional<PoolName> parse_pool_number(std::string_view s) {
  for (std::size_t number = 0; number < kPoolNumberCount; ++number) {
    if (pool_name(static_cast<PoolName>(number)) == s) return static_cast<PoolName>(number);
  }
  return std::nullopt;
}
std::string_view hit_policy_name(HitPolicy p) { return name_of(kHitPolicyNames, p); }

std::size_t dtype_bytes(Dtype d) {
  const auto index = static_cast<std::size_t>(d);
  assert(index < kDtypeBytes.size());
  return index < kDtypeBytes.size() ? kDtypeBytes[index] : 0;
}
std::string_view dtype_name(Dtype d) { return name_of(kDtypeNames, d); }
std::optional<Dtype> parse_dtype(std::string_view s) { return parse_name<Dtype>(kDtypeNames, s); }

std::string_view host_layout_name(HostLayout l) { return name_of(kHostLayoutNames, l); }
std::optional<HostLayout> parse_host_layout(std::string_view s) { return parse_name<HostLayout>(kHostLayoutNames, s); }

std::size_t PoolSpec::layer_bytes() const { return layer_bytes_before(*this, planes.size()); }

std::size_t chunk_offset(const PoolSpec& pool, HostLayout layout, std::size_t plane, std::size_t layer_index,
                         std::size_t row, std::size_t head) {
  assert(plane < pool.planes.size() && layer_index < pool.layers.size());
  const PlaneSpec& shape = pool.planes[plane];
  assert(row < shape.rows && head < shape.heads);

  const std::size_t layer_count = pool.layers.size();
  const std::size_t before = layer_bytes_before(pool, plane);  // per layer
  const std::size_t plane_start = layer_count * before;        // where planes are outermost
  std::size_t chunk = 0;                                       // chunks of this plane that precede it there
  switch (layout) {
    case HostLayout::kLayerFirst:
      return layer_index * pool.layer_bytes() + before + (row * shape.heads + head) * shape.head_bytes();
    case HostLayout::kPageFirst: chunk = (row * layer_count + layer_index) * shape.heads + head; break;
    case HostLayout::kPageFirstDirect: chunk = (layer_index * shape.rows + row) * shape.heads + head; break;
    case HostLayout::kPageHead: chunk = (head * shape.rows + row) * layer_count + layer_index; break;
  }
  return plane_start + chunk * shape.head_bytes();
}

}  // namespace larder
