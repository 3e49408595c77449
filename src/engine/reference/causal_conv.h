// SPDX-License-Identifier: Apache-2.0
// Causal depthwise convolution with its state: the last conv_kernel - 1 inputs, oldest first, in one row of the plane.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "engine/reference/mixer.h"

namespace larder::reference {

inline constexpr std::size_t kMaxTaps = 64;  // of a convolution; create() refuses more

class CausalConv {
 public:
  CausalConv(const MixerContext& context, std::size_t channels)
      : plane_(context.pools, PoolName::kMamba, context.layer, "conv"),
        channels_(channels),
        taps_(context.pools.model().dims.conv_kernel),
        weights_(context.weights.table("conv", taps_, channels)) {
    // Half of the energy on the newest input: a layer that forgot its own token would only echo.
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] *= i / stride() + 1 == taps_ ? 0.7f : 0.4f;
  }

  [[nodiscard]] Dtype dtype() const { return plane_.dtype(); }
  [[nodiscard]] std::size_t channels() const { return channels_; }
  [[nodiscard]] std::size_t scratch_floats() const { return taps_ * channels_; }

  // Outputs for rows [first, first + count) of a segment. inputs: the segment's rows of channels, already rounded to
  // dtype(); output: row `first`. Reads the state that the segment started from, which save() replaces afterwards.
  void apply(const Kernels& kernels, const Segment& segment, const float* inputs, std::size_t input_stride,
             std::size_t first, std::size_t count, bool silu, float* output, std::size_t output_stride,
             float* scratch) const {
    load_state(segment, scratch);
    std::array<const float*, kMaxTaps> taps;
    for (std::size_t i = first; i < first + count; ++i, output += output_stride) {
      for (std::size_t t = 0; t < taps_; ++t) taps[t] = input_at(inputs, input_stride, scratch, i, t);
      kernels.conv(taps.data(), weights_.data(), stride(), taps_, silu, output, channels_);
    }
  }

  // Writes the state to the segment's snapshots and to its own working slot.
  void save(const Segment& segment, const float* inputs, std::size_t input_stride, float* scratch) const {
    if (segment.failed) return;
    load_state(segment, scratch);
    const auto save_at = [&](std::size_t length, DeviceSlot slot) {
      std::byte* to = plane_.row(slot, 0);
      const std::size_t bytes = channels_ * dtype_bytes(dtype());
      for (std::size_t t = 1; t < taps_; ++t, to += bytes) {
        store_floats(to, dtype(), input_at(inputs, input_stride, scratch, length - 1, t), channels_);
      }
    };
    for (const StateSnapshot& snapshot : segment.step->snapshots) {
      if (snapshot.position <= segment.start || snapshot.position > segment.end()) continue;
      save_at(static_cast<std::size_t>(snapshot.position - segment.start), snapshot.slot);
    }
    save_at(segment.count, segment.step->pages->state);
  }

 private:
  [[nodiscard]] std::size_t stride() const { return round_up(channels_, kLanes); }

  // state: [taps - 1][channels], zeros at the start of a sequence.
  void load_state(const Segment& segment, float* state) const {
    if (segment.start == 0) {
      std::fill_n(state, (taps_ - 1) * channels_, 0.0f);
    } else {
      load_floats(plane_.row(segment.step->pages->state, 0), dtype(), state, (taps_ - 1) * channels_);
    }
  }

  // Input of tap t (taps - 1 is the newest) for the segment's row i.
  [[nodiscard]] const float* input_at(const float* inputs, std::size_t input_stride, const float* state, std::size_t i,
                                      std::size_t t) const {
    const std::size_t back = taps_ - 1 - t;
    return i >= back ? inputs + (i - back) * input_stride : state + (taps_ - 1 - (back - i)) * channels_;
  }

  const Plane plane_;
  const std::size_t channels_;
  const std::size_t taps_;
  Vector weights_;  // [taps][stride]
};

// Calls save(slot) after the tokens of a segment where a state has to be kept. length: tokens of the segment done.
template <class Save>
void save_snapshots(const Segment& segment, std::size_t length, Save save) {
  for (const StateSnapshot& snapshot : segment.step->snapshots) {
    if (snapshot.position == segment.start + length) save(snapshot.slot);
  }
  if (length == segment.count) save(segment.step->pages->state);
}

}  // namespace larder::reference
