// SPDX-License-Identifier: Apache-2.0
// Lightning indexer (DeepSeek Sparse Attention, and V4's over compressed entries): which keys a query may attend to.
//
// score(query, key) = sum over heads of weight_h * relu(q_h . k); the index_topk best are chosen, ties go to the lower
// position. The choice is a set given in ascending order, so attention sums in the same order however it was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/reference/paged.h"
#include "engine/reference/round.h"

namespace larder::reference {

inline constexpr std::size_t kIndexTile = 8;  // query tokens that share a tile of index keys
inline constexpr std::size_t kIndexTilesPerQueryTile = kQueryTile / kIndexTile;

class Indexer {
 public:
  Indexer(const ModelSpec& model, Plane keys)
      : heads_(model.dims.index_heads),
        dim_(model.dims.index_dim),
        topk_(model.dims.index_topk),
        limit_(round_up(model.context_length, kTile)),
        keys_(keys) {}

  [[nodiscard]] std::size_t heads() const { return heads_; }
  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] const Plane& keys() const { return keys_; }
  // Numbers that a projection row needs for a query: [heads * dim | heads weights].
  [[nodiscard]] std::size_t query_floats() const { return heads_ * (dim_ + 1); }
  [[nodiscard]] std::size_t scratch_floats() const {
    return kTile * (round_up(dim_, kLanes) + dim_) + (kIndexTile + 1) * limit_;
  }

  // Scores of query i (queries + i * query_row) against the first counts[i] keys of the sequence; i < kIndexTile. Left
  // in scratch for choose(). Needs no work, and does none, for a query that may see all its keys.
  void score(const Kernels& kernels, std::span<const DeviceSlot> slots, const float* queries, std::size_t query_row,
             std::span<const std::size_t> counts, float* scratch) const;
  // The chosen keys of query i, ascending, into `chosen`.
  void choose(std::size_t i, std::size_t count, float* scratch, std::vector<std::uint64_t>& chosen) const;

 private:
  [[nodiscard]] float* scores_of(std::size_t i, float* scratch) const {
    return scratch + kTile * (round_up(dim_, kLanes) + dim_) + i * limit_;
  }

  const std::size_t heads_;
  const std::size_t dim_;
  const std::size_t topk_;
  const std::size_t limit_;  // keys of a sequence at most
  const Plane keys_;
};

}  // namespace larder::reference
