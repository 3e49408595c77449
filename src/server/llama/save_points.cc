// SPDX-License-Identifier: Apache-2.0
#include "server/llama/save_points.h"

#include <algorithm>

namespace larder::llama {

std::uint64_t last_restore_point(std::uint64_t tokens, std::uint32_t page_size) {
  return tokens == 0 ? 0 : (tokens - 1) / page_size * page_size;
}

std::vector<std::uint64_t> save_points(const SavePolicy& policy, const PromptFacts& prompt) {
  const std::uint64_t end = last_restore_point(prompt.tokens, policy.page_size);
  std::vector<std::uint64_t> places;
  const auto add = [&](std::uint64_t tokens) {
    const std::uint64_t at = tokens / policy.page_size * policy.page_size;
    if (at > end || at < prompt.resume + std::max<std::uint64_t>(policy.spacing, 1)) return;
    const auto is_near = [&](std::uint64_t other) {
      return std::max(at, other) - std::min(at, other) < policy.spacing;
    };
    if (std::ranges::none_of(places, is_near) && std::ranges::find(places, at) == places.end()) places.push_back(at);
  };
  add(end);
  add(prompt.known);
  for (const std::uint64_t mark : prompt.marks) add(mark);
  if (policy.grid > 0) {
    for (std::uint64_t at = (prompt.resume / policy.grid + 1) * policy.grid; at < end; at += policy.grid) add(at);
  }
  std::ranges::sort(places);
  return places;
}

}  // namespace larder::llama
