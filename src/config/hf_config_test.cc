// SPDX-License-Identifier: Apache-2.0
// Published config.json files, cut to what is read, beside the presets of the same models; and what is refused.
#include "config/hf_config.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"
#include "model/presets.h"

namespace larder {
namespace {

HfModel model_of(std::string_view text, std::uint32_t page_size = 64) {
  const Result<HfModel> model = read_hf_config(text, "config.json", {.page_size = page_size});
  EXPECT_TRUE(model.is_ok()) << model.status().to_string();
  return model.is_ok() ? *model : HfModel{};
}

std::size_t bytes_in(const ModelSpec& spec, ComponentKind component) {
  return spec.has(component) ? spec.slot_bytes(component) : 0;
}

void expect_as_preset(std::string_view text, std::string_view preset) {
  const Result<ModelSpec> expected = preset_model(preset);
  ASSERT_TRUE(expected.is_ok());
  const HfModel model = model_of(text, expected->page_size);
  for (const ComponentKind component : kAllComponents) {
    EXPECT_EQ(bytes_in(model.spec, component), bytes_in(*expected, component))
        << preset << " " << component_name(component);
  }
  EXPECT_EQ(model.spec.window_pages(), expected->window_pages()) << preset;
  EXPECT_EQ(model.layers, expected->layers.size()) << preset;
  EXPECT_EQ(model.context_length, expected->context_length) << preset;
}

std::string repeated(std::string_view names, int times) {
  std::string list;
  for (int i = 0; i < times; ++i) list += (i > 0 ? "," : "") + std::string(names);
  return "[" + list + "]";
}

constexpr std::string_view kQwen3Next = R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
  "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "num_attention_heads": 16,
  "num_key_value_heads": 2, "num_hidden_layers": 48, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "torch_dtype": "bfloat16"})";

constexpr std::string_view kNemotronNano9b = R"({"model_type": "nemotron_h", "num_hidden_layers": 56,
  "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", "num_attention_heads": 40,
  "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4480, "mamba_num_heads": 128, "mamba_head_dim": 80,
  "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "time_step_limit": [0.0, Infinity],
  "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})";

TEST(HfConfig, PublishedModelsHaveTheSizesOfTheirPresets) {
  expect_as_preset(kQwen3Next, "gdn-real");
  expect_as_preset(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})",
                   "gqa-real");
  expect_as_preset(R"({"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16"})",
                   "mla-real");
  expect_as_preset(R"({"model_type": "gpt_oss", "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 36, "sliding_window": 128, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "layer_types": )" + repeated(R"("sliding_attention", "full_attention")", 18) +
                       "}",
                   "swa-real");
  expect_as_preset(R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {"model_type": "gemma3_text",
    "head_dim": 128, "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
    "sliding_window": 1024, "max_position_embeddings": 131072}, "vision_config": {"num_hidden_layers": 27}})",
                   "gemma3-real");
  expect_as_preset(
      R"({"model_type": "granitemoehybrid", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 40, "mamba_d_conv": 4, "mamba_d_head": "auto", "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "layer_types": )" +
          repeated(R"("mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba")", 4) + "}",
      "mamba2-real");
}

// Qwen3.5 27B: 48 value heads, 16 full layers of 64.
TEST(HfConfig, QwenThreeFive) {
  const HfModel model = model_of(R"({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text",
    "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256, "hidden_size": 5120, "num_attention_heads": 24,
    "num_key_value_heads": 4, "num_hidden_layers": 64, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "max_position_embeddings": 262144}})");
  EXPECT_EQ(model.family, "qwen3_5_text");
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 64u * 16 * 2 * 4 * 256 * 2);
  const std::size_t conv = (2 * 16 * 128 + 48 * 128) * 3 * 2, temporal = 48 * 128 * 128 * 4;
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kMamba), 48 * (conv + temporal));
}

// The blocks of MLP have no cache, and Python's Infinity is no JSON.
TEST(HfConfig, NemotronNano) {
  const HfModel model = model_of(kNemotronNano9b);
  EXPECT_EQ(model.layers, 56u);
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 64u * 4 * 2 * 8 * 128 * 2);
  const std::size_t conv = (128 * 80 + 2 * 8 * 128) * 3 * 2, temporal = 128 * 80 * 128 * 4;
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kMamba), 27 * (conv + temporal));
}

// Falcon-H1 34B: KV and a state in each layer.
TEST(HfConfig, BothInOneLayer) {
  const HfModel model = model_of(R"({"model_type": "falcon_h1", "num_hidden_layers": 72, "num_attention_heads": 20,
    "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 5120, "mamba_d_conv": 4, "mamba_d_head": 128,
    "mamba_d_ssm": 4096, "mamba_d_state": 256, "mamba_n_groups": 2, "mamba_n_heads": 32, "torch_dtype": "bfloat16"})");
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 64u * 72 * 2 * 4 * 128 * 2);
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kMamba), 72u * ((4096 + 2 * 2 * 256) * 3 * 2 + 4096 * 256 * 4));
  EXPECT_EQ(model.context_length, 0u);
}

