// SPDX-License-Identifier: Apache-2.0
// A model, as a cache sees it (pools, components, window) and as the reference engine computes it (layers, dimensions).
//
// Pools are *derived* from the layer list by finalize_model(), or listed by an engine (model/pool_list.h). Immutable
// after validation.
// Threads: immutable; share freely.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "model/pool_spec.h"

namespace larder {

enum class LayerKind : std::uint8_t {
  kAttention,         // full MHA/GQA: pool kv, planes k and v
  kSlidingAttention,  // GQA over the last `window` tokens: pool swa, planes k and v
  kMla,               // multi-head latent attention: pool kv, plane latent (kv_lora_rank + rope_dim)
  kMlaDsa,            // MLA + DSA indexer: kv latent, and pool indexer (plane index_k); attends to index_topk tokens
  kGatedDeltaNet,     // Qwen3-Next: pool mamba, planes conv and temporal
  kMamba2,            // Jamba / Granite: pool mamba, planes conv and temporal
  kShortConv,         // LFM2: pool mamba, plane conv only
  kV4Window,          // DeepSeek V4: window attention only (pool swa)
  kV4C4,    // V4: window + top-k over C4 entries, chosen by the C4 indexer (c4, c4_indexer, c4_state, c4_indexer_state)
  kV4C128,  // V4: window + all C128 entries (c128)
};
inline constexpr std::array<LayerKind, 10> kAllLayerKinds = {LayerKind::kAttention,     LayerKind::kSlidingAttention,
                                                             LayerKind::kMla,           LayerKind::kMlaDsa,
                                                             LayerKind::kGatedDeltaNet, LayerKind::kMamba2,
                                                             LayerKind::kShortConv,     LayerKind::kV4Window,
                                                             LayerKind::kV4C4,          LayerKind::kV4C128};
// As in model files: "attention", "sliding_attention", "mla", "mla_dsa", "gdn", "mamba2", "short_conv", "v4_window",
// "v4_c4", "v4_c128".
[[nodiscard]] std::string_view layer_kind_name(LayerKind k);
[[nodiscard]] std::optional<LayerKind> parse_layer_kind(std::string_view s);

// Dimensions that layers of one model share. Zero means "the model has no such layer".
struct ModelDims {
  std::uint32_t hidden = 64;
  std::uint32_t ffn = 128;  // SwiGLU width
  std::uint32_t q_heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 16;
  std::uint32_t kv_lora_rank = 0;  // MLA latent
  std::uint32_t rope_dim = 0;      // MLA / V4 rope part (decoupled, shared by heads)
  std::uint32_t index_heads = 0;   // DSA / C4 indexer
  std::uint32_t index_dim = 0;
  std::uint32_t index_topk = 0;     // tokens (DSA) or C4 entries (V4) attended to
  std::uint32_t window = 0;         // tokens; sliding layers
  std::uint32_t ssm_heads = 0;      // value heads of the recurrent layers
  std::uint32_t ssm_key_heads = 0;  // GDN: key heads (divides ssm_heads); Mamba-2: groups
  std::uint32_t ssm_head_dim = 0;   // value dim per head
  std::uint32_t ssm_state_dim = 0;  // key dim (GDN) / state size N (Mamba-2)
  std::uint32_t conv_kernel = 0;    // taps; the conv state keeps conv_kernel - 1 inputs
  friend bool operator==(const ModelDims&, const ModelDims&) = default;
};

struct DraftSpec {
  std::uint32_t layers = 0;  // 0: no draft pool. Draft layers are kAttention layers of the model's GQA dims.
  friend bool operator==(const DraftSpec&, const DraftSpec&) = default;
};

struct ModelSpec {
  std::string id;  // "gdn-tiny"
  std::string revision = "1";
  std::uint32_t page_size = 64;    // tokens
  std::uint32_t vocab_size = 512;  // byte-level tokenizer: 256 bytes + specials
  std::uint32_t context_length = 32768;
  std::uint64_t weight_seed = 1;   // the reference engine's weights
  Dtype kv_dtype = Dtype::kF32;    // attention-like pools
  Dtype conv_dtype = Dtype::kF32;  // recurrent conv state
  Dtype ssm_dtype = Dtype::kF32;   // recurrent temporal state
  ModelDims dims;
  std::vector<LayerKind> layers;
  DraftSpec draft;

