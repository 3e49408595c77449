// SPDX-License-Identifier: Apache-2.0
#include "model/presets.h"

#include <gtest/gtest.h>

#include <set>

namespace larder {
namespace {

TEST(PresetsTest, AllAreThereAndValid) {
  std::set<std::string> names;
  for (const PresetInfo& info : all_presets()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(names.insert(info.name).second);
    const Result<ModelSpec> model = preset_model(info.name);
    ASSERT_TRUE(model.is_ok()) << model.status().to_string();
    EXPECT_EQ(model->id, info.name);
    EXPECT_EQ(model->draft.layers, info.has_draft ? 1u : 0u);
    EXPECT_FALSE(model->pools.empty());
    EXPECT_FALSE(info.summary.empty());
  }
  for (const char* family : {"gqa", "mla", "swa", "gemma3", "gdn", "mamba2", "dsa", "dsv4"}) {
    for (const char* suffix : {"-tiny", "-real", "-tiny+draft", "-real+draft"}) {
      EXPECT_TRUE(names.contains(std::string(family) + suffix)) << family << suffix;
    }
  }
  EXPECT_EQ(names.size(), 32u);
}

// What the tests and the reference engine rely on: f32, small, windows of few pages, cheap checkpoints.
TEST(PresetsTest, TinyStaysTiny) {
  for (const PresetInfo& info : all_presets()) {
    if (!info.is_tiny) continue;
    SCOPED_TRACE(info.name);
    const ModelSpec model = *preset_model(info.name);
    EXPECT_EQ(model.dims.hidden, 64u);
    EXPECT_LE(model.layers.size(), 6u);
    EXPECT_LE(model.window_pages(), 2u);
    EXPECT_LE(model.slot_bytes(ComponentKind::kMamba), 64u * 1024);
    for (const PoolSpec& pool : model.pools) {
      for (const PlaneSpec& plane : pool.planes) EXPECT_EQ(plane.dtype, Dtype::kF32);
    }
  }
}

TEST(PresetsTest, UnknownNameListsTheKnown) {
  for (const char* name : {"", "gdn", "gdn-tiny+Draft", "+draft", "gdn-tiny+draft+draft"}) {
    const Result<ModelSpec> model = preset_model(name);
    ASSERT_FALSE(model.is_ok()) << name;
    EXPECT_EQ(model.status().code(), StatusCode::kNotFound);
    EXPECT_NE(model.status().message().find("gdn-tiny"), std::string::npos);
  }
}

}  // namespace
}  // namespace larder
