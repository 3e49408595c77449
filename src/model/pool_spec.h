// SPDX-License-Identifier: Apache-2.0
// What one pool of a model stores: geometry, component, hit policy.
//
// Purpose: the single place where the shape of cached bytes is declared. Everything right of model/ (pools, transfer,
// storage, engine) derives sizes and strides from here.
//
// Picture: a *component* decides where a request may resume; it owns one anchor pool and any number of sidecars, which
// take their slot indices from the anchor. A slot of a component therefore means: one page (full, swa) or one
// checkpoint (mamba) in *each* of the component's pools.
//
//   component full : kv (anchor) [+ indexer | deepseek_v4_c4 + deepseek_v4_c4_indexer + deepseek_v4_c128] [+ draft]
//   component swa  : swa (anchor) [+ deepseek_v4_c4_state + deepseek_v4_c4_indexer_state]
//   component mamba: mamba (anchor)
//
// An anchor may be logical (no planes, zero bytes): DeepSeek-V4's `kv`. In storage it is then a zero-length object
// whose envelope is the commit mark of the page.
//
// Threads: immutable after creation. Source of names: SGLang HiCache (PoolName, PoolHitPolicy).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

enum class ComponentKind : std::uint8_t { kFull = 0, kSwa = 1, kMamba = 2 };
inline constexpr std::size_t kComponentCount = 3;
inline constexpr std::array<ComponentKind, kComponentCount> kAllComponents = {ComponentKind::kFull, ComponentKind::kSwa,
                                                                              ComponentKind::kMamba};
[[nodiscard]] constexpr std::size_t index_of(ComponentKind c) { return static_cast<std::size_t>(c); }
[[nodiscard]] std::string_view component_name(ComponentKind c);  // "full", "swa", "mamba"

enum class PoolName : std::uint8_t {
  kKv = 0,
  kMamba,
  kSwa,
  kIndexer,
  kDeepseekV4C4,
  kDeepseekV4C4Indexer,
  kDeepseekV4C128,
  kDeepseekV4C4State,
  kDeepseekV4C4IndexerState,
  kDeepseekV4C128State,
  kDraft,
  // Pools that engines hand to the store (SGLang 0.5.23), and that no model of ours has yet.
  kAuxiliarySwa,
  kDeepseekV4C1,
  kDeepseekV4C1Indexer,
  kDeepseekV4C1IndexerScale,
  kDeepseekV4C2,
  kDeepseekV4C2Indexer,
  kDeepseekV4C2IndexerScale,
  kDeepseekV4C4IndexerScale,
  kDeepseekV4C4Rope,
  kDeepseekV4C128Rope,
  kDraftIndexer,
  kDraftSwa,
};
inline constexpr std::size_t kPoolNameCount = 23;
// Storage takes more pools than those that have a name here: an engine's own ones get numbers from kFirstOpenPool on
// (door/page_space.h). Their names are part of their layout fingerprints, so that two pools that share a number never
// share a page. Numbers between are for names to come.
inline constexpr std::size_t kFirstOpenPool = 32, kPoolNumberCount = 64;
// The field's spelling: "deepseek_v4_c4"; "pool_32" of an open number.
[[nodiscard]] std::string_view pool_name(PoolName p);
// Of a name: what a model or an engine may call a pool. "pool_32" is none.
[[nodiscard]] std::optional<PoolName> parse_pool_name(std::string_view s);
// The inverse of pool_name(), for all numbers: of what was named by it.
[[nodiscard]] std::optional<PoolName> parse_pool_number(std::string_view s);

enum class HitPolicy : std::uint8_t { kAllPages, kTrailingPages };
[[nodiscard]] std::string_view hit_policy_name(HitPolicy p);  // "all_pages", "trailing_pages"

enum class Dtype : std::uint8_t { kF32, kBf16, kF16, kFp8E4m3, kU8 };
[[nodiscard]] std::size_t dtype_bytes(Dtype d);
[[nodiscard]] std::string_view dtype_name(Dtype d);  // "f32", "bf16", ...
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view s);

// Who holds the bytes when a model runs on several ranks.
enum class RankScope : std::uint8_t { kPerRank, kReplicated };

// Order of the dimensions inside one page of one pool on the host and in storage. `plane` is K / V (or conv /
// temporal), `layer` runs over the pool's layers, `row` over tokens (or compressed entries), `head` over heads.
//   layer_first        [layer][plane][row][head][dim]  one contiguous piece per layer: cheapest layer-wise load-back
//   page_first         [plane][row][layer][head][dim]
//   page_first_direct  [plane][layer][row][head][dim]
//   page_head          [plane][head][row][layer][dim]  heads outermost: pages can be re-split for another TP size
// A page is contiguous in each of them (differs from SGLang's layer_first, which scatters a page over the whole pool).
enum class HostLayout : std::uint8_t { kLayerFirst, kPageFirst, kPageFirstDirect, kPageHead };
inline constexpr std::array<HostLayout, 4> kAllHostLayouts = {HostLayout::kLayerFirst, HostLayout::kPageFirst,
                                                              HostLayout::kPageFirstDirect, HostLayout::kPageHead};
[[nodiscard]] std::string_view host_layout_name(HostLayout l);  // "page_first_direct", ...
[[nodiscard]] std::optional<HostLayout> parse_host_layout(std::string_view s);

// One tensor per layer of a page: shape [rows][heads][head_dim] of dtype, contiguous on the device.
struct PlaneSpec {
  std::string name{};  // "k", "v", "latent", "conv", "temporal", "index_k", "entry", ...
  Dtype dtype = Dtype::kF32;
  std::uint32_t rows = 0;  // per page: tokens (page_size), compressed entries (page_size / group), ring rows, or 1
  std::uint32_t heads = 1;
  std::uint32_t head_dim = 0;  // elements

  [[nodiscard]] std::size_t head_bytes() const { return head_dim * dtype_bytes(dtype); }
  [[nodiscard]] std::size_t row_bytes() const { return heads * head_bytes(); }
  [[nodiscard]] std::size_t layer_bytes() const { return rows * row_bytes(); }  // bytes of one page in one layer
  friend bool operator==(const PlaneSpec&, const PlaneSpec&) = default;
};

struct PoolSpec {
  PoolName name = PoolName::kKv;
  ComponentKind component = ComponentKind::kFull;
  bool is_anchor = false;  // exactly one per component
  HitPolicy hit_policy = HitPolicy::kAllPages;
  RankScope scope = RankScope::kPerRank;
  std::vector<std::uint32_t> layers{};  // layers that own a part, ascending; draft layers follow the model's
  std::vector<PlaneSpec> planes{};      // empty: a logical pool
  std::string engine_name{};            // what its engine calls it in messages; empty: as pool_name(); of no identity

  [[nodiscard]] std::string_view label() const { return engine_name.empty() ? pool_name(name) : engine_name; }
  [[nodiscard]] std::size_t layer_bytes() const;  // one page, one layer, all planes
  [[nodiscard]] std::size_t page_bytes() const { return layer_bytes() * layers.size(); }
  friend bool operator==(const PoolSpec&, const PoolSpec&) = default;
};

// Byte offset, inside a page of `pool` in `layout`, of the element chunk (plane, layer position in pool.layers, row,
// head); the chunk is pool.planes[plane].head_bytes() long. Pure, O(1).
[[nodiscard]] std::size_t chunk_offset(const PoolSpec& pool, HostLayout layout, std::size_t plane,
                                       std::size_t layer_index, std::size_t row, std::size_t head);

}  // namespace larder
