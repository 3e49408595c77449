// SPDX-License-Identifier: Apache-2.0
// From logits to a token: greedy, or seeded sampling.
//
// A draw is a pure function of (logits, parameters, seed, position): no state between tokens, so a request that is
// resumed from the cache samples what it would have sampled without. Threads: pure.
#pragma once

#include <cstdint>
#include <span>

#include "base/strong.h"

namespace larder {

struct SamplingParams {
  double temperature = 0.0;  // 0 or less: greedy
  double top_p = 1.0;        // smallest set of likeliest tokens with at least this probability; >= 1: all
  std::uint32_t top_k = 0;   // likeliest tokens; 0: all
  std::uint64_t seed = 0;
};

// The largest logit; the lowest index wins ties. Precondition: not empty, no NaN.
[[nodiscard]] TokenId sample_greedy(std::span<const float> logits);

// position: of the token to be drawn. top_k first, then top_p of what it left; the best token is always kept.
// Cost: O(vocab log vocab) unless greedy.
[[nodiscard]] TokenId sample_token(std::span<const float> logits, const SamplingParams& params, std::uint64_t position);

}  // namespace larder
