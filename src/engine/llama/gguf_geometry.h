// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says about the cache that its model needs.
//
// For sizing (`larder plan --gguf`) and for what a blob does not tell (the window). What the engine really does is
// learned from its blobs (engine/llama/self_probe.h), and compared with this by the tests with the real libllama.
// Errors: kInvalidArgument: a key is missing or senseless; the message has its name. kUnsupported: a kind of cache
// whose sizes are not known from the file (chunked windows, indexers, layers that share their keys; states, windows or
// layers without heads of which no rule is known), by the name of the architecture; whether such a model can be cached
// is the probe's to say.
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/gguf_file.h"

namespace larder::llama {

// How a cache keeps its numbers: ggml's number of the type, and the size of its blocks.
struct CacheType {
  std::int32_t type = 1;
  std::uint32_t block_numbers = 1, block_bytes = 2;
};
// Of "f16", "q8_0" and the like, as llama-server's --cache-type-k names them. kInvalidArgument lists the known ones.
[[nodiscard]] Result<CacheType> cache_type(std::string_view name);

struct GgufGeometry {
  std::string architecture, name;
  std::uint32_t layers = 0;  // without those that predict further tokens
  std::uint32_t context_length = 0;
  BlobGeometry blob;  // with kv_unified and flash attention
};

// Tokens of the sliding window; 0: none, or no number up to kWindowTokensMax.
[[nodiscard]] std::uint32_t sliding_window_of(const GgufFile& file);

[[nodiscard]] Result<GgufGeometry> gguf_geometry(const GgufFile& file, const CacheType& keys, const CacheType& values);

}  // namespace larder::llama
