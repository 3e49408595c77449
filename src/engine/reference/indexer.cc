// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/indexer.h"

#include <algorithm>
#include <array>
#include <functional>

namespace larder::reference {

void Indexer::score(const Kernels& kernels, std::span<const DeviceSlot> slots, const float* queries,
                    std::size_t query_row, std::span<const std::size_t> counts, float* scratch) const {
  float* rows = scratch;
  float* keys = rows + kTile * round_up(dim_, kLanes);
  const std::size_t last = *std::max_element(counts.begin(), counts.end());
  if (last <= topk_) return;
  for (std::size_t tile = 0; tile < last; tile += kTile) {
    std::array<const std::byte*, kTile> pointers{};
    gather_rows(keys_, slots, tile, std::min(tile + kTile, last), 0, pointers.data());
    kernels.load_rows(pointers.data(), keys_.dtype(), dim_, rows, round_up(dim_, kLanes));
    kernels.transpose_tile(rows, round_up(dim_, kLanes), dim_, keys);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] <= topk_ || counts[i] <= tile) continue;
      const float* query = queries + i * query_row;
      kernels.index_scores(query, dim_, heads_, dim_, query + heads_ * dim_, keys, scores_of(i, scratch) + tile);
    }
  }
}

void Indexer::choose(std::size_t i, std::size_t count, float* scratch, std::vector<std::uint64_t>& chosen) const {
  chosen.clear();
  if (count <= topk_) {
    for (std::size_t key = 0; key < count; ++key) chosen.push_back(key);
    return;
  }
  const float* scores = scores_of(i, scratch);
  float* sorted = scores_of(kIndexTile, scratch);
  std::copy_n(scores, count, sorted);
  std::nth_element(sorted, sorted + (topk_ - 1), sorted + count, std::greater<>());
  const float threshold = sorted[topk_ - 1];  // the smallest score that is chosen; a value, so the method is invisible
  std::size_t ties = topk_ - static_cast<std::size_t>(std::count_if(
                                 scores, scores + count, [threshold](float score) { return score > threshold; }));
  for (std::size_t key = 0; key < count; ++key) {
    if (scores[key] > threshold) {
      chosen.push_back(key);
    } else if (scores[key] == threshold && ties > 0) {
      chosen.push_back(key);
      --ties;
    }
  }
}

}  // namespace larder::reference
