// SPDX-License-Identifier: Apache-2.0
// Models that no preset has: what they are made of is there alone, and here together. From every tier and every store
// their pages come back bit for bit.
#include <gtest/gtest.h>

#include <string>

#include "model/presets.h"
#include "tests/exactness/restore_road.h"

namespace larder::exactness {
namespace {

struct Shape {
  const char* name;
  ModelSpec (*build)();
};

void add_recurrence(ModelSpec& spec) {
  spec.dims.ssm_heads = 4;
  spec.dims.ssm_key_heads = 2;
  spec.dims.ssm_head_dim = 16;
  spec.dims.ssm_state_dim = 16;
  spec.dims.conv_kernel = 4;
}

ModelSpec preset(const char* name, std::uint32_t page_size) {
  ModelSpec spec = preset_model(name).value();
  spec.page_size = page_size;
  spec.pools.clear();
  return spec;
}

// As Kimi Linear: latent attention between delta nets.
ModelSpec latent_and_recurrent() {
  ModelSpec spec;
  spec.layers = {LayerKind::kGatedDeltaNet, LayerKind::kMla, LayerKind::kGatedDeltaNet, LayerKind::kMla};
  spec.dims.kv_lora_rank = 32;
  spec.dims.rope_dim = 8;
  add_recurrence(spec);
  return spec;
}

// As Phi-4-mini-flash: a window, recurrent state and full attention.
ModelSpec full_window_and_recurrent() {
  ModelSpec spec;
  spec.layers = {LayerKind::kMamba2, LayerKind::kSlidingAttention, LayerKind::kMamba2, LayerKind::kAttention};
  spec.dims.window = 128;
  add_recurrence(spec);
  spec.dims.ssm_key_heads = 1;
  return spec;
}

constexpr Shape kShapes[] = {
    {"latent_and_recurrent", latent_and_recurrent},
    {"full_window_and_recurrent", full_window_and_recurrent},
    {"full_page_of_one", [] { return preset("gqa-tiny", 1); }},
    {"window_page_of_one", [] { return preset("swa-tiny", 1); }},
    {"recurrent_page_of_one", [] { return preset("gdn-tiny", 1); }},
    {"latent_page_of_one", [] { return preset("dsa-tiny", 1); }},
};

class RestoreShape : public ::testing::TestWithParam<Shape> {
 protected:
  static ModelSpec model() {
    ModelSpec spec = GetParam().build();
    spec.id = GetParam().name;
    const Status status = finalize_model(spec);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    return spec;
  }
};

TEST_P(RestoreShape, IsBitIdenticalFromEveryTier) {
  const ModelSpec model = RestoreShape::model();
  const Script script(model);
  for (const From from : {From::kDevice, From::kHost, From::kMemoryStore, From::kFileStore, From::kHf3fsStore}) {
    check_road(script, model, HostLayout::kPageFirst, from);
    if (HasFailure()) return;
  }
  for (const From from : {From::kFileStore, From::kHf3fsStore}) check_restart(script, model, from);
}

INSTANTIATE_TEST_SUITE_P(Mixed, RestoreShape, ::testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace larder::exactness
