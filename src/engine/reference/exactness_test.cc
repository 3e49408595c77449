// SPDX-License-Identifier: Apache-2.0
// The contract of reference_engine.h: pages, states and logits depend on the tokens alone.
#include <algorithm>

#include "engine/reference/engine_test_util.h"

namespace larder::reference {
namespace {

constexpr std::size_t kPrompt = 419;  // not a multiple of anything that the engine tiles by

// Shapes that no preset has: odd head sizes, bf16 pools, pages that no attention tile divides, short convolutions.
ModelSpec odd_model(const std::string& name) {
  ModelSpec model;
  model.id = name;
  if (name == "odd-gqa") {
    model.layers = {LayerKind::kSlidingAttention, LayerKind::kAttention};
    model.page_size = 24;
    model.dims = {.hidden = 72, .ffn = 100, .q_heads = 3, .kv_heads = 1, .head_dim = 10, .window = 50};
    model.kv_dtype = Dtype::kBf16;
  } else if (name == "odd-gdn") {
    model.layers = {LayerKind::kGatedDeltaNet, LayerKind::kAttention, LayerKind::kGatedDeltaNet};
    model.dims = {.hidden = 40,
                  .ffn = 60,
                  .q_heads = 2,
                  .kv_heads = 2,
                  .head_dim = 12,
                  .ssm_heads = 3,
                  .ssm_key_heads = 1,
                  .ssm_head_dim = 10,
                  .ssm_state_dim = 6,
                  .conv_kernel = 3};
    model.conv_dtype = model.ssm_dtype = model.kv_dtype = Dtype::kBf16;
  } else if (name == "odd-mamba2") {
    model.layers = {LayerKind::kMamba2, LayerKind::kSlidingAttention, LayerKind::kMamba2};
    model.dims = {.hidden = 40,
                  .ffn = 60,
                  .q_heads = 2,
                  .kv_heads = 2,
                  .head_dim = 12,
                  .window = 64,
                  .ssm_heads = 4,
                  .ssm_key_heads = 2,
                  .ssm_head_dim = 18,
                  .ssm_state_dim = 5,
                  .conv_kernel = 2};
    model.conv_dtype = model.ssm_dtype = Dtype::kBf16;
  } else if (name == "short-conv") {
    model.layers = {LayerKind::kShortConv, LayerKind::kShortConv, LayerKind::kAttention, LayerKind::kShortConv};
    model.dims.conv_kernel = 3;
  } else {
    model.layers = {LayerKind::kV4C4, LayerKind::kV4C128, LayerKind::kV4C4};
    model.page_size = 128;
    model.dims = {.hidden = 40,
                  .ffn = 60,
                  .q_heads = 3,
                  .kv_heads = 1,
                  .head_dim = 16,
                  .kv_lora_rank = 20,
                  .rope_dim = 6,
                  .index_heads = 3,
                  .index_dim = 7,
                  .index_topk = 10,
                  .window = 24};
    model.kv_dtype = Dtype::kBf16;
  }
  EXPECT_TRUE(finalize_model(model).is_ok());
  return model;
}

ModelSpec model_named(const std::string& name) {
  return name.find("-tiny") != std::string::npos ? preset(name) : odd_model(name);
}

class Exactness : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = model_named(GetParam());
    tokens_ = random_tokens(11, kPrompt, model_);
  }

  // Logits and bytes of the plain run: one sequence, one step, one thread.
  struct Truth {
    std::string output;
    std::string cached;
  };
  Truth plain_run(const Kernels& kernels = best_kernels()) {
    TestRig rig(model_, 1, kernels);
    TestSequence sequence = rig.sequence(tokens_);
    const StepResult result = rig.run(sequence);
    EXPECT_EQ(result.logits.size(), model_.vocab_size);
    EXPECT_EQ(result.draft_logits.size(), model_.draft.layers > 0 ? model_.vocab_size : 0u);
    return {output_bytes(result), rig.cached_bytes(sequence)};
  }

