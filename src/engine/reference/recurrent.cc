// SPDX-License-Identifier: Apache-2.0
#include "engine/reference/recurrent.h"

namespace larder::reference {
namespace {

std::size_t conv_width(const ModelDims& dims) {
  return std::size_t{2} * dims.ssm_key_heads * dims.ssm_state_dim + std::size_t{dims.ssm_heads} * dims.ssm_head_dim;
}

}  // namespace

RecurrentMixer::RecurrentMixer(const MixerContext& context, StateOrder order, std::size_t scalars)
    : heads_(context.pools.model().dims.ssm_heads),
      key_heads_(context.pools.model().dims.ssm_key_heads),
      keys_(context.pools.model().dims.ssm_state_dim),
      value_dim_(context.pools.model().dims.ssm_head_dim),
      order_(order),
      conv_(context, conv_width(context.pools.model().dims)),
      temporal_(context.pools, PoolName::kMamba, context.layer, "temporal") {
  make_projections(context.weights, context.pools.model().dims.hidden,
                   conv_.channels() + heads_ * value_dim_ + scalars * heads_, heads_ * value_dim_);
  gate_norm_ = context.weights.vector("gate_norm", value_dim_, 1.0, 0.1);
}

void RecurrentMixer::finish_row(const Round&, const Segment&, std::size_t, float* projected) const {
  // The state keeps these inputs rounded, so the convolution must see them rounded in every run.
  round_to(conv_.dtype(), projected, conv_.channels());
}

StageWork RecurrentMixer::plan(const Round& round, std::size_t stage) const {
  const auto rows = static_cast<double>(round.rows);
  if (stage == 0) return {round.query_tiles.size(), rows * static_cast<double>(conv_.channels()) * 30};
  return {round.segments.size() * (heads_ + 1), rows * static_cast<double>(heads_ * keys_ * value_dim_) * 4};
}

void RecurrentMixer::run(const Round& round, std::size_t stage, std::size_t task, std::size_t worker) const {
  float* scratch = round.scratch[worker];
  if (stage == 0) return convolve_tile(round, round.query_tiles[task], scratch);
  const Segment& segment = round.segments[task / (heads_ + 1)];
  if (segment.failed) return;
  const std::size_t head = task % (heads_ + 1);
  if (head < heads_) return run_head(round, segment, head, scratch);
  conv_.save(segment, projected_row(round, segment.first_row), projected_stride(), scratch);
}

void RecurrentMixer::convolve_tile(const Round& round, const QueryTile& tile, float* scratch) const {
  const Segment& segment = round.segments[tile.segment];
  if (segment.failed) return;
  const std::size_t first_row = segment.first_row + tile.first;
  conv_.apply(*round.kernels, segment, projected_row(round, segment.first_row), projected_stride(), tile.first,
              tile.count, true, aux_row(round, first_row), aux_stride(), scratch);
  for (std::size_t row = first_row; row < first_row + tile.count; ++row) {
    float* convolved = aux_row(round, row);
    const float* scalars = projected_row(round, row) + conv_.channels() + heads_ * value_dim_;
    prepare_row(round, scalars, convolved, convolved + round_up(conv_.channels(), kLanes));
  }
}

void RecurrentMixer::run_head(const Round& round, const Segment& segment, std::size_t head, float* scratch) const {
  float* state = scratch;
  float* value = state + keys_ * value_stride();
  float* output = value + value_stride();
  float* gated = output + value_stride();
  std::fill_n(value, value_stride(), 0.0f);
  load_state(segment, head, state);
  RecurrenceArgs args;
  args.state = state;
  args.keys = keys_;
  args.value_stride = value_stride();
  args.value = value;
  args.round_bf16 = temporal_.dtype() == Dtype::kBf16;
  args.output = output;
  for (std::size_t i = 0; i < segment.count; ++i) {
    const std::size_t row = segment.first_row + i;
    const float* convolved = aux_row(round, row);
    const float* per_head = convolved + round_up(conv_.channels(), kLanes) + 2 * head;
    step_head(*round.kernels, head, convolved, per_head, value, args);
    const float* gate = projected_row(round, row) + conv_.channels() + head * value_dim_;
    round.kernels->rms_norm(output, gate_norm_.data(), gated, value_dim_);
    round.kernels->silu_mul(gate, gated, mixed_row(round, row) + head * value_dim_, value_dim_);
    save_snapshots(segment, i + 1, [&](DeviceSlot slot) { save_state(slot, head, state); });
  }
}

void RecurrentMixer::load_state(const Segment& segment, std::size_t head, float* state) const {
  std::fill_n(state, keys_ * value_stride(), 0.0f);
  if (segment.start == 0) return;
  const std::size_t size = keys_ * value_dim_;
  const std::byte* from = temporal_.row(segment.step->pages->state, 0) + head * size * dtype_bytes(temporal_.dtype());
  for (std::size_t i = 0; i < size; ++i, from += dtype_bytes(temporal_.dtype())) {
    const std::size_t key = order_ == StateOrder::kKeyMajor ? i / value_dim_ : i % keys_;
    const std::size_t at = order_ == StateOrder::kKeyMajor ? i % value_dim_ : i / keys_;
    load_floats(from, temporal_.dtype(), state + key * value_stride() + at, 1);
  }
}

void RecurrentMixer::save_state(DeviceSlot slot, std::size_t head, const float* state) const {
  const std::size_t size = keys_ * value_dim_;
  std::byte* to = temporal_.row(slot, 0) + head * size * dtype_bytes(temporal_.dtype());
  for (std::size_t i = 0; i < size; ++i, to += dtype_bytes(temporal_.dtype())) {
    const std::size_t key = order_ == StateOrder::kKeyMajor ? i / value_dim_ : i % keys_;
    const std::size_t at = order_ == StateOrder::kKeyMajor ? i % value_dim_ : i / keys_;
    store_floats(to, temporal_.dtype(), state + key * value_stride() + at, 1);
  }
}

}  // namespace larder::reference