// Gemma 4 31B: full layers have fewer and wider heads. With shared KV the last layers have none of their own.
TEST(HfConfig, GemmaFour) {
  const std::string text = R"({"model_type": "gemma4_text", "num_hidden_layers": 60, "num_attention_heads": 32,
    "num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": true, "head_dim": 256,
    "global_head_dim": 512, "sliding_window": 1024, "dtype": "bfloat16", "num_kv_shared_layers": )";
  const HfModel model = model_of(text + "0}");
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 64u * 10 * 2 * 4 * 512 * 2);
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kSwa), 64u * 50 * 2 * 16 * 256 * 2);
  const HfModel shared = model_of(text + "20}");  // 40 layers are left: 6 full ones
  EXPECT_EQ(bytes_in(shared.spec, ComponentKind::kFull), 64u * 6 * 2 * 4 * 512 * 2);
  EXPECT_EQ(bytes_in(shared.spec, ComponentKind::kSwa), 64u * 34 * 2 * 16 * 256 * 2);
}

TEST(HfConfig, AWindowThatIsSwitchedOffIsNone) {
  const std::string text = R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "sliding_window": 4096, "max_window_layers": 20,
    "torch_dtype": "bfloat16", "use_sliding_window": )";
  EXPECT_FALSE(model_of(text + "false}").spec.has(ComponentKind::kSwa));
  EXPECT_EQ(bytes_in(model_of(text + "true}").spec, ComponentKind::kSwa), 64u * 8 * 2 * 4 * 128 * 2);
}

// A page of 64 tokens has 64 x 2 x 4 x 128 x 2 bytes in each of the 30 layers.
TEST(HfConfig, WhichLayersOfQwenHaveAWindow) {
  const std::string text = R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 30, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "use_sliding_window": true)";
  const auto with_window = [&](const std::string& more) {
    const ModelSpec spec = model_of(text + more + "}").spec;
    return bytes_in(spec, ComponentKind::kSwa) / (64u * 2 * 4 * 128 * 2);
  };
  EXPECT_EQ(with_window(R"(, "max_window_layers": 0)"), 30u);
  EXPECT_EQ(with_window(""), 2u) << "28 by default";
  EXPECT_EQ(with_window(R"(, "max_window_layers": 99)"), 0u);
  std::string names = R"("sliding_attention")";
  for (int i = 1; i < 30; ++i) names += R"(, "full_attention")";
  EXPECT_EQ(with_window(R"(, "max_window_layers": 0, "layer_types": [)" + names + "]"), 1u);
}

TEST(HfConfig, OnlyRecurrentLayers) {
  const HfModel model = model_of(R"({"model_type": "mamba2", "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
    "n_groups": 8, "state_size": 128, "conv_kernel": 4, "torch_dtype": "bfloat16"})");
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 0u);
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kMamba), 64u * ((8192 + 2048) * 3 * 2 + 8192 * 128 * 4));
}

TEST(HfConfig, TheTypeOfKvMayBeSet) {
  const Result<HfModel> model = read_hf_config(kQwen3Next, "c", {.page_size = 64, .kv_dtype = Dtype::kFp8E4m3});
  ASSERT_TRUE(model.is_ok());
  EXPECT_EQ(bytes_in(model->spec, ComponentKind::kFull) * 2, bytes_in(model_of(kQwen3Next).spec, ComponentKind::kFull));
  EXPECT_EQ(bytes_in(model->spec, ComponentKind::kMamba), bytes_in(model_of(kQwen3Next).spec, ComponentKind::kMamba));
}

// What a token has in each pool, and what a state weighs.
struct Sizes {
  std::size_t full = 0, window = 0, sliding = 0, state = 0;
  friend bool operator==(const Sizes&, const Sizes&) = default;
  friend void PrintTo(const Sizes& s, std::ostream* out) {
    *out << "full " << s.full << ", window " << s.window << ", sliding " << s.sliding << ", state " << s.state;
  }
};

Sizes sizes_of(const std::string& text, std::optional<Dtype> kv_dtype = {}) {
  constexpr std::uint32_t kPage = 128;
  const Result<HfModel> model = read_hf_config(text, "config.json", {.page_size = kPage, .kv_dtype = kv_dtype});
  EXPECT_TRUE(model.is_ok()) << model.status().to_string();
  if (!model.is_ok()) return {};
  const ModelSpec& spec = model->spec;
  return {.full = bytes_in(spec, ComponentKind::kFull) / kPage,
          .window = spec.dims.window,
          .sliding = bytes_in(spec, ComponentKind::kSwa) / kPage,
          .state = bytes_in(spec, ComponentKind::kMamba)};
}

// 12 layers of 16 heads of 64.
std::string twelve(std::string_view family, std::string_view keys) {
  return R"({"num_hidden_layers": 12, "num_attention_heads": 16, "hidden_size": 1024, "model_type": ")" +
         std::string(family) + "\"" + std::string(keys.empty() ? "" : ", ") + std::string(keys) + "}";
}
constexpr std::size_t kHead = 2 * 64 * 2;  // bytes of a token in one head of one layer