  ModelSpec model_;
  std::vector<TokenId> tokens_;
};

TEST_P(Exactness, LogitsAreFiniteAndVaried) {
  TestRig rig(model_, 1);
  TestSequence sequence = rig.sequence(tokens_);
  const StepResult result = rig.run(sequence);
  for (const float logit : result.logits) ASSERT_TRUE(std::isfinite(logit));
  const auto [low, high] = std::minmax_element(result.logits.begin(), result.logits.end());
  EXPECT_GT(*high - *low, 4.0f);
  EXPECT_LT(*high - *low, 40.0f);
}

TEST_P(Exactness, ChunkSplitIsInvisible) {
  const Truth truth = plain_run();
  for (const std::size_t chunk : {1u, 7u, 33u, 64u, 130u}) {
    TestRig rig(model_, 1);
    TestSequence sequence = rig.sequence(tokens_);
    EXPECT_EQ(output_bytes(rig.run(sequence, chunk)), truth.output) << "chunk " << chunk;
    EXPECT_EQ(rig.cached_bytes(sequence), truth.cached) << "chunk " << chunk;
  }
}

TEST_P(Exactness, BatchAndThreadsAreInvisible) {
  const Truth truth = plain_run();
  for (const std::uint32_t threads : {1u, 2u, 3u}) {
    TestRig rig(model_, threads);
    TestSequence other = rig.sequence(random_tokens(5, 300, model_));
    TestSequence sequence = rig.sequence(tokens_);
    TestSequence third = rig.sequence(random_tokens(6, 77, model_));
    rig.step({&other, &sequence, &third}, {120, 201, 0});
    rig.step({&other, &sequence, &third}, {1, 1, 70});
    rig.step({&other, &sequence, &third}, {1, 1, 1});
    const auto results = rig.step({&third, &sequence, &other}, {6, kPrompt - 203, 178});
    EXPECT_EQ(output_bytes(results[1]), truth.output) << threads << " threads";
    EXPECT_EQ(rig.cached_bytes(sequence), truth.cached) << threads << " threads";
  }
}

TEST_P(Exactness, InstructionSetIsInvisible) {
  const Truth truth = plain_run();
  for (const Kernels* kernels : supported_kernels()) {
    const Truth other = plain_run(*kernels);
    EXPECT_EQ(other.output, truth.output) << kernels->name;
    EXPECT_EQ(other.cached, truth.cached) << kernels->name;
  }
}

TEST_P(Exactness, UnwrittenBytesAreNeverRead) {
  const Truth truth = plain_run();
  TestRig rig(model_, 1);
  TestSequence sequence = rig.sequence(tokens_);
  const auto spoil = [&](ComponentKind c, DeviceSlot slot) {
    for (const PoolSpec* pool : model_.pools_of(c)) {
      for (std::size_t l = 0; l < pool->layers.size(); ++l) {
        for (std::size_t p = 0; p < pool->planes.size(); ++p) {
          std::memset(rig.pools().page(pool->name, l, p, slot), 0xff, pool->planes[p].layer_bytes());  // NaN
        }
      }
    }
  };
  for (const DeviceSlot slot : sequence.pages.full) spoil(ComponentKind::kFull, slot);
  for (const DeviceSlot slot : sequence.pages.swa) spoil(ComponentKind::kSwa, slot);
  if (sequence.pages.state.valid()) spoil(ComponentKind::kMamba, sequence.pages.state);
  EXPECT_EQ(output_bytes(rig.run(sequence, 45, true)), truth.output);
}

