// SPDX-License-Identifier: Apache-2.0
// Mamba-2: S = exp(-a dt) S + dt x B^T, y = S C + D x, with one B and C per group of heads.
#include "engine/reference/recurrent.h"

namespace larder::reference {
namespace {

class Mamba2Mixer final : public RecurrentMixer {
 public:
  explicit Mamba2Mixer(const MixerContext& context)
      : RecurrentMixer(context, StateOrder::kValueMajor, 1),
        // exp(rate): how fast a head forgets. From a few tokens to a few thousand.
        rates_(context.weights.vector("a_log", heads_, -4.0, 3.0)),
        step_bias_(context.weights.vector("dt_bias", heads_, -1.0, 1.0)),
        skip_(context.weights.vector("skip", heads_, 0.0, 0.5)) {}

 protected:
  // scalars: [dt: heads]. convolved: [x | B | C]. per_head: decay, dt.
  void prepare_row(const Round&, const float* scalars, float*, float* per_head) const override {
    for (std::size_t h = 0; h < heads_; ++h) {
      const double step = softplus_exact(double{scalars[h]} + double{step_bias_[h]});
      per_head[2 * h] = static_cast<float>(exp_exact(-exp_exact(double{rates_[h]}) * step));
      per_head[2 * h + 1] = static_cast<float>(step);
    }
  }

  void step_head(const Kernels& kernels, std::size_t head, const float* convolved, const float* per_head, float* value,
                 RecurrenceArgs& args) const override {
    const float* x = convolved + head * value_dim_;
    for (std::size_t i = 0; i < value_dim_; ++i) value[i] = x[i] * per_head[1];
    args.write = convolved + heads_ * value_dim_ + key_group(head) * keys_;
    args.read = args.write + key_heads_ * keys_;
    args.decay = per_head[0];
    kernels.state_space(args);
    for (std::size_t i = 0; i < value_dim_; ++i) args.output[i] = args.output[i] + skip_[head] * x[i];
  }

 private:
  const Vector rates_;
  const Vector step_bias_;
  const Vector skip_;
};

}  // namespace

std::unique_ptr<Mixer> make_mamba2_mixer(const MixerContext& context) { return std::make_unique<Mamba2Mixer>(context); }

}  // namespace larder::reference
