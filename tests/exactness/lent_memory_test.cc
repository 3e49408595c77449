// SPDX-License-Identifier: Apache-2.0
// An engine that lends its memory, however it is laid out, gets the same bits back; and forks compute what a request
// with their tokens computes.
#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/exactness/restore_road.h"

namespace larder::exactness {
namespace {

class LentMemory : public ::testing::TestWithParam<std::string> {};

TEST_P(LentMemory, IsBitIdenticalHoweverItIsLaidOut) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  for (const pool_test::Lending lending : pool_test::kAllLendings) {
    for (const HostLayout layout : {HostLayout::kPageFirst, HostLayout::kPageHead}) {
      SCOPED_TRACE("lending " + std::to_string(static_cast<int>(lending)));
      RigOptions options;
      options.layout = layout;
      options.lending = lending;
      options.config.load_back_threshold = 1;
      options.config.chunked_prefill_tokens = 8 * model.page_size;
      Rig rig(model, options);
      const RunResult first = rig.run(script.first, kRoadOutputs);
      EXPECT_TRUE(first.output == Tokens(script.first_output)) << "without a cached page";
      const RunResult again = rig.run(script.second, kRoadOutputs);
      EXPECT_GT(again.cached.device, 0u);
      EXPECT_TRUE(again.logits == script.second_logits);
      rig.press_device(30);
      const RunResult loaded = rig.run(script.second, kRoadOutputs);
      EXPECT_GT(loaded.cached.host, 0u);
      EXPECT_TRUE(loaded.logits == script.second_logits);
    }
  }
}

TEST_P(LentMemory, AForkComputesWhatARequestWithItsTokensComputes) {
  const ModelSpec model = preset_model(GetParam()).value();
  constexpr std::size_t kCount = 5;
  for (const std::size_t length : {std::size_t{model.page_size} + 7, std::size_t{2 * model.page_size}}) {
    const Tokens prompt = random_tokens(11, length, model.vocab_size);
    const Tokens first = {3, 200, 3};  // two of them go the same way
    RigOptions options;
    options.device = {24, 48, 20};
    options.config.chunked_prefill_tokens = 2 * model.page_size;
    Rig rig(model, options);
    const std::vector<RunResult> results = rig.run_forks(prompt, first, kCount);
    for (std::size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE("fork " + std::to_string(i) + " of a prompt of " + std::to_string(length));
      ASSERT_EQ(results[i].output.size(), kCount);
      Truth truth(model, length + kCount);
      (void)truth.feed(prompt);
      for (std::size_t n = 0; n < kCount; ++n) {
        EXPECT_TRUE(truth.feed(std::span(&results[i].output[n], 1)) == results[i].logits[n]) << "token " << n;
      }
    }
    EXPECT_TRUE(results[0].output == results[2].output);
    EXPECT_FALSE(results[0].output == results[1].output);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, LentMemory, ::testing::ValuesIn(tiny_presets()), preset_test_name);

}  // namespace
}  // namespace larder::exactness
