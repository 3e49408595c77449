// SPDX-License-Identifier: Apache-2.0
#include "model/restore_point.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/rng.h"
#include "model/presets.h"

namespace larder {
namespace {

Presence bits(std::string_view text) {
  Presence present;
  for (const char c : text) present.push_back(c == '1');
  return present;
}

// A model with just the pools an example talks about. page_size 16; window_pages pages of window if it has one.
ModelSpec model_of(std::vector<LayerKind> layers, std::uint32_t window_pages = 0) {
  ModelSpec spec;
  spec.id = "example";
  spec.page_size = 16;
  spec.layers = std::move(layers);
  spec.dims.window = window_pages * spec.page_size;
  spec.dims.kv_lora_rank = 8;
  spec.dims.index_heads = 1;
  spec.dims.index_dim = 4;
  spec.dims.index_topk = 8;
  spec.dims.conv_kernel = 3;
  const Status status = finalize_model(spec);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return spec;
}

RestorePoint answer(const ModelSpec& model, const std::vector<PoolPresence>& presence, std::uint64_t max_pages = 8) {
  const RestorePoint point = largest_restore_point(model, presence, max_pages);
  EXPECT_TRUE(is_restore_point(model, presence, point.pages));
  return point;
}

void expect_stop(const RestorePoint& point, std::uint64_t pages, StopReason reason, PoolName pool) {
  EXPECT_EQ(point.pages, pages);
  EXPECT_EQ(stop_reason_name(point.reason), stop_reason_name(reason));
  EXPECT_EQ(pool_name(point.pool), pool_name(pool));
}

using enum LayerKind;
constexpr PoolName kv = PoolName::kKv;
constexpr PoolName mamba = PoolName::kMamba;
constexpr PoolName swa = PoolName::kSwa;
constexpr PoolName indexer = PoolName::kIndexer;

// The worked examples of the field's algorithm (reference/hicache.md 2.5), with the joint answer. Where the field's
// answer differs, it is given.
TEST(WorkedExamples, Number1GapStopsPrefix) {
  expect_stop(answer(model_of({kAttention}), {{kv, bits("11110111")}}), 4, StopReason::kFullMissing, kv);
}

TEST(WorkedExamples, Number2SidecarGap) {
  expect_stop(answer(model_of({kMlaDsa}), {{kv, bits("11111111")}, {indexer, bits("11111011")}}), 5,
              StopReason::kSidecarMissing, indexer);
}

TEST(WorkedExamples, Number3CheckpointAtTheEnd) {
  expect_stop(answer(model_of({kAttention, kShortConv}), {{kv, bits("11111111")}, {mamba, bits("00010001")}}), 8,
              StopReason::kNone, kv);
}

TEST(WorkedExamples, Number4FallsBackToEarlierCheckpoint) {
  expect_stop(answer(model_of({kAttention, kShortConv}), {{kv, bits("11111110")}, {mamba, bits("00010001")}}), 4,
              StopReason::kStateMissing, mamba);
}

TEST(WorkedExamples, Number5WholeWindow) {
  expect_stop(answer(model_of({kAttention, kSlidingAttention}, 3), {{kv, bits("11111111")}, {swa, bits("00111011")}}),
              5, StopReason::kWindowMissing, swa);
}

TEST(WorkedExamples, Number6WindowClippedAtZero) {
  expect_stop(answer(model_of({kAttention, kSlidingAttention}, 3), {{kv, bits("11111111")}, {swa, bits("11000000")}}),
              2, StopReason::kWindowMissing, swa);
}

TEST(WorkedExamples, Number7StateAndWindowNeverMeet) {  // the field: 7, then the load fails
  expect_stop(answer(model_of({kAttention, kSlidingAttention, kShortConv}, 3),
                     {{kv, bits("11111111")}, {mamba, bits("00010001")}, {swa, bits("00001110")}}),
              0, StopReason::kStateMissing, mamba);
}

TEST(WorkedExamples, Number8JointOptimumBelowTheMinimum) {  // the field: 5, without a state there
  expect_stop(answer(model_of({kMlaDsa, kShortConv}),
                     {{kv, bits("11111111")}, {indexer, bits("11111000")}, {mamba, bits("00010001")}}),
              4, StopReason::kStateMissing, mamba);
}

TEST(WorkedExamples, Number9FirstPageMissing) {
  expect_stop(answer(model_of({kAttention, kShortConv}), {{kv, bits("01111111")}, {mamba, bits("11111111")}}), 0,
              StopReason::kFullMissing, kv);
}

TEST(WorkedExamples, Number10NoCheckpoint) {
  expect_stop(answer(model_of({kAttention, kShortConv}), {{kv, bits("11111111")}, {mamba, bits("00000000")}}), 0,
              StopReason::kStateMissing, mamba);
}

TEST(WorkedExamples, DesignStateAtThreeWindowAtTwo) {
  expect_stop(answer(model_of({kAttention, kSlidingAttention, kShortConv}, 2),
                     {{kv, bits("1111")}, {mamba, bits("0010")}, {swa, bits("1100")}}, 4),
              0, StopReason::kStateMissing, mamba);
}

TEST(RestorePointTest, EmptyQueryIsARestorePoint) {
  expect_stop(answer(model_of({kAttention}), {}, 0), 0, StopReason::kNone, kv);
}

TEST(RestorePointTest, UnlistedPoolCountsAsAbsent) {
  expect_stop(answer(model_of({kMlaDsa}), {{kv, bits("1111")}}, 4), 0, StopReason::kSidecarMissing, indexer);
}

TEST(RestorePointTest, ShortPresenceCountsAsAbsentTail) {
  expect_stop(answer(model_of({kAttention}), {{kv, bits("111")}}, 8), 3, StopReason::kFullMissing, kv);
}

TEST(RestorePointTest, PoolsTheModelLacksAreIgnored) {
  expect_stop(answer(model_of({kAttention}), {{kv, bits("1111")}, {mamba, bits("0000")}}, 4), 4, StopReason::kNone, kv);
}

TEST(RestorePointTest, AnchorIsNamedBeforeItsSidecar) {
  expect_stop(answer(model_of({kMlaDsa}), {{kv, bits("1011")}, {indexer, bits("1011")}}, 4), 1,
              StopReason::kFullMissing, kv);
}

// A window that is no multiple of the page still needs every page it touches.
TEST(RestorePointTest, PartOfAPageOfWindowNeedsThePage) {
  ModelSpec model = model_of({kAttention, kSlidingAttention}, 1);
  model.dims.window = 17;
  ASSERT_TRUE(finalize_model(model).is_ok());
  EXPECT_EQ(model.window_pages(), 2u);
  expect_stop(answer(model, {{kv, bits("1111")}, {swa, bits("1101")}}, 4), 2, StopReason::kWindowMissing, swa);
}

// Brute force straight from the table in DESIGN.md section 1, token by token; shares no code with the implementation.
class Oracle {
 public:
  Oracle(const ModelSpec& model, const std::vector<PoolPresence>& presence) : model_(model), presence_(presence) {}

