// SPDX-License-Identifier: Apache-2.0
#include "config/hf_families.h"

#include <algorithm>
#include <array>
#include <string>

#include "config/hf_layers.h"
#include "model/model_limits.h"

namespace larder {
namespace {

// --- attention over all positions

void read_dense(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  all_layers(shape, shape.full);
}

// Each block says how many queries share a head, or that it has no attention.
void read_nemotron_nas(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  const std::uint32_t queries = fields.need("num_attention_heads");
  for (std::uint32_t i = 0; i < shape.layers && fields.status().is_ok(); ++i) {
    const std::string block = "block_configs." + std::to_string(i) + ".attention.", layer = std::to_string(i);
    if (fields.flag(block + "no_op", false) || fields.flag(block + "replace_with_linear", false)) continue;
    if (fields.get(block + "window_length", 0) > 0) fields.refuse("block_configs: layer " + layer + " has a window");
    const std::uint32_t group = fields.need(block + "n_heads_in_group");
    if (group == 0 || queries % group != 0) {
      return fields.fail(block + "n_heads_in_group", "does not divide num_attention_heads");
    }
    if (shape.full.empty()) shape.full_heads.kv_heads = queries / group;
    if (shape.full_heads.kv_heads != queries / group) {
      return fields.refuse("block_configs: " + std::to_string(queries / group) + " heads of layer " + layer +
                           ", and layer " + std::to_string(shape.full.front()) + " has " +
                           std::to_string(shape.full_heads.kv_heads) + ": one pool has both");
    }
    shape.full.push_back(i);
  }
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
  if (const auto names = fields.words({"layer_types"})) {
    take_layers(fields, *names, {}, shape);
  } else {
    period = fields.get({"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"}, period);
    if (period == 0) return fields.fail("sliding_window_pattern", "is 0");
    take_period(period, shape, shape.sliding, shape.full);
  }
  if (!shape.sliding.empty()) shape.window = fields.need("sliding_window");
}

template <std::uint32_t kPeriod>
void read_turns(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  take_turns(fields, kPeriod, shape);
}

// The first layers, which are dense, have turns of their own.
void read_cohere2_moe(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  const std::uint32_t dense = fields.get("first_k_dense_replace", 0);
  const std::uint32_t dense_period = std::max(fields.get("prefix_dense_sliding_window_pattern", 1), 1u);
  const std::uint32_t period = std::max(fields.get("sliding_window_pattern", 4), 1u);
  if (const auto names = fields.words({"layer_types"})) {
    take_layers(fields, *names, {}, shape);
  } else {
    for (std::uint32_t i = 0; i < shape.layers; ++i) {
      const bool is_last = i < dense ? (i + 1) % dense_period == 0 : (i - dense + 1) % period == 0;
      (is_last ? shape.full : shape.sliding).push_back(i);
    }
  }
  if (!shape.sliding.empty()) shape.window = fields.need("sliding_window");
}

// Most layers see their chunk of the text alone: no more of it than a window of that length.
void read_llama4(HfFields& fields, HfShape& shape) {
  read_dense(fields, shape);
  shape.window = fields.get("attention_chunk_size", fields.has("attention_chunk_size") ? 0 : 8192);
  if (shape.window == 0) return;
  shape.full.clear();
  if (const auto names = fields.words({"layer_types"})) {
    return take_layers(fields, *names, {.sliding = {"chunked_attention"}}, shape);
  }
  const std::vector<std::uint32_t> marks = fields.numbers("no_rope_layers").value_or(std::vector<std::uint32_t>{});
  if (marks.empty()) {
    const std::uint32_t period = fields.has("no_rope_layer_interval") ? fields.need("no_rope_layer_interval") : 4;
    return take_period(period, shape, shape.sliding, shape.full);
  }
  take_marks(fields, "no_rope_layers", marks, shape, shape.sliding, shape.full);
}

// Keys and values differ in width, and sliding layers have heads of their own.
void read_mimo_v2(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  shape.full_heads.value_dim = fields.get("v_head_dim", 128);
  shape.sliding_heads.kv_heads = fields.get("swa_num_key_value_heads", 2 * shape.full_heads.kv_heads);
  shape.sliding_heads.head_dim = fields.get("swa_head_dim", shape.full_heads.head_dim);
  shape.sliding_heads.value_dim = fields.get("swa_v_head_dim", shape.full_heads.value_dim);
  shape.window = fields.need({"sliding_window_size", "sliding_window"});
  if (const auto names = fields.words({"layer_types"})) return take_layers(fields, *names, {}, shape);
  const auto marks = fields.numbers("hybrid_layer_pattern").value_or(std::vector<std::uint32_t>{});
  take_marks(fields, "hybrid_layer_pattern", marks, shape, shape.sliding, shape.full);
}

void read_step3p5(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  shape.sliding_heads.kv_heads =
      fields.get("attention_other_setting.num_attention_groups", shape.sliding_heads.kv_heads);
  shape.sliding_heads.head_dim = fields.get("attention_other_setting.head_dim", shape.sliding_heads.head_dim);
  if (!fields.has("layer_types")) return fields.fail("layer_types", "is missing, and models of this family need it");
  take_turns(fields, 1, shape);
}

// The last layers read the KV of others.
void drop_shared(HfFields& fields, std::uint32_t otherwise, HfShape& shape) {
  const std::uint32_t shared = fields.get("num_kv_shared_layers", otherwise);
  if (shared >= shape.layers && shape.layers > 0) return fields.fail("num_kv_shared_layers", "covers all layers");
  for (auto* const layers : {&shape.full, &shape.sliding}) {
    std::erase_if(*layers, [&](std::uint32_t layer) { return layer >= shape.layers - shared; });
  }
}

void read_gemma3n(HfFields& fields, HfShape& shape) {
  read_turns<5>(fields, shape);
  drop_shared(fields, 15, shape);
}

// Full layers have heads of their own, and the last one is always full.
void read_gemma4(HfFields& fields, HfShape& shape) {
  read_turns<6>(fields, shape);
  shape.full_heads.head_dim = fields.get("global_head_dim", 512);
  if (fields.flag("attention_k_eq_v", false)) {
    shape.full_heads.kv_heads = fields.get("num_global_key_value_heads", shape.full_heads.kv_heads);
  }
  if (!shape.sliding.empty() && shape.sliding.back() + 1 == shape.layers) {
    shape.full.push_back(shape.sliding.back());
    shape.sliding.pop_back();
  }
  drop_shared(fields, 0, shape);
}

// --- recurrent layers beside attention

void read_delta_net(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
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
  take_heads(fields, shape);
  const auto names = fields.words({"layer_types", "layers_block_type"});
  if (!names) return fields.fail("layer_types", "is missing, and models of this family need it");
  take_layers(fields, *names, {.sliding = {}, .recurrent = {"mamba", "linear_attention"}}, shape);
  if (!shape.recurrent.empty()) take_prefixed_mamba2(fields, shape);
}

void read_bamba(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  take_listed(fields, "attn_layer_indices", 0, shape);
  take_prefixed_mamba2(fields, shape);
}

// Each layer has both.
void read_falcon_h1(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  all_layers(shape, shape.full);
  shape.recurrent = shape.full;
  take_prefixed_mamba2(fields, shape);
}

void read_jamba(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  const std::uint32_t period = fields.need("attn_layer_period"), offset = fields.get("attn_layer_offset", 4);
  if (offset >= period) return fields.fail("attn_layer_offset", "is not below attn_layer_period");
  for (std::uint32_t i = 0; i < shape.layers; ++i) (i % period == offset ? shape.full : shape.recurrent).push_back(i);
  const std::uint64_t inner = std::uint64_t{fields.need("mamba_expand")} * fields.need("hidden_size");
  take_mamba2(1, inner, 0, fields.need("mamba_d_state"), fields.need("mamba_d_conv"), shape);  // of its first kind
}

// A state in each layer; in some a shared block of attention comes before it, which is twice as wide as the model.
void read_zamba2(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  const std::uint32_t queries = fields.need("num_attention_heads"), hidden = fields.need("hidden_size");
  shape.full_heads.kv_heads = fields.get("num_key_value_heads", queries);
  if (queries == 0 || 2 * hidden % queries != 0) {
    return fields.fail("num_attention_heads", "does not divide twice the hidden_size");
  }
  shape.full_heads.head_dim = 2 * hidden / queries;
  const auto names = fields.words({"layers_block_type", "layer_types"});
  if (!names) return fields.fail("layers_block_type", "is missing, and models of this family need it");
  take_layers(fields, *names, {.full = {"hybrid"}, .sliding = {}, .recurrent = {"mamba", "linear_attention"}}, shape);
  shape.recurrent.clear();
  all_layers(shape, shape.recurrent);
  const std::uint64_t inner = std::uint64_t{fields.need("mamba_expand")} * hidden;
  take_mamba2(1, inner, fields.get("mamba_ngroups", 1), fields.need("mamba_d_state"), fields.need("mamba_d_conv"),
              shape);
}

// A matrix for each head, and no convolution before it.
void take_lightning(std::uint64_t heads, std::uint64_t width, HfShape& shape) {
  shape.has_conv = false;
  shape.temporal_elements = heads * width * width;
}

// vLLM and transformers keep its states in the type of the model.
void read_minimax(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_heads(fields, shape);
  take_lightning(fields.get("num_attention_heads", 0), shape.full_heads.head_dim, shape);
  shape.has_narrow_state = true;
  if (const auto names = fields.words({"layer_types"})) {
    return take_layers(fields, *names, {.sliding = {}, .recurrent = {"linear_attention"}}, shape);
  }
  const auto marks = fields.numbers("attn_type_list").value_or(std::vector<std::uint32_t>{});
  take_marks(fields, "attn_type_list", marks, shape, shape.full, shape.recurrent);
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
  take_heads(fields, shape);
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
  take_heads(fields, shape);
  if (const auto names = fields.words({"layer_types"})) {
    take_layers(fields, *names, {.sliding = {}, .recurrent = {"conv"}}, shape);
  } else {
    if (!fields.has("full_attn_idxs")) fields.fail("layer_types", "is missing, as is full_attn_idxs");
    take_listed(fields, "full_attn_idxs", 0, shape);
  }
  const std::uint64_t taps = fields.need("conv_L_cache");
  shape.conv_elements = std::uint64_t{fields.need("hidden_size")} * (taps > 0 ? taps - 1 : 0);
}

// --- latent attention

void take_latent(HfFields& fields, HfShape& shape) {
  all_layers(shape, shape.full);
  shape.latent = fields.need("kv_lora_rank");
  shape.rope = fields.need("qk_rope_head_dim");
}

void read_mla(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  take_latent(fields, shape);
}

// Two attentions in each layer, which count as layers here.
void read_longcat(HfFields& fields, HfShape& shape) {
  shape.layers = 2 * layer_count_of(fields, "num_layers", kLayersMax / 2);
  take_latent(fields, shape);
}

void take_delta(std::uint64_t heads, std::uint64_t width, std::uint64_t taps, HfShape& shape) {
  shape.conv_elements = 3 * heads * width * (taps > 0 ? taps - 1 : 0);
  shape.temporal_elements = heads * width * width;
}

// Delta attention with a gate for each channel, beside MLA.
void read_kimi_linear(HfFields& fields, HfShape& shape) {
  read_mla(fields, shape);
  shape.full.clear();
  if (const auto names = fields.words({"layer_types"})) {
    take_layers(fields, *names, {.sliding = {}, .recurrent = {"linear_attention"}}, shape);
  } else {
    take_listed(fields, "linear_attn_config.full_attn_layers", 1, shape);
    const auto delta = fields.numbers("linear_attn_config.kda_layers");
    if (!delta || delta->size() != shape.recurrent.size()) {
      fields.fail("linear_attn_config", "does not name each layer once, in full_attn_layers or in kda_layers");
    }
  }
  take_delta(fields.need({"linear_attn_config.num_heads", "linear_num_heads"}),
             fields.need({"linear_attn_config.head_dim", "linear_head_dim"}),
             fields.need({"linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"}), shape);
}

// Ling 2.5 has lightning attention beside MLA, Ling 3.0 delta attention, of which the file gives the convolution.
void read_bailing_hybrid(HfFields& fields, HfShape& shape) {
  if (const std::string kind = fields.word("full_attention_type"); !kind.empty() && kind != "mla") {
    return fields.refuse("full_attention_type: '" + kind.substr(0, 60) + "', a kind whose cache is not known here");
  }
  read_mla(fields, shape);
  shape.full.clear();
  if (const auto names = fields.words({"layer_types"})) {
    take_layers(fields, *names, {.sliding = {}, .recurrent = {"linear_attention"}}, shape);
  } else {
    const std::uint32_t group = std::max(fields.need("layer_group_size"), 1u);
    if (shape.layers % group != 0) {  // engines differ in what the rest is
      fields.refuse("layer_group_size: " + std::to_string(group) + " does not divide " + std::to_string(shape.layers) +
                    ", the number of layers");
    }
    take_period(group, shape, shape.recurrent, shape.full);
  }
  const std::uint64_t heads = fields.need("num_attention_heads"), width = fields.need({"linear_head_dim", "head_dim"});
  if (!fields.has("short_conv_kernel_size")) return take_lightning(heads, width, shape);
  take_delta(heads, width, fields.need("short_conv_kernel_size"), shape);
  if (fields.flag("use_mla_nope", false)) shape.rope = 0;
}

// Which layers choose what is attended to, where others follow them: GLM 5.2. By default all do.
void take_indexed(HfFields& fields, HfShape& shape) {
  auto types = fields.words({"indexer_types"});
  if (!types) {
    for (const char kind : fields.word("index_topk_pattern")) {
      if (!types) types.emplace();
      types->push_back(kind == 'F' ? "full" : kind == 'S' ? "shared" : std::string(1, kind));
    }
  }
  if (!types) {
    const std::uint32_t period = std::max(fields.get("index_topk_freq", 1), 1u);
    const std::uint32_t offset = fields.get("index_skip_topk_offset", 2);
    for (std::uint32_t i = 0; i < shape.layers; ++i) {
      if (i + 1 < offset || (i + 1 - offset) % period == 0) shape.indexed.push_back(i);
    }
    return;
  }
  HfShape found;
  found.layers = shape.layers;
  take_layers(fields, *types, {.full = {"full"}, .sliding = {}, .none = {"shared"}, .key = "indexer_types"}, found);
  shape.indexed = std::move(found.full);
}

void read_dsa(HfFields& fields, HfShape& shape) {
  read_mla(fields, shape);
  shape.index_dim = fields.need("index_head_dim");
  take_indexed(fields, shape);
}

// All layers have KV, and those that choose blocks of it have one more key.
void read_minimax_m3(HfFields& fields, HfShape& shape) {
  read_dense(fields, shape);
  shape.index_dim = fields.need("sparse_attention_config.sparse_index_dim");
  const auto marks = fields.numbers("sparse_attention_config.sparse_attention_freq");
  const auto has_no_value = fields.numbers("sparse_attention_config.sparse_disable_index_value");
  std::vector<std::uint32_t> others;
  take_marks(fields, "sparse_attention_config.sparse_attention_freq", marks.value_or(others), shape, shape.indexed,
             others);
  if (has_no_value != marks) fields.refuse("sparse_disable_index_value: is not as sparse_attention_freq");
}

// As numbers, or by the names that transformers 5 gives them.
void take_ratios(HfFields& fields, HfShape& shape) {
  if (auto ratios = fields.numbers("compress_ratios")) {
    shape.compress_ratios = std::move(*ratios);
    return;
  }
  const auto names = fields.words({"layer_types"});
  if (!names) return fields.fail("compress_ratios", "is missing, as is layer_types");
  for (const auto& [kind, ratio] :
       {std::pair{"compressed_sparse_attention", 4u}, {"heavily_compressed_attention", 128u}}) {
    const std::uint32_t rate = fields.get({"compress_rates." + std::string(kind)}, ratio);
    if (rate != ratio) fields.refuse("compress_rates: " + std::string(kind) + " is " + std::to_string(rate));
  }
  HfShape kinds;
  kinds.layers = shape.layers;
  take_layers(fields, *names,
              {.full = {"compressed_sparse_attention"},
               .sliding = {"sliding_attention"},
               .recurrent = {"heavily_compressed_attention"}},
              kinds);
  shape.compress_ratios.assign(shape.layers, 0);
  for (const std::uint32_t layer : kinds.full) shape.compress_ratios[layer] = 4;
  for (const std::uint32_t layer : kinds.recurrent) shape.compress_ratios[layer] = 128;
}

void read_deepseek_v4(HfFields& fields, HfShape& shape) {
  shape.layers = layer_count_of(fields);
  shape.rope = fields.need("qk_rope_head_dim");
  const std::uint32_t width = fields.need("head_dim");
  if (width <= shape.rope) return fields.fail("head_dim", "is not above qk_rope_head_dim");
  shape.latent = width - shape.rope;
  shape.index_dim = fields.need("index_head_dim");
  shape.window = fields.need("sliding_window");
  take_ratios(fields, shape);
  if (shape.compress_ratios.size() < shape.layers) {
    return fields.fail("compress_ratios", "has fewer entries than there are layers");
  }
  shape.compress_ratios.resize(shape.layers);  // the rest are those that predict further tokens
  for (const std::uint32_t ratio : shape.compress_ratios) {
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      fields.fail("compress_ratios", "has an entry that is none of 0, 4, 128");
    }
  }
}

constexpr auto kHfFamilies = std::to_array<HfFamily>({
    {"llama", read_dense},
    {"mistral", read_windowed, {8}},
    {"mixtral", read_windowed, {8}},
    {"phi3", read_windowed},
    {"starcoder2", read_windowed, {2}},
    {"qwen2", read_qwen, {32}},
    {"qwen2_moe", read_qwen_moe, {16}},
    {"qwen3", read_qwen, {32, 128}},
    {"qwen3_moe", read_qwen, {4}},
    {"qwen2_vl", read_qwen, {8}},
    {"qwen2_vl_text", read_qwen, {8}},
    {"qwen2_5_vl", read_qwen, {8}},
    {"qwen2_5_vl_text", read_qwen, {8}},
    {"qwen3_vl_text", read_dense, {32, 128}},
    {"qwen3_vl_moe_text", read_dense, {16}},
    {"granite", read_dense},
    {"granitemoe", read_dense},
    {"glm4", read_dense, {2, 128}},
    {"glm4_moe", read_dense, {8}},
    {"olmo2", read_dense},
    {"seed_oss", read_dense, {8, 128}},
    {"minimax_m2", read_dense, {8, 128}},
    {"ministral3", read_windowed, {8, 128}},
    {"mimo", read_qwen},
    {"smollm3", read_qwen, {4}},
    {"cohere", read_dense},
    {"ernie4_5", read_dense, {2, 128}},
    {"ernie4_5_moe", read_dense, {4}},
    {"hunyuan_v1_dense", read_dense},
    {"hunyuan_v1_moe", read_dense},
    {"hy_v3", read_dense, {8, 128}},
    {"solar_open", read_dense, {8, 128}},
    {"apertus", read_dense},
    {"arcee", read_dense},
    {"glm", read_dense, {2, 128}},
    {"glm4v_text", read_dense, {2}},
    {"glm4v_moe_text", read_dense, {8}},
    {"step3_text", read_dense, {1, 256}},
    {"bailing_moe", read_dense},
    {"bailing_moe_v2", read_dense},
    {"nemotron-nas", read_nemotron_nas},
    {"gemma2", read_turns<2>, {4, 256}},
    {"gemma3", read_turns<6>, {4, 256}},
    {"gemma3_text", read_turns<6>, {4, 256}},
    {"gemma4_text", read_gemma4, {4, 256}},
    {"gemma4_unified_text", read_gemma4, {4, 256}},
    {"gemma3n_text", read_gemma3n, {2, 256}},
    {"cohere2", read_turns<4>},
    {"cohere2_moe", read_cohere2_moe, {0, 128}},
    {"olmo3", read_turns<4>},
    {"exaone4", read_turns<4>, {32}},
    {"exaone_moe", read_turns<4>, {32}},
    {"afmoe", read_turns<4>, {0, 128}},
    {"laguna", read_turns<1>, {8, 128}},
    {"llama4_text", read_llama4, {8, 128}},
    {"mimo_v2_flash", read_mimo_v2, {4, 192}},
    {"step3p5", read_step3p5, {8, 128}},
    {"step3p7", read_step3p5, {8, 128}},
    {"gpt_oss", read_turns<2>, {8, 64}},
    {"qwen3_next", read_delta_net, {2, 256}},
    {"qwen3_5", read_delta_net, {4, 256}},
    {"qwen3_5_text", read_delta_net, {4, 256}},
    {"qwen3_5_moe", read_delta_net, {2, 256}},
    {"qwen3_5_moe_text", read_delta_net, {2, 256}},
    {"nemotron_h", read_nemotron_h, {8, 128}},
    {"granitemoehybrid", read_granite_hybrid},
    {"bamba", read_bamba, {8}},
    {"falcon_h1", read_falcon_h1, {8}},
    {"mamba2", read_mamba2},
    {"jamba", read_jamba, {8}},
    {"zamba2", read_zamba2},
    {"minimax", read_minimax, {8}},
    {"minimax_text_01", read_minimax},
    {"minimax_m1", read_minimax},
    {"lfm2", read_lfm2, {8}},
    {"lfm2_moe", read_lfm2, {8}},
    {"deepseek_v2", read_mla},
    {"deepseek_v3", read_mla},
    {"kimi_k2", read_mla},
    {"glm4_moe_lite", read_mla},
    {"mistral4", read_mla},
    {"longcat_flash", read_longcat},
    {"kimi_linear", read_kimi_linear},
    {"bailing_hybrid", read_bailing_hybrid},
    {"deepseek_v32", read_dsa},
    {"glm_moe_dsa", read_dsa},
    {"deepseek_v4", read_deepseek_v4},
    {"minimax_m3", read_minimax_m3, {4, 128}},
    {"minimax_m3_vl", read_minimax_m3, {4, 128}},
});

}  // namespace

std::span<const HfFamily> all_hf_families() { return kHfFamilies; }

HfShape read_hf_shape(const HfFamily& family, HfFields& fields) {
  HfShape shape;
  shape.full_heads = family.heads;
  shape.context = fields.get({"max_position_embeddings", "model_max_length"}, 0, kContextLengthMax);
  family.read(fields, shape);
  take_layer_heads(fields, shape.full, shape.full_heads);
  take_layer_heads(fields, shape.sliding, shape.sliding_heads);
  // A window that no text fills is none (Phi 4 mini).
  if (shape.context > 0 && shape.window >= shape.context && shape.sliding_heads == shape.full_heads) {
    shape.full.insert(shape.full.end(), shape.sliding.begin(), shape.sliding.end());
    std::sort(shape.full.begin(), shape.full.end());
    shape.sliding.clear();
  }
  return shape;
}

}  // namespace larder
