// SPDX-License-Identifier: Apache-2.0
// Every kind of model that llama.cpp runs, in the real libllama: cut into pages and checkpoints at every page boundary,
// restored, continued; logits as without it, bit for bit.
#include <gtest/gtest.h>

#include <map>

#include "engine/llama/self_probe.h"
#include "tests/llama/llama_rig.h"

namespace larder::llama {
namespace {

using llama_test::LoadedModel;
using llama_test::random_model;

constexpr std::uint32_t kPage = 16, kPages = 8;

void probe(const RandomModel& model, std::string_view type) {
  const LoadedModel loaded(model);
  HostSettings settings;
  settings.batch_tokens = kPage;
  settings.keys = settings.values = *cache_type(type);
  const BlobGeometry expected = loaded.geometry(settings).blob;
  const auto host = loaded.open(settings);
  ASSERT_NE(host, nullptr);
  ProbeSettings probing;
  probing.model = model.architecture;
  probing.page_size = kPage;
  probing.pages = kPages;
  probing.window_tokens = sliding_window_of(loaded.gguf().first);
  const auto report = probe_model(*host, probing);
  ASSERT_TRUE(report) << report.status().to_string();
  EXPECT_EQ(report->geometry.to_text(), expected.to_text());
  EXPECT_EQ(report->difference, 0);
  const ProbeControls& controls = report->controls;
  for (const auto& [name, control] : std::map<std::string, std::optional<float>>{
           {"pages", controls.pages}, {"window", controls.window}, {"checkpoint", controls.checkpoint}}) {
    if (!control) continue;
    EXPECT_GT(*control, 0.01f) << name;  // of the largest logit
    testing::Test::RecordProperty(name, std::to_string(*control));
  }
}

class LlamaModels : public testing::TestWithParam<std::string_view> {};

TEST_P(LlamaModels, SurviveBeingCutAndRestoredAtEveryPage) { probe(random_model(GetParam()), "f16"); }

TEST_P(LlamaModels, SurviveItWithAQuantizedCache) { probe(random_model(GetParam()), "q8_0"); }

INSTANTIATE_TEST_SUITE_P(All, LlamaModels, testing::ValuesIn(random_architectures()), [](const auto& one) {
  std::string name(one.param);
  std::erase(name, '-');
  return name;
});

TEST(LlamaWindows, ThatAreNoMultipleOfAPageAreKeptWhole) {
  for (const std::uint32_t window : {8u, 24u, 100u, 1000u}) {
    SCOPED_TRACE(window);
    RandomModel model = random_model("gemma3");
    model.window = window;
    probe(model, "f16");
  }
}

TEST(LlamaWeights, QuantizedModelsSurvive) {
  RandomModel model = random_model("qwen35");
  model.is_quantized = true;
  probe(model, "f16");
}

}  // namespace
}  // namespace larder::llama
