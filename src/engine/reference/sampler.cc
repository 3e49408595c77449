// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/sampler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "engine/reference/math.h"

namespace larder {

TokenId sample_greedy(std::span<const float> logits) {
  // max_element returns the first of equals.
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TokenId sample_token(std::span<const float> logits, const SamplingParams& params, std::uint64_t position) {
  if (!(params.temperature > 0.0) || params.top_k == 1) return sample_greedy(logits);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), TokenId{0});
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && params.top_k < order.size()) order.resize(params.top_k);
  std::vector<double> weights(order.size());
  double total = 0.0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double distance = double{logits[order[i]]} - double{logits[order[0]]};
    weights[i] = reference::exp_exact(distance / params.temperature);
    total += weights[i];
  }
  std::size_t kept = 0;
  double kept_weight = 0.0;
  while (kept < order.size() && (kept == 0 || kept_weight < params.top_p * total)) kept_weight += weights[kept++];
  // A golden-ratio step keeps the seeds of neighbouring positions far apart.
  Rng rng(params.seed ^ (position * 0x9e3779b97f4a7c15u + 0xd1b54a32d192ed03u));
  double draw = rng.uniform() * kept_weight;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    if (draw < weights[i]) return order[i];
    draw -= weights[i];
  }
  return order[kept - 1];
}

}  // namespace larder
