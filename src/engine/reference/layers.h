// SPDX-License-Identifier: Apache-2.0
// The weights of a model: its layers, embedding and heads.
//
// Each layer: x += norm(out(mixer(norm(x)))), x += norm(ffn(norm(x))). The norms after the mixer and the FFN keep their
// share of the residual stream the same however long the context is, so a prefix keeps its say in the logits.
// Threads: built once, then immutable.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/reference/mixer.h"

namespace larder::reference {

struct Layer {
  std::unique_ptr<Mixer> mixer;
  Vector mixer_post_norm;
  Vector ffn_norm;
  Matrix ffn_in;  // [gate | up]
  Matrix ffn_out;
  Vector ffn_post_norm;
};

// Final norm and output matrix.
struct Head {
  Vector norm;
  Matrix out;
};

struct ModelWeights {
  Vector embedding;           // [vocab][padded hidden]
  std::vector<Layer> layers;  // the model's, then the draft's
  Head head;
  Head draft_head;  // empty without a draft
  std::uint64_t parameters = 0;
};

// Refuses what the engine cannot compute (kInvalidArgument, the field named): dtypes other than f32 and bf16, too many
// parameters or taps, a context beyond 2^20 tokens.
[[nodiscard]] Status check_computable(const ModelSpec& model);

// counting: tensors stay empty, only `parameters` is right.
[[nodiscard]] ModelWeights build_weights(const DevicePools& pools, Round& round, bool counting);

}  // namespace larder::reference
