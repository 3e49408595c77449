// SPDX-License-Identifier: Apache-2.0
#include "config/hf_families.h"

#include <algorithm>
#include <array>
#include <string>

#include "model/model_limits.h"

namespace larder {
namespace {

std::uint32_t layer_count_of(HfFields& fields) {
  const std::uint32_t layers = fields.need("num_hidden_layers");
  if (layers <= kLayersMax) return layers;
  fields.fail("num_hidden_layers", "more than " + std::to_string(kLayersMax));
  return 0;
}

void all_layers(const HfShape& shape, std::vector<std::uint32_t>& out) {
  for (std::uint32_t i = 0; i < shape.layers; ++i) out.push_back(i);
}

HfShape::Heads heads_of(HfFields& fields, std::uint32_t default_kv_heads = 0, std::uint32_t default_dim = 0) {
  HfShape::Heads heads;
  const std::uint32_t queries = fields.get("num_attention_heads", 0);
  heads.kv_heads = fields.get("num_key_value_heads", default_kv_heads > 0 ? default_kv_heads : queries);
  heads.head_dim = fields.get({"head_dim", "attention_head_dim"}, default_dim);
  if (heads.kv_heads == 0) fields.fail("num_key_value_heads", "is missing or 0, as is num_attention_heads");
  if (heads.head_dim == 0) {
    const std::uint32_t hidden = fields.need("hidden_size");
    if (queries == 0 || hidden % queries != 0) {
      fields.fail("head_dim", "is missing, and num_attention_heads does not divide hidden_size");
    } else {
      heads.head_dim = hidden / queries;
    }
  }
  return heads;
}

// A layer of each kind that a family's list may name, in the words of today and of earlier files.
struct LayerWords {
  std::vector<std::string_view> full{"full_attention", "attention"}, sliding{"sliding_attention"}, recurrent{}, none{};
};

void take_layers(HfFields& fields, const std::vector<std::string>& names, const LayerWords& words, HfShape& shape) {
  const auto is_in = [](const std::vector<std::string_view>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  if (names.size() != shape.layers) {
    return fields.fail("layer_types", "names " + std::to_string(names.size()) + " layers, and there are " +
                                          std::to_string(shape.layers));
  }
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (is_in(words.full, names[i])) {
      shape.full.push_back(i);
    } else if (is_in(words.sliding, names[i])) {
      shape.sliding.push_back(i);
    } else if (is_in(words.recurrent, names[i])) {
      shape.recurrent.push_back(i);
    } else if (!is_in(words.none, names[i])) {
      return fields.refuse("layer " + std::to_string(i) + " is '" + names[i].substr(0, 60) +
                           "', a kind whose cache is not known here");
    }
  }
}

// The last layer of each `period` is the other kind.
void take_period(std::uint32_t period, HfShape& shape, std::vector<std::uint32_t>& most,
                 std::vector<std::uint32_t>& last) {
  for (std::uint32_t i = 0; i < shape.layers; ++i) ((i + 1) % std::max(period, 1u) != 0 ? most : last).push_back(i);
}

// --- attention over all positions

void read_dense(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = shape.sliding_heads = heads_of(fields);
  all_layers(shape, shape.full);
}

// Qwen 2 and 3: the window is off unless use_sliding_window, and then the first max_window_layers see everything, if
// layer_types does not say which do.
void read_qwen(HfFields& fields, HfShape& shape) {
  read_dense(fields, shape);
  if (!fields.flag("use_sliding_window", false)) return;
  shape.window = fields.get("sliding_window", 0);
  if (shape.window == 0) return;
  if (const auto names = fields.words({"layer_types"})) {
    shape.full.clear();
    return take_layers(fields, *names, {}, shape);
  }
  const std::uint32_t first = std::min<std::uint32_t>(fields.get("max_window_layers", 28), shape.layers);
  shape.sliding.assign(shape.full.begin() + first, shape.full.end());
  shape.full.resize(first);
}

// Qwen 2 MoE: where layer_types is missing, another rule says which layers have a window. All count as full then, so no
// size that is planned with is too small.
void read_qwen_moe(HfFields& fields, HfShape& shape) {
  return fields.words({"layer_types"}) ? read_qwen(fields, shape) : read_dense(fields, shape);
}

// Mistral 7B v0.1, Phi 3, StarCoder 2: a window, where there is one, is that of all layers.
void read_windowed(HfFields& fields, HfShape& shape) {
  read_dense(fields, shape);
  shape.window = fields.get("sliding_window", 0);
  if (shape.window > 0) shape.full.swap(shape.sliding);
}

// --- sliding and full attention in turn

void take_turns(HfFields& fields, std::uint32_t period, HfShape& shape) {
  shape.window = fields.need("sliding_window");
  if (const auto names = fields.words({"layer_types"})) return take_layers(fields, *names, {}, shape);
  period = fields.get({"sliding_window_pattern", "_sliding_window_pattern"}, period);
  take_period(period, shape, shape.sliding, shape.full);
}

template <std::uint32_t kPeriod>
void read_turns(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = shape.sliding_heads = heads_of(fields);
  take_turns(fields, kPeriod, shape);
}

// Published files leave out what the class has by default.
void read_gemma3(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = shape.sliding_heads = heads_of(fields, 4, 256);
  take_turns(fields, 6, shape);
}

// Full layers have heads of their own; the last num_kv_shared_layers read the KV of others.
void read_gemma4(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = shape.sliding_heads = heads_of(fields, 4, 256);
  shape.full_heads.head_dim = fields.get("global_head_dim", 512);
  if (fields.flag("attention_k_eq_v", false)) {
    shape.full_heads.kv_heads = fields.get("num_global_key_value_heads", shape.full_heads.kv_heads);
  }
  take_turns(fields, 6, shape);
  const std::uint32_t shared = fields.get("num_kv_shared_layers", 0);
  if (shared >= shape.layers && shape.layers > 0) return fields.fail("num_kv_shared_layers", "covers all layers");
  for (auto* const layers : {&shape.full, &shape.sliding}) {
    std::erase_if(*layers, [&](std::uint32_t layer) { return layer >= shape.layers - shared; });
  }
}

// --- recurrent layers beside attention

void read_delta_net(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = heads_of(fields);
  const std::uint64_t keys = fields.need("linear_num_key_heads"), key_dim = fields.need("linear_key_head_dim");
  const std::uint64_t values = fields.need("linear_num_value_heads"), value_dim = fields.need("linear_value_head_dim");
  const std::uint64_t taps = fields.need("linear_conv_kernel_dim");
  shape.conv_elements = (2 * keys * key_dim + values * value_dim) * (taps > 0 ? taps - 1 : 0);
  shape.temporal_elements = values * key_dim * value_dim;
  if (const auto names = fields.words({"layer_types"})) {
    return take_layers(fields, *names, {.sliding = {}, .recurrent = {"linear_attention"}}, shape);
  }
  take_period(fields.need("full_attention_interval"), shape, shape.recurrent, shape.full);
}

void take_mamba2(std::uint64_t heads, std::uint64_t head_dim, std::uint64_t groups, std::uint64_t state,
                 std::uint64_t taps, HfShape& shape) {
  shape.conv_elements = (heads * head_dim + 2 * groups * state) * (taps > 0 ? taps - 1 : 0);
  shape.temporal_elements = heads * head_dim * state;
}

// The keys of Bamba, Granite 4 and Falcon-H1.
void take_prefixed_mamba2(HfFields& fields, HfShape& shape) {
  const std::uint32_t heads = fields.need("mamba_n_heads");
  std::uint64_t head_dim = fields.get("mamba_d_head", 0);  // absent or "auto": of the inner width
  if (head_dim == 0 && heads > 0) {
    std::uint64_t inner = fields.get("mamba_d_ssm", 0);
    if (inner == 0) inner = std::uint64_t{fields.need("mamba_expand")} * fields.need("hidden_size");
    if (inner % heads != 0)
      fields.fail("mamba_d_head", "is missing, and mamba_n_heads does not divide the inner width");
    head_dim = inner / heads;
  }
  take_mamba2(heads, head_dim, fields.get("mamba_n_groups", 1), fields.need("mamba_d_state"),
              fields.need("mamba_d_conv"), shape);
}

void read_granite_hybrid(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = heads_of(fields);
  const auto names = fields.words({"layer_types", "layers_block_type"});
  if (!names) return fields.fail("layer_types", "is missing, and models of this family need it");
  take_layers(fields, *names, {.sliding = {}, .recurrent = {"mamba", "linear_attention"}}, shape);
  if (!shape.recurrent.empty()) take_prefixed_mamba2(fields, shape);
}

void read_bamba(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = heads_of(fields);
  const std::vector<std::uint32_t> attention =
      fields.numbers("attn_layer_indices").value_or(std::vector<std::uint32_t>{});
  if (const auto past = std::find_if(attention.begin(), attention.end(), [&](auto i) { return i >= shape.layers; });
      past != attention.end()) {
    return fields.fail("attn_layer_indices", "names layer " + std::to_string(*past) + ", and there are " +
                                                 std::to_string(shape.layers) + ", from 0");
  }
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const bool is_full = std::find(attention.begin(), attention.end(), i) != attention.end();
    (is_full ? shape.full : shape.recurrent).push_back(i);
  }
  take_prefixed_mamba2(fields, shape);
}

// Each layer has both.
void read_falcon_h1(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = heads_of(fields);
  all_layers(shape, shape.full);
  shape.recurrent = shape.full;
  take_prefixed_mamba2(fields, shape);
}

void read_nemotron_h(HfFields& fields, HfShape& shape) {
  auto names = fields.words({"layers_block_type", "layer_types"});
  if (!names) {
    names.emplace();
    for (const char kind : fields.word("hybrid_override_pattern")) {
      names->push_back(kind == 'M'   ? "mamba"
                       : kind == '*' ? "attention"
                       : kind == '-' ? "mlp"
                       : kind == 'E' ? "moe"
                                     : std::string(1, kind));
    }
    if (names->empty()) return fields.fail("hybrid_override_pattern", "is missing, as is layers_block_type");
  }
  if (names->size() > kLayersMax) return fields.fail("layers_block_type", "too many layers");
  shape.layers = static_cast<std::uint32_t>(names->size());
  shape.full_heads = heads_of(fields);
  take_layers(fields, *names, {.sliding = {}, .recurrent = {"mamba", "linear_attention"}, .none = {"mlp", "moe"}},
              shape);
  take_mamba2(fields.need("mamba_num_heads"), fields.need("mamba_head_dim"),
              fields.need({"n_groups", "mamba_n_groups"}), fields.need("ssm_state_size"),
              fields.need({"conv_kernel", "mamba_d_conv"}), shape);
}

void read_mamba2(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  all_layers(shape, shape.recurrent);
  take_mamba2(fields.need("num_heads"), fields.need("head_dim"), fields.need("n_groups"), fields.need("state_size"),
              fields.need("conv_kernel"), shape);
}

void read_lfm2(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads = heads_of(fields);
  const auto names = fields.words({"layer_types"});
  if (!names) return fields.fail("layer_types", "is missing, and models of this family need it");
  take_layers(fields, *names, {.sliding = {}, .recurrent = {"conv"}}, shape);
  const std::uint64_t taps = fields.need("conv_L_cache");
  shape.conv_elements = std::uint64_t{fields.need("hidden_size")} * (taps > 0 ? taps - 1 : 0);
}

// --- latent attention

void read_mla(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  all_layers(shape, shape.full);
  shape.latent = fields.need("kv_lora_rank") + fields.need("qk_rope_head_dim");
}

void read_dsa(HfFields& fields, HfShape& shape) {
  read_mla(fields, shape);
  shape.index_dim = fields.need("index_head_dim");
  if (fields.get("index_topk_freq", 1) > 1) {
    fields.refuse("index_topk_freq is above 1: which layers have an indexer of their own is not known here");
  }
}

void read_deepseek_v4(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.full_heads.head_dim = fields.need("head_dim");
  shape.latent = fields.need("qk_rope_head_dim");
  shape.index_dim = fields.need("index_head_dim");
  shape.window = fields.need("sliding_window");
  shape.compress_ratios = fields.numbers("compress_ratios").value_or(std::vector<std::uint32_t>{});
  if (shape.compress_ratios.size() < shape.layers) {
    return fields.fail("compress_ratios", "has fewer entries than there are layers");
  }
  shape.compress_ratios.resize(shape.layers);  // the rest are those that predict further tokens
}

constexpr auto kHfFamilies = std::to_array<HfFamily>({
    {"llama", read_dense},
    {"mistral", read_windowed},
    {"mixtral", read_windowed},
    {"phi3", read_windowed},
    {"starcoder2", read_windowed},
    {"qwen2", read_qwen},
    {"qwen2_moe", read_qwen_moe},
    {"qwen3", read_qwen},
    {"qwen3_moe", read_qwen},
    {"qwen2_5_vl_text", read_qwen},
    {"qwen3_vl_text", read_dense},
    {"qwen3_vl_moe_text", read_dense},
    {"granite", read_dense},
    {"granitemoe", read_dense},
    {"glm4", read_dense},
    {"glm4_moe", read_dense},
    {"olmo2", read_dense},
    {"seed_oss", read_dense},
    {"minimax_m2", read_dense},
    {"gemma2", read_turns<2>},
    {"gemma3_text", read_gemma3},
    {"gemma4_text", read_gemma4},
    {"cohere2", read_turns<4>},
    {"gpt_oss", read_turns<2>},
    {"qwen3_next", read_delta_net},
    {"qwen3_5", read_delta_net},
    {"qwen3_5_text", read_delta_net},
    {"qwen3_5_moe", read_delta_net},
    {"qwen3_5_moe_text", read_delta_net},
    {"nemotron_h", read_nemotron_h},
    {"granitemoehybrid", read_granite_hybrid},
    {"bamba", read_bamba},
    {"falcon_h1", read_falcon_h1},
    {"mamba2", read_mamba2},
    {"lfm2", read_lfm2},
    {"lfm2_moe", read_lfm2},
    {"deepseek_v2", read_mla},
    {"deepseek_v3", read_mla},
    {"kimi_k2", read_mla},
    {"glm4_moe_lite", read_mla},
    {"deepseek_v32", read_dsa},
    {"glm_moe_dsa", read_dsa},
    {"deepseek_v4", read_deepseek_v4},
    {"gemma3", read_gemma3},
});

}  // namespace

std::span<const HfFamily> all_hf_families() { return kHfFamilies; }

}  // namespace larder
