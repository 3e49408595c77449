// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/model_pools.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

namespace larder::llama {
namespace {

std::string layout_of(const BlobGeometry& geometry, std::string_view part, std::uint32_t tokens) {
  return fmt::format("llama.cpp sequence blob, format {}; {} part, {} tokens; flash attention; {}", kLlamaPageFormat,
                     part, tokens, geometry.to_text());
}

PoolDescription pool_of(std::string_view name, std::uint64_t bytes, std::string layout) {
  PoolDescription pool;
  pool.name = name;
  pool.page_bytes = bytes;
  pool.layout = std::move(layout);
  return pool;
}

void make_trailing(PoolDescription& pool, std::uint32_t pages) {
  pool.policy = HitPolicy::kTrailingPages;
  pool.trailing_pages = pages;
}

}  // namespace

Result<ModelPools> model_pools(const BlobGeometry& geometry, const ModelSettings& settings) {
  if (settings.page_size == 0 || settings.page_size > kPageTokensMax) {
    return invalid_argument(fmt::format("page_size is {}: 1 to {} tokens", settings.page_size, kPageTokensMax));
  }
  ModelPools out;
  SpaceDescription& space = out.space;
  space.page_size = settings.page_size;
  space.identity = fmt::format("gguf {} data {} with {}", settings.model.hex(),
                               settings.data ? settings.data->hex() : "unread", settings.overrides);
  space.adapter = settings.adapter;
  space.salt = settings.salt;
  space.pools.push_back(pool_of("kv", geometry.full ? geometry.full->page_bytes(settings.page_size) : 0,
                                layout_of(geometry, "full", settings.page_size)));
  if (geometry.window) {
    out.window = window_pages(settings.page_size, geometry.window_tokens);
    out.swa = space.pools.size();
    space.pools.push_back(pool_of("swa", geometry.window->page_bytes(out.window.page_tokens),
                                  layout_of(geometry, "window", out.window.page_tokens)));
    make_trailing(space.pools.back(), out.window.pages);
  }
  if (geometry.recurrent) {
    out.state = space.pools.size();
    space.pools.push_back(
        pool_of("state", geometry.recurrent->checkpoint_bytes(), layout_of(geometry, "recurrent", 0)));
    make_trailing(space.pools.back(), 1);
  }
  for (const PoolDescription& pool : space.pools) {
    if (pool.page_bytes <= std::numeric_limits<std::uint32_t>::max()) continue;
    return invalid_argument(
        fmt::format("a page of pool {} has {} bytes, and must have less than 4 GiB: take a "
                    "smaller page_size",
                    pool.name, pool.page_bytes));
  }
  return out;
}

}  // namespace larder::llama
