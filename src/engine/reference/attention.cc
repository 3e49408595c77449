// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention with rotary positions and query/key norms: full, sliding-window and draft layers.
#include "engine/reference/attention_core.h"
#include "engine/reference/mixer.h"

namespace larder::reference {
namespace {

class GqaMixer final : public Mixer {
 public:
  GqaMixer(const MixerContext& context, PoolName pool, std::uint32_t window)
      : heads_(context.pools.model().dims.q_heads),
        kv_heads_(context.pools.model().dims.kv_heads),
        head_dim_(context.pools.model().dims.head_dim),
        window_(window),
        pages_(window == 0 ? PageSet::kFull : PageSet::kWindow),
        keys_(context.pools, pool, context.layer, "k"),
        values_(context.pools, pool, context.layer, "v"),
        rope_(context.round.rope_index(head_dim_)) {
    make_projections(context.weights, context.pools.model().dims.hidden, (heads_ + 2 * kv_heads_) * head_dim_,
                     heads_ * head_dim_);
    const double scale = kAttentionScoreGain / std::sqrt(static_cast<double>(head_dim_));
    query_norm_ = context.weights.vector("query_norm", head_dim_, scale, 0.1 * scale);
    key_norm_ = context.weights.vector("key_norm", head_dim_, 1.0, 0.1);
    group_ = {.heads = heads_ / kv_heads_,
              .key_dim = head_dim_,
              .value_dim = head_dim_,
              .query_stride = head_dim_,
              .output_stride = head_dim_};
  }

  std::size_t stages() const override { return 1; }
  std::size_t mixed_stride() const override { return round_up(heads_ * head_dim_, kLanes); }
  std::size_t scratch_floats() const override { return attention_scratch_floats(group_); }

  StageWork plan(const Round& round, std::size_t) const override {
    double keys = 0;
    for (const Segment& segment : round.segments) {
      const std::uint64_t seen = window_ == 0 ? segment.end() : std::min<std::uint64_t>(segment.end(), window_);
      keys += static_cast<double>(segment.count) * static_cast<double>(seen);
    }
    return {round.query_tiles.size() * kv_heads_, keys * static_cast<double>(heads_ * head_dim_)};
  }

  void run(const Round& round, std::size_t, std::size_t task, std::size_t worker) const override {
    const QueryTile& tile = round.query_tiles[task / kv_heads_];
    const std::size_t kv_head = task % kv_heads_;
    const Segment& segment = round.segments[tile.segment];
    if (segment.failed) return;
    const std::size_t row = segment.first_row + tile.first;
    const std::size_t query_offset = kv_head * group_.heads * head_dim_;
    const PagedKeys keys = {.keys = &keys_,
                            .values = &values_,
                            .key_offset = kv_head * keys_.row_bytes() / kv_heads_,
                            .value_offset = kv_head * values_.row_bytes() / kv_heads_,
                            .slots = slots_of(segment, pages_)};
    const QueryRun queries = {.queries = projected_row(round, row) + query_offset,
                              .query_row = projected_stride(),
                              .output = mixed_row(round, row) + query_offset,
                              .output_row = mixed_stride(),
                              .position = segment.start + tile.first,
                              .count = tile.count,
                              .window = window_};
    attend_run(*round.kernels, group_, keys, queries, round.scratch[worker]);
  }

 protected:
  void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const override {
    for (std::size_t h = 0; h < heads_ + kv_heads_; ++h) {
      float* head = projected + h * head_dim_;
      const Vector& norm = h < heads_ ? query_norm_ : key_norm_;
      round.kernels->rms_norm(head, norm.data(), head, head_dim_);
      round.rotate(rope_, row, head);
    }
    const std::uint64_t position = round.position(row);
    const DeviceSlot slot = slots_of(segment, pages_)[static_cast<std::size_t>(position / round.page_size)];
    const std::size_t at = static_cast<std::size_t>(position % round.page_size);
    keys_.write(slot, at, projected + heads_ * head_dim_);
    values_.write(slot, at, projected + (heads_ + kv_heads_) * head_dim_);
  }

 private:
  const std::size_t heads_;
  const std::size_t kv_heads_;
  const std::size_t head_dim_;
  const std::uint32_t window_;
  const PageSet pages_;
  const Plane keys_;
  const Plane values_;
  const std::size_t rope_;
  Vector query_norm_;
  Vector key_norm_;
  HeadGroup group_;
};

}  // namespace

std::unique_ptr<Mixer> make_gqa_mixer(const MixerContext& context, PoolName pool, std::uint32_t window) {
  return std::make_unique<GqaMixer>(context, pool, window);
}

}  // namespace larder::reference
