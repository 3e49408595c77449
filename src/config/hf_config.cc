// SPDX-License-Identifier: Apache-2.0
#include "config/hf_config.h"

#include <algorithm>
#include <utility>

#include "config/hf_families.h"
#include "model/derive_pools.h"
#include "model/model_limits.h"
#include "model/pool_list.h"

namespace larder {
namespace {

// Python writes Infinity and NaN, which are no JSON: null in their place. Texts are left alone.
std::string without_infinities(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool is_in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_in_text = !is_in_text;
    if (is_in_text && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    if (!is_in_text) {
      const std::string_view rest = text.substr(i);
      const auto word = {std::string_view("-Infinity"), std::string_view("Infinity"), std::string_view("NaN")};
      const auto* const found = std::find_if(word.begin(), word.end(), [&](auto w) { return rest.starts_with(w); });
      if (found != word.end()) {
        out += "null";
        i += found->size() - 1;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

const Tree::Table* table_at(const Tree::Table& table, std::string_view key) {
  const auto at = std::find_if(table.begin(), table.end(), [&](const TreeEntry& e) { return e.first == key; });
  return at == table.end() ? nullptr : at->second.as<Tree::Table>();
}

Dtype hf_dtype(HfFields& fields, std::string_view key, const std::string& name) {
  if (name == "bfloat16") return Dtype::kBf16;
  if (name == "float16") return Dtype::kF16;
  if (name != "float32") fields.fail(key, "'" + name.substr(0, 60) + "' is none of bfloat16, float16, float32");
  return Dtype::kF32;
}

struct HfTypes {
  Dtype kv = Dtype::kBf16, temporal = Dtype::kF32;
};
constexpr Dtype kConvDtype = Dtype::kBf16;

// Of the weights' dtype nothing is asked: SGLang and vLLM compute in 16 bits, whatever is stored.
HfTypes types_of(HfFields& fields, const HfShape& shape, const HfOptions& options) {
  HfTypes types;
  if (!shape.compress_ratios.empty()) types.kv = Dtype::kFp8E4m3;  // of DeepSeek V4: whatever the weights have
  if (options.kv_dtype) types.kv = *options.kv_dtype;
  if (shape.has_narrow_state) types.temporal = Dtype::kBf16;
  for (const char* const key : {"mamba_ssm_dtype", "mamba_ssm_cache_dtype"}) {
    if (const std::string state = fields.word(key); !state.empty()) types.temporal = hf_dtype(fields, key, state);
  }
  return types;
}

// What ModelOpt says of KV, and SGLang and vLLM do as it says.
struct HfQuantization {
  bool is_there = false, is_mixed = false, is_kv_said = false, is_kv_eight = false;
};

HfQuantization quantization_of(const std::string& source, const Tree::Table* found) {
  HfQuantization says{.is_there = found != nullptr};
  if (found == nullptr) return says;
  HfFields fields(source, *found, *found);
  const std::string algorithm = fields.word("quant_algo");
  says.is_mixed = algorithm == "MIXED_PRECISION";
  says.is_kv_said = fields.has("kv_cache_scheme") || fields.has("kv_cache_quant_algo");
  const bool is_eight =
      fields.word("kv_cache_scheme.type") == "float" && fields.get("kv_cache_scheme.num_bits", 0) == 8;
  says.is_kv_eight = !algorithm.empty() && (is_eight || fields.word("kv_cache_quant_algo") == "FP8");
  return says;
}

// In hf_quant_config.json it stands in a table, or as config.json has it. SGLang reads that file where config.json says
// nothing, or of mixed precision nothing about KV.
Status choose_kv_dtype(const std::string& source, const Tree::Table& top, const Tree::Table& inner, HfOptions& options,
                       bool& is_of_text) {
  const Tree::Table* const own = table_at(top, "quantization_config");
  HfQuantization says = quantization_of(source, own != nullptr ? own : table_at(inner, "quantization_config"));
  if (!options.quant_text.empty() && (!says.is_there || (says.is_mixed && !says.is_kv_said))) {
    const std::string name(options.quant_name);
    const Result<Tree> tree = parse_json_tree(without_infinities(options.quant_text), name);
    if (!tree) return tree.status();
    const auto* const table = tree->as<Tree::Table>();
    if (table == nullptr) return invalid_argument(name + ": is no JSON object");
    const Tree::Table* const section = table_at(*table, "quantization");
    says = quantization_of(name, section != nullptr ? section : table);
    is_of_text = says.is_kv_eight && !options.kv_dtype;
  }
  if (says.is_kv_eight && !options.kv_dtype) options.kv_dtype = Dtype::kFp8E4m3;
  return Status::ok();
}

PlaneSpec plane_of(std::string name, Dtype dtype, std::uint32_t rows, std::uint32_t heads, std::uint64_t dim) {
  return {std::move(name), dtype, rows, heads, static_cast<std::uint32_t>(dim)};
}

std::vector<PlaneSpec> key_value_planes(const HfShape::Heads& heads, Dtype dtype, std::uint32_t rows) {
  return {plane_of("k", dtype, rows, heads.kv_heads, heads.head_dim),
          plane_of("v", dtype, rows, heads.kv_heads, heads.value_dim > 0 ? heads.value_dim : heads.head_dim)};
}

// An indexer's keys beside a latent: in eight bits, whatever KV has, and a float32 scale for each 128. Beside heads
// (MiniMax M3) they have 16.
PlaneSpec index_plane(const HfShape& shape, std::uint32_t rows) {
  if (shape.latent == 0) return plane_of("index_k", Dtype::kBf16, rows, 1, shape.index_dim);
  return plane_of("index_k", Dtype::kU8, rows, 1, shape.index_dim + (shape.index_dim + 127) / 128 * 4);
}

// The latent and its rotary part. Kernels of models with an indexer have scales beside eight bits, too, and the rotary
// part in 16: one float32 for each 128 of DeepSeek V3.2, one byte for each 64 and one more of V4.
PlaneSpec latent_plane(const HfShape& shape, Dtype dtype, std::uint32_t rows) {
  if (shape.index_dim == 0 || dtype != Dtype::kFp8E4m3) {
    return plane_of("latent", dtype, rows, 1, shape.latent + shape.rope);
  }
  const std::uint32_t scales =
      shape.compress_ratios.empty() ? (shape.latent + 127) / 128 * 4 : (shape.latent + 63) / 64 + 1;
  return plane_of("latent", Dtype::kU8, rows, 1, shape.latent + 2 * shape.rope + scales);
}

std::vector<PoolSpec> pools_of_shape(const HfShape& shape, const HfTypes& types, std::uint32_t page_size) {
  std::vector<PoolSpec> pools;
  if (!shape.indexed.empty()) {
    PoolSpec& indexer = pools.emplace_back();
    indexer.name = PoolName::kIndexer;
    indexer.scope = RankScope::kReplicated;
    indexer.layers = shape.indexed;
    indexer.planes = {index_plane(shape, page_size)};
  }
  PoolSpec& kv = pools.emplace_back();
  kv.is_anchor = true;
  kv.layers = shape.full;
  if (shape.latent > 0) {
    kv.scope = RankScope::kReplicated;
    kv.planes = {latent_plane(shape, types.kv, page_size)};
  } else if (!shape.full.empty()) {
    kv.planes = key_value_planes(shape.full_heads, types.kv, page_size);
  }
  const auto add = [&](PoolName name, ComponentKind component, const std::vector<std::uint32_t>& layers,
                       std::vector<PlaneSpec> planes) {
    if (layers.empty()) return;
    pools.push_back({.name = name,
                     .component = component,
                     .is_anchor = true,
                     .hit_policy = HitPolicy::kTrailingPages,
                     .layers = layers,
                     .planes = std::move(planes)});
  };
  add(PoolName::kSwa, ComponentKind::kSwa, shape.sliding, key_value_planes(shape.sliding_heads, types.kv, page_size));
  std::vector<PlaneSpec> state;
  if (shape.has_conv) state.push_back(plane_of("conv", kConvDtype, 1, 1, shape.conv_elements));
  if (shape.temporal_elements > 0) state.push_back(plane_of("temporal", types.temporal, 1, 1, shape.temporal_elements));
  add(PoolName::kMamba, ComponentKind::kMamba, shape.recurrent, std::move(state));
  return pools;
}

// DeepSeek V4: an entry for 4 or 128 tokens, a window in all layers, and in each of its pages what the next entry of 4
// tokens goes on from: 8 rows of keys and scores, each of two groups.
std::vector<PoolSpec> pools_of_v4(const HfShape& shape, Dtype dtype, std::uint32_t page_size) {
  std::vector<std::uint32_t> all, c4, c128;
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    all.push_back(i);
    if (shape.compress_ratios[i] == 4) c4.push_back(i);
    if (shape.compress_ratios[i] == 128) c128.push_back(i);
  }
  std::vector<PoolSpec> pools;
  const auto add = [&](PoolName name, ComponentKind component, const std::vector<std::uint32_t>& layers,
                       PlaneSpec plane) {
    if (layers.empty()) return;
    pools.push_back({.name = name,
                     .component = component,
                     .is_anchor = name == PoolName::kSwa,
                     .hit_policy = component == ComponentKind::kFull ? HitPolicy::kAllPages : HitPolicy::kTrailingPages,
                     .scope = RankScope::kReplicated,
                     .layers = layers,
                     .planes = {std::move(plane)}});
  };
  using enum ComponentKind;
  add(PoolName::kDeepseekV4C4, kFull, c4, latent_plane(shape, dtype, page_size / kC4Group));
  add(PoolName::kDeepseekV4C4Indexer, kFull, c4, index_plane(shape, page_size / kC4Group));
  add(PoolName::kDeepseekV4C128, kFull, c128, latent_plane(shape, dtype, page_size / kC128Group));
  add(PoolName::kDeepseekV4C4State, kSwa, c4,
      plane_of("state", Dtype::kF32, kC4RingRows, 4, shape.latent + shape.rope));
  add(PoolName::kDeepseekV4C4IndexerState, kSwa, c4, plane_of("state", Dtype::kF32, kC4RingRows, 4, shape.index_dim));
  add(PoolName::kSwa, kSwa, all, latent_plane(shape, dtype, page_size));
  pools.push_back({.is_anchor = true, .scope = RankScope::kReplicated});  // what says that a page is there
  return pools;
}

Result<ModelSpec> spec_of_shape(const HfShape& shape, HfFields& fields, const HfOptions& options,
                                const std::string& family) {
  const HfTypes types = types_of(fields, shape, options);
  for (const std::uint64_t elements : {shape.conv_elements, shape.temporal_elements}) {
    if (elements > kPageBytesMax) fields.fail("conv and temporal state", "have more than 4 GiB");
  }
  if (!shape.recurrent.empty() && shape.has_conv && shape.conv_elements == 0)
    fields.fail("conv_kernel", "must be at least 2");
  if (!fields.status().is_ok()) return fields.status();
  PoolList list{.id = family, .page_size = options.page_size, .window = shape.window};
  if (shape.compress_ratios.empty()) {
    if (shape.sliding.empty()) list.window = 0;
    list.pools = pools_of_shape(shape, types, options.page_size);
  } else if (options.page_size % kC128Group != 0) {
    return invalid_argument("page_size is " + std::to_string(options.page_size) + ": it must be a multiple of " +
                            std::to_string(kC128Group) + ", so that no entry crosses a page");
  } else {
    list.pools = pools_of_v4(shape, types.kv, options.page_size);
  }
  return model_of_pools(std::move(list));
}

// No family that sounds alike is proposed: a tool wrote the word, and another family has other sizes.
Status unknown_family(const std::string& source, const std::string& family) {
  return unsupported(source + ": model_type: models of family '" + family.substr(0, 60) +
                     "' are not known here, and their sizes are not guessed; give layers and dimensions in a model "
                     "file (--model-file); known are " +
                     hf_families());
}

}  // namespace

std::string hf_families() {
  std::string list;
  for (const HfFamily& one : all_hf_families()) list += (list.empty() ? "" : ", ") + std::string(one.model_type);
  return list;
}

Result<HfModel> read_hf_config(std::string_view text, std::string_view source_name, const HfOptions& options) {
  const std::string source(source_name);
  if (text.size() > kHfTextMax) return invalid_argument(source + ": a config.json has at most 8 MiB");
  const Result<Tree> tree = parse_json_tree(without_infinities(text), source);
  if (!tree) return tree.status();
  const auto* const top = tree->as<Tree::Table>();
  if (top == nullptr) return invalid_argument(source + ": is no JSON object");
  const Tree::Table* inner = nullptr;
  for (const char* const key : {"text_config", "llm_config", "language_config"}) {
    if (inner == nullptr) inner = table_at(*top, key);
  }
  if (inner == nullptr) inner = top;
  HfFields fields(source, *top, *inner);
  HfModel model;
  model.family = fields.word("model_type");
  if (!fields.status().is_ok()) return fields.status();
  if (model.family.empty()) return invalid_argument(source + ": there is no \"model_type\": is it a config.json?");
  const auto families = all_hf_families();
  const auto family =
      std::find_if(families.begin(), families.end(), [&](const HfFamily& f) { return f.model_type == model.family; });
  if (family == families.end()) return unknown_family(source, model.family);
  const HfShape shape = read_hf_shape(*family, fields);
  model.layers = shape.layers;
  model.context_length = shape.context;
  if (!fields.status().is_ok()) return fields.status();
  HfOptions chosen = options;
  LARDER_RETURN_IF_ERROR(choose_kv_dtype(source, *top, *inner, chosen, model.is_kv_of_quant_text));
  Result<ModelSpec> spec = spec_of_shape(shape, fields, chosen, model.family);
  if (!spec.is_ok()) {
    const bool has_source = spec.status().message().starts_with(source);
    return has_source ? spec.status() : Status(spec.status().code(), source + ": " + spec.status().message());
  }
  model.spec = std::move(*spec);
  return model;
}

}  // namespace larder