void refused(std::string_view text, StatusCode code, std::string_view words) {
  const Status status = read_hf_config(text, "my/config.json", {}).status();
  EXPECT_EQ(status.code(), code) << text;
  EXPECT_TRUE(status.message().starts_with("my/config.json")) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

// Phi-4-mini has a window of 262,144 tokens and a context of 131,072.
TEST(HfConfig, AWindowThatNoTextFillsIsNone) {
  const std::string keys = R"("num_key_value_heads": 8, "max_position_embeddings": 4096, "sliding_window": )";
  EXPECT_EQ(sizes_of(twelve("phi3", keys + "4096")), Sizes{.full = 12 * 8 * kHead});
  EXPECT_EQ(sizes_of(twelve("phi3", keys + "4095")), (Sizes{.window = 4095, .sliding = 12 * 8 * kHead}));
  EXPECT_EQ(sizes_of(twelve("cohere2", keys + "5000")), Sizes{.full = 12 * 8 * kHead});
}

// Files, above all their text_config, leave out what the class of transformers has by default.
TEST(HfConfig, WhatTheFileLeavesOutIsAsTheClassHasIt) {
  EXPECT_EQ(sizes_of(twelve("mistral", "")).full, 12 * 8 * kHead);
  EXPECT_EQ(sizes_of(twelve("mistral", R"("num_key_value_heads": null)")).full, 12 * 16 * kHead);
  EXPECT_EQ(sizes_of(twelve("llama", "")).full, 12 * 16 * kHead);
  EXPECT_EQ(sizes_of(twelve("qwen3", R"("num_key_value_heads": 8)")).full, 12 * 8 * 2 * kHead) << "heads of 128";
  EXPECT_EQ(sizes_of(twelve("glm4", "")).full, 12 * 2 * 2 * kHead) << "2 heads of 128";
  EXPECT_EQ(sizes_of(twelve("gemma2", R"("sliding_window": 64)")),
            (Sizes{.full = 6 * 4 * 4 * kHead, .window = 64, .sliding = 6 * 4 * 4 * kHead}))
      << "4 heads of 256";
}

// SGLang and vLLM compute in 16 bits what is stored in 32, or what does not say (gpt-oss).
TEST(HfConfig, KvHasSixteenBitsUnlessSomebodySaysEight) {
  for (const char* const dtype : {R"("dtype": "float16")", R"("torch_dtype": "float32")", R"("dtype": null)",
                                  R"("dtype": "float8_e4m3fn")", R"("torch_dtype": "auto")", R"("dtype": "int4")"}) {
    EXPECT_EQ(sizes_of(twelve("llama", dtype)).full, 12 * 16 * kHead) << dtype;
  }
  EXPECT_EQ(sizes_of(twelve("llama", R"("dtype": "float32")"), Dtype::kF32).full, 2 * 12 * 16 * kHead);
  const auto quantized = [](std::string_view keys) {
    return twelve("llama", R"("quantization_config": {"quant_method": "modelopt", )" + std::string(keys) + "}");
  };
  const std::string eight = R"("kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"})";
  EXPECT_EQ(sizes_of(quantized(R"("quant_algo": "NVFP4", )" + eight)).full, 12 * 16 * kHead / 2);
  EXPECT_EQ(sizes_of(quantized(R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8")")).full, 12 * 16 * kHead / 2);
  EXPECT_EQ(sizes_of(quantized(R"("quant_algo": "NVFP4", )" + eight), Dtype::kBf16).full, 12 * 16 * kHead);
  EXPECT_EQ(sizes_of(quantized(R"("quant_algo": "NVFP4", "kv_cache_scheme": null)")).full, 12 * 16 * kHead);
  EXPECT_EQ(sizes_of(quantized(eight)).full, 12 * 16 * kHead) << "not of ModelOpt: SGLang does not take it";
}

// ModelOpt's older exports say it in a file beside config.json, and SGLang reads that one where config.json is silent.
TEST(HfConfig, TheFileBesideSaysThatKvHasEightBits) {
  const auto kv_of = [](const std::string& config, std::string_view beside) {
    const Result<HfModel> model =
        read_hf_config(config, "config.json", {.page_size = 1, .quant_text = beside, .quant_name = "quant.json"});
    EXPECT_TRUE(model.is_ok()) << model.status().to_string();
    return std::pair(bytes_in(model->spec, ComponentKind::kFull), model->is_kv_of_quant_text);
  };
  const std::size_t wide = 12 * 16 * kHead;
  const std::string plain = twelve("llama", "");
  const std::string_view eight = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})";
  EXPECT_EQ(kv_of(plain, eight), std::pair(wide / 2, true));
  EXPECT_EQ(kv_of(plain, R"({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"})"), std::pair(wide / 2, true));
  EXPECT_EQ(kv_of(plain, R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}})"),
            std::pair(wide, false));
  EXPECT_EQ(kv_of(plain, ""), std::pair(wide, false));
  const auto said = [](std::string_view keys) {
    return twelve("llama", R"("quantization_config": {"quant_method": "modelopt", )" + std::string(keys) + "}");
  };
  EXPECT_EQ(kv_of(said(R"("quant_algo": "FP8")"), eight), std::pair(wide, false)) << "config.json has said it";
  EXPECT_EQ(kv_of(said(R"("quant_algo": "MIXED_PRECISION")"), eight), std::pair(wide / 2, true)) << "it has not";
  EXPECT_EQ(kv_of(said(R"("quant_algo": "MIXED_PRECISION", "kv_cache_scheme": null)"), eight), std::pair(wide, false));
  const Status broken = read_hf_config(plain, "c", {.quant_text = "{", .quant_name = "quant.json"}).status();
  EXPECT_EQ(broken.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(broken.message().starts_with("quant.json:1:")) << broken.message();
}

