// SPDX-License-Identifier: Apache-2.0
// What a Hugging Face config.json says about the cache that its model needs. No file is opened here.
//
// The family is `model_type`, of `text_config` where there is one. From it and the numbers follow the pools, as an
// engine keeps them on one rank:
//
//   kv      layers that see all positions: keys and values, or the latent and the rotary part (MLA)
//   indexer beside it, where the layers choose what they attend to (DeepSeek V3.2), in eight bits
//   swa     layers that see `sliding_window` tokens
//   mamba   recurrent layers: conv (taps - 1 inputs, 16 bits) and temporal state, float32 unless the file says else
//
// Lightning attention has no conv; its state has 16 bits where it is MiniMax 01's. DeepSeek V4 has compressed entries
// and their indexer's keys instead of kv, and compressors' states beside swa. KV has 16 bits, or the eight that the
// file of a quantized model asks for, or hf_quant_config.json beside it.
//
// Layers without a cache (MLP and MoE blocks of Nemotron-H, Gemma 4's that share the KV of others) have no part of any
// pool. Layers that predict further tokens do not count.
//
// Errors: kUnsupported: a family that is not known here: the sizes are not guessed. kInvalidArgument: no JSON, or a key
// that the family needs is missing or senseless. The message starts with the source name, and has the key.
// Threads: pure. Limits: 8 MiB of text (that of MiniMax M3 in NVFP4 has 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder {

inline constexpr std::size_t kHfTextMax = std::size_t{8} << 20;

struct HfOptions {
  std::uint32_t page_size = 64;
  std::optional<Dtype> kv_dtype{};  // of kv and swa; nullopt: as an engine chooses it of the file
  std::string_view quant_text{};    // of hf_quant_config.json beside it; empty: there is none
  std::string_view quant_name{};    // in messages
};

struct HfModel {
  std::string family;                // "qwen3_next"
  std::uint32_t layers = 0;          // as the file counts them
  std::uint32_t context_length = 0;  // 0: the file does not say
  bool is_kv_of_quant_text = false;  // its eight bits are
  ModelSpec spec;                    // pools only
};

[[nodiscard]] Result<HfModel> read_hf_config(std::string_view text, std::string_view source_name,
                                             const HfOptions& options);

// "llama, mistral, ...".
[[nodiscard]] std::string hf_families();

}  // namespace larder