// A second request takes over the pages of a prefix, the window's pages that are left, and the state's checkpoint.
TEST_P(Exactness, ResumeAtEveryPageEqualsStraightRun) {
  const Truth truth = plain_run();
  TestRig rig(model_, 2, best_kernels(), 256);  // no slot is used twice: rows behind a sequence's end stay zero
  TestSequence first = rig.sequence(tokens_);
  for (std::uint64_t p = model_.page_size; p < kPrompt; p += model_.page_size) {
    if (model_.has(ComponentKind::kMamba)) first.snapshots.push_back({p, rig.slot(ComponentKind::kMamba)});
  }
  EXPECT_EQ(output_bytes(rig.run(first, 97)), truth.output);
  for (std::uint64_t page = 1; page * model_.page_size < kPrompt; ++page) {
    TestSequence second = rig.sequence(tokens_, page);
    second.done = page * model_.page_size;
    const auto adopt = [&](std::vector<DeviceSlot>& to, const std::vector<DeviceSlot>& from, std::uint64_t begin) {
      for (std::uint64_t i = begin; i < page; ++i) to[i] = from[i];
    };
    if (model_.has(ComponentKind::kFull)) adopt(second.pages.full, first.pages.full, 0);
    if (model_.has(ComponentKind::kSwa)) adopt(second.pages.swa, first.pages.swa, page - model_.window_pages_at(page));
    if (model_.has(ComponentKind::kMamba)) {
      rig.copy_slot(ComponentKind::kMamba, first.snapshots[page - 1].slot, second.pages.state);
    }
    EXPECT_EQ(output_bytes(rig.run(second, 50)), truth.output) << "page " << page;
    const auto same = [&](ComponentKind c, const std::vector<DeviceSlot>& a, const std::vector<DeviceSlot>& b) {
      for (std::size_t i = page; i < a.size(); ++i) EXPECT_EQ(rig.bytes(c, a[i]), rig.bytes(c, b[i])) << "page " << i;
    };
    same(ComponentKind::kFull, first.pages.full, second.pages.full);
    same(ComponentKind::kSwa, first.pages.swa, second.pages.swa);
    if (model_.has(ComponentKind::kMamba)) {
      EXPECT_EQ(rig.bytes(ComponentKind::kMamba, first.pages.state),
                rig.bytes(ComponentKind::kMamba, second.pages.state));
    }
  }
}

// A wrong restore must show: the control of all tests above.
TEST_P(Exactness, WrongStateOrPageShowsInTheLogits) {
  const Truth truth = plain_run();
  const std::uint64_t split = 384;  // a page boundary of every model here
  const auto run_with = [&](auto corrupt) {
    TestRig rig(model_, 1);
    TestSequence sequence = rig.sequence(tokens_);
    rig.step({&sequence}, {split});
    corrupt(rig, sequence);
    return output_bytes(rig.run(sequence));
  };
  EXPECT_EQ(run_with([](TestRig&, TestSequence&) {}), truth.output);
  const auto swap = [](std::vector<DeviceSlot>& slots, std::size_t a, std::size_t b) { std::swap(slots[a], slots[b]); };
  const std::size_t last = split / model_.page_size - 1;
  if (model_.slot_bytes(ComponentKind::kFull) > 0) {  // else the anchor is logical
    EXPECT_NE(run_with([&](TestRig&, TestSequence& s) { swap(s.pages.full, 0, last); }), truth.output);
  }
  if (model_.has(ComponentKind::kSwa)) {
    EXPECT_NE(run_with([&](TestRig&, TestSequence& s) { swap(s.pages.swa, last, last - 1); }), truth.output);
  }
  if (model_.has(ComponentKind::kMamba)) {
    const auto clear = [](TestRig& rig, TestSequence& s) {
      rig.copy_slot(ComponentKind::kMamba, rig.slot(ComponentKind::kMamba), s.pages.state);
    };
    EXPECT_NE(run_with(clear), truth.output);
  }
}

std::vector<std::string> all_models() {
  std::vector<std::string> names = {"odd-gqa", "odd-gdn", "odd-mamba2", "short-conv", "odd-v4"};
  for (const char* name : {"gqa", "mla", "swa", "gemma3", "gdn", "mamba2", "dsa", "dsv4"}) {
    names.push_back(std::string(name) + "-tiny");
    names.push_back(std::string(name) + "-tiny+draft");
  }
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '+'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::ValuesIn(all_models()), test_name);

}  // namespace
}  // namespace larder::reference
