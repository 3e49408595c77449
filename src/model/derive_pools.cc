// SPDX-License-Identifier: Apache-2.0
#include "model/derive_pools.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

namespace larder {
namespace {

using Planes = std::vector<PlaneSpec>;
using Kinds = std::initializer_list<LayerKind>;

bool is_one_of(LayerKind kind, Kinds kinds) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

std::vector<std::uint32_t> layers_of(const ModelSpec& spec, Kinds kinds) {
  std::vector<std::uint32_t> layers;
  for (std::uint32_t i = 0; i < spec.layers.size(); ++i) {
    if (is_one_of(spec.layers[i], kinds)) layers.push_back(i);
  }
  return layers;
}

bool has_layer(const ModelSpec& spec, Kinds kinds) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [&](LayerKind kind) { return is_one_of(kind, kinds); });
}

PlaneSpec plane(std::string name, Dtype dtype, std::uint32_t rows, std::uint32_t heads, std::uint32_t head_dim) {
  return {.name = std::move(name), .dtype = dtype, .rows = rows, .heads = heads, .head_dim = head_dim};
}

Planes kv_planes(const ModelSpec& spec) {
  const ModelDims& dims = spec.dims;
  return {plane("k", spec.kv_dtype, spec.page_size, dims.kv_heads, dims.head_dim),
          plane("v", spec.kv_dtype, spec.page_size, dims.kv_heads, dims.head_dim)};
}

std::uint32_t latent_dim(const ModelSpec& spec) { return spec.dims.kv_lora_rank + spec.dims.rope_dim; }

// One vector of `dim` elements per row, shared by all heads.
Planes vector_plane(const ModelSpec& spec, std::string name, std::uint32_t rows, std::uint32_t dim) {
  return {plane(std::move(name), spec.kv_dtype, rows, 1, dim)};
}

// The compressor's ring at the end of a page. f32 whatever kv_dtype is: it is summed up, not read as a key.
Planes ring_planes(std::uint32_t dim) {
  return {plane("value", Dtype::kF32, kC4RingRows, 1, dim), plane("score", Dtype::kF32, kC4RingRows, 1, 1)};
}

void add_pool(std::vector<PoolSpec>& pools, PoolSpec pool) {
  if (pool.is_anchor || !pool.layers.empty()) pools.push_back(std::move(pool));
}

void add_full_pools(const ModelSpec& spec, std::vector<PoolSpec>& pools) {
  const auto sidecar = [&](PoolName name, RankScope scope, std::vector<std::uint32_t> layers, Planes planes) {
    add_pool(pools, {.name = name, .scope = scope, .layers = std::move(layers), .planes = std::move(planes)});
  };
  const ModelDims& dims = spec.dims;
  sidecar(PoolName::kIndexer, RankScope::kReplicated, layers_of(spec, {LayerKind::kMlaDsa}),
          vector_plane(spec, "index_k", spec.page_size, dims.index_dim));
  sidecar(PoolName::kDeepseekV4C4, RankScope::kReplicated, layers_of(spec, {LayerKind::kV4C4}),
          vector_plane(spec, "entry", spec.page_size / kC4Group, latent_dim(spec)));
  sidecar(PoolName::kDeepseekV4C4Indexer, RankScope::kReplicated, layers_of(spec, {LayerKind::kV4C4}),
          vector_plane(spec, "index_k", spec.page_size / kC4Group, dims.index_dim));
  sidecar(PoolName::kDeepseekV4C128, RankScope::kReplicated, layers_of(spec, {LayerKind::kV4C128}),
          vector_plane(spec, "entry", spec.page_size / kC128Group, latent_dim(spec)));

  std::vector<std::uint32_t> draft_layers(spec.draft.layers);
  for (std::uint32_t i = 0; i < spec.draft.layers; ++i) {
    draft_layers[i] = static_cast<std::uint32_t>(spec.layers.size()) + i;
  }
  sidecar(PoolName::kDraft, RankScope::kPerRank, std::move(draft_layers), kv_planes(spec));

  PoolSpec anchor;
  anchor.name = PoolName::kKv;
  anchor.is_anchor = true;
  if (has_layer(spec, {LayerKind::kAttention})) {
    anchor.layers = layers_of(spec, {LayerKind::kAttention});
    anchor.planes = kv_planes(spec);
  } else if (has_layer(spec, {LayerKind::kMla, LayerKind::kMlaDsa})) {
    anchor.scope = RankScope::kReplicated;
    anchor.layers = layers_of(spec, {LayerKind::kMla, LayerKind::kMlaDsa});
    anchor.planes = vector_plane(spec, "latent", spec.page_size, latent_dim(spec));
  } else if (has_layer(spec, {LayerKind::kV4Window, LayerKind::kV4C4, LayerKind::kV4C128})) {
    anchor.scope = RankScope::kReplicated;  // logical, like the pools it commits
  }
  add_pool(pools, std::move(anchor));
}

