// SPDX-License-Identifier: Apache-2.0
// From layers to pools (internal to model/; callers use finalize_model).
//
// Picture: which pools a layer kind writes. A pool has one shape for all its layers.
//
//   attention          kv: k, v                      gdn, mamba2     mamba: conv, temporal
//   sliding_attention  swa: k, v                     short_conv      mamba: conv
//   mla                kv: latent                    v4_window       swa: latent
//   mla_dsa            kv: latent; indexer: index_k  v4_c4           swa: latent; c4: entry; c4_indexer: index_k;
//   (draft layers)     draft: k, v                                   c4_state, c4_indexer_state: value, score
//                                                    v4_c128         swa: latent; c128: entry
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"

namespace larder {

// DeepSeek-V4 compressed attention: tokens per entry, and rows of the ring that feeds the C4 compressor (two groups of
// four: a C4 entry overlaps its predecessor).
inline constexpr std::uint32_t kC4Group = 4;
inline constexpr std::uint32_t kC128Group = 128;
inline constexpr std::uint32_t kC4RingRows = 8;

// Channels (elements per tap) of a recurrent layer's conv state. 64-bit: not yet checked against limits.
[[nodiscard]] std::uint64_t conv_channels(LayerKind kind, const ModelDims& dims);
// Elements of a recurrent layer's temporal state; 0 for short_conv.
[[nodiscard]] std::uint64_t temporal_elements(LayerKind kind, const ModelDims& dims);

// The pools of a model whose dimensions were checked (see finalize_model), in storage order.
[[nodiscard]] std::vector<PoolSpec> derive_pools(const ModelSpec& spec);

}  // namespace larder