  [[nodiscard]] bool satisfied(std::uint64_t p) const {
    for (const PoolSpec& pool : model_.pools) {
      if (!pool_satisfied(pool, p)) return false;
    }
    return true;
  }

  [[nodiscard]] std::uint64_t largest(std::uint64_t max_pages) const {
    std::uint64_t p = max_pages;
    while (!satisfied(p)) --p;  // 0 always is one
    return p;
  }

  [[nodiscard]] bool pool_satisfied(const PoolSpec& pool, std::uint64_t p) const {
    if (pool.component == ComponentKind::kMamba) return p == 0 || has_page(pool.name, p - 1);
    const std::uint64_t end = p * model_.page_size;
    const std::uint64_t window = model_.dims.window;
    const bool is_window = pool.component == ComponentKind::kSwa;
    for (std::uint64_t token = is_window && end > window ? end - window : 0; token < end; ++token) {
      if (!has_page(pool.name, token / model_.page_size)) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] bool has_page(PoolName name, std::uint64_t page) const {
    for (const PoolPresence& entry : presence_) {
      if (entry.pool == name) return page < entry.present.size() && entry.present[page];
    }
    return false;
  }

  const ModelSpec& model_;
  const std::vector<PoolPresence>& presence_;
};

ComponentKind component_of(StopReason reason) {
  if (reason == StopReason::kWindowMissing) return ComponentKind::kSwa;
  return reason == StopReason::kStateMissing ? ComponentKind::kMamba : ComponentKind::kFull;
}

// Holes of every density, so that both long prefixes and sparse checkpoints occur.
std::vector<PoolPresence> random_presence(Rng& rng, const ModelSpec& model, std::uint64_t pages) {
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) {
    if (rng.chance(1, 60)) continue;
    const std::uint64_t hole_in = std::uint64_t{1} << rng.between(1, 6);
    Presence present(rng.chance(1, 4) ? rng.below(pages + 1) : pages + rng.below(3));
    const bool sparse = pool.component == ComponentKind::kMamba && rng.chance(1, 2);
    for (std::size_t i = 0; i < present.size(); ++i) present[i] = sparse ? rng.chance(1, 4) : !rng.chance(1, hole_in);
    presence.push_back({pool.name, std::move(present)});
  }
  return presence;
}

void check_against_oracle(const ModelSpec& model, const std::vector<PoolPresence>& presence, std::uint64_t max_pages) {
  const Oracle oracle(model, presence);
  const RestorePoint point = largest_restore_point(model, presence, max_pages);
  ASSERT_EQ(point.pages, oracle.largest(max_pages));
  for (std::uint64_t p = 0; p <= max_pages; ++p)
    ASSERT_EQ(is_restore_point(model, presence, p), oracle.satisfied(p)) << p;
  ASSERT_EQ(point.reason == StopReason::kNone, point.pages == max_pages);
  if (point.reason == StopReason::kNone) return;

  const PoolSpec* pool = model.find_pool(point.pool);
  ASSERT_NE(pool, nullptr);
  ASSERT_EQ(pool->component, component_of(point.reason));
  bool pool_fails_further_right = false;
  for (std::uint64_t p = point.pages + 1; p <= max_pages; ++p) {
    pool_fails_further_right = pool_fails_further_right || !oracle.pool_satisfied(*pool, p);
  }
  ASSERT_TRUE(pool_fails_further_right);
}

// Every preset, and mixtures no preset has; small pages and odd windows keep the oracle quick and the corners frequent.
std::vector<ModelSpec> models_under_test() {
  std::vector<ModelSpec> models;
  for (const PresetInfo& info : all_presets()) {
    Result<ModelSpec> model = preset_model(info.name);
    EXPECT_TRUE(model.is_ok()) << info.name;
    models.push_back(*model);
  }
  const std::vector<std::vector<LayerKind>> mixtures = {{kSlidingAttention},
                                                        {kShortConv},
                                                        {kAttention, kSlidingAttention, kShortConv},
                                                        {kMlaDsa, kSlidingAttention, kShortConv}};
  for (const auto& layers : mixtures) {
    ModelSpec model = model_of(layers, 3);
    for (const std::uint32_t window : {1, 15, 16, 17, 40}) {
      model.dims.window = window;
      model.draft.layers = window % 2;
      EXPECT_TRUE(finalize_model(model).is_ok());
      models.push_back(model);
    }
  }
  return models;
}

TEST(RestorePointTest, EqualsBruteForceOnRandomHoles) {
  for (const ModelSpec& model : models_under_test()) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(model.id + " window " + std::to_string(model.dims.window) + " seed " + std::to_string(seed));
      Rng rng(seed);
      const std::uint64_t max_pages = rng.below(22);  // gemma3-real: a window of 16 pages
      check_against_oracle(model, random_presence(rng, model, max_pages), max_pages);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace larder