// Saved again by transformers 5.24: the widths of full layers are in per_layer_config.
TEST(HfConfig, LayersWithHeadsOfTheirOwn) {
  const std::string gemma = R"("attention_k_eq_v": true, "num_key_value_heads": 8, "head_dim": 256,
    "sliding_window": 512, "per_layer_config": {"05": {"head_dim": 512, "num_key_value_heads": 2}, "11": )";
  const Sizes sizes = sizes_of(twelve("gemma4_text", gemma + R"({"head_dim": 512, "num_key_value_heads": 2}})"));
  EXPECT_EQ(sizes, (Sizes{.full = 2 * 2 * 8 * kHead, .window = 512, .sliding = 10 * 8 * 4 * kHead}));
  EXPECT_EQ(sizes_of(twelve("llama", R"("per_layer_config": {"03": {"num_attention_heads": 8}})")).full,
            12 * 16 * kHead);
}

// The last layer is a full one, whatever the pattern.
TEST(HfConfig, GemmaFourEndsWithAFullLayer) {
  const std::string keys = R"("num_hidden_layers": 13, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 64, "global_head_dim": 64, "sliding_window": 512, "model_type": "gemma4_text"})";
  EXPECT_EQ(sizes_of("{" + keys), (Sizes{.full = 3 * kHead, .window = 512, .sliding = 10 * kHead}));
}

constexpr std::string_view kLatent = R"("kv_lora_rank": 512, "qk_rope_head_dim": 64)";

// SGLang and vLLM keep the indexer's keys in eight bits, with a scale for 128 of them, and in eight bits of KV the
// rotary part in 16 and a scale for each 128 of the rest.
TEST(HfConfig, KeysOfAnIndexer) {
  const std::string dsa = std::string(kLatent) + R"(, "index_head_dim": 128)";
  EXPECT_EQ(sizes_of(twelve("deepseek_v32", dsa)).full, 12u * (576 * 2 + 132));
  EXPECT_EQ(sizes_of(twelve("deepseek_v32", dsa), Dtype::kFp8E4m3).full, 12u * (656 + 132));
  EXPECT_EQ(sizes_of(twelve("deepseek_v3", kLatent), Dtype::kFp8E4m3).full, 12u * 576);
}

// GLM 5.2: layers share what others have chosen, and have no keys of their own.
TEST(HfConfig, LayersThatShareAnIndexer) {
  const std::string glm = std::string(kLatent) + R"(, "index_head_dim": 128, "index_topk_freq": 4)";
  const auto with_indexer = [&](const std::string& more) {
    return (sizes_of(twelve("glm_moe_dsa", glm + more)).full - 12 * 576 * 2) / 132;
  };
  EXPECT_EQ(with_indexer(R"(, "index_skip_topk_offset": 3)"), 5u) << "0, 1, 2, 6, 10";
  EXPECT_EQ(with_indexer(""), 4u) << "0, 1, 5, 9";
  EXPECT_EQ(with_indexer(R"(, "index_topk_pattern": "FSSSFSSSFSSS")"), 3u);
  const std::string types = R"("full", "shared", "shared", "shared", "shared", "shared")";
  EXPECT_EQ(with_indexer(R"(, "indexer_types": [)" + types + ", " + types + "]"), 2u);
}

// DeepSeek V4 Flash as SGLang keeps it: 448 numbers in eight bits, 64 in 16, and 8 bytes of scales.
TEST(HfConfig, DeepSeekV4) {
  const std::string text = R"({"model_type": "deepseek_v4", "num_hidden_layers": 43, "head_dim": 512,
    "qk_rope_head_dim": 64, "index_head_dim": 128, "sliding_window": 128, "max_position_embeddings": 1048576,
    "torch_dtype": "bfloat16", "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4,
    128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 0]})";
  const std::size_t states = 21 * 8 * 4 * (512 + 128) * 4;  // of a page: 8 rows of keys and scores, twice, in float32
  EXPECT_EQ(
      sizes_of(text),
      (Sizes{.full = (21 * 32 * (584 + 132) + 20 * 584) / 128, .window = 128, .sliding = 43 * 584 + states / 128}));
  EXPECT_EQ(
      sizes_of(text, Dtype::kBf16),
      (Sizes{.full = (21 * 32 * (1024 + 132) + 20 * 1024) / 128, .window = 128, .sliding = 43 * 1024 + states / 128}));
  EXPECT_EQ(model_of(text, 128).layers, 43u);
  const Status status = read_hf_config(text, "c", {.page_size = 64}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("c: page_size is 64: it must be a multiple of 128"), std::string::npos)
      << status.message();
}

