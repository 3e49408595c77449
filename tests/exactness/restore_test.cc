// Restored is recomputed: from any tier, in any host layout, the bytes of the pages and the logits of what follows are
// bit for bit those of a run that never heard of a cache.
#include <gtest/gtest.h>

#include "model/presets.h"
#include "tests/exactness/exactness_rig.h"

namespace larder::exactness {
namespace {

enum class From { kDevice, kHost, kMemoryStore, kFileStore, kHf3fsStore };

bool is_store(From from) { return from >= From::kMemoryStore; }

std::string_view from_name(From from) {
  constexpr std::array<std::string_view, 5> kNames = {"device", "host", "memory", "file", "hf3fs"};
  return kNames[static_cast<std::size_t>(from)];
}

constexpr std::size_t kOutputs = 9;

// A conversation of two turns, and a second question after the same first prompt.
struct Script {
  explicit Script(const ModelSpec& model)
      : first(random_tokens(11, 9 * model.page_size / 2 + 17, model.vocab_size)),
        question(random_tokens(12, model.page_size / 2 + 3, model.vocab_size)),
        other(random_tokens(13, model.page_size + 5, model.vocab_size)),
        turns(model, 8 * model.page_size),
        fork(model, 8 * model.page_size) {
    first_output = turns.generate(first, kOutputs, first_logits);
    Tokens rest = {first_output.back()};  // sampled, not fed yet
    rest.insert(rest.end(), question.begin(), question.end());
    second = first;
    second.insert(second.end(), first_output.begin(), first_output.end());
    second.insert(second.end(), question.begin(), question.end());
    second_output = turns.generate(rest, kOutputs, second_logits);
    forked = first;
    forked.insert(forked.end(), other.begin(), other.end());
    forked_output = fork.generate(forked, kOutputs, forked_logits);
  }

  Tokens first, question, other, second, forked;
  Truth turns, fork;
  Tokens first_output, second_output, forked_output;
  std::vector<StepLogits> first_logits, second_logits, forked_logits;
};

class Restore : public ::testing::TestWithParam<std::string> {};

void expect_from(const CachedTokens& cached, From from, std::uint64_t tokens) {
  EXPECT_EQ(cached.device, from == From::kDevice ? tokens : 0u);
  EXPECT_EQ(cached.host, from == From::kHost ? tokens : 0u);
  EXPECT_EQ(cached.storage, is_store(from) ? tokens : 0u);
}

// Puts what the rig cached where the next request must fetch it from.
void move_to(Rig& rig, From from, std::uint64_t seed) {
  if (from == From::kDevice) return;
  if (from == From::kHost) {
    rig.press_device(seed);
  } else {
    (void)rig.cache().flush();
  }
}

void check_road(const Script& script, const ModelSpec& model, HostLayout layout, From from) {
  SCOPED_TRACE(model.id + ", " + std::string(host_layout_name(layout)) + ", from " + std::string(from_name(from)));
  Stores stores;
  std::unique_ptr<StorageBackend> backend;
  if (is_store(from)) backend = stores.open(std::string(from_name(from)));
  RigOptions options;
  options.layout = layout;
  options.storage = backend.get();
  options.config.prefetch_threshold = 1;
  options.config.load_back_threshold = 1;
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.config.chunked_prefill_tokens = 8 * model.page_size;
  const std::uint64_t page = model.page_size;
  Rig rig(model, options);

  const RunResult first = rig.run(script.first, kOutputs, {.chunk = page + 7});
  EXPECT_EQ(first.cached.cached(), 0u);
  EXPECT_EQ(first.output, script.first_output);
  EXPECT_TRUE(first.logits == script.first_logits) << "logits of the first turn";

  move_to(rig, from, 21);
  const RunResult second = rig.run(script.second, kOutputs, {.chunk = 3 * page / 4, .truth = &script.turns});
  // All tokens of the first turn but the last one were computed: every whole page of them comes back.
  expect_from(second.cached, from, (script.first.size() + kOutputs - 1) / page * page);
  EXPECT_GT(second.pages_compared, 0u);
  EXPECT_EQ(second.output, script.second_output);
  EXPECT_TRUE(second.logits == script.second_logits) << "logits of the second turn";

  move_to(rig, from, 22);
  const RunResult forked = rig.run(script.forked, kOutputs, {.truth = &script.fork});
  expect_from(forked.cached, from, (script.first.size() - 1) / page * page);
  EXPECT_EQ(forked.output, script.forked_output);
  EXPECT_TRUE(forked.logits == script.forked_logits) << "logits of the fork";

  // Once more, in one chunk: what the cache holds by now must be as good.
  move_to(rig, from, 23);
  const RunResult again = rig.run(script.second, kOutputs, {.truth = &script.turns});
  EXPECT_EQ(again.output, script.second_output);
  EXPECT_TRUE(again.logits == script.second_logits) << "logits of the repeated turn";
}

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

// A store outlives the process: a second one, with the same model, goes on where the first one left.
void check_restart(const std::string& preset, From from) {
  const ModelSpec model = preset_model(preset).value();
  const Script script(model);
  Stores stores;
  RigOptions options;
  options.config.prefetch_threshold = 1;
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.config.chunked_prefill_tokens = 8 * model.page_size;
  for (const bool is_second_process : {false, true}) {
    const std::unique_ptr<StorageBackend> backend = stores.open(std::string(from_name(from)));
    ASSERT_NE(backend, nullptr);
    options.storage = backend.get();
    Rig rig(model, options);
    if (!is_second_process) {
      (void)rig.run(script.first, kOutputs);
      continue;
    }
    const RunResult second = rig.run(script.second, kOutputs, {.truth = &script.turns});
    expect_from(second.cached, from, (script.first.size() + kOutputs - 1) / model.page_size * model.page_size);
    EXPECT_EQ(second.output, script.second_output);
    EXPECT_TRUE(second.logits == script.second_logits);
  }
}
TEST_P(Restore, SurvivesARestartInTheFileStore) { check_restart(GetParam(), From::kFileStore); }
TEST_P(Restore, SurvivesARestartInTheHf3fsStore) { check_restart(GetParam(), From::kHf3fsStore); }

// The engine begins while layers are still on their way, and gets what it would have got.
TEST_P(Restore, IsBitIdenticalWhileLayersStillArrive) {
  const ModelSpec model = preset_model(GetParam()).value();
  const Script script(model);
  RigOptions options;
  options.real_threads = true;
  options.config.load_back_threshold = 1;
  options.config.chunked_prefill_tokens = 8 * model.page_size;
  Rig rig(model, options);
  (void)rig.run(script.first, kOutputs);
  for (std::uint64_t round = 0; round < 2; ++round) {
    rig.press_device(30 + round);
    const RunResult second = rig.run(script.second, kOutputs);
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
    (void)rig.run(script.first, kOutputs);
    const RunResult second = rig.run(script.second, kOutputs, {.spoil = pool.name});
    EXPECT_FALSE(second.logits == script.second_logits);
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' || c == '+' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Restore, ::testing::ValuesIn(tiny_presets()), test_name);

}  // namespace
}  // namespace larder::exactness
