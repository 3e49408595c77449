// SPDX-License-Identifier: Apache-2.0
// What a caller sees: prefix sensitivity, gates, errors, long runs.

#include "base/thread_pool.h"
#include "engine/reference/engine_test_util.h"
#include "engine/reference/sampler.h"

namespace larder::reference {
namespace {

class Sensitivity : public testing::TestWithParam<std::string> {};

// Any single early token of a 500-token prompt changes the logits, and most of the time the greedy token: a cache that
// returned the wrong prefix could not go unnoticed.
TEST_P(Sensitivity, EveryEarlyTokenCounts) {
  const ModelSpec model = preset(GetParam());
  TestRig rig(model, 2);
  int flips = 0, trials = 0;
  for (std::uint64_t seed = 3; seed < 6; ++seed) {
    TestSequence sequence = rig.sequence(random_tokens(seed, 500, model));
    const std::vector<float> truth = rig.run(sequence).logits;
    for (std::size_t at = 0; at < 320; at += 16, ++trials) {  // the window of 128 before the end is left alone
      const TokenId before = sequence.tokens[at];
      sequence.tokens[at] = (before + 101) % model.vocab_size;
      sequence.done = 0;
      const std::vector<float> logits = rig.run(sequence).logits;
      sequence.tokens[at] = before;
      EXPECT_NE(float_bytes(logits), float_bytes(truth)) << "token " << at;
      if (sample_greedy(logits) != sample_greedy(truth)) ++flips;
    }
  }
  RecordProperty("flips", flips);
  EXPECT_GT(2 * flips, trials) << flips << " of " << trials << " changed the greedy token";
}

INSTANTIATE_TEST_SUITE_P(Presets, Sensitivity,
                         testing::Values("gqa-tiny", "mla-tiny", "swa-tiny", "gemma3-tiny", "gdn-tiny", "mamba2-tiny",
                                         "dsa-tiny", "dsv4-tiny"),
                         [](const auto& test) { return test.param.substr(0, test.param.find('-')); });

TEST(ReferenceEngine, WeightsFollowTheSeed) {
  ModelSpec model = preset("gqa-tiny");
  const auto tokens = random_tokens(1, 20, model);
  const auto logits_of = [&](std::uint64_t seed) {
    model.weight_seed = seed;
    TestRig rig(model, 1);
    TestSequence sequence = rig.sequence(tokens);
    return float_bytes(rig.run(sequence).logits);
  };
  EXPECT_EQ(logits_of(1), logits_of(1));
  EXPECT_NE(logits_of(1), logits_of(2));
}

// A step longer than a round is cut; decode after it continues.
TEST(ReferenceEngine, LongStepEqualsShortSteps) {
  for (const char* name : {"gdn-tiny", "dsv4-tiny"}) {
    const ModelSpec model = preset(name);
    const auto tokens = random_tokens(2, kRoundRows * 2 + 300, model);
    TestRig rig(model, 2);
    TestSequence whole = rig.sequence(tokens);
    TestSequence parts = rig.sequence(tokens);
    const StepResult a = rig.run(whole);
    const StepResult b = rig.run(parts, 777, true);
    EXPECT_EQ(output_bytes(a), output_bytes(b)) << name;
  }
}

TEST(ReferenceEngine, GateHoldsALayerBackAndFailsOnlyItsSequence) {
  const ModelSpec model = preset("gdn-tiny+draft");
  TestRig rig(model, 2);
  const auto tokens = random_tokens(4, 100, model);
  TestSequence plain = rig.sequence(tokens);
  const StepResult truth = rig.run(plain);

  LayerGate open(model.layer_count());
  TestSequence late = rig.sequence(tokens);
  late.gate = &open;
  ThreadPoolExecutor loader("loader", 1, 1);
  ASSERT_TRUE(loader
                  .post([&] {
                    for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) open.arrive(layer);
                  })
                  .is_ok());
  EXPECT_EQ(output_bytes(rig.run(late)), output_bytes(truth));

  LayerGate broken(model.layer_count());
  broken.arrive(1);
  broken.fail(unavailable("the copy failed"));
  TestSequence failing = rig.sequence(tokens);
  TestSequence healthy = rig.sequence(tokens);
  failing.gate = &broken;
  const auto results = rig.step({&failing, &healthy}, {100, 100});
  EXPECT_EQ(results[0].status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(results[0].logits.empty());
  EXPECT_EQ(output_bytes(results[1]), output_bytes(truth));
}

TEST(ReferenceEngine, RefusesBadStepsOneByOne) {
  const ModelSpec model = preset("gdn-tiny");
  TestRig rig(model, 1);
  const auto expect_refused = [&](TestSequence& bad, std::size_t count) {
    TestSequence good = rig.sequence(random_tokens(1, 10, model));
    const auto results = rig.step({&bad, &good}, {count, 10});
    EXPECT_EQ(results[0].status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(results[1].status.is_ok()) << results[1].status.to_string();
  };
  TestSequence big_token = rig.sequence({1, model.vocab_size, 2});
  expect_refused(big_token, 3);
  TestSequence no_page = rig.sequence(random_tokens(1, 100, model));
  no_page.pages.full.pop_back();
  expect_refused(no_page, 100);
  TestSequence no_state = rig.sequence({1, 2});
  no_state.pages.state = DeviceSlot{};
  expect_refused(no_state, 2);
  TestSequence too_long = rig.sequence(random_tokens(1, 60, model));
  too_long.done = model.context_length - 1;
  too_long.tokens.resize(model.context_length + 1, 1);
  expect_refused(too_long, 2);
  TestSequence null_slot = rig.sequence({1, 2});
  null_slot.snapshots.push_back({1, DeviceSlot{}});
  expect_refused(null_slot, 2);
}

TEST(ReferenceEngine, RefusesWhatItCannotCompute) {
  ModelSpec model = preset("gqa-tiny");
  model.kv_dtype = Dtype::kFp8E4m3;
  ASSERT_TRUE(finalize_model(model).is_ok());
  ComponentCounts slots{};
  slots[index_of(ComponentKind::kFull)] = 2;
  auto pools = DevicePools::create(model, slots, host_memory_source());
  ASSERT_TRUE(pools.is_ok());
  const auto engine = ReferenceEngine::create(model, **pools, 1);
  ASSERT_FALSE(engine.is_ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("fp8"), std::string::npos) << engine.status().message();
  EXPECT_FALSE(ReferenceEngine::create(preset("gqa-tiny"), **pools, 1).is_ok());  // pools of another model

  const ModelSpec real = preset("gqa-real");
  slots[index_of(ComponentKind::kFull)] = 1;
  auto real_pools = DevicePools::create(real, slots, host_memory_source());
  ASSERT_TRUE(real_pools.is_ok());
  const auto too_big = ReferenceEngine::create(real, **real_pools, 1);
  ASSERT_FALSE(too_big.is_ok());
  EXPECT_NE(too_big.status().message().find("-tiny"), std::string::npos) << too_big.status().message();
}

}  // namespace
}  // namespace larder::reference
