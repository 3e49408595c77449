// SPDX-License-Identifier: Apache-2.0
// What `larder plan` prints and writes: tables, JSON, CSV and pictures.
//
// Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/drawing.h"
#include "bench/plan_model.h"
#include "bench/plan_sweep.h"

namespace larder {

[[nodiscard]] std::string plan_model_text(const PlanModel& model);
[[nodiscard]] nlohmann::ordered_json plan_model_json(const PlanModel& model);

[[nodiscard]] std::string plan_sweep_text(const PlanSweep& sweep);
[[nodiscard]] nlohmann::ordered_json plan_sweep_json(const PlanSweep& sweep);
// A line for each cell, and what the next size of each tier would bring.
[[nodiscard]] std::string plan_sweep_csv(const PlanSweep& sweep);

// Hit rate by size of the host, a line for each device and storage; beside it the time to the first token.
[[nodiscard]] Drawing plan_sweep_drawing(const PlanModel& model, const PlanSweep& sweep);

}  // namespace larder
