// SPDX-License-Identifier: Apache-2.0
// Asks the backend which pages there are, and joins the answers.
#pragma once

#include <span>

#include "door/page_space.h"
#include "door/store_core.h"

namespace larder {

// What a query needs of one pool of the space.
struct PoolNeed {
  std::size_t pool = 0;
  HitPolicy policy = HitPolicy::kAllPages;
  std::uint32_t trailing_pages = 0;
};

// restorable: words_for(keys.size()) words (model/restorable_lengths.h). present: empty, or as many for each need, in
// order. The anchor (pool 0) counts, whether `needs` has it or not. Errors: the words are zero. kDeadlineExceeded,
// kCancelled, and what the backend says.
[[nodiscard]] Status run_exists(StoreCore& core, const PageSpace& space, std::vector<PageKey> keys,
                                std::span<const PoolNeed> needs, const CallTerms& terms,
                                std::span<std::uint64_t> restorable, std::span<std::uint64_t> present);

}  // namespace larder
