// SPDX-License-Identifier: Apache-2.0
// Named models: small ones that the reference engine computes, and the geometry of real ones.
//
// A name is <family>-<size>[+draft]: family gqa | mla | swa | gemma3 | gdn | mamba2 | dsa | dsv4, size tiny | real.
//   tiny  hidden 64, 4 to 6 layers, f32, windows and top-k small enough to matter within a few pages; page size 64
//         (dsv4: 128). Runs everywhere; no test needs a larger one.
//   real  dimensions of a published model, for sizing, layouts and benchmarks of moving bytes; nobody computes them.
//   +draft  one draft layer more (sidecar pool `draft`).
// The numbers of `real` presets come from the models' public configurations; MoE widths are the shared expert's.
// Threads: pure; the table is immutable after its first use.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder {

struct PresetInfo {
  std::string name;     // "gdn-tiny+draft"
  std::string summary;  // one line: what it is like
  bool is_tiny = false;
  bool has_draft = false;
};

// All 32, by family, then tiny before real, then without draft before with.
[[nodiscard]] std::span<const PresetInfo> all_presets();

// A finalized ModelSpec whose id is `name`. kNotFound lists the names there are.
[[nodiscard]] Result<ModelSpec> preset_model(std::string_view name);

}  // namespace larder
