// SPDX-License-Identifier: Apache-2.0
#include "config/hf_config.h"

#include <algorithm>
#include <utility>

#include "base/nearest_word.h"
#include "config/hf_families.h"
#include "model/model_limits.h"
#include "model/pool_list.h"

namespace larder {
namespace {

constexpr std::size_t kHfTextMax = 1u << 20;

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
  Dtype kv = Dtype::kBf16, conv = Dtype::kBf16, temporal = Dtype::kF32;
};

HfTypes types_of(HfFields& fields, const HfShape& shape, const HfOptions& options) {
  HfTypes types;
  std::string name = fields.word("dtype");
  if (name.empty()) name = fields.word("torch_dtype");
  if (!name.empty()) types.kv = types.conv = hf_dtype(fields, "dtype", name);
  if (name.empty() && !options.kv_dtype) fields.fail("dtype", "is missing, as is torch_dtype; --kv-dtype sets it");
  if (name.empty() && !shape.recurrent.empty()) fields.fail("dtype", "is missing, and recurrent state has it");
  if (options.kv_dtype) types.kv = *options.kv_dtype;
  for (const char* const key : {"mamba_ssm_dtype", "mamba_ssm_cache_dtype"}) {
    if (const std::string state = fields.word(key); !state.empty()) types.temporal = hf_dtype(fields, key, state);
  }
  return types;
}

PlaneSpec plane_of(std::string name, Dtype dtype, std::uint32_t rows, std::uint32_t heads, std::uint64_t dim) {
  return {std::move(name), dtype, rows, heads, static_cast<std::uint32_t>(dim)};
}

std::vector<PlaneSpec> key_value_planes(const HfShape::Heads& heads, Dtype dtype, std::uint32_t rows) {
  return {plane_of("k", dtype, rows, heads.kv_heads, heads.head_dim),
          plane_of("v", dtype, rows, heads.kv_heads, heads.head_dim)};
}

std::vector<PoolSpec> pools_of_shape(const HfShape& shape, const HfTypes& types, std::uint32_t page_size) {
  std::vector<PoolSpec> pools;
  if (shape.index_dim > 0) {
    PoolSpec& indexer = pools.emplace_back();
    indexer.name = PoolName::kIndexer;
    indexer.scope = RankScope::kReplicated;
    indexer.layers = shape.full;
    indexer.planes = {plane_of("index_k", types.kv, page_size, 1, shape.index_dim)};
  }
  PoolSpec& kv = pools.emplace_back();
  kv.is_anchor = true;
  kv.layers = shape.full;
  if (shape.latent > 0) {
    kv.scope = RankScope::kReplicated;
    kv.planes = {plane_of("latent", types.kv, page_size, 1, shape.latent)};
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
  std::vector<PlaneSpec> state = {plane_of("conv", types.conv, 1, 1, shape.conv_elements)};
  if (shape.temporal_elements > 0) state.push_back(plane_of("temporal", types.temporal, 1, 1, shape.temporal_elements));
  add(PoolName::kMamba, ComponentKind::kMamba, shape.recurrent, std::move(state));
  return pools;
}

Result<ModelSpec> spec_of_v4(const HfShape& shape, const HfTypes& types, HfFields& fields, const HfOptions& options) {
  ModelSpec spec;
  spec.id = "deepseek_v4";
  spec.page_size = options.page_size;
  spec.kv_dtype = types.kv;
  if (shape.full_heads.head_dim <= shape.latent) fields.fail("head_dim", "is not above qk_rope_head_dim");
  for (const std::uint32_t ratio : shape.compress_ratios) {
    if (ratio != 0 && ratio != 4 && ratio != 128)
      fields.fail("compress_ratios", "has an entry that is none of 0, 4, 128");
    spec.layers.push_back(ratio == 4 ? LayerKind::kV4C4 : ratio == 128 ? LayerKind::kV4C128 : LayerKind::kV4Window);
  }
  if (!fields.status().is_ok()) return fields.status();
  spec.dims.kv_lora_rank = shape.full_heads.head_dim - shape.latent;
  spec.dims.rope_dim = shape.latent;
  spec.dims.index_dim = shape.index_dim;
  spec.dims.index_heads = spec.dims.index_topk = 1;  // no part of a page
  spec.dims.window = shape.window;
  LARDER_RETURN_IF_ERROR(finalize_model(spec));
  return spec;
}

Result<ModelSpec> spec_of_shape(const HfShape& shape, HfFields& fields, const HfOptions& options,
                                const std::string& family) {
  const HfTypes types = types_of(fields, shape, options);
  if (!fields.status().is_ok()) return fields.status();
  if (!shape.compress_ratios.empty()) return spec_of_v4(shape, types, fields, options);
  for (const std::uint64_t elements : {shape.conv_elements, shape.temporal_elements}) {
    if (elements > kPageBytesMax) fields.fail("conv and temporal state", "have more than 4 GiB");
  }
  if (!shape.recurrent.empty() && shape.conv_elements == 0) fields.fail("conv_kernel", "must be at least 2");
  if (!fields.status().is_ok()) return fields.status();
  PoolList list{.id = family, .page_size = options.page_size};
  list.window = shape.sliding.empty() ? 0 : shape.window;
  list.pools = pools_of_shape(shape, types, options.page_size);
  return model_of_pools(std::move(list));
}

Status unknown_family(const std::string& source, const std::string& family) {
  std::vector<std::string_view> known;
  for (const HfFamily& one : all_hf_families()) known.push_back(one.model_type);
  return unsupported(source + ": model_type: models of family '" + family.substr(0, 60) +
                     "' are not known here, and their sizes are not guessed" + did_you_mean(family, known) +
                     "; known are " + hf_families());
}

}  // namespace

std::string hf_families() {
  std::string list;
  for (const HfFamily& one : all_hf_families()) list += (list.empty() ? "" : ", ") + std::string(one.model_type);
  return list;
}

Result<HfModel> read_hf_config(std::string_view text, std::string_view source_name, const HfOptions& options) {
  const std::string source(source_name);
  if (text.size() > kHfTextMax) return invalid_argument(source + ": a config.json has at most 1 MiB");
  const Result<Tree> tree = parse_json_tree(without_infinities(text), source);
  if (!tree) return tree.status();
  const auto* const top = tree->as<Tree::Table>();
  if (top == nullptr) return invalid_argument(source + ": is no JSON object");
  const Tree::Table* const inner = table_at(*top, "text_config");
  HfFields fields(source, *top, inner != nullptr ? *inner : *top);
  HfModel model;
  model.family = fields.word("model_type");
  if (!fields.status().is_ok()) return fields.status();
  if (model.family.empty()) return invalid_argument(source + ": there is no \"model_type\": is it a config.json?");
  const auto families = all_hf_families();
  const auto family =
      std::find_if(families.begin(), families.end(), [&](const HfFamily& f) { return f.model_type == model.family; });
  if (family == families.end()) return unknown_family(source, model.family);
  HfShape shape;
  family->read(fields, shape);
  model.layers = shape.layers;
  model.context_length = fields.get({"max_position_embeddings"}, 0, kContextLengthMax);
  if (!fields.status().is_ok()) return fields.status();
  Result<ModelSpec> spec = spec_of_shape(shape, fields, options, model.family);
  if (!spec.is_ok()) {
    const bool has_source = spec.status().message().starts_with(source);
    return has_source ? spec.status() : Status(spec.status().code(), source + ": " + spec.status().message());
  }
  model.spec = std::move(*spec);
  return model;
}

}  // namespace larder
