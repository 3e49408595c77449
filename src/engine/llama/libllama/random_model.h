// SPDX-License-Identifier: Apache-2.0
// Writes GGUF models with random weights: small ones for tests, larger ones for benchmarks. Nothing is downloaded.
//
// llama.cpp itself says which tensors an architecture has; this fills them. Weights are such that the cache matters:
// attention looks at few tokens, and recurrent state decays slowly, so that a wrong page or checkpoint shows in the
// logits (with fast decays a wrong checkpoint is forgotten before it can be seen).
// The tokenizer is one of bytes with the marks of ChatML, and there is a chat template, so that a server can use it.
// The same bytes for the same settings, whatever the standard library.
// Threads: confined; start_libllama() first. Cost: a tiny model takes 0.05 s and 1 to 3 MB. Memory: the weights as f32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder::llama {

inline constexpr std::uint32_t kRandomModelVocabulary = 320;

// Names of architectures that can be written: "qwen3next", "qwen35", "falcon-h1", "granitehybrid", "jamba", "lfm2",
// "mamba2", "gemma3", "gpt-oss", "qwen3", "llama", "deepseek2".
[[nodiscard]] std::vector<std::string_view> random_architectures();

struct RandomModel {
  std::string architecture;
  std::uint32_t embedding = 128;
  std::uint32_t layers = 4;
  std::uint32_t heads = 4, kv_heads = 2, head_length = 32;
  std::uint32_t feed_forward = 256;
  std::uint32_t state_size = 32, state_heads = 4, state_groups = 2;
  std::uint32_t attention_interval = 2;  // every n-th layer of a hybrid has attention
  std::uint32_t window = 32;             // of sliding layers
  std::uint32_t context_length = 32768;
  bool is_quantized = false;  // matrices as Q4_0 (rows of 32 numbers), else f32
  std::uint64_t seed = 1;
};

// kInvalidArgument: no such architecture, or llama.cpp does not take these sizes.
[[nodiscard]] Status write_random_model(const RandomModel& model, const std::string& path);

}  // namespace larder::llama