// Files that transformers 5 has written name the layers.
TEST(HfConfig, DeepSeekV4WithNamesOfLayers) {
  const std::string keys = R"({"model_type": "deepseek_v4", "num_hidden_layers": 3, "head_dim": 512,
    "qk_rope_head_dim": 64, "index_head_dim": 128, "sliding_window": 128)";
  const std::string names = R"(, "layer_types": ["sliding_attention", "compressed_sparse_attention",
    "heavily_compressed_attention"], "compress_rates": {"compressed_sparse_attention": 4,
    "heavily_compressed_attention": )";
  EXPECT_EQ(sizes_of(keys + names + "128}}"), sizes_of(keys + R"(, "compress_ratios": [0, 4, 128]})"));
  refused(keys + names + "64}}", StatusCode::kUnsupported, "compress_rates: heavily_compressed_attention is 64");
  refused(keys + R"(, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})",
          StatusCode::kUnsupported, "layer 1 is 'full_attention'");
  refused(keys + "}", StatusCode::kInvalidArgument, "compress_ratios: is missing, as is layer_types");
}

TEST(HfConfig, FamiliesWithAWindowInMostLayers) {
  const std::string heads = R"("num_key_value_heads": 8, "sliding_window": 512)";
  const Sizes three_of_four = {.full = 3 * 8 * kHead, .window = 512, .sliding = 9 * 8 * kHead};
  EXPECT_EQ(sizes_of(twelve("olmo3", heads)), three_of_four);
  EXPECT_EQ(sizes_of(twelve("exaone4", heads + R"(, "sliding_window_pattern": 4)")), three_of_four);
  EXPECT_EQ(sizes_of(twelve("afmoe", heads + R"(, "head_dim": 64, "global_attn_every_n_layers": 6)")),
            (Sizes{.full = 2 * 8 * kHead, .window = 512, .sliding = 10 * 8 * kHead}));
  EXPECT_EQ(sizes_of(twelve("exaone4", R"("num_key_value_heads": 8, "sliding_window": null, "layer_types": )" +
                                           repeated(R"("full_attention")", 12))),
            Sizes{.full = 12 * 8 * kHead});
  EXPECT_EQ(sizes_of(twelve("llama4_text", R"("head_dim": 64, "attention_chunk_size": 512, "no_rope_layers": [])")),
            three_of_four)
      << "8 heads";
  EXPECT_EQ(sizes_of(twelve("llama4_text", R"("head_dim": 64, "attention_chunk_size": null)")),
            Sizes{.full = 12 * 8 * kHead});
  // Of Gemma 3n the last 15 share the KV of others, unless the file says how many.
  EXPECT_EQ(sizes_of(twelve("gemma3n_text", R"("head_dim": 64, "sliding_window": 512, "num_kv_shared_layers": 2)")),
            (Sizes{.full = 2 * 2 * kHead, .window = 512, .sliding = 8 * 2 * kHead}))
      << "2 heads";
  // Step 3.5 lists its three layers of prediction, too, and calls its heads of keys groups.
  EXPECT_EQ(sizes_of(twelve(
                "step3p5",
                R"("head_dim": 64, "num_attention_groups": 8, "sliding_window": 512,
    "num_nextn_predict_layers": 3, "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 4},
    "layer_types": [)" +
                    std::string(R"("full_attention","sliding_attention","sliding_attention","sliding_attention",)") +
                    R"("full_attention","sliding_attention","sliding_attention",
    "sliding_attention","full_attention","sliding_attention","sliding_attention","sliding_attention",
    "sliding_attention","sliding_attention","sliding_attention"])")),
            (Sizes{.full = 3 * 8 * kHead, .window = 512, .sliding = 9 * 4 * kHead}));
}

// Values are narrower than keys, and sliding layers have heads of their own.
TEST(HfConfig, MiMoV2Flash) {
  const std::string keys = R"("num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 128,
    "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0])";
  EXPECT_EQ(sizes_of(twelve("mimo_v2_flash", keys)),
            (Sizes{.full = 3 * 4 * 320 * 2, .window = 128, .sliding = 9 * 8 * 320 * 2}));
}

