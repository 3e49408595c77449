// SPDX-License-Identifier: Apache-2.0
// What gated delta net and Mamba-2 share: projection with a convolved part, one recurrence per head, gated norm.
//
// Stages after the projection: 0 convolution and per-token scalars (row tiles), 1 recurrence (one task per segment and
// head, plus one per segment that keeps the convolution's state).
#pragma once

#include "engine/reference/causal_conv.h"
#include "engine/reference/mixer.h"

namespace larder::reference {

class RecurrentMixer : public Mixer {
 public:
  std::size_t stages() const override { return 2; }
  StageWork plan(const Round& round, std::size_t stage) const override;
  void run(const Round& round, std::size_t stage, std::size_t task, std::size_t worker) const override;

  std::size_t aux_stride() const override { return round_up(conv_.channels(), kLanes) + round_up(2 * heads_, kLanes); }
  std::size_t mixed_stride() const override { return round_up(heads_ * value_dim_, kLanes); }
  std::size_t scratch_floats() const override { return std::max(conv_.scratch_floats(), (keys_ + 3) * value_stride()); }

 protected:
  // How the temporal plane orders a head's state.
  enum class StateOrder : std::uint8_t { kKeyMajor, kValueMajor };

  // Projection: [conv channels | gate: heads * value_dim | `scalars` numbers per head].
  RecurrentMixer(const MixerContext& context, StateOrder order, std::size_t scalars);

  void finish_row(const Round& round, const Segment& segment, std::size_t row, float* projected) const override;

  // After the convolution of a row: norms in place, and two numbers per head into per_head ([heads][2]).
  virtual void prepare_row(const Round& round, const float* scalars, float* convolved, float* per_head) const = 0;
  // One token of one head. args.state, keys, value_stride, round_bf16, output are set; `value` has value_stride floats.
  virtual void step_head(const Kernels& kernels, std::size_t head, const float* convolved, const float* per_head,
                         float* value, RecurrenceArgs& args) const = 0;

  [[nodiscard]] std::size_t key_group(std::size_t head) const { return head / (heads_ / key_heads_); }
  [[nodiscard]] std::size_t value_stride() const { return round_up(value_dim_, kLanes); }

  const std::size_t heads_;
  const std::size_t key_heads_;
  const std::size_t keys_;  // key dimension of a state
  const std::size_t value_dim_;

 private:
  void convolve_tile(const Round& round, const QueryTile& tile, float* scratch) const;
  void run_head(const Round& round, const Segment& segment, std::size_t head, float* scratch) const;
  void load_state(const Segment& segment, std::size_t head, float* state) const;
  void save_state(DeviceSlot slot, std::size_t head, const float* state) const;

  const StateOrder order_;
  const CausalConv conv_;
  const Plane temporal_;
  Vector gate_norm_;
};

}  // namespace larder::reference
