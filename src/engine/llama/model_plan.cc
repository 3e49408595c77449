// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/model_plan.h"

#include <algorithm>
#include <limits>

namespace larder::llama {

std::uint64_t ModelPlan::restore_point_tokens() const {
  return page_bytes == 0 ? 0 : restore_point_bytes() * page_size / page_bytes;
}

std::uint64_t ModelPlan::prefix_bytes(std::uint64_t tokens, std::uint64_t points) const {
  const std::uint64_t pages = tokens / page_size;
  points = std::min(points, pages);
  return pages * page_bytes + std::min(points * window_pages, pages) * window_page_bytes + points * checkpoint_bytes;
}

std::uint64_t ModelPlan::tokens_in(std::uint64_t bytes, std::uint64_t per_point) const {
  // Whole pages between two points: what is left of one is not kept.
  const std::uint64_t pages = std::max<std::uint64_t>(1, per_point / page_size);
  const std::uint64_t piece = prefix_bytes(pages * page_size, 1);
  if (piece == 0) return std::numeric_limits<std::uint64_t>::max();
  return bytes / piece * pages * page_size;
}

ModelPlan plan_of(const ModelPools& pools) {
  ModelPlan plan;
  plan.page_size = pools.space.page_size;
  plan.page_bytes = pools.space.pools[pools.kv].page_bytes;
  if (pools.swa) {
    plan.window_page_bytes = pools.space.pools[*pools.swa].page_bytes;
    plan.window_pages = pools.window.pages;
  }
  if (pools.state) plan.checkpoint_bytes = pools.space.pools[*pools.state].page_bytes;
  return plan;
}

}  // namespace larder::llama
