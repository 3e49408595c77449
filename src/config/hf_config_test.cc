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
  expect_as_preset(R"({"model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
    "index_n_heads": 64, "num_hidden_layers": 61, "max_position_embeddings": 163840, "torch_dtype": "bfloat16"})",
                   "dsa-real");
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
  expect_as_preset(R"({"model_type": "deepseek_v4", "num_hidden_layers": 43, "head_dim": 512, "qk_rope_head_dim": 64,
    "index_head_dim": 128, "sliding_window": 128, "max_position_embeddings": 1048576, "torch_dtype": "bfloat16",
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 0]})",
                   "dsv4-real");
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

// --kv-dtype says nothing of the convolution's state.
TEST(HfConfig, RecurrentStateNeedsADtype) {
  std::string text(kQwen3Next);
  const std::size_t at = text.find(", \"torch_dtype\": \"bfloat16\"");
  ASSERT_NE(at, std::string::npos);
  text.erase(at, std::string_view(", \"torch_dtype\": \"bfloat16\"").size());
  const Result<HfModel> model = read_hf_config(text, "c", {.page_size = 64, .kv_dtype = Dtype::kFp8E4m3});
  EXPECT_NE(model.status().message().find("dtype: is missing, and recurrent state has it"), std::string::npos)
      << model.status().message();
}

TEST(HfConfig, TheTypeOfKvMayBeSet) {
  const Result<HfModel> model = read_hf_config(kQwen3Next, "c", {.page_size = 64, .kv_dtype = Dtype::kFp8E4m3});
  ASSERT_TRUE(model.is_ok());
  EXPECT_EQ(bytes_in(model->spec, ComponentKind::kFull) * 2, bytes_in(model_of(kQwen3Next).spec, ComponentKind::kFull));
  EXPECT_EQ(bytes_in(model->spec, ComponentKind::kMamba), bytes_in(model_of(kQwen3Next).spec, ComponentKind::kMamba));
}

void refused(std::string_view text, StatusCode code, std::string_view words) {
  const Status status = read_hf_config(text, "my/config.json", {}).status();
  EXPECT_EQ(status.code(), code) << text;
  EXPECT_TRUE(status.message().starts_with("my/config.json")) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
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
  refused(R"({"model_type": "lama"})", StatusCode::kUnsupported, "did you mean 'llama'?");
  refused(R"({"model_type": "rwkv7"})", StatusCode::kUnsupported, "sizes are not guessed");
  refused(R"({"model_type": "llama"})", invalid, "num_hidden_layers: is missing");
  refused(R"({"model_type": "llama", "num_hidden_layers": -2})", invalid, "num_hidden_layers: expected a whole number");
  refused(R"({"model_type": "llama", "num_hidden_layers": 4000})", invalid, "more than 1024");
  refused(R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 64})", invalid,
          "does not divide hidden_size");
  const std::string base = R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": )";
  refused(base + R"("llama"})", invalid, "dtype: is missing");
  refused(base + R"("llama", "dtype": "int4"})", invalid, "'int4' is none of");
  refused(base + R"("gpt_oss", "dtype": "bfloat16"})", invalid, "sliding_window: is missing");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": ["full_attention"]})", invalid, "names 1 layers");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": ["full_attention", "chunked_attention"]})",
          StatusCode::kUnsupported, "'chunked_attention'");
  refused(base + R"("gpt_oss", "sliding_window": 64, "layer_types": "all"})", invalid, "expected a list");
  refused(std::string(kQwen3Next.substr(0, kQwen3Next.size() - 1)) + R"(, "linear_num_key_heads": 3})", invalid,
          "twice");
  refused(R"({"model_type": "glm_moe_dsa", "num_hidden_layers": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 8,
    "index_head_dim": 8, "index_topk_freq": 4, "dtype": "bfloat16"})",
          StatusCode::kUnsupported, "index_topk_freq");
}

// Whatever a file says, it is a model or an error.
TEST(HfConfig, DamagedFilesAreErrorsOrModels) {
  Rng rng(20261127);
  for (const std::string_view whole : {kQwen3Next, kNemotronNano9b}) {
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
