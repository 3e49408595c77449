// SPDX-License-Identifier: Apache-2.0
// Every tier too small, every policy at random, conversations that grow, fork, repeat and stop short: whatever was
// evicted, demoted, fetched in part or lost on the way, each answer is that of a model without a cache. Seeded.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "model/presets.h"
#include "tests/exactness/exactness_rig.h"

namespace larder::exactness {
namespace {

constexpr int kRequests = 14;
constexpr std::size_t kOutputs = 3;
constexpr std::size_t kMostPages = 8;  // of one conversation

CacheConfig random_config(Rng& rng, const ModelSpec& model) {
  CacheConfig c;
  c.eviction_policy = static_cast<EvictionPolicy>(rng.below(7));
  c.write_policy = static_cast<WritePolicy>(rng.below(3));
  c.exclusive_tiers = rng.below(3) == 0;
  c.prefetch_policy = static_cast<PrefetchPolicy>(rng.below(3));
  c.prefetch_threshold = static_cast<std::uint32_t>(rng.below(3) * model.page_size);
  c.prefetch_capacity = rng.chance(1, 2) ? 1.0 : 0.3;
  c.load_back_threshold = static_cast<std::uint32_t>(rng.below(2) * 3 * model.page_size);
  c.checkpoint_grid = static_cast<std::uint32_t>(rng.below(3) * model.page_size);
  c.chunked_prefill_tokens = static_cast<std::uint32_t>(kMostPages) * model.page_size;
  c.host_tier_for_state = !rng.chance(1, 6);
  c.loads_by_layer = !rng.chance(1, 3);
  c.host_tier_for_full = !rng.chance(1, 8);
  return c;
}

RigOptions random_options(Rng& rng, const ModelSpec& model, StorageBackend* storage) {
  RigOptions options;
  options.config = random_config(rng, model);
  options.layout = kAllHostLayouts[rng.below(kAllHostLayouts.size())];
  options.device = {static_cast<std::uint32_t>(rng.between(kMostPages, 14)),
                    static_cast<std::uint32_t>(rng.between(2 * model.window_pages() + kMostPages + 3, 20)),
                    static_cast<std::uint32_t>(rng.between(3, 8))};
  options.host_ratio = 0.4 + 1.6 * rng.uniform();
  options.storage = storage;
  return options;
}

// A prompt that shares a beginning with earlier ones, most of the time.
Tokens next_prompt(Rng& rng, const ModelSpec& model, const std::vector<Tokens>& earlier) {
  const std::size_t most = kMostPages * model.page_size - kOutputs;
  Tokens prompt;
  if (!earlier.empty() && rng.chance(4, 5)) {
    prompt = earlier[rng.below(earlier.size())];
    if (rng.chance(1, 2)) prompt.resize(rng.between(1, prompt.size()));
  }
  const std::size_t room = most - std::min(most, prompt.size());
  const Tokens more = random_tokens(rng.next_u64(), rng.between(1, 2 * model.page_size), model.vocab_size);
  prompt.insert(prompt.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(std::min(room, more.size())));
  if (prompt.size() > most) prompt.resize(most);
  return prompt;
}

// LARDER_EXACTNESS_SEEDS=<count> for a longer search.
std::uint64_t last_seed() {
  const char* text = std::getenv("LARDER_EXACTNESS_SEEDS");
  return text == nullptr ? 3 : std::max<std::uint64_t>(1, std::strtoull(text, nullptr, 10));
}

class Pressure : public ::testing::TestWithParam<std::string> {};

TEST_P(Pressure, NeverChangesAnAnswer) {
  const ModelSpec model = preset_model(GetParam()).value();
  std::uint64_t cached = 0;
  for (std::uint64_t seed = 1; seed <= last_seed(); ++seed) {
    SCOPED_TRACE(model.id + ", seed " + std::to_string(seed));
    Rng rng(seed);
    Stores stores;
    const std::string size = std::to_string(model.slot_bytes(ComponentKind::kFull) * 40 + 400'000);
    const std::unique_ptr<StorageBackend> storage =
        rng.chance(3, 4) ? stores.open("memory", {{"max_size", size}}) : nullptr;
    Rig rig(model, random_options(rng, model, storage.get()));
    std::vector<Tokens> earlier;
    for (int i = 0; i < kRequests; ++i) {
      const Tokens prompt = next_prompt(rng, model, earlier);
      Truth truth(model, kMostPages * model.page_size);
      std::vector<StepLogits> logits;
      const Tokens expected = truth.generate(prompt, kOutputs, logits);
      const std::uint64_t chunk = rng.between(1, 3) * model.page_size - rng.below(model.page_size);
      const RunResult result = rig.run(prompt, kOutputs, {.chunk = chunk, .truth = &truth});
      ASSERT_EQ(result.output, expected) << "request " << i;
      ASSERT_TRUE(result.logits == logits) << "request " << i;
      const Status sound = rig.cache().check_invariants();
      ASSERT_TRUE(sound.is_ok()) << sound.to_string();
      cached += result.cached.cached();
      earlier.push_back(prompt);
      if (rng.chance(2, 3)) earlier.back().insert(earlier.back().end(), expected.begin(), expected.end());
      if (rng.chance(1, 8)) (void)rig.cache().flush();
    }
  }
  EXPECT_GT(cached, 0u);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' || c == '+' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Pressure, ::testing::ValuesIn(tiny_presets()), test_name);

}  // namespace
}  // namespace larder::exactness
