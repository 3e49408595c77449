// SPDX-License-Identifier: Apache-2.0
// Short convolution (LFM2): y = c * conv(b * x), each gate and input projected from the hidden state.
#include "engine/reference/causal_conv.h"
#include "engine/reference/mixer.h"

namespace larder::reference {
namespace {

class ShortConvMixer final : public Mixer {
 public:
  explicit ShortConvMixer(const MixerContext& context)
      : channels_(context.pools.model().dims.hidden), conv_(context, channels_) {
    make_projections(context.weights, channels_, 3 * channels_, channels_);
  }

  // 0: convolve (row tiles). 1: keep the state (segments).
  std::size_t stages() const override { return 2; }
  std::size_t mixed_stride() const override { return round_up(channels_, kLanes); }
  std::size_t scratch_floats() const override { return conv_.scratch_floats(); }

  StageWork plan(const Round& round, std::size_t stage) const override {
    const auto cost = static_cast<double>(round.rows * channels_) * 4;
    return {stage == 0 ? round.query_tiles.size() : round.segments.size(), stage == 0 ? cost : 0.0};
  }

  void run(const Round& round, std::size_t stage, std::size_t task, std::size_t worker) const override {
    float* scratch = round.scratch[worker];
    const QueryTile tile = stage == 0 ? round.query_tiles[task] : QueryTile{task, 0, 0};
    const Segment& segment = round.segments[tile.segment];
    if (segment.failed) return;
    const float* inputs = projected_row(round, segment.first_row);
    if (stage == 1) return conv_.save(segment, inputs, projected_stride(), scratch);
    const std::size_t first_row = segment.first_row + tile.first;
    conv_.apply(*round.kernels, segment, inputs, projected_stride(), tile.first, tile.count, false,
                mixed_row(round, first_row), mixed_stride(), scratch);
    for (std::size_t row = first_row; row < first_row + tile.count; ++row) {
      const float* gate = projected_row(round, row) + channels_;
      float* out = mixed_row(round, row);
      for (std::size_t c = 0; c < channels_; ++c) out[c] = out[c] * gate[c];
    }
  }

 protected:
  // projected: [x | c | b]; x becomes the convolution's input b * x, as the state keeps it.
  void finish_row(const Round&, const Segment&, std::size_t, float* projected) const override {
    for (std::size_t c = 0; c < channels_; ++c) projected[c] = projected[c] * projected[2 * channels_ + c];
    round_to(conv_.dtype(), projected, channels_);
  }

 private:
  const std::size_t channels_;
  const CausalConv conv_;
};

}  // namespace

std::unique_ptr<Mixer> make_short_conv_mixer(const MixerContext& context) {
  return std::make_unique<ShortConvMixer>(context);
}

}  // namespace larder::reference
