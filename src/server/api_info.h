// SPDX-License-Identifier: Apache-2.0
// The JSON of what a server says about itself: /v1/models, /model_info, /server_info, /explain.
//
// Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "model/model_spec.h"

namespace larder {

[[nodiscard]] std::string served_name(const Options& options, const ModelSpec& model);
[[nodiscard]] nlohmann::ordered_json models_json(const Options& options, const ModelSpec& model, std::int64_t created);
[[nodiscard]] nlohmann::ordered_json model_info_json(const Options& options, const ModelSpec& model);
// Options under their field names, with what was resolved (page_size, context_length), and internal_states[0]. Of keys
// and passwords only whether they are set (server/masked_config.h).
[[nodiscard]] nlohmann::ordered_json server_info_json(const Options& options, const ModelSpec& model,
                                                      const SchedulerStats& stats);
[[nodiscard]] nlohmann::ordered_json explain_json(const Explanation& explanation, std::uint32_t page_size);
// One sentence: how much can be reused from where, and why not more.
[[nodiscard]] std::string explain_sentence(const Explanation& explanation, std::uint32_t page_size);

}  // namespace larder
