// SPDX-License-Identifier: Apache-2.0
#include "controller/checkpoint_plan.h"

#include <algorithm>

namespace larder {

std::vector<PlannedCheckpoint> plan_checkpoints(std::uint64_t prompt_tokens, std::uint32_t page_size,
                                                std::uint64_t resume, std::uint64_t fork_page,
                                                std::uint32_t grid_tokens) {
  std::vector<PlannedCheckpoint> plan;
  if (prompt_tokens == 0) return plan;
  const std::uint64_t end = (prompt_tokens - 1) / page_size;
  const std::uint64_t whole = prompt_tokens / page_size;
  if (end > resume) plan.push_back({end, false, {.kind = CheckpointKind::kPrompt}});
  if (whole > resume && whole > end) plan.push_back({whole, false, {.kind = CheckpointKind::kPrompt}});
  if (fork_page > resume && fork_page < end) plan.push_back({fork_page, false, {.kind = CheckpointKind::kFork}});
  const std::uint64_t grid_pages = grid_tokens / page_size;
  if (grid_pages > 0) {
    for (std::uint64_t p = (resume / grid_pages + 1) * grid_pages; p < end; p += grid_pages)
      plan.push_back({p, true, {.kind = CheckpointKind::kGrid}});
  }
  // A strong checkpoint wins over a weak one at the same place.
  std::sort(plan.begin(), plan.end(), [](const PlannedCheckpoint& a, const PlannedCheckpoint& b) {
    return a.page != b.page ? a.page < b.page : a.weak < b.weak;
  });
  plan.erase(std::unique(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.page == b.page; }),
             plan.end());
  return plan;
}

}  // namespace larder
