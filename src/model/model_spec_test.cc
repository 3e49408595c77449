// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "model/presets.h"

namespace larder {
namespace {

using enum LayerKind;

ModelSpec preset(std::string_view name) {
  Result<ModelSpec> model = preset_model(name);
  EXPECT_TRUE(model.is_ok()) << model.status().to_string();
  return model.value_or(ModelSpec{});
}

// "kv[0 1] k:f32:64x2x16 v:f32:64x2x16", with "*" on anchors and "=" on replicated pools.
std::string describe(const PoolSpec& pool) {
  std::string text(pool_name(pool.name));
  text += pool.is_anchor ? "*" : "";
  text += pool.scope == RankScope::kReplicated ? "=" : "";
  text += "[";
  for (std::size_t i = 0; i < pool.layers.size(); ++i) text += (i == 0 ? "" : " ") + std::to_string(pool.layers[i]);
  text += "]";
  for (const PlaneSpec& plane : pool.planes) {
    text += " " + plane.name + ":" + std::string(dtype_name(plane.dtype)) + ":" + std::to_string(plane.rows) + "x" +
            std::to_string(plane.heads) + "x" + std::to_string(plane.head_dim);
  }
  return text;
}

std::vector<std::string> describe_pools(const ModelSpec& model) {
  std::vector<std::string> lines;
  for (const PoolSpec& pool : model.pools) lines.push_back(describe(pool));
  return lines;
}

using Lines = std::vector<std::string>;

TEST(DerivePoolsTest, Attention) {
  EXPECT_EQ(describe_pools(preset("gqa-tiny")), (Lines{"kv*[0 1 2 3] k:f32:64x2x16 v:f32:64x2x16"}));
}

TEST(DerivePoolsTest, DraftLayersFollowTheModels) {
  const ModelSpec model = preset("gqa-tiny+draft");
  EXPECT_EQ(describe_pools(model),
            (Lines{"draft[4] k:f32:64x2x16 v:f32:64x2x16", "kv*[0 1 2 3] k:f32:64x2x16 v:f32:64x2x16"}));
  EXPECT_EQ(model.layer_count(), 5u);
  EXPECT_FALSE(model.is_rank_replicated());
}

TEST(DerivePoolsTest, LatentAttentionIsReplicated) {
  EXPECT_EQ(describe_pools(preset("mla-tiny")), (Lines{"kv*=[0 1 2 3] latent:f32:64x1x40"}));
  EXPECT_EQ(describe_pools(preset("dsa-tiny")),
            (Lines{"indexer=[0 1 2 3] index_k:f32:64x1x16", "kv*=[0 1 2 3] latent:f32:64x1x40"}));
  EXPECT_TRUE(preset("dsa-tiny").is_rank_replicated());
  EXPECT_FALSE(preset("dsa-tiny+draft").is_rank_replicated());
}

TEST(DerivePoolsTest, SlidingWindow) {
  EXPECT_EQ(describe_pools(preset("swa-tiny")),
            (Lines{"kv*[1 3] k:f32:64x2x16 v:f32:64x2x16", "swa*[0 2] k:f32:64x2x16 v:f32:64x2x16"}));
  EXPECT_EQ(describe_pools(preset("gemma3-tiny")),
            (Lines{"kv*[5] k:f32:64x2x16 v:f32:64x2x16", "swa*[0 1 2 3 4] k:f32:64x2x16 v:f32:64x2x16"}));
}

// conv: (4 - 1) taps of q, k (2 heads x 16 each) and v (4 heads x 16). temporal: 4 heads of 16 x 16.
TEST(DerivePoolsTest, GatedDeltaNet) {
  EXPECT_EQ(describe_pools(preset("gdn-tiny")),
            (Lines{"kv*[3] k:f32:64x2x16 v:f32:64x2x16", "mamba*[0 1 2] conv:f32:1x1x384 temporal:f32:1x1x1024"}));
}

// conv: (4 - 1) taps of x (4 heads x 16), B and C (1 group x 16 each).
TEST(DerivePoolsTest, Mamba2) {
  EXPECT_EQ(describe_pools(preset("mamba2-tiny")),
            (Lines{"kv*[2] k:f32:64x2x16 v:f32:64x2x16", "mamba*[0 1 3] conv:f32:1x1x288 temporal:f32:1x1x1024"}));
}

// A model without full attention still has the backbone that its other components hang on.
TEST(DerivePoolsTest, ShortConvAloneHasALogicalAnchor) {
  ModelSpec model;
  model.id = "conv";
  model.layers = {kShortConv, kShortConv};
  model.dims.conv_kernel = 3;
  ASSERT_TRUE(finalize_model(model).is_ok());
  EXPECT_EQ(describe_pools(model), (Lines{"kv*[]", "mamba*[0 1] conv:f32:1x1x128"}));
  EXPECT_EQ(model.slot_bytes(ComponentKind::kFull), 0u);
  EXPECT_TRUE(model.has(ComponentKind::kFull));
}

TEST(DerivePoolsTest, SlidingWindowAloneHasALogicalAnchor) {
  ModelSpec model;
  model.id = "window";
  model.layers = {kSlidingAttention};
  model.dims.window = 100;
  ASSERT_TRUE(finalize_model(model).is_ok());
  EXPECT_EQ(describe_pools(model), (Lines{"kv*[]", "swa*[0] k:f32:64x2x16 v:f32:64x2x16"}));
}

TEST(DerivePoolsTest, DeepSeekV4) {
  EXPECT_EQ(describe_pools(preset("dsv4-tiny")),
            (Lines{
                "deepseek_v4_c4=[1 3] entry:f32:32x1x40",
                "deepseek_v4_c4_indexer=[1 3] index_k:f32:32x1x16",
                "deepseek_v4_c128=[2 4] entry:f32:1x1x40",
                "kv*=[]",
                "deepseek_v4_c4_state=[1 3] value:f32:8x1x40 score:f32:8x1x1",
                "deepseek_v4_c4_indexer_state=[1 3] value:f32:8x1x16 score:f32:8x1x1",
                "swa*=[0 1 2 3 4] latent:f32:128x1x40",
            }));
}

// The ring stays f32 where the entries are bf16; published dimensions give published sizes.
TEST(DerivePoolsTest, RealGeometry) {
  const ModelSpec v4 = preset("dsv4-real");
  EXPECT_EQ(v4.find_pool(PoolName::kDeepseekV4C4)->planes[0].dtype, Dtype::kBf16);
  EXPECT_EQ(v4.find_pool(PoolName::kDeepseekV4C4State)->planes[0].dtype, Dtype::kF32);
  EXPECT_EQ(v4.find_pool(PoolName::kDeepseekV4C128)->planes[0].rows, 2u);

  const ModelSpec gdn = preset("gdn-real");  // 36 layers of 32 x 128 x 128 f32 and 3 x 8192 bf16
  EXPECT_EQ(gdn.slot_bytes(ComponentKind::kMamba), 36u * (32 * 128 * 128 * 4 + 3 * 8192 * 2));
  const ModelSpec mla = preset("mla-real");  // 576 bf16 a token and layer
  EXPECT_EQ(mla.slot_bytes(ComponentKind::kFull), 61u * 576 * 2 * 64);
}

TEST(DerivePoolsTest, HitPolicyFollowsTheComponent) {
  for (const PresetInfo& info : all_presets()) {
    SCOPED_TRACE(info.name);
    const ModelSpec model = preset(info.name);
    for (const ComponentKind component : kAllComponents) {
      const auto pools = model.pools_of(component);
      EXPECT_EQ(pools.empty(), !model.has(component));
      for (std::size_t i = 0; i < pools.size(); ++i) {
        EXPECT_EQ(pools[i]->is_anchor, i + 1 == pools.size());  // one anchor, last
        EXPECT_EQ(pools[i]->hit_policy,
                  component == ComponentKind::kFull ? HitPolicy::kAllPages : HitPolicy::kTrailingPages);
      }
      if (!pools.empty()) {
        EXPECT_EQ(&model.anchor(component), pools.back());
      }
    }
    EXPECT_EQ(model.anchor(ComponentKind::kFull).name, PoolName::kKv);
  }
}

TEST(ModelSpecTest, SlotBytesIsTheSumOfItsPools) {
  const ModelSpec model = preset("dsv4-tiny+draft");
  EXPECT_EQ(model.slot_bytes(ComponentKind::kFull),
            2u * 32 * 40 * 4 + 2 * 32 * 16 * 4 + 2 * 40 * 4 + 2 * 128 * 2 * 16 * 4);
  EXPECT_EQ(model.slot_bytes(ComponentKind::kSwa), 2u * 8 * 41 * 4 + 2 * 8 * 17 * 4 + 5 * 128 * 40 * 4);
  EXPECT_EQ(model.slot_bytes(ComponentKind::kMamba), 0u);
  EXPECT_EQ(model.find_pool(PoolName::kIndexer), nullptr);
}

TEST(ModelSpecTest, WindowPages) {
  ModelSpec model = preset("swa-tiny");
  EXPECT_EQ(model.window_pages(), 2u);
  EXPECT_EQ(model.window_pages_at(0), 0u);
  EXPECT_EQ(model.window_pages_at(1), 1u);
  EXPECT_EQ(model.window_pages_at(2), 2u);
  EXPECT_EQ(model.window_pages_at(std::uint64_t{1} << 40), 2u);
  for (const auto& [window, pages] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 1}, {64, 1}, {65, 2}, {129, 3}}) {
    model.dims.window = window;
    ASSERT_TRUE(finalize_model(model).is_ok());
    EXPECT_EQ(model.window_pages(), pages);
  }
  EXPECT_EQ(preset("gqa-tiny").window_pages(), 0u);
  EXPECT_EQ(preset("gqa-tiny").window_pages_at(9), 0u);
}

