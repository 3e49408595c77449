// SPDX-License-Identifier: Apache-2.0
// Which positions get a checkpoint of recurrent state (docs/ARCHITECTURE.md, "Back of the envelope"). A pure policy.
//
// A request that resumes at page `resume` of a prompt of `prompt_tokens` takes checkpoints at
//   the end of the prompt  the last page boundary before its last token: where the same prompt resumes next time
//   its last page          if the prompt ends exactly on a page: where the next turn resumes, if the answer is shorter
//                          than a page
//   the fork               where the cached path of another request goes on but its state does not: the place that two
//                          requests have now shared, so a third may, too
//   the grid               multiples of `grid_tokens`: weak, taken only if a slot is free
// The end of the output, beyond the prompt's last whole page, is tracked page by page and is not part of this plan.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/checkpoint_stats.h"

namespace larder {

struct PlannedCheckpoint {
  std::uint64_t page = 0;
  bool weak = false;  // may be skipped when no slot is free
  CheckpointOrigin origin{};
  friend bool operator==(const PlannedCheckpoint& a, const PlannedCheckpoint& b) {
    return a.page == b.page && a.weak == b.weak && a.origin.kind == b.origin.kind;
  }
};

// fork_page: pages of the prompt whose full component is cached (0 or <= resume: no fork). Ascending, unique, > resume.
[[nodiscard]] std::vector<PlannedCheckpoint> plan_checkpoints(std::uint64_t prompt_tokens, std::uint32_t page_size,
                                                              std::uint64_t resume, std::uint64_t fork_page,
                                                              std::uint32_t grid_tokens);

}  // namespace larder
