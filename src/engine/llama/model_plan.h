// SPDX-License-Identifier: Apache-2.0
// What it costs to keep prefixes of a GGUF model: for sizing host memory and disks before anything runs.
//
// Picture: a prefix of n tokens that ends at a restore point is n / page_size pages of kv, upwards, and for the restore
// point a window and a checkpoint, where the model has sliding or recurrent layers. Windows that overlap share pages,
// so all of a prefix have no more of them than it has pages.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "engine/llama/model_pools.h"

namespace larder::llama {

struct ModelPlan {
  std::uint32_t page_size = 0;          // tokens
  std::uint64_t page_bytes = 0;         // of kv; 0: no layer sees all positions
  std::uint64_t window_page_bytes = 0;  // 0: no sliding layers
  std::uint32_t window_pages = 0;       // that a restore point needs; 1, if it has one of its own as long as the window
  std::uint64_t checkpoint_bytes = 0;   // 0: no recurrent layers

  // Of all window pages that a restore point needs.
  [[nodiscard]] std::uint64_t window_bytes() const { return window_pages * window_page_bytes; }
  // Beside its pages.
  [[nodiscard]] std::uint64_t restore_point_bytes() const { return window_bytes() + checkpoint_bytes; }
  // A restore point weighs as much as the pages of so many tokens; 0 if there are none to compare it with.
  [[nodiscard]] std::uint64_t restore_point_tokens() const;
  // A prefix of so many tokens, the last page perhaps not full, with `points` restore points, one in a page at most.
  [[nodiscard]] std::uint64_t prefix_bytes(std::uint64_t tokens, std::uint64_t points) const;
  // Restore points are pages apart: what `per_point` tokens come to, downwards, and a page at least.
  [[nodiscard]] std::uint64_t distance_of(std::uint64_t per_point) const;
  // How many tokens fit, whole pages, if there is a restore point every distance_of(per_point) of them, and one at
  // their end. Never fewer for a larger distance. 0: none; no limit is UINT64_MAX.
  [[nodiscard]] std::uint64_t tokens_in(std::uint64_t bytes, std::uint64_t per_point) const;
};

[[nodiscard]] ModelPlan plan_of(const ModelPools& pools);

}  // namespace larder::llama
