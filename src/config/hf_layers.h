// SPDX-License-Identifier: Apache-2.0
// What families of models have in common: how many layers there are, which of them is of which kind, and their heads
// (internal to config/hf_families.cc). Errors are those of `fields`. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/hf_families.h"
#include "config/hf_fields.h"
#include "model/model_limits.h"

namespace larder {

[[nodiscard]] std::uint32_t layer_count_of(HfFields& fields, std::string_view key = "num_hidden_layers",
                                           std::uint32_t most = kLayersMax);
void all_layers(const HfShape& shape, std::vector<std::uint32_t>& out);

// `heads`: where the file has no such key.
[[nodiscard]] HfShape::Heads heads_of(HfFields& fields, HfShape::Heads heads);
// Those of full and sliding layers, where they are the same.
void take_heads(HfFields& fields, HfShape& shape);
// Files that transformers 5.24 has written say in per_layer_config which layers have heads of their own.
void take_layer_heads(HfFields& fields, const std::vector<std::uint32_t>& layers, HfShape::Heads& heads);

// A layer of each kind that a family's list may name, in the words of today and of earlier files.
struct LayerWords {
  std::vector<std::string_view> full{"full_attention", "attention"}, sliding{"sliding_attention"}, recurrent{}, none{};
  std::string_view key = "layer_types";
};
void take_layers(HfFields& fields, std::vector<std::string> names, const LayerWords& words, HfShape& shape);

// The layers that the list of this name has, counted from `first`, are full, and all others recurrent.
void take_listed(HfFields& fields, std::string_view key, std::uint32_t first, HfShape& shape);
// The list has for each layer a number: 0 of one kind, and of the other.
void take_marks(HfFields& fields, std::string_view key, const std::vector<std::uint32_t>& marks, HfShape& shape,
                std::vector<std::uint32_t>& marked, std::vector<std::uint32_t>& others);
// The last layer of each `period` is the other kind.
void take_period(std::uint32_t period, HfShape& shape, std::vector<std::uint32_t>& most,
                 std::vector<std::uint32_t>& last);

}  // namespace larder
