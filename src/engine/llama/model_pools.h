// SPDX-License-Identifier: Apache-2.0
// The pools of a GGUF model: what a store keeps of its sequences.
//
//   kv      all pages       rows of the layers that see all positions (a marker of no bytes if there are none)
//   swa     trailing pages  rows of the sliding layers: pages of page_size tokens, or one page per restore point that
//                           holds the whole window (engine/llama/blob_pages.h)
//   state   trailing, 1     the recurrent part of a blob as it is
//
// Identity. Numbers that were computed in another way never meet: the model's digest and what changes its arithmetic
// are the namespace's identity; types, row bytes, flash attention and the format's version are in each layout, since
// the state of a recurrent layer depends on the types of the layers before it, too.
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "door/page_space.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/blob_pages.h"

namespace larder::llama {

// Of the blobs' format and of our pages. Other pages or blobs need another number.
inline constexpr int kLlamaPageFormat = 1;

struct ModelSettings {
  Digest256 model{};                // GgufModel::identity
  std::optional<Digest256> data{};  // sample_gguf(), or hash_gguf() if all bytes count
  // What else changes the numbers: options of RoPE and YaRN, control vectors, as "name=value" in a fixed order.
  std::string overrides{};
  std::string adapter{}, salt{};  // LoRA adapters and their scales; who may share
  std::uint32_t page_size = 64;
  bool operator==(const ModelSettings&) const = default;
};

struct ModelPools {
  SpaceDescription space;
  std::size_t kv = 0;  // index in space.pools
  std::optional<std::size_t> swa, state;
  WindowPages window;  // zeros without sliding layers
};

// kInvalidArgument: no page size, or pages of 4 GiB and more.
[[nodiscard]] Result<ModelPools> model_pools(const BlobGeometry& geometry, const ModelSettings& settings);

}  // namespace larder::llama