TEST(HfConfig, FamiliesWithRecurrentLayers) {
  const std::size_t kda = 3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4;
  const std::string kimi = std::string(kLatent) + R"(, "linear_attn_config": {"head_dim": 128, "num_heads": 32,
    "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11], "full_attn_layers": )";
  EXPECT_EQ(sizes_of(twelve("kimi_linear", kimi + "[4, 8, 12]}")), (Sizes{.full = 3 * 576 * 2, .state = 9 * kda}));
  const std::string jamba = R"("num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
    "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4)";
  EXPECT_EQ(sizes_of(twelve("jamba", jamba)), (Sizes{.full = 8 * kHead, .state = 11 * (2048 * 3 * 2 + 2048 * 16 * 4)}));
  const std::string lfm = R"("num_key_value_heads": 8, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8])";
  EXPECT_EQ(sizes_of(twelve("lfm2", lfm)), (Sizes{.full = 3 * 8 * kHead, .state = 9 * 1024 * 2 * 2}));
}

// MiniMax M3: all layers have KV, and the sparse ones the keys of blocks beside it.
TEST(HfConfig, MiniMaxM3) {
  const std::string keys = R"("num_key_value_heads": 4, "head_dim": 128, "sparse_attention_config":
    {"sparse_index_dim": 128, "sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
     "sparse_disable_index_value": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, )";
  EXPECT_EQ(sizes_of(twelve("minimax_m3", keys + "1]}")).full, 12u * 4 * 2 * kHead + 9 * 256);
  refused(twelve("minimax_m3", keys + "0]}"), StatusCode::kUnsupported, "sparse_disable_index_value");
}

// Zamba2 7B, cut to 12 layers: a state in each, and KV of the doubled width where the shared block is.
TEST(HfConfig, ZambaTwo) {
  const std::string keys = R"("num_hidden_layers": 12, "hidden_size": 3584, "num_attention_heads": 32,
    "num_key_value_heads": 32, "attention_head_dim": 224, "mamba_expand": 2, "n_mamba_heads": 112, "mamba_headdim": 64,
    "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_ngroups": 2, "model_type": "zamba2", "layers_block_type": )";
  constexpr std::size_t kState = (7168 + 2 * 2 * 64) * 3 * 2 + 7168 * 64 * 4, kKv = 2 * 32 * 224 * 2;
  const std::string six = R"("mamba","mamba","mamba","mamba","mamba","hybrid")";
  EXPECT_EQ(sizes_of("{" + keys + repeated(six, 2) + "}"), (Sizes{.full = 2 * kKv, .state = 12 * kState}));
  const std::string today = R"("linear_attention","hybrid","linear_attention")";  // as transformers 5 writes it
  EXPECT_EQ(sizes_of("{" + keys + repeated(today, 4) + "}"), (Sizes{.full = 4 * kKv, .state = 12 * kState}));
  refused("{" + keys + "null}", StatusCode::kInvalidArgument, "layers_block_type: is missing");
}

// MiniMax M1: 10 of 80 layers see everything; the others keep a matrix for each head, in 16 bits, and no convolution.
TEST(HfConfig, MiniMaxOne) {
  const std::string keys = R"({"num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 10240000, "model_type": )";
  const Sizes expected = {.full = 10 * 2 * 8 * 128 * 2, .state = 70 * 64 * 128 * 128 * 2};
  const std::string numbers = repeated("0,0,0,0,0,0,0,1", 10), six = R"("linear_attention","linear_attention",
    "linear_attention","linear_attention","linear_attention","linear_attention","linear_attention","full_attention")";
  EXPECT_EQ(sizes_of(keys + R"("minimax_m1", "attn_type_list": )" + numbers + "}"), expected);
  EXPECT_EQ(sizes_of(keys + R"("minimax_text_01", "attn_type_list": )" + numbers + "}"), expected);
  EXPECT_EQ(sizes_of(keys + R"("minimax", "layer_types": )" + repeated(six, 10) + "}"), expected);
  refused(keys + R"("minimax_m1"})", StatusCode::kInvalidArgument, "attn_type_list: has 0 entries");
}

// Ling 3.0 flash has delta attention, Ling and Ring 2.5 have lightning attention: no convolution, and float32.
TEST(HfConfig, LingHybrid) {
  const std::string keys = std::string(kLatent) + R"(, "head_dim": 128, "num_attention_heads": 32, "hidden_size": 2560,
    "num_hidden_layers": 42, "model_max_length": 262144, "model_type": "bailing_hybrid")";
  const std::string ling3 = "{" + keys + R"(, "layer_group_size": 6, "short_conv_kernel_size": 4)";
  constexpr std::size_t kDelta = 3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4;
  EXPECT_EQ(sizes_of(ling3 + "}"), (Sizes{.full = 7 * 576 * 2, .state = 35 * kDelta}));
  EXPECT_EQ(sizes_of(ling3 + R"(, "use_mla_nope": true})").full, 7u * 512 * 2);
  // Saved again by transformers 5.24, which has another width under "head_dim" then.
  EXPECT_EQ(sizes_of("{" + std::string(kLatent) + R"(, "head_dim": 64, "linear_head_dim": 128, "num_hidden_layers": 3,
    "num_attention_heads": 32, "short_conv_kernel_size": 4, "model_type": "bailing_hybrid",
    "layer_types": ["linear_attention", "linear_attention", "full_attention"]})"),
            (Sizes{.full = 576 * 2, .state = 2 * kDelta}));
  EXPECT_EQ(sizes_of("{" + keys + R"(, "layer_group_size": 7})"),
            (Sizes{.full = 6 * 576 * 2, .state = 36 * 32 * 128 * 128 * 4}));
  refused("{" + keys + R"(, "layer_group_size": 8})", StatusCode::kUnsupported, "8 does not divide 42");
  refused(ling3 + R"(, "full_attention_type": "gqa"})", StatusCode::kUnsupported, "full_attention_type: 'gqa'");
}

