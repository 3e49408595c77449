// SPDX-License-Identifier: Apache-2.0
// Limits of a ModelSpec and the table of its dimensions (internal to model/ and its files, config/).
//
// The limits (rule 6) are far above any real model, and low enough that no product of sizes overflows 64 bits, no count
// overflows 32, and the payload length of a page fits the storage envelope's u32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/model_spec.h"

namespace larder {

inline constexpr std::size_t kIdBytesMax = 256;
inline constexpr std::uint32_t kPageSizeMax = 1u << 16;
inline constexpr std::uint32_t kVocabSizeMax = 1u << 24;
inline constexpr std::uint32_t kContextLengthMax = 1u << 30;
inline constexpr std::uint32_t kLayersMax = 1024;  // model and draft together
inline constexpr std::uint32_t kDimMax = 1u << 20;
inline constexpr std::uint32_t kConvKernelMax = 256;
inline constexpr std::uint64_t kPageBytesMax = (std::uint64_t{1} << 32) - 1;

struct DimField {
  std::string_view name;
  std::uint32_t ModelDims::*member;
};

// Every dimension, in the order of ModelDims. The order is hashed (namespace_digest): append, never reorder.
inline constexpr std::array<DimField, 16> kDimFields = {{
    {"hidden", &ModelDims::hidden},
    {"ffn", &ModelDims::ffn},
    {"q_heads", &ModelDims::q_heads},
    {"kv_heads", &ModelDims::kv_heads},
    {"head_dim", &ModelDims::head_dim},
    {"kv_lora_rank", &ModelDims::kv_lora_rank},
    {"rope_dim", &ModelDims::rope_dim},
    {"index_heads", &ModelDims::index_heads},
    {"index_dim", &ModelDims::index_dim},
    {"index_topk", &ModelDims::index_topk},
    {"window", &ModelDims::window},
    {"ssm_heads", &ModelDims::ssm_heads},
    {"ssm_key_heads", &ModelDims::ssm_key_heads},
    {"ssm_head_dim", &ModelDims::ssm_head_dim},
    {"ssm_state_dim", &ModelDims::ssm_state_dim},
    {"conv_kernel", &ModelDims::conv_kernel},
}};
static_assert(sizeof(ModelDims) == kDimFields.size() * sizeof(std::uint32_t), "add the new dimension to kDimFields");

}  // namespace larder
