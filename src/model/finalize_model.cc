// SPDX-License-Identifier: Apache-2.0
// Validation of a ModelSpec. Every message names the field, its value, and what to write instead.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/derive_pools.h"
#include "model/model_limits.h"
#include "model/model_spec.h"

namespace larder {
namespace {

using Members = std::span<std::uint32_t ModelDims::*const>;

// The dimensions that a layer of this kind cannot do without. (rope_dim may be 0: attention without positions.)
Members needed_dims(LayerKind kind) {
  using D = ModelDims;
  static constexpr std::array kGqa = {&D::q_heads, &D::kv_heads, &D::head_dim};
  static constexpr std::array kSliding = {&D::q_heads, &D::kv_heads, &D::head_dim, &D::window};
  static constexpr std::array kMla = {&D::q_heads, &D::head_dim, &D::kv_lora_rank};
  static constexpr std::array kDsa = {&D::q_heads,     &D::head_dim,  &D::kv_lora_rank,
                                      &D::index_heads, &D::index_dim, &D::index_topk};
  static constexpr std::array kRecurrent = {&D::ssm_heads, &D::ssm_key_heads, &D::ssm_head_dim, &D::ssm_state_dim,
                                            &D::conv_kernel};
  static constexpr std::array kConv = {&D::conv_kernel};
  static constexpr std::array kV4 = {&D::q_heads, &D::head_dim, &D::kv_lora_rank, &D::window};
  static constexpr std::array kV4C4 = {&D::q_heads,     &D::head_dim,  &D::kv_lora_rank, &D::window,
                                       &D::index_heads, &D::index_dim, &D::index_topk};
  switch (kind) {
    case LayerKind::kAttention: return kGqa;
    case LayerKind::kSlidingAttention: return kSliding;
    case LayerKind::kMla: return kMla;
    case LayerKind::kMlaDsa: return kDsa;
    case LayerKind::kGatedDeltaNet:
    case LayerKind::kMamba2: return kRecurrent;
    case LayerKind::kShortConv: return kConv;
    case LayerKind::kV4Window:
    case LayerKind::kV4C128: return kV4;
    case LayerKind::kV4C4: return kV4C4;
  }
  return {};
}

std::string_view dim_name(std::uint32_t ModelDims::*member) {
  const auto it =
      std::find_if(kDimFields.begin(), kDimFields.end(), [&](const DimField& f) { return f.member == member; });
  return it == kDimFields.end() ? std::string_view("?") : it->name;
}

std::string number(std::uint64_t value) { return std::to_string(value); }

std::optional<std::size_t> first_layer(const ModelSpec& spec, LayerKind kind) {
  const auto it = std::find(spec.layers.begin(), spec.layers.end(), kind);
  if (it == spec.layers.end()) return std::nullopt;
  return static_cast<std::size_t>(it - spec.layers.begin());
}

std::string layer_text(const ModelSpec& spec, LayerKind kind) {
  return "layer " + number(first_layer(spec, kind).value_or(0)) + " (" + std::string(layer_kind_name(kind)) + ")";
}

Status in_range(std::string_view field, std::uint64_t value, std::uint64_t high) {
  if (value >= 1 && value <= high) return Status::ok();
  return invalid_argument(std::string(field) + " is " + number(value) + ": it must be 1 to " + number(high));
}

Status check_scalars(const ModelSpec& spec) {
  if (spec.id.empty()) return invalid_argument("id is empty: give the model a name, it is part of every page key");
  if (spec.id.size() > kIdBytesMax || spec.revision.size() > kIdBytesMax) {
    return invalid_argument("id or revision is longer than " + number(kIdBytesMax) + " bytes");
  }
  LARDER_RETURN_IF_ERROR(in_range("page_size", spec.page_size, kPageSizeMax));
  LARDER_RETURN_IF_ERROR(in_range("vocab_size", spec.vocab_size, kVocabSizeMax));
  LARDER_RETURN_IF_ERROR(in_range("context_length", spec.context_length, kContextLengthMax));
  if (spec.layers.empty()) return invalid_argument("layers is empty: list at least one layer");
  return in_range("layers and draft.layers together", spec.layers.size() + std::uint64_t{spec.draft.layers},
                  kLayersMax);
}

Status check_dims(const ModelSpec& spec) {
  LARDER_RETURN_IF_ERROR(in_range("dims.hidden", spec.dims.hidden, kDimMax));
  LARDER_RETURN_IF_ERROR(in_range("dims.ffn", spec.dims.ffn, kDimMax));
  for (const DimField& field : kDimFields) {
    const std::uint32_t high = field.member == &ModelDims::conv_kernel ? kConvKernelMax : kDimMax;
    if (spec.dims.*field.member <= high) continue;
    return invalid_argument("dims." + std::string(field.name) + " is " + number(spec.dims.*field.member) +
                            ": it must be at most " + number(high));
  }
  for (const LayerKind kind : kAllLayerKinds) {
    if (!first_layer(spec, kind)) continue;
    for (const auto member : needed_dims(kind)) {
      if (spec.dims.*member != 0) continue;
      return invalid_argument("dims." + std::string(dim_name(member)) + " is 0, but " + layer_text(spec, kind) +
                              " needs it: set it to the model's value");
    }
  }
  if (spec.draft.layers > 0 && (spec.dims.q_heads == 0 || spec.dims.kv_heads == 0 || spec.dims.head_dim == 0)) {
    return invalid_argument(
        "draft.layers is " + number(spec.draft.layers) +
        ", but dims.q_heads, dims.kv_heads or dims.head_dim is 0: draft layers are attention layers "
        "of these dimensions");
  }
  return Status::ok();
}

Status divides(const ModelDims& dims, std::uint32_t ModelDims::*part, std::uint32_t ModelDims::*whole) {
  if (dims.*part != 0 && dims.*whole % (dims.*part) == 0) return Status::ok();
  return invalid_argument("dims." + std::string(dim_name(part)) + " (" + number(dims.*part) +
                          ") does not divide dims." + std::string(dim_name(whole)) + " (" + number(dims.*whole) +
                          "): every key head serves the same number of query or value heads");
}

Status check_ratios(const ModelSpec& spec) {
  const ModelDims& dims = spec.dims;
  const bool has_gqa = first_layer(spec, LayerKind::kAttention) || first_layer(spec, LayerKind::kSlidingAttention) ||
                       spec.draft.layers > 0;
  if (has_gqa) {
    LARDER_RETURN_IF_ERROR(divides(dims, &ModelDims::kv_heads, &ModelDims::q_heads));
    if (dims.head_dim % 2 != 0) {
      return invalid_argument("dims.head_dim is " + number(dims.head_dim) + ": rotary positions need an even number");
    }
  }
  if (dims.rope_dim % 2 != 0) {
    return invalid_argument("dims.rope_dim is " + number(dims.rope_dim) + ": rotary positions need an even number");
  }
  if (first_layer(spec, LayerKind::kGatedDeltaNet) || first_layer(spec, LayerKind::kMamba2)) {
    LARDER_RETURN_IF_ERROR(divides(dims, &ModelDims::ssm_key_heads, &ModelDims::ssm_heads));
  }
  for (const LayerKind kind : {LayerKind::kGatedDeltaNet, LayerKind::kMamba2, LayerKind::kShortConv}) {
    if (first_layer(spec, kind) && dims.conv_kernel < 2) {
      return invalid_argument("dims.conv_kernel is " + number(dims.conv_kernel) + ", but " + layer_text(spec, kind) +
                              " keeps conv_kernel - 1 inputs as its state: it must be at least 2");
    }
  }
  return Status::ok();
}

Status check_page_groups(const ModelSpec& spec) {
  const auto check = [&](LayerKind kind, std::uint32_t group) -> Status {
    if (!first_layer(spec, kind) || spec.page_size % group == 0) return Status::ok();
    return invalid_argument("page_size is " + number(spec.page_size) + ", but " + layer_text(spec, kind) +
                            " makes one entry of " + number(group) + " tokens: page_size must be a multiple of " +
                            number(group) + ", so that no entry crosses a page");
  };
  LARDER_RETURN_IF_ERROR(check(LayerKind::kV4C128, kC128Group));
  return check(LayerKind::kV4C4, kC4Group);
}

// A pool has one shape for all its layers, so kinds that would fill one pool with different planes cannot meet.
Status check_mixture(const ModelSpec& spec) {
  using K = LayerKind;
  const auto conflict = [&](K a, K b, std::string_view pool) -> Status {
    if (!first_layer(spec, a) || !first_layer(spec, b)) return Status::ok();
    return invalid_argument("layers mix " + layer_text(spec, a) + " and " + layer_text(spec, b) +
                            ": their pages in pool " + std::string(pool) + " have different shapes; keep one of them");
  };
  for (const K mla : {K::kMla, K::kMlaDsa}) LARDER_RETURN_IF_ERROR(conflict(K::kAttention, mla, "kv"));
  for (const K v4 : {K::kV4Window, K::kV4C4, K::kV4C128}) {
    LARDER_RETURN_IF_ERROR(conflict(K::kSlidingAttention, v4, "swa"));
    for (const K full : {K::kAttention, K::kMla, K::kMlaDsa}) LARDER_RETURN_IF_ERROR(conflict(full, v4, "kv"));
  }
  LARDER_RETURN_IF_ERROR(conflict(K::kGatedDeltaNet, K::kMamba2, "mamba"));
  LARDER_RETURN_IF_ERROR(conflict(K::kGatedDeltaNet, K::kShortConv, "mamba"));
  return conflict(K::kMamba2, K::kShortConv, "mamba");
}

// State planes hold their elements in one u32 (PlaneSpec::head_dim).
Status check_state_size(const ModelSpec& spec) {
  for (const LayerKind kind : {LayerKind::kGatedDeltaNet, LayerKind::kMamba2, LayerKind::kShortConv}) {
    if (!first_layer(spec, kind)) continue;
    const std::uint64_t conv = conv_channels(kind, spec.dims) * (spec.dims.conv_kernel - 1);
    const std::uint64_t elements = std::max(conv, temporal_elements(kind, spec.dims));
    if (elements <= kPageBytesMax) continue;
    return invalid_argument("the state of " + layer_text(spec, kind) + " has " + number(elements) +
                            " elements: make dims.ssm_* smaller");
  }
  return Status::ok();
}

Status check_page_bytes(const PoolSpec& pool) {
  const std::uint64_t layer_bytes = pool.layer_bytes();
  if (layer_bytes <= kPageBytesMax && layer_bytes * pool.layers.size() <= kPageBytesMax) return Status::ok();
  return invalid_argument("a page of pool " + std::string(pool.label()) + " would have " + number(pool.layers.size()) +
                          " layers of " + number(layer_bytes) +
                          " bytes; the limit is 4 GiB a page: make page_size or dims smaller");
}

Status check_and_derive(ModelSpec& spec) {
  LARDER_RETURN_IF_ERROR(check_scalars(spec));
  LARDER_RETURN_IF_ERROR(check_dims(spec));
  LARDER_RETURN_IF_ERROR(check_ratios(spec));
  LARDER_RETURN_IF_ERROR(check_page_groups(spec));
  LARDER_RETURN_IF_ERROR(check_mixture(spec));
  LARDER_RETURN_IF_ERROR(check_state_size(spec));
  std::vector<PoolSpec> pools = derive_pools(spec);
  for (const PoolSpec& pool : pools) LARDER_RETURN_IF_ERROR(check_page_bytes(pool));
  spec.pools = std::move(pools);
  return Status::ok();
}

}  // namespace

Status finalize_model(ModelSpec& spec) {
  spec.pools.clear();
  const Status status = check_and_derive(spec);
  if (status.is_ok()) return status;
  return {status.code(), "model '" + spec.id.substr(0, kIdBytesMax) + "': " + status.message()};
}

}  // namespace larder
