// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/model_plan.h"

#include <algorithm>
#include <limits>

namespace larder::llama {

std::uint64_t ModelPlan::restore_point_tokens() const {
  return page_bytes == 0 ? 0 : restore_point_bytes() * page_size / page_bytes;
}

std::uint64_t ModelPlan::prefix_bytes(std::uint64_t tokens, std::uint64_t points) const {
  const std::uint64_t pages = (tokens + page_size - 1) / page_size;
  points = std::min(points, pages);
  return pages * page_bytes + std::min(points * window_pages, pages) * window_page_bytes + points * checkpoint_bytes;
}

std::uint64_t ModelPlan::distance_of(std::uint64_t per_point) const {
  return std::max<std::uint64_t>(1, per_point / page_size) * page_size;
}

std::uint64_t ModelPlan::tokens_in(std::uint64_t bytes, std::uint64_t per_point) const {
  const std::uint64_t distance = distance_of(per_point);
  const std::uint64_t piece = prefix_bytes(distance, 1);
  if (piece == 0) return std::numeric_limits<std::uint64_t>::max();
  // Of the last piece as many pages as fit before a restore point: the least number that is too many, less one.
  const std::uint64_t left = bytes % piece;
  std::uint64_t fit = 0, too_many = distance / page_size;
  while (too_many - fit > 1) {
    const std::uint64_t middle = fit + (too_many - fit) / 2;
    (prefix_bytes(middle * page_size, 1) <= left ? fit : too_many) = middle;
  }
  return bytes / piece * distance + fit * page_size;
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
