// SPDX-License-Identifier: Apache-2.0
#include "tests/exactness/restore_road.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace larder::exactness {
namespace {

bool is_store(From from) { return from >= From::kMemoryStore; }

std::string_view from_name(From from) {
  constexpr std::array<std::string_view, 6> kNames = {"device", "host", "memory", "file", "hf3fs", "mooncake"};
  return kNames[static_cast<std::size_t>(from)];
}

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

// Of the longest request of a script, whatever the size of its pages.
std::size_t most_tokens(const ModelSpec& model) { return std::max<std::size_t>(8 * model.page_size, 64); }

// Room for it, and a little more, so that others push it out.
RigOptions road_options(const ModelSpec& model) {
  RigOptions options;
  options.config.chunked_prefill_tokens = 8 * model.page_size;
  if (model.page_size < 8) options.device = {96 / model.page_size, 320 / model.page_size, 8};
  return options;
}

}  // namespace

Script::Script(const ModelSpec& model)
    : first(random_tokens(11, 9 * model.page_size / 2 + 17, model.vocab_size)),
      question(random_tokens(12, model.page_size / 2 + 3, model.vocab_size)),
      other(random_tokens(13, model.page_size + 5, model.vocab_size)),
      turns(model, most_tokens(model)),
      fork(model, most_tokens(model)) {
  first_output = turns.generate(first, kRoadOutputs, first_logits);
  Tokens rest = {first_output.back()};  // sampled, not fed yet
  rest.insert(rest.end(), question.begin(), question.end());
  second = first;
  second.insert(second.end(), first_output.begin(), first_output.end());
  second.insert(second.end(), question.begin(), question.end());
  second_output = turns.generate(rest, kRoadOutputs, second_logits);
  forked = first;
  forked.insert(forked.end(), other.begin(), other.end());
  forked_output = fork.generate(forked, kRoadOutputs, forked_logits);
}

void check_road(const Script& script, const ModelSpec& model, HostLayout layout, From from,
                const BackendOptions& store) {
  SCOPED_TRACE(model.id + ", " + std::string(host_layout_name(layout)) + ", from " + std::string(from_name(from)));
  Stores stores;
  std::unique_ptr<StorageBackend> backend;
  if (is_store(from)) backend = stores.open(std::string(from_name(from)), store);
  RigOptions options = road_options(model);
  options.layout = layout;
  options.storage = backend.get();
  options.config.prefetch_threshold = 1;
  options.config.load_back_threshold = 1;
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  const std::uint64_t page = model.page_size;
  Rig rig(model, options);

  const RunResult first = rig.run(script.first, kRoadOutputs, {.chunk = page + 7});
  EXPECT_EQ(first.cached.cached(), 0u);
  EXPECT_EQ(first.output, script.first_output);
  EXPECT_TRUE(first.logits == script.first_logits) << "logits of the first turn";

  move_to(rig, from, 21);
  const RunResult second =
      rig.run(script.second, kRoadOutputs, {.chunk = std::max<std::uint64_t>(1, 3 * page / 4), .truth = &script.turns});
  // All tokens of the first turn but the last one were computed: every whole page of them comes back.
  expect_from(second.cached, from, (script.first.size() + kRoadOutputs - 1) / page * page);
  EXPECT_GT(second.pages_compared, 0u);
  EXPECT_EQ(second.output, script.second_output);
  EXPECT_TRUE(second.logits == script.second_logits) << "logits of the second turn";

  move_to(rig, from, 22);
  const RunResult forked = rig.run(script.forked, kRoadOutputs, {.truth = &script.fork});
  expect_from(forked.cached, from, script.first.size() / page * page);
  EXPECT_EQ(forked.output, script.forked_output);
  EXPECT_TRUE(forked.logits == script.forked_logits) << "logits of the fork";

  // Once more, in one chunk: what the cache holds by now must be as good.
  move_to(rig, from, 23);
  const RunResult again = rig.run(script.second, kRoadOutputs, {.truth = &script.turns});
  EXPECT_EQ(again.output, script.second_output);
  EXPECT_TRUE(again.logits == script.second_logits) << "logits of the repeated turn";
}

void check_restart(const Script& script, const ModelSpec& model, From from, const BackendOptions& store) {
  Stores stores;
  RigOptions options = road_options(model);
  options.config.prefetch_threshold = 1;
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  for (const bool is_second_process : {false, true}) {
    const std::unique_ptr<StorageBackend> backend = stores.open(std::string(from_name(from)), store);
    ASSERT_NE(backend, nullptr);
    options.storage = backend.get();
    Rig rig(model, options);
    if (!is_second_process) {
      (void)rig.run(script.first, kRoadOutputs);
      continue;
    }
    const RunResult second = rig.run(script.second, kRoadOutputs, {.truth = &script.turns});
    expect_from(second.cached, from, (script.first.size() + kRoadOutputs - 1) / model.page_size * model.page_size);
    EXPECT_EQ(second.output, script.second_output);
    EXPECT_TRUE(second.logits == script.second_logits);
  }
}

std::string preset_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' || c == '+' ? '_' : c;
  return name;
}

}  // namespace larder::exactness