TEST(ModelSpecTest, LayerKindNamesRoundTrip) {
  for (const LayerKind kind : kAllLayerKinds) EXPECT_EQ(parse_layer_kind(layer_kind_name(kind)), kind);
  EXPECT_EQ(layer_kind_name(kGatedDeltaNet), "gdn");
  EXPECT_EQ(layer_kind_name(kV4C128), "v4_c128");
  EXPECT_FALSE(parse_layer_kind("GDN"));
}

// Each case breaks one valid model in one way; the message must name the field and the remedy.
struct BadModel {
  std::string_view base;
  std::function<void(ModelSpec&)> damage;
  std::string_view message;
};

const std::vector<BadModel>& bad_models() {
  static const std::vector<BadModel> cases = {
      {"gqa-tiny", [](auto& m) { m.id.clear(); }, "id is empty"},
      {"gqa-tiny", [](auto& m) { m.id.assign(300, 'x'); }, "longer than 256 bytes"},
      {"gqa-tiny", [](auto& m) { m.page_size = 0; }, "page_size is 0: it must be 1 to 65536"},
      {"gqa-tiny", [](auto& m) { m.page_size = 70000; }, "page_size is 70000"},
      {"gqa-tiny", [](auto& m) { m.vocab_size = 0; }, "vocab_size is 0"},
      {"gqa-tiny", [](auto& m) { m.context_length = 0; }, "context_length is 0"},
      {"gqa-tiny", [](auto& m) { m.layers.clear(); }, "layers is empty"},
      {"gqa-tiny", [](auto& m) { m.layers.resize(1025); },
       "layers and draft.layers together is 1025: it must be 1 to 1024"},
      {"gqa-tiny", [](auto& m) { m.draft.layers = 0xffffffffu; }, "layers and draft.layers together"},
      {"gqa-tiny", [](auto& m) { m.dims.hidden = 0; }, "dims.hidden is 0"},
      {"gqa-tiny", [](auto& m) { m.dims.ffn = 0; }, "dims.ffn is 0"},
      {"gqa-tiny", [](auto& m) { m.dims.ffn = 1u << 21; }, "dims.ffn is 2097152: it must be 1 to 1048576"},
      {"gqa-tiny", [](auto& m) { m.dims.head_dim = 1u << 21; }, "dims.head_dim is 2097152: it must be at most 1048576"},
      {"gdn-tiny", [](auto& m) { m.dims.conv_kernel = 257; }, "dims.conv_kernel is 257: it must be at most 256"},
      {"gqa-tiny", [](auto& m) { m.dims.kv_heads = 0; }, "dims.kv_heads is 0, but layer 0 (attention) needs it"},
      {"gqa-tiny", [](auto& m) { m.dims.kv_heads = 3; }, "dims.kv_heads (3) does not divide dims.q_heads (4)"},
      {"gqa-tiny", [](auto& m) { m.dims.head_dim = 15; }, "dims.head_dim is 15: rotary positions need an even number"},
      {"mla-tiny", [](auto& m) { m.dims.rope_dim = 7; }, "dims.rope_dim is 7"},
      {"mla-tiny", [](auto& m) { m.dims.kv_lora_rank = 0; }, "dims.kv_lora_rank is 0, but layer 0 (mla) needs it"},
      {"mla-tiny+draft", [](auto& m) { m.dims.kv_heads = 0; }, "draft.layers is 1, but dims.q_heads"},
      {"swa-tiny", [](auto& m) { m.dims.window = 0; }, "dims.window is 0, but layer 0 (sliding_attention) needs it"},
      {"dsa-tiny", [](auto& m) { m.dims.index_topk = 0; }, "dims.index_topk is 0, but layer 0 (mla_dsa) needs it"},
      {"dsa-tiny", [](auto& m) { m.dims.index_dim = 0; }, "dims.index_dim is 0"},
      {"gdn-tiny", [](auto& m) { m.dims.ssm_state_dim = 0; }, "dims.ssm_state_dim is 0, but layer 0 (gdn) needs it"},
      {"gdn-tiny", [](auto& m) { m.dims.ssm_key_heads = 3; },
       "dims.ssm_key_heads (3) does not divide dims.ssm_heads (4)"},
      {"gdn-tiny", [](auto& m) { m.dims.conv_kernel = 1; }, "keeps conv_kernel - 1 inputs as its state"},
      {"mamba2-tiny", [](auto& m) { m.dims.ssm_heads = 0; }, "dims.ssm_heads is 0, but layer 0 (mamba2) needs it"},
      {"dsv4-tiny", [](auto& m) { m.dims.window = 0; }, "dims.window is 0, but layer 0 (v4_window) needs it"},
      {"dsv4-tiny", [](auto& m) { m.page_size = 64; }, "page_size must be a multiple of 128"},
      {"dsv4-tiny",
       [](auto& m) {
         m.layers = {kV4C4};
         m.page_size = 126;
       },
       "page_size must be a multiple of 4"},
      {"gqa-tiny",
       [](auto& m) {
         m.layers = {kAttention, kMla};
         m.dims.kv_lora_rank = 8;
       },
       "layers mix layer 0 (attention) and layer 1 (mla): their pages in pool kv have different shapes"},
      {"dsv4-tiny", [](auto& m) { m.layers.push_back(kSlidingAttention); }, "in pool swa have different shapes"},
      {"dsv4-tiny", [](auto& m) { m.layers.push_back(kMla); }, "in pool kv have different shapes"},
      {"gdn-tiny", [](auto& m) { m.layers.push_back(kMamba2); }, "in pool mamba have different shapes"},
      {"gdn-tiny", [](auto& m) { m.layers.push_back(kShortConv); }, "in pool mamba have different shapes"},
      {"gdn-tiny",
       [](auto& m) { m.dims.ssm_heads = m.dims.ssm_key_heads = m.dims.ssm_state_dim = m.dims.ssm_head_dim = 1u << 20; },
       "elements: make dims.ssm_* smaller"},
      {"gqa-tiny", [](auto& m) { m.dims.head_dim = 1u << 20; }, "the limit is 4 GiB a page"},
  };
  return cases;
}

