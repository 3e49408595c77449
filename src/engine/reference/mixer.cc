// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/mixer.h"

namespace larder::reference {

void Mixer::make_projections(WeightSource& weights, std::size_t hidden, std::size_t inner, std::size_t mixed) {
  hidden_ = hidden;
  norm_ = weights.vector("mixer_norm", hidden, 1.0, 0.1);
  in_ = weights.matrix("mixer_in", hidden, inner);
  out_ = weights.matrix("mixer_out", mixed, hidden);
}

double Mixer::project_cost(const Round& round) const {
  return static_cast<double>(round.rows) * static_cast<double>(hidden_) * static_cast<double>(in_.outputs());
}

void Mixer::project(const Round& round, std::size_t task, std::size_t worker) const {
  const RowTile& tile = round.row_tiles[task];
  float* normed = round.scratch[worker];
  for (std::size_t r = 0; r < tile.count; ++r) {
    round.kernels->rms_norm(round.x + (tile.first + r) * round.x_stride, norm_.data(), normed + r * round.x_stride,
                            hidden_);
  }
  round.kernels->matmul(normed, round.x_stride, tile.count, in_.view(), projected_row(round, tile.first),
                        projected_stride());
  for (std::size_t row = tile.first; row < tile.first + tile.count; ++row) {
    const Segment& segment = round.segments[round.segment_of[row]];
    if (!segment.failed) finish_row(round, segment, row, projected_row(round, row));
  }
}

}  // namespace larder::reference
