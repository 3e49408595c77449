// SPDX-License-Identifier: Apache-2.0
#include "model/presets.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

namespace larder {
namespace {

using enum LayerKind;
using Build = ModelSpec (*)();

// pattern repeated and cut at `count` layers.
std::vector<LayerKind> repeat(std::initializer_list<LayerKind> pattern, std::size_t count) {
  std::vector<LayerKind> layers;
  layers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) layers.push_back(pattern.begin()[i % pattern.size()]);
  return layers;
}

// hidden 64, ffn 128, q_heads 4, kv_heads 2, head_dim 16, f32, page 64: the defaults of ModelSpec and ModelDims.
ModelSpec tiny_base(std::vector<LayerKind> layers) {
  ModelSpec spec;
  spec.layers = std::move(layers);
  return spec;
}

ModelSpec gqa_tiny() { return tiny_base(repeat({kAttention}, 4)); }

ModelSpec mla_tiny() {
  ModelSpec spec = tiny_base(repeat({kMla}, 4));
  spec.dims.kv_lora_rank = 32;
  spec.dims.rope_dim = 8;
  return spec;
}

ModelSpec swa_tiny() {
  ModelSpec spec = tiny_base(repeat({kSlidingAttention, kAttention}, 4));
  spec.dims.window = 128;
  return spec;
}

ModelSpec gemma3_tiny() {
  ModelSpec spec = tiny_base(repeat(
      {kSlidingAttention, kSlidingAttention, kSlidingAttention, kSlidingAttention, kSlidingAttention, kAttention}, 6));
  spec.dims.window = 128;
  return spec;
}

// A checkpoint weighs as much as 66 tokens of KV. (Qwen3-Next: 3,144 tokens, more than a quick test can compute.)
ModelSpec gdn_tiny() {
  ModelSpec spec = tiny_base(repeat({kGatedDeltaNet, kGatedDeltaNet, kGatedDeltaNet, kAttention}, 4));
  spec.dims.ssm_heads = 4;
  spec.dims.ssm_key_heads = 2;
  spec.dims.ssm_head_dim = 16;
  spec.dims.ssm_state_dim = 16;
  spec.dims.conv_kernel = 4;
  return spec;
}

ModelSpec mamba2_tiny() {
  ModelSpec spec = tiny_base({kMamba2, kMamba2, kAttention, kMamba2});
  spec.dims.ssm_heads = 4;
  spec.dims.ssm_key_heads = 1;
  spec.dims.ssm_head_dim = 16;
  spec.dims.ssm_state_dim = 16;
  spec.dims.conv_kernel = 4;
  return spec;
}

ModelSpec dsa_tiny() {
  ModelSpec spec = tiny_base(repeat({kMlaDsa}, 4));
  spec.dims.kv_lora_rank = 32;
  spec.dims.rope_dim = 8;
  spec.dims.index_heads = 2;
  spec.dims.index_dim = 16;
  spec.dims.index_topk = 64;
  return spec;
}

ModelSpec dsv4_tiny() {
  ModelSpec spec = tiny_base({kV4Window, kV4C4, kV4C128, kV4C4, kV4C128});
  spec.page_size = 128;
  spec.dims.kv_lora_rank = 32;
  spec.dims.rope_dim = 8;
  spec.dims.window = 128;
  spec.dims.index_heads = 2;
  spec.dims.index_dim = 16;
  spec.dims.index_topk = 64;
  return spec;
}

ModelSpec real_base(std::vector<LayerKind> layers, std::uint32_t vocab_size, std::uint32_t context_length) {
  ModelSpec spec;
  spec.layers = std::move(layers);
  spec.vocab_size = vocab_size;
  spec.context_length = context_length;
  spec.kv_dtype = Dtype::kBf16;
  spec.conv_dtype = Dtype::kBf16;
  spec.ssm_dtype = Dtype::kF32;
  return spec;
}

// Llama 3.1 8B.
ModelSpec gqa_real() {
  ModelSpec spec = real_base(repeat({kAttention}, 32), 128256, 131072);
  spec.dims = {.hidden = 4096, .ffn = 14336, .q_heads = 32, .kv_heads = 8, .head_dim = 128};
  return spec;
}

// DeepSeek V3. kv_heads only shapes the draft layer here.
ModelSpec mla_real() {
  ModelSpec spec = real_base(repeat({kMla}, 61), 129280, 163840);
  spec.dims = {.hidden = 7168,
               .ffn = 18432,
               .q_heads = 128,
               .kv_heads = 8,
               .head_dim = 128,
               .kv_lora_rank = 512,
               .rope_dim = 64};
  return spec;
}

// gpt-oss 120B.
ModelSpec swa_real() {
  ModelSpec spec = real_base(repeat({kSlidingAttention, kAttention}, 36), 201088, 131072);
  spec.dims = {.hidden = 2880, .ffn = 2880, .q_heads = 64, .kv_heads = 8, .head_dim = 64, .window = 128};
  return spec;
}

// Gemma 3 27B: 62 layers, so the last period is cut short.
ModelSpec gemma3_real() {
  ModelSpec spec = real_base(repeat({kSlidingAttention, kSlidingAttention, kSlidingAttention, kSlidingAttention,
                                     kSlidingAttention, kAttention},
                                    62),
                             262208, 131072);
  spec.dims = {.hidden = 5376, .ffn = 21504, .q_heads = 32, .kv_heads = 16, .head_dim = 128, .window = 1024};
  return spec;
}

// Qwen3-Next 80B-A3B.
ModelSpec gdn_real() {
  ModelSpec spec = real_base(repeat({kGatedDeltaNet, kGatedDeltaNet, kGatedDeltaNet, kAttention}, 48), 151936, 262144);
  spec.dims = {.hidden = 2048,
               .ffn = 5120,
               .q_heads = 16,
               .kv_heads = 2,
               .head_dim = 256,
               .ssm_heads = 32,
               .ssm_key_heads = 16,
               .ssm_head_dim = 128,
               .ssm_state_dim = 128,
               .conv_kernel = 4};
  return spec;
}

// Granite 4.0 H Small: 36 Mamba-2 layers, attention at 5, 15, 25 and 35.
ModelSpec mamba2_real() {
  ModelSpec spec = real_base(
      repeat({kMamba2, kMamba2, kMamba2, kMamba2, kMamba2, kAttention, kMamba2, kMamba2, kMamba2, kMamba2}, 40), 100352,
      131072);
  spec.dims = {.hidden = 4096,
               .ffn = 1536,
               .q_heads = 32,
               .kv_heads = 8,
               .head_dim = 128,
               .ssm_heads = 128,
               .ssm_key_heads = 1,
               .ssm_head_dim = 64,
               .ssm_state_dim = 128,
               .conv_kernel = 4};
  return spec;
}

// DeepSeek V3.2, in numbers of kv_dtype. (As an engine packs them: config/hf_config.h.)
ModelSpec dsa_real() {
  ModelSpec spec = mla_real();
  spec.layers = repeat({kMlaDsa}, 61);
  spec.dims.index_heads = 64;
  spec.dims.index_dim = 128;
  spec.dims.index_topk = 2048;
  return spec;
}

// DeepSeek V4 Flash: layers 0 and 1 have the window only, then C4 and C128 take turns. One 512-wide vector per entry,
// 64 of it rotary, in numbers of kv_dtype; the ring is the reference engine's. (As an engine packs them:
// config/hf_config.h.)
ModelSpec dsv4_real() {
  std::vector<LayerKind> layers = repeat({kV4C4, kV4C128}, 43);
  layers[0] = layers[1] = kV4Window;
  ModelSpec spec = real_base(std::move(layers), 129280, 1048576);
  spec.page_size = 256;
  spec.dims = {.hidden = 4096,
               .ffn = 2048,
               .q_heads = 64,
               .kv_heads = 8,
               .head_dim = 128,
               .kv_lora_rank = 448,
               .rope_dim = 64,
               .index_heads = 64,
               .index_dim = 128,
               .index_topk = 512,
               .window = 128};
  return spec;
}

struct Preset {
  std::string_view name;
  std::string_view summary;
  Build build;
};

constexpr std::array<Preset, 16> kPresets = {{
    {"gqa-tiny", "grouped-query attention, 4 layers", gqa_tiny},
    {"gqa-real", "Llama 3.1 8B: grouped-query attention, 32 layers", gqa_real},
    {"mla-tiny", "multi-head latent attention, 4 layers", mla_tiny},
    {"mla-real", "DeepSeek V3: multi-head latent attention, 61 layers", mla_real},
    {"swa-tiny", "sliding window of 128 and full attention in turn, 4 layers", swa_tiny},
    {"swa-real", "gpt-oss 120B: sliding window of 128 and full attention in turn, 36 layers", swa_real},
    {"gemma3-tiny", "5 sliding windows of 128 to 1 full attention, 6 layers", gemma3_tiny},
    {"gemma3-real", "Gemma 3 27B: 5 sliding windows of 1024 to 1 full attention, 62 layers", gemma3_real},
    {"gdn-tiny", "3 gated delta nets to 1 full attention, 4 layers", gdn_tiny},
    {"gdn-real", "Qwen3-Next 80B-A3B: 3 gated delta nets to 1 full attention, 48 layers", gdn_real},
    {"mamba2-tiny", "3 Mamba-2 layers and 1 full attention", mamba2_tiny},
    {"mamba2-real", "Granite 4.0 H Small: 36 Mamba-2 layers and 4 full attention", mamba2_real},
    {"dsa-tiny", "latent attention with a top-64 indexer, 4 layers", dsa_tiny},
    {"dsa-real", "DeepSeek V3.2: latent attention with a top-2048 indexer, 61 layers; 16 bits a number", dsa_real},
    {"dsv4-tiny", "window of 128, C4 and C128 compressed attention, 5 layers", dsv4_tiny},
    {"dsv4-real",
     "DeepSeek V4 Flash: window of 128, C4 and C128 compressed attention, 43 layers; 16 bits a number, and the ring of "
     "the reference engine",
     dsv4_real},
}};

constexpr std::string_view kDraftSuffix = "+draft";

std::vector<PresetInfo> list_presets() {
  std::vector<PresetInfo> infos;
  infos.reserve(2 * kPresets.size());
  for (const Preset& preset : kPresets) {
    const bool is_tiny = preset.name.ends_with("-tiny");
    infos.push_back({std::string(preset.name), std::string(preset.summary), is_tiny, false});
    infos.push_back({std::string(preset.name) + std::string(kDraftSuffix),
                     std::string(preset.summary) + "; 1 draft layer", is_tiny, true});
  }
  return infos;
}

}  // namespace

std::span<const PresetInfo> all_presets() {
  static const std::vector<PresetInfo> infos = list_presets();
  return infos;
}

Result<ModelSpec> preset_model(std::string_view name) {
  const bool has_draft = name.ends_with(kDraftSuffix);
  const std::string_view base = name.substr(0, name.size() - (has_draft ? kDraftSuffix.size() : 0));
  const auto it = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& p) { return p.name == base; });
  if (it == kPresets.end()) {
    std::string known;
    for (const Preset& preset : kPresets) known += (known.empty() ? "" : ", ") + std::string(preset.name);
    return not_found("no preset '" + std::string(name) + "'; there are " + known + ", each also with +draft");
  }
  ModelSpec spec = it->build();
  spec.id = std::string(name);
  spec.draft.layers = has_draft ? 1 : 0;
  LARDER_RETURN_IF_ERROR(finalize_model(spec));
  return spec;
}

}  // namespace larder
