// SPDX-License-Identifier: Apache-2.0
// Gated delta rule (Qwen3-Next): S = decay * S, then S += k (beta (v - S^T k))^T, read with q.
#include "engine/reference/recurrent.h"

namespace larder::reference {
namespace {

class GatedDeltaMixer final : public RecurrentMixer {
 public:
  explicit GatedDeltaMixer(const MixerContext& context)
      : RecurrentMixer(context, StateOrder::kKeyMajor, 2),
        // Heads remember differently long: exp(rate) * softplus(bias) is the loss per token, and a small beta keeps
        // later tokens from overwriting the few keys that a state can hold.
        rates_(context.weights.vector("decay_rate", heads_, -5.0, 3.0)),
        decay_bias_(context.weights.vector("decay_bias", heads_, -1.0, 0.5)),
        beta_bias_(context.weights.vector("beta_bias", heads_, -2.5, 1.5)) {}

 protected:
  // scalars: [beta: heads | decay: heads]. convolved: [q | k | v]. per_head: decay, beta.
  void prepare_row(const Round& round, const float* scalars, float* convolved, float* per_head) const override {
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(keys_));
    for (std::size_t h = 0; h < 2 * key_heads_; ++h) {
      float* head = convolved + h * keys_;
      const float scale = (h < key_heads_ ? query_scale : 1.0f) / round.kernels->norm2(head, keys_);
      for (std::size_t i = 0; i < keys_; ++i) head[i] = head[i] * scale;
    }
    for (std::size_t h = 0; h < heads_; ++h) {
      const double step = softplus_exact(double{scalars[heads_ + h]} + double{decay_bias_[h]});
      per_head[2 * h] = static_cast<float>(exp_exact(-exp_exact(double{rates_[h]}) * step));
      per_head[2 * h + 1] = static_cast<float>(sigmoid_exact(double{scalars[h]} + double{beta_bias_[h]}));
    }
  }

  void step_head(const Kernels& kernels, std::size_t head, const float* convolved, const float* per_head, float* value,
                 RecurrenceArgs& args) const override {
    const float* v = convolved + 2 * key_heads_ * keys_ + head * value_dim_;
    for (std::size_t i = 0; i < value_dim_; ++i) value[i] = v[i];
    args.read = convolved + key_group(head) * keys_;
    args.write = convolved + (key_heads_ + key_group(head)) * keys_;
    args.decay = per_head[0];
    args.beta = per_head[1];
    kernels.delta_rule(args);
  }

 private:
  const Vector rates_;
  const Vector decay_bias_;
  const Vector beta_bias_;
};

}  // namespace

std::unique_ptr<Mixer> make_gated_delta_mixer(const MixerContext& context) {
  return std::make_unique<GatedDeltaMixer>(context);
}

}  // namespace larder::reference
