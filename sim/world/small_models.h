// Models for simulation and property tests: real kinds of layers, a few dozen bytes per page and layer, so that a
// million operations fit into seconds. Besides these, the tiny presets can be simulated by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder::sim {

// Every model that a simulation draws: the small ones, then the tiny presets.
[[nodiscard]] std::vector<std::string> model_names();
// kNotFound lists the names there are.
[[nodiscard]] Result<ModelSpec> simulated_model(std::string_view name);

}  // namespace larder::sim
