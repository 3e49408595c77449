// SPDX-License-Identifier: Apache-2.0
#include "bench/plan_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/file_system.h"
#include "bench/replay.h"
#include "config/hf_config.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/text_file.h"
#include "model/pool_list.h"
#include "model/presets.h"

namespace larder {
namespace {

// Layers that have a part of one of the component's pools.
std::uint32_t layers_in(const ModelSpec& spec, ComponentKind component) {
  std::set<std::uint32_t> layers;
  for (const PoolSpec& pool : spec.pools) {
    if (pool.component == component) layers.insert(pool.layers.begin(), pool.layers.end());
  }
  return static_cast<std::uint32_t>(layers.size());
}

PlanModel sized(ModelSpec spec) {
  PlanModel model;
  model.full_layers = layers_in(spec, ComponentKind::kFull);
  model.window_layers = layers_in(spec, ComponentKind::kSwa);
  model.recurrent_layers = layers_in(spec, ComponentKind::kMamba);
  model.plan.page_size = spec.page_size;
  model.plan.page_bytes = spec.slot_bytes(ComponentKind::kFull);
  if (spec.has(ComponentKind::kSwa)) {
    model.window_tokens = spec.dims.window;
    model.plan.window_page_bytes = spec.slot_bytes(ComponentKind::kSwa);
    model.plan.window_pages = spec.window_pages();
  }
  if (spec.has(ComponentKind::kMamba)) model.plan.checkpoint_bytes = spec.slot_bytes(ComponentKind::kMamba);
  model.spec = std::move(spec);
  return model;
}

// The kinds of its layers, each once: "gdn, attention".
std::string kinds_of(const ModelSpec& spec) {
  std::vector<LayerKind> seen;
  std::string kinds;
  for (const LayerKind kind : spec.layers) {
    if (std::find(seen.begin(), seen.end(), kind) != seen.end()) continue;
    seen.push_back(kind);
    kinds += (kinds.empty() ? "" : ", ") + std::string(layer_kind_name(kind));
  }
  return kinds;
}

// What `make` makes with the first page size that the model can have; or what it says of page_size itself. What is read
// of files is read once, before: a pipe has no second time.
template <class Make>
auto with_page_size(const PlanSource& source, Make make) {
  auto made = make(source.page_size);
  for (std::uint32_t n = 2; n <= source.most_multiple && made.status().code() == StatusCode::kInvalidArgument; ++n) {
    auto larger = make(n * source.page_size);
    if (larger.is_ok()) return larger;
  }
  return made;
}

Result<PlanModel> model_of_layers(const ModelSpec& spec, const PlanSource& source, std::string origin) {
  Result<ModelSpec> made = with_page_size(source, [&](std::uint32_t page_size) -> Result<ModelSpec> {
    ModelSpec wanted = spec;
    wanted.page_size = page_size;
    if (source.kv_dtype) wanted.kv_dtype = *source.kv_dtype;
    LARDER_RETURN_IF_ERROR(finalize_model(wanted));
    return wanted;
  });
  if (!made.is_ok()) return Status(made.status().code(), "--page-size or --kv-dtype: " + made.status().message());
  PlanModel model = sized(std::move(*made));
  model.name = model.spec.id;
  model.architecture = kinds_of(model.spec);
  model.origin = std::move(origin);
  model.layers = static_cast<std::uint32_t>(model.spec.layers.size());
  model.context_length = model.spec.context_length;
  return model;
}

Result<PlanModel> model_of_preset(const PlanSource& source) {
  const Result<ModelSpec> spec = preset_model(source.preset);
  if (!spec.is_ok()) return Status(spec.status().code(), "--model: " + spec.status().message());
  const auto presets = all_presets();
  const auto info =
      std::find_if(presets.begin(), presets.end(), [&](const auto& p) { return p.name == source.preset; });
  return model_of_layers(*spec, source, info == presets.end() ? "a preset" : info->summary);
}

Result<PlanModel> model_of_file(const PlanSource& source) {
  const Result<ModelSpec> spec = model_of_named_file(source.model_file);
  if (!spec.is_ok()) return spec.status();
  Result<PlanModel> model = model_of_layers(*spec, source, source.model_file);
  if (model.is_ok()) model->files = {source.model_file};
  return model;
}

Result<PlanModel> model_of_hf(const PlanSource& source) {
  const Result<std::string> text = read_text_file(real_file_system(), source.hf_config, kHfTextMax);
  if (!text.is_ok()) return Status(text.status().code(), "--hf-config: " + text.status().message());
  const std::string beside =
      source.hf_config.substr(0, source.hf_config.find_last_of('/') + 1) + "hf_quant_config.json";
  const Result<std::string> quant = read_text_file(real_file_system(), beside, kHfTextMax);
  if (!quant.is_ok() && quant.status().code() != StatusCode::kNotFound) {
    return Status(quant.status().code(), "--hf-config: " + quant.status().message());
  }
  Result<HfModel> read = with_page_size(source, [&](std::uint32_t page_size) {
    return read_hf_config(*text, source.hf_config,
                          {.page_size = page_size,
                           .kv_dtype = source.kv_dtype,
                           .quant_text = quant.is_ok() ? std::string_view(*quant) : std::string_view(),
                           .quant_name = beside});
  });
  if (!read.is_ok()) return read.status();
  PlanModel model = sized(std::move(read->spec));
  model.name = model.architecture = read->family;
  model.origin = source.hf_config + (read->is_kv_of_quant_text ? "; eight bits of KV by " + beside : "");
  model.files = {source.hf_config, beside};
  model.layers = read->layers;
  model.context_length = read->context_length;
  return model;
}

// Pools of the sizes that a GGUF model's have, each as one plane. A window is kept in pages here, whatever its length.
Result<ModelSpec> spec_of_gguf(const llama::ModelPlan& plan, std::uint32_t window_tokens) {
  PoolList list{.id = "gguf", .page_size = plan.page_size, .window = window_tokens};
  const auto add = [&](PoolName name, ComponentKind component, std::uint64_t bytes) {
    PoolSpec& pool = list.pools.emplace_back();
    pool.name = name;
    pool.component = component;
    pool.is_anchor = true;
    if (component != ComponentKind::kFull) pool.hit_policy = HitPolicy::kTrailingPages;
    if (bytes == 0) return;  // a marker
    pool.layers = {0};
    pool.planes = {{"all", Dtype::kU8, 1, 1, static_cast<std::uint32_t>(bytes)}};
  };
  add(PoolName::kKv, ComponentKind::kFull, plan.page_bytes);
  if (plan.window_bytes() > 0) {
    const std::uint64_t pages = (std::uint64_t{window_tokens} + plan.page_size - 1) / plan.page_size;
    add(PoolName::kSwa, ComponentKind::kSwa, (plan.window_bytes() + pages - 1) / pages);
  }
  if (plan.checkpoint_bytes > 0) add(PoolName::kMamba, ComponentKind::kMamba, plan.checkpoint_bytes);
  return model_of_pools(std::move(list));
}

Result<PlanModel> model_of_gguf(const PlanSource& source) {
  const Result<llama::GgufModel> file = llama::read_gguf(real_file_system(), source.gguf);
  if (!file.is_ok()) {
    const StatusCode code = file.status().code();
    // To whoever names a file, one that is damaged or none is a wrong argument.
    return Status(code == StatusCode::kCorrupt ? StatusCode::kInvalidArgument : code,
                  "--gguf: " + file.status().message());
  }
  const Result<llama::CacheType> keys = llama::cache_type(source.keys), values = llama::cache_type(source.values);
  if (!keys.is_ok()) return Status(keys.status().code(), "--cache-type-k: " + keys.status().message());
  if (!values.is_ok()) return Status(values.status().code(), "--cache-type-v: " + values.status().message());
  const Result<llama::GgufGeometry> geometry = llama::gguf_geometry(file->first, *keys, *values);
  if (!geometry.is_ok()) return geometry.status();
  const Result<llama::ModelPools> pools = with_page_size(
      source, [&](std::uint32_t page_size) { return llama::model_pools(geometry->blob, {.page_size = page_size}); });
  if (!pools.is_ok()) return pools.status();
  PlanModel model;
  model.plan = llama::plan_of(*pools);
  model.name = geometry->name.empty() ? "a model without a name" : geometry->name;
  model.architecture = geometry->architecture;
  model.identity = file->identity.hex();
  model.files = file->paths;
  model.origin = fmt::format("{} {}, identity {}", file->paths.size(), file->paths.size() == 1 ? "file" : "files",
                             model.identity.substr(0, 16));
  model.layers = geometry->layers;
  model.context_length = geometry->context_length;
  const llama::BlobGeometry& blob = geometry->blob;
  if (blob.full) model.full_layers = static_cast<std::uint32_t>(blob.full->keys.size());
  if (blob.window) model.window_layers = static_cast<std::uint32_t>(blob.window->keys.size());
  if (blob.recurrent) model.recurrent_layers = static_cast<std::uint32_t>(blob.recurrent->state.size());
  model.window_tokens = blob.window ? blob.window_tokens : 0;
  Result<ModelSpec> spec = spec_of_gguf(model.plan, model.window_tokens);
  if (!spec.is_ok()) return spec.status();
  model.spec = std::move(*spec);
  return model;
}

}  // namespace

Result<PlanModel> plan_model(const PlanSource& source) {
  std::string given;
  int count = 0;
  for (const auto& [flag, value] : {std::pair{"--model", &source.preset},
                                    {"--model-file", &source.model_file},
                                    {"--gguf", &source.gguf},
                                    {"--hf-config", &source.hf_config}}) {
    if (value->empty()) continue;
    given += (given.empty() ? "" : " and ") + std::string(flag);
    ++count;
  }
  if (count == 0) {
    return invalid_argument(
        "--model PRESET, --model-file FILE, --gguf FILE or --hf-config FILE is missing: whose sizes?");
  }
  if (count > 1) return invalid_argument(given + ": give one of them, not several");
  if (source.kv_dtype && !source.gguf.empty()) {
    return invalid_argument("--kv-dtype: a GGUF model's types are set with --cache-type-k and --cache-type-v");
  }
  if (!source.preset.empty()) return model_of_preset(source);
  if (!source.model_file.empty()) return model_of_file(source);
  return source.gguf.empty() ? model_of_hf(source) : model_of_gguf(source);
}

}  // namespace larder
