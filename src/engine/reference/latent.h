// SPDX-License-Identifier: Apache-2.0
// Attention on a latent that all heads share (MLA in its absorbed form, DeepSeek V4): a cached row is
// [kv_lora_rank | rope_dim], keys are whole rows, values their first kv_lora_rank elements.
#pragma once

#include "engine/reference/attention_core.h"
#include "engine/reference/mixer.h"

namespace larder::reference {

class LatentMixer : public Mixer {
 public:
  std::size_t mixed_stride() const override { return round_up(heads_ * rank_, kLanes); }

 protected:
  // Projection: [queries: heads * width | latent: width | `extra` numbers for the subclass].
  LatentMixer(const MixerContext& context, PoolName pool, PageSet pages, std::size_t extra)
      : heads_(context.pools.model().dims.q_heads),
        rank_(context.pools.model().dims.kv_lora_rank),
        rope_dim_(context.pools.model().dims.rope_dim),
        width_(rank_ + rope_dim_),
        pages_(pages),
        latents_(context.pools, pool, context.layer, "latent"),
        rope_(context.round.rope_index(rope_dim_)) {
    make_projections(context.weights, context.pools.model().dims.hidden, (heads_ + 1) * width_ + extra, heads_ * rank_);
    const double scale = kAttentionScoreGain / std::sqrt(static_cast<double>(width_));
    query_norm_ = context.weights.vector("query_norm", width_, scale, 0.1 * scale);
    latent_norm_ = context.weights.vector("latent_norm", width_, 1.0, 0.1);
    group_ = {.heads = heads_, .key_dim = width_, .value_dim = rank_, .query_stride = width_, .output_stride = rank_};
  }

  void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const override {
    for (std::size_t h = 0; h < heads_; ++h) finish_vector(round, row, query_norm_, projected + h * width_);
    finish_vector(round, row, latent_norm_, projected + heads_ * width_);
    const std::uint64_t position = round.position(row);
    const DeviceSlot slot = slots_of(segment, pages_)[static_cast<std::size_t>(position / round.page_size)];
    latents_.write(slot, static_cast<std::size_t>(position % round.page_size), projected + heads_ * width_);
  }

  // Normalises both parts of a [rank | rope] vector and rotates the second.
  void finish_vector(const Round& round, std::size_t row, const Vector& norm, float* vector) const {
    round.kernels->rms_norm(vector, norm.data(), vector, rank_);
    if (rope_dim_ == 0) return;
    round.kernels->rms_norm(vector + rank_, norm.data() + rank_, vector + rank_, rope_dim_);
    round.rotate(rope_, row, vector + rank_);
  }

  // Attention of a tile of queries to all (window 0) or the last `window` tokens.
  void attend_tokens(const Round& round, const QueryTile& tile, std::uint64_t window, float* scratch) const {
    const Segment& segment = round.segments[tile.segment];
    const std::size_t row = segment.first_row + tile.first;
    const PagedKeys keys = {.keys = &latents_, .values = &latents_, .slots = slots_of(segment, pages_)};
    const QueryRun queries = {.queries = projected_row(round, row),
                              .query_row = projected_stride(),
                              .output = mixed_row(round, row),
                              .output_row = mixed_stride(),
                              .position = segment.start + tile.first,
                              .count = tile.count,
                              .window = window};
    attend_run(*round.kernels, group_, keys, queries, scratch);
  }

  // Attention of one token to chosen rows.
  void attend_chosen(const Round& round, std::size_t row, std::span<const std::byte* const> rows,
                     float* scratch) const {
    attend_rows(*round.kernels, group_, rows, latents_.dtype(), projected_row(round, row), mixed_row(round, row),
                scratch);
  }

  const std::size_t heads_;
  const std::size_t rank_;
  const std::size_t rope_dim_;
  const std::size_t width_;
  const PageSet pages_;
  const Plane latents_;
  const std::size_t rope_;
  Vector query_norm_;
  Vector latent_norm_;
  HeadGroup group_;
};

}  // namespace larder::reference
