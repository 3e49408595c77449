// SPDX-License-Identifier: Apache-2.0
// Families of models by `model_type`: which of their layers keep what (internal to config/hf_config.cc).
//
// Where the numbers are from: the configuration classes of Hugging Face's transformers, and published config.json
// files. A new family: a function that fills HfShape, and a line in the table. Threads: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "config/hf_fields.h"

namespace larder {

// What the layers of a model keep. A list of layers that is empty has no pool, and its numbers mean nothing.
struct HfShape {
  struct Heads {
    std::uint32_t kv_heads = 0, head_dim = 0;
    std::uint32_t value_dim = 0;  // 0: as head_dim
    friend bool operator==(const Heads&, const Heads&) = default;
  };
  std::uint32_t layers = 0, context = 0;                // 0: the file does not say
  std::vector<std::uint32_t> full, sliding, recurrent;  // numbers of layers, ascending
  std::vector<std::uint32_t> indexed;                   // those of `full` that choose what is attended to
  Heads full_heads, sliding_heads;
  std::uint32_t latent = 0, rope = 0;                      // of `full`: elements for a token instead of heads
  std::uint32_t index_dim = 0;                             // of `indexed`: elements more for a token
  std::uint32_t window = 0;                                // tokens
  std::uint64_t conv_elements = 0, temporal_elements = 0;  // of a layer's recurrent state
  bool has_conv = true;                                    // in that
  bool has_narrow_state = false;                           // 16 bits, unless the file says else
  std::vector<std::uint32_t> compress_ratios;              // DeepSeek V4 alone
};

using HfFamilyReader = void (*)(HfFields& fields, HfShape& shape);
struct HfFamily {
  std::string_view model_type;
  HfFamilyReader read;
  HfShape::Heads heads{};  // where the file has no such key; 0: as many as num_attention_heads, or of hidden_size
};
[[nodiscard]] std::span<const HfFamily> all_hf_families();

// The shape of `family`. Errors are those of `fields`.
[[nodiscard]] HfShape read_hf_shape(const HfFamily& family, HfFields& fields);

}  // namespace larder