// LongCat Flash: each of its 28 layers has two attentions.
TEST(HfConfig, LongCatFlash) {
  const std::string keys = R"({"model_type": "longcat_flash", "max_position_embeddings": 131072, )";
  const HfModel model = model_of(keys + R"("num_layers": 28, )" + std::string(kLatent) + "}");
  EXPECT_EQ(bytes_in(model.spec, ComponentKind::kFull), 64u * 56 * 576 * 2);
  EXPECT_EQ(model.layers, 56u);
  refused(keys + R"("num_layers": 600, )" + std::string(kLatent) + "}", StatusCode::kInvalidArgument, "more than 512");
  refused(keys + R"("num_hidden_layers": 28, )" + std::string(kLatent) + "}", StatusCode::kInvalidArgument,
          "num_layers: is missing");
}

// Command A Plus: the first, dense layers have turns of their own; by default none of them has a window.
TEST(HfConfig, CohereTwoMoe) {
  const std::string keys = R"("num_key_value_heads": 8, "head_dim": 64, "sliding_window": 512)";
  EXPECT_EQ(sizes_of(twelve("cohere2_moe", keys)),
            (Sizes{.full = 3 * 8 * kHead, .window = 512, .sliding = 9 * 8 * kHead}));
  EXPECT_EQ(sizes_of(twelve("cohere2_moe", keys + R"(, "first_k_dense_replace": 2)")),
            (Sizes{.full = 4 * 8 * kHead, .window = 512, .sliding = 8 * 8 * kHead}))
      << "full: 0, 1, 5, 9";
  EXPECT_EQ(sizes_of(twelve("cohere2_moe", keys + R"(, "first_k_dense_replace": 2, "sliding_window_pattern": 2,
    "prefix_dense_sliding_window_pattern": 3)")),
            (Sizes{.full = 5 * 8 * kHead, .window = 512, .sliding = 7 * 8 * kHead}))
      << "full: 3, 5, 7, 9, 11";
  EXPECT_EQ(sizes_of(twelve("cohere2_moe", keys + R"(, "layer_types": )" + repeated(R"("full_attention")", 12))).full,
            12 * 8 * kHead);
}

// Nemotron Super and Ultra: each block says how many queries share a head, or that it has no attention.
TEST(HfConfig, NemotronNas) {
  const auto blocks = [](std::string_view third) {
    return R"({"model_type": "nemotron-nas", "num_hidden_layers": 3, "num_attention_heads": 64, "hidden_size": 8192,
      "num_key_value_heads": null, "block_configs": [
      {"attention": {"n_heads_in_group": 8, "no_op": false, "replace_with_linear": false, "window_length": null}},
      {"attention": {"n_heads_in_group": null, "no_op": true, "replace_with_linear": false}},
      {"attention": )" +
           std::string(third) + "}]}";
  };
  constexpr std::size_t kBlock = 2 * 8 * 128 * 2;
  EXPECT_EQ(sizes_of(blocks(R"({"n_heads_in_group": 8})")), Sizes{.full = 2 * kBlock});
  EXPECT_EQ(sizes_of(blocks(R"({"replace_with_linear": true})")), Sizes{.full = kBlock});
  refused(blocks(R"({"n_heads_in_group": 16})"), StatusCode::kUnsupported, "4 heads of layer 2, and layer 0 has 8");
  refused(blocks(R"({"n_heads_in_group": 8, "window_length": 4096})"), StatusCode::kUnsupported,
          "layer 2 has a window");
  refused(blocks("{}"), StatusCode::kInvalidArgument, "block_configs.2.attention.n_heads_in_group: is missing");
  refused(blocks(R"({"n_heads_in_group": 65})"), StatusCode::kInvalidArgument, "block_configs.2.");
}

// The model of a picture's or a recording's text is in a table, by one of three names.
TEST(HfConfig, TheTextModelInside) {
  for (const char* const name : {"text_config", "llm_config", "language_config"}) {
    const HfModel model =
        model_of(R"({"model_type": "internvl_chat", ")" + std::string(name) + "\": " + twelve("qwen2", "") + "}");
    EXPECT_EQ(model.family, "qwen2") << name;
    EXPECT_EQ(model.layers, 12u);
  }
}

TEST(HfConfig, WhatIsRefused) {
  const auto invalid = StatusCode::kInvalidArgument;
  refused("{", invalid, "my/config.json:1:2");
  refused("[]", invalid, "no JSON object");
  refused(R"({"model_type": "bamba", "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 8,
    "attn_layer_indices": [1, 4]})",
          invalid, "attn_layer_indices: names layer 4, and there are 4, from 0");
  refused("{}", invalid, "model_type");
  refused(R"({"model_type": 7})", invalid, "model_type: expected a text");
  for (const char* other : {R"({"model_type": "gemma"})", R"({"model_type": "rwkv7"})"}) {  // gemma2 is no gemma
    refused(other, StatusCode::kUnsupported, "are not guessed; give layers and dimensions in a model file");
  }
  refused(R"({"model_type": "llama"})", invalid, "num_hidden_layers: is missing");
  refused(R"({"model_type": "llama", "num_hidden_layers": -2})", invalid,
          "num_hidden_layers: expected a whole number from 0 to 1048576, got -2");
  refused(R"({"model_type": "llama", "num_hidden_layers": 4000})", invalid, "more than 1024");
  refused(R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 64})", invalid,
          "does not divide hidden_size");
  const std::string base = R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": )";
  refused(R"({"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 64, "model_type": "llama"})", invalid,
          "num_attention_heads: is missing or 0");
  refused(base + R"("gpt_oss", "dtype": "bfloat16"})", invalid, "sliding_window: is missing");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": ["full_attention"]})", invalid, "names 1 layers");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": ["full_attention", "chunked_attention"]})",
          StatusCode::kUnsupported, "'chunked_attention'");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": "all"})", invalid, "expected a list");
  refused(std::string(kQwen3Next.substr(0, kQwen3Next.size() - 1)) + R"(, "linear_num_key_heads": 3})", invalid,
          "twice");
  const std::string glm = std::string(kLatent) + R"(, "index_head_dim": 128, )";
  refused(twelve("glm_moe_dsa", glm + R"("indexer_types": ["full"])"), invalid, "indexer_types: names 1 layers");
  refused(twelve("glm_moe_dsa", glm + R"("index_topk_pattern": "FFFFFFFFFFFX")"), StatusCode::kUnsupported,
          "layer 11 is 'X'");
  refused(twelve("gemma2", R"("sliding_window": 64, "sliding_window_pattern": 0)"), invalid, "sliding_window_pattern");
  refused(twelve("gemma2", R"("sliding_window": "64")"), invalid,
          "sliding_window: expected a whole number from 0 to 1048576, got '64'");
  refused(twelve("llama", R"("num_key_value_heads": 0)"), invalid, "num_key_value_heads: is missing or 0");
  refused(twelve("llama", R"("num_key_value_heads": 1e18)"), invalid, "got too large a number");
  refused(twelve("llama", R"("num_key_value_heads": 8.5)"), invalid,
          "num_key_value_heads: expected a whole number from 0 to 1048576, got a fraction");
  refused(twelve("llama", R"("per_layer_config": {"03": {"head_dim": 32}})"), StatusCode::kUnsupported,
          "per_layer_config: heads of layer 3");
}

