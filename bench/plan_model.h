// SPDX-License-Identifier: Apache-2.0
// A model as `larder plan` sizes it: out of a preset, a model file, a GGUF file or a Hugging Face config.json.
//
// Threads: pure, but for reading the file that is named.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/llama/model_plan.h"
#include "model/model_spec.h"

namespace larder {

// Where the geometry is from: exactly one of the first four.
struct PlanSource {
  std::string preset{}, model_file{}, gguf{}, hf_config{};
  std::uint32_t page_size = 64;
  std::uint32_t most_multiple = 1;  // where the model cannot have it, twice as many tokens, three times ... are tried
  std::string keys = "f16", values = "f16";  // GGUF: types of the cache
  std::optional<Dtype> kv_dtype{};           // of the others; nullopt: the model's
};

struct PlanModel {
  std::string name, architecture;
  std::string origin;              // "a preset", "2 files, identity 0123456789abcdef"
  std::string identity;            // GGUF alone: of the file, hexadecimal
  std::vector<std::string> files;  // that it was read from
  std::uint32_t layers = 0, context_length = 0;
  std::uint32_t full_layers = 0, window_layers = 0, recurrent_layers = 0;  // that keep something
  std::uint32_t window_tokens = 0;
  llama::ModelPlan plan;
  ModelSpec spec;  // for replays: pools of these sizes
};

// kInvalidArgument: none or several sources, a file that is no such model, a page size that it cannot have. kNotFound,
// kUnavailable: as the file system says. kUnsupported: a kind of model whose sizes are not known.
[[nodiscard]] Result<PlanModel> plan_model(const PlanSource& source);

}  // namespace larder
