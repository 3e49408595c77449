// SPDX-License-Identifier: Apache-2.0
// Custom models from text: JSON or TOML. No file is opened here; the caller reads it.
//
// Picture (TOML; JSON has the same keys and values):
//
//   id = "my-hybrid"                     required; part of every page key
//   revision = "1"
//   page_size = 64                       tokens
//   vocab_size = 512
//   context_length = 32768
//   weight_seed = 1                      the reference engine's weights (TOML: below 2^63)
//   kv_dtype = "bf16"                    f32 | bf16 | f16 | fp8_e4m3 | u8
//   conv_dtype = "bf16"
//   ssm_dtype = "f32"
//   layers = ["gdn", "gdn", "gdn", "attention"]                                 required, names of layer_kind_name()
//   layers = {pattern = ["gdn", "gdn", "gdn", "attention"], repeat = 12}        or so,
//   layers = ["v4_window", {pattern = ["v4_c4", "v4_c128"], repeat = 20}]       or mixed
//   [dims]                               keys: the members of ModelDims
//   window = 128
//   [draft]
//   layers = 1
//
// A key that is left out keeps ModelSpec's default. Pools are derived and cannot be written.
// Errors: kInvalidArgument; the message starts with the source name, then line and column for syntax errors or the path
// of the key, and says what was expected. An unknown key is refused, with the nearest known one suggested; a key that
// is there twice is refused too. kUnsupported: TOML, in a build without the `larder` command. Limits: 1 MiB of text,
// 1,024 layers. Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/model_spec.h"

namespace larder {

enum class ModelFileFormat : std::uint8_t { kJson, kToml };

// By the end of the name: ".json" or ".toml"; anything else is nullopt.
[[nodiscard]] std::optional<ModelFileFormat> model_file_format(std::string_view path);

// A finalized ModelSpec. source_name appears in messages only.
[[nodiscard]] Result<ModelSpec> load_model_file(std::string_view text, ModelFileFormat format,
                                                std::string_view source_name);

// The spec as an indented JSON document that load_model_file reads back to an equal one. Layers are written one by one.
[[nodiscard]] std::string model_to_json(const ModelSpec& spec);

}  // namespace larder
