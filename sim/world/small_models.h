// SPDX-License-Identifier: Apache-2.0
// Models for simulation and property tests: real kinds of layers, a few dozen bytes per page and layer, so that a
// million operations fit into seconds. Besides these, the tiny presets can be simulated by their names, with pages of
// 16 tokens where their layers allow them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder::sim {

// What a simulation draws: the small models, and every tiny preset, some with a draft layer.
[[nodiscard]] std::vector<std::string> small_model_names();
[[nodiscard]] std::vector<std::string> tiny_model_names();
// kNotFound lists the names there are.
[[nodiscard]] Result<ModelSpec> simulated_model(std::string_view name);

}  // namespace larder::sim