TEST(FinalizeModelTest, ErrorsNameTheFieldAndTheRemedy) {
  for (const BadModel& bad : bad_models()) {
    SCOPED_TRACE(std::string(bad.base) + ": " + std::string(bad.message));
    ModelSpec model = preset(bad.base);
    bad.damage(model);
    const Status status = finalize_model(model);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(bad.message), std::string::npos) << status.message();
    EXPECT_TRUE(model.pools.empty());
  }
}

TEST(FinalizeModelTest, C4AloneNeedsOnlyMultiplesOfFour) {
  ModelSpec model = preset("dsv4-tiny");
  model.layers = {kV4Window, kV4C4};
  model.page_size = 12;
  ASSERT_TRUE(finalize_model(model).is_ok());
  EXPECT_EQ(model.find_pool(PoolName::kDeepseekV4C4)->planes[0].rows, 3u);
  EXPECT_EQ(model.find_pool(PoolName::kDeepseekV4C128), nullptr);
}

TEST(FinalizeModelTest, IsIdempotent) {
  ModelSpec model = preset("dsv4-tiny+draft");
  const std::vector<PoolSpec> pools = model.pools;
  ASSERT_TRUE(finalize_model(model).is_ok());
  EXPECT_EQ(model.pools, pools);
}

}  // namespace
}  // namespace larder
