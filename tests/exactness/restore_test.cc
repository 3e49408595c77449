// SPDX-License-Identifier: Apache-2.0
// Restored is recomputed: from any tier, in any host layout, the bytes of the pages and the logits of what follows are
// bit for bit those of a run that never heard of a cache.
#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/exactness/restore_road.h"

namespace larder::exactness {
namespace {

class Restore : public ::testing::TestWithParam<std::string> {};

TEST_P(Restore, IsBitIdenticalFromEveryTierInEveryLayout) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  check_road(script, model, HostLayout::kPageFirst, From::kDevice);
  for (const HostLayout layout : kAllHostLayouts) {
    for (const From from : {From::kHost, From::kMemoryStore, From::kFileStore}) {
      check_road(script, model, layout, from);
      if (HasFailure()) return;
    }
  }
  check_road(script, model, HostLayout::kPageFirst, From::kHf3fsStore);  // copies through staging in all layouts
}

TEST_P(Restore, SurvivesARestartOfThoseStoresThatKeep) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  for (const From from : {From::kFileStore, From::kHf3fsStore}) check_restart(script, model, from);
}

// The engine begins while layers are still on their way, and gets what it would have got.
TEST_P(Restore, IsBitIdenticalWhileLayersStillArrive) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  RigOptions options;
  options.real_threads = true;
  options.config.load_back_threshold = 1;
  options.config.chunked_prefill_tokens = 8 * model.page_size;
  Rig rig(model, options);
  (void)rig.run(script.first, kRoadOutputs);
  for (std::uint64_t round = 0; round < 2; ++round) {
    rig.press_device(30 + round);
    const RunResult second = rig.run(script.second, kRoadOutputs);
    EXPECT_GT(second.cached.host, 0u);
    EXPECT_TRUE(second.logits == script.second_logits) << "round " << round;
  }
}

// The tests above can fail: damage to a restored page of any pool shows in what the model says next.
TEST_P(Restore, AWrongPageOfAnyPoolIsSeen) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  for (const PoolSpec& pool : model.pools) {
    if (pool.planes.empty()) continue;  // a logical anchor has no bytes
    SCOPED_TRACE(pool_name(pool.name));
    RigOptions options;
    options.config.chunked_prefill_tokens = 8 * model.page_size;
    Rig rig(model, options);
    (void)rig.run(script.first, kRoadOutputs);
    const RunResult second = rig.run(script.second, kRoadOutputs, {.spoil = pool.name});
    EXPECT_FALSE(second.logits == script.second_logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Restore, ::testing::ValuesIn(tiny_presets()), preset_test_name);

}  // namespace
}  // namespace larder::exactness