// Whatever a file says, it is a model or an error.
TEST(HfConfig, DamagedFilesAreErrorsOrModels) {
  Rng rng(20261127);
  const std::string kimi = twelve("kimi_linear", std::string(kLatent) + R"(, "linear_attn_config": {"head_dim": 128,
    "num_heads": 32, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11],
    "full_attn_layers": [4, 8, 12]})");
  const std::string jamba = twelve("jamba", R"("attn_layer_period": 8, "mamba_expand": 2, "mamba_d_state": 16,
    "mamba_d_conv": 4)");
  const std::string gemma = twelve("gemma4_text", R"("sliding_window": 512, "sliding_window_pattern": 6,
    "num_kv_shared_layers": 2, "per_layer_config": {"05": {"head_dim": 512}})");
  const std::string nas = twelve("nemotron-nas", R"("block_configs": )" + repeated(R"({"attention": {"no_op": false,
    "n_heads_in_group": 8}},{"attention": {"no_op": true}})",
                                                                                   6));
  const std::string ling =
      twelve("bailing_hybrid", std::string(kLatent) + R"(, "head_dim": 64, "layer_group_size": 6)");
  for (const std::string_view whole : {kQwen3Next, kNemotronNano9b, std::string_view(kimi), std::string_view(jamba),
                                       std::string_view(gemma), std::string_view(nas), std::string_view(ling)}) {
    for (int i = 0; i < 3000; ++i) {
      std::string text(whole);
      for (std::uint64_t n = 1 + rng.below(3); n > 0; --n) {
        text[rng.below(text.size())] = "0189{}[],:\"-eM* "[rng.below(16)];
      }
      const Result<HfModel> model = read_hf_config(text, "c", {});
      EXPECT_TRUE(!model.is_ok() || !model->spec.pools.empty()) << text;
    }
  }
}

}  // namespace
}  // namespace larder