  // Derived, in storage order: components full, swa, mamba; sidecars before their anchor inside a component.
  std::vector<PoolSpec> pools;

  [[nodiscard]] bool has(ComponentKind c) const;
  [[nodiscard]] const PoolSpec* find_pool(PoolName name) const;                // nullptr: the model has none
  [[nodiscard]] std::vector<const PoolSpec*> pools_of(ComponentKind c) const;  // storage order, anchor last
  [[nodiscard]] const PoolSpec& anchor(ComponentKind c) const;                 // precondition: has(c)
  // Bytes of one slot of a component on the device: sum of its pools' pages.
  [[nodiscard]] std::size_t slot_bytes(ComponentKind c) const;
  // Pages of the window component needed to resume at page boundary `page` (pages that cover [p-w, p), clipped at 0).
  [[nodiscard]] std::uint32_t window_pages_at(std::uint64_t page) const;
  // window_pages_at far from 0: ceil(window / page_size). 0 without a window component.
  [[nodiscard]] std::uint32_t window_pages() const;
  // Model layers + draft layers: what a layer gate counts. Of a list of pools: up to the last layer that one has.
  [[nodiscard]] std::uint32_t layer_count() const;
  // Every pool is rank-replicated (MLA, DeepSeek-V4 without a draft): all TP ranks hold the same bytes, so they share
  // one namespace and only rank 0 needs to store. False as soon as one pool is per rank.
  [[nodiscard]] bool is_rank_replicated() const;
  // Some pools are replicated and some per rank (MLA beside recurrent states, DeepSeek-V4 with a draft): the ranks
  // share one namespace, and the per-rank pools have fingerprints of their own (rank_fingerprint).
  [[nodiscard]] bool is_rank_mixed() const;
};

// Checks dimensions and page size, fills spec.pools. Errors (kInvalidArgument) name the field and how to mend it:
// page size 0; a page size that is no multiple of a compression group (4, 128) the model has; kv_heads not dividing
// q_heads; window 0 with sliding layers; ...
[[nodiscard]] Status finalize_model(ModelSpec& spec);

// SHA-256 over a canonical text of (pool, planes, dtypes, layers, page size, host layout): two stores whose bytes could
// be confused never share a fingerprint.
[[nodiscard]] Digest256 layout_fingerprint(const ModelSpec& spec, const PoolSpec& pool, HostLayout layout);

// Rule 4: who may share a page.
struct NamespaceScope {
  HostLayout layout = HostLayout::kPageFirst;
  std::uint32_t tp_rank = 0, tp_size = 1;
  std::uint32_t pp_rank = 0, pp_size = 1;
  std::uint32_t cp_rank = 0, cp_size = 1;
  std::string adapter{};  // LoRA id; empty: base model
  std::string salt{};     // tenant salt; empty: none
};
// What a per-rank pool of a mixed model has for a layout fingerprint: differs for each tensor-parallel rank and size.
[[nodiscard]] Digest256 rank_fingerprint(const Digest256& layout_fingerprint, const NamespaceScope& scope);
// Length-prefixed, domain-separated SHA-256: seed of the page-key chain. Never all-zero.
[[nodiscard]] Digest256 namespace_digest(const ModelSpec& spec, const NamespaceScope& scope);

// Presets: see model/presets.h. Custom models from TOML/JSON: see config/model_file.h. From an engine's own pools: see
// model/pool_list.h.

}  // namespace larder
