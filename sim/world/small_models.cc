// SPDX-License-Identifier: Apache-2.0
#include "sim/world/small_models.h"

#include <algorithm>

#include "model/presets.h"

namespace larder::sim {
namespace {

struct Small {
  std::string_view name;
  bool has_window, has_state, has_draft;
};
constexpr std::uint32_t kSmallPage = 16;      // tokens
constexpr std::string_view kOneToken = ".1";  // behind the name of a small model: pages of one token

constexpr Small kSmall[] = {
    {"full", false, false, false},         {"full_swa", true, false, false},     {"full_mamba", false, true, false},
    {"full_swa_mamba", true, true, false}, {"full_sidecar", false, false, true},
};

Result<ModelSpec> make_small(const Small& small, std::uint32_t page_size) {
  ModelSpec m;
  m.id = "small-" + std::string(small.name);
  m.page_size = page_size;
  m.vocab_size = 64;
  m.dims.hidden = 8;
  m.dims.ffn = 8;
  m.dims.q_heads = 2;
  m.dims.kv_heads = 1;
  m.dims.head_dim = 2;
  m.layers = {LayerKind::kAttention};
  if (small.has_window) {
    m.layers.push_back(LayerKind::kSlidingAttention);
    m.dims.window = 10;  // three pages, not page aligned
  }
  if (small.has_state) {
    m.layers.push_back(LayerKind::kGatedDeltaNet);
    m.dims.ssm_heads = 2;
    m.dims.ssm_key_heads = 1;
    m.dims.ssm_head_dim = 4;
    m.dims.ssm_state_dim = 4;
    m.dims.conv_kernel = 2;
  }
  if (small.has_draft) m.draft.layers = 1;
  LARDER_RETURN_IF_ERROR(finalize_model(m));
  return m;
}

}  // namespace

std::vector<std::string> small_model_names() {
  std::vector<std::string> names;
  for (const Small& small : kSmall) names.emplace_back(small.name);
  return names;
}

std::vector<std::string> tiny_model_names() {
  std::vector<std::string> names;
  for (const PresetInfo& preset : all_presets()) {
    if (preset.is_tiny) names.push_back(preset.name);
  }
  return names;
}

Result<ModelSpec> simulated_model(std::string_view name) {
  const bool is_one_token = name.ends_with(kOneToken);
  const std::string_view own = name.substr(0, name.size() - (is_one_token ? kOneToken.size() : 0));
  for (const Small& small : kSmall) {
    if (small.name == own) return make_small(small, is_one_token ? 1 : 4);
  }
  Result<ModelSpec> preset = preset_model(name);
  if (!preset.is_ok()) return preset;
  // Filling and comparing pages is what a simulation spends its time on: smaller ones, where the layers allow them.
  ModelSpec smaller = *preset;
  smaller.page_size = kSmallPage;
  return finalize_model(smaller).is_ok() ? smaller : preset;
}

}  // namespace larder::sim