void add_swa_pools(const ModelSpec& spec, std::vector<PoolSpec>& pools) {
  PoolSpec base;
  base.component = ComponentKind::kSwa;
  base.hit_policy = HitPolicy::kTrailingPages;
  const Kinds v4_kinds = {LayerKind::kV4Window, LayerKind::kV4C4, LayerKind::kV4C128};
  if (has_layer(spec, v4_kinds)) {
    base.scope = RankScope::kReplicated;
    const auto add = [&](PoolName name, bool is_anchor, Kinds kinds, Planes planes) {
      PoolSpec pool = base;
      pool.name = name;
      pool.is_anchor = is_anchor;
      pool.layers = layers_of(spec, kinds);
      pool.planes = std::move(planes);
      add_pool(pools, std::move(pool));
    };
    add(PoolName::kDeepseekV4C4State, false, {LayerKind::kV4C4}, ring_planes(latent_dim(spec)));
    add(PoolName::kDeepseekV4C4IndexerState, false, {LayerKind::kV4C4}, ring_planes(spec.dims.index_dim));
    add(PoolName::kSwa, true, v4_kinds, vector_plane(spec, "latent", spec.page_size, latent_dim(spec)));
  } else if (has_layer(spec, {LayerKind::kSlidingAttention})) {
    base.name = PoolName::kSwa;
    base.is_anchor = true;
    base.layers = layers_of(spec, {LayerKind::kSlidingAttention});
    base.planes = kv_planes(spec);
    add_pool(pools, std::move(base));
  }
}

void add_mamba_pools(const ModelSpec& spec, std::vector<PoolSpec>& pools) {
  for (const LayerKind kind : {LayerKind::kGatedDeltaNet, LayerKind::kMamba2, LayerKind::kShortConv}) {
    if (!has_layer(spec, {kind})) continue;
    PoolSpec pool;
    pool.name = PoolName::kMamba;
    pool.component = ComponentKind::kMamba;
    pool.is_anchor = true;
    pool.hit_policy = HitPolicy::kTrailingPages;
    pool.layers = layers_of(spec, {kind});
    // A state is one row: nothing ever addresses a part of it.
    const auto conv = static_cast<std::uint32_t>((spec.dims.conv_kernel - 1) * conv_channels(kind, spec.dims));
    pool.planes.push_back(plane("conv", spec.conv_dtype, 1, 1, conv));
    if (const auto temporal = static_cast<std::uint32_t>(temporal_elements(kind, spec.dims)); temporal > 0) {
      pool.planes.push_back(plane("temporal", spec.ssm_dtype, 1, 1, temporal));
    }
    add_pool(pools, std::move(pool));
    return;  // finalize_model refuses a second recurrent kind
  }
}

}  // namespace

std::uint64_t conv_channels(LayerKind kind, const ModelDims& dims) {
  const std::uint64_t heads = dims.ssm_heads;
  const std::uint64_t key_heads = dims.ssm_key_heads;
  switch (kind) {
    // GDN convolves q, k and v; Mamba-2 convolves x, B and C (B and C once per group).
    case LayerKind::kGatedDeltaNet:
    case LayerKind::kMamba2: return 2 * key_heads * dims.ssm_state_dim + heads * dims.ssm_head_dim;
    case LayerKind::kShortConv: return dims.hidden;
    default: return 0;
  }
}

std::uint64_t temporal_elements(LayerKind kind, const ModelDims& dims) {
  if (!is_one_of(kind, {LayerKind::kGatedDeltaNet, LayerKind::kMamba2})) return 0;
  return std::uint64_t{dims.ssm_heads} * dims.ssm_state_dim * dims.ssm_head_dim;
}

std::vector<PoolSpec> derive_pools(const ModelSpec& spec) {
  std::vector<PoolSpec> pools;
  add_full_pools(spec, pools);
  add_swa_pools(spec, pools);
  add_mamba_pools(spec, pools);
  return pools;
}

}  // namespace larder
