// SPDX-License-Identifier: Apache-2.0
#include "config/hf_layers.h"

#include <algorithm>
#include <string>

namespace larder {

std::uint32_t layer_count_of(HfFields& fields, std::string_view key, std::uint32_t most) {
  const std::uint32_t layers = fields.need(key);
  if (layers <= most) return layers;
  fields.fail(key, "more than " + std::to_string(most));
  return 0;
}

void all_layers(const HfShape& shape, std::vector<std::uint32_t>& out) {
  for (std::uint32_t i = 0; i < shape.layers; ++i) out.push_back(i);
}

// A null has a meaning of its own.
HfShape::Heads heads_of(HfFields& fields, HfShape::Heads heads) {
  const std::uint32_t queries = fields.get("num_attention_heads", 0);
  if (heads.kv_heads == 0 || fields.has("num_key_value_heads")) heads.kv_heads = queries;
  if (fields.has("head_dim")) heads.head_dim = 0;
  const bool says_none = fields.get({"num_key_value_heads", "num_attention_groups"}, 1) == 0;
  heads.kv_heads = fields.get({"num_key_value_heads", "num_attention_groups"}, heads.kv_heads);
  heads.head_dim = fields.get({"head_dim", "attention_head_dim"}, heads.head_dim);
  if (heads.kv_heads == 0) fields.fail(says_none ? "num_key_value_heads" : "num_attention_heads", "is missing or 0");
  if (heads.head_dim == 0) {
    const std::uint32_t hidden = fields.need("hidden_size");
    if (queries == 0 || hidden % queries != 0) {
      fields.fail("head_dim", "is missing, and num_attention_heads does not divide hidden_size");
    } else {
      heads.head_dim = hidden / queries;
    }
  }
  return heads;
}

void take_heads(HfFields& fields, HfShape& shape) {
  shape.full_heads = shape.sliding_heads = heads_of(fields, shape.full_heads);
}

void take_layers(HfFields& fields, std::vector<std::string> names, const LayerWords& words, HfShape& shape) {
  const auto is_in = [](const std::vector<std::string_view>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  // Step 3.5 lists the layers that predict further tokens, too.
  if (names.size() == shape.layers + fields.get("num_nextn_predict_layers", 0)) names.resize(shape.layers);
  if (names.size() != shape.layers) {
    return fields.fail(
        words.key, "names " + std::to_string(names.size()) + " layers, and there are " + std::to_string(shape.layers));
  }
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (is_in(words.full, names[i])) {
      shape.full.push_back(i);
    } else if (is_in(words.sliding, names[i])) {
      shape.sliding.push_back(i);
    } else if (is_in(words.recurrent, names[i])) {
      shape.recurrent.push_back(i);
    } else if (!is_in(words.none, names[i])) {
      return fields.refuse(std::string(words.key) + ": layer " + std::to_string(i) + " is '" + names[i].substr(0, 60) +
                           "', a kind whose cache is not known here");
    }
  }
}

void take_listed(HfFields& fields, std::string_view key, std::uint32_t first, HfShape& shape) {
  const std::vector<std::uint32_t> listed = fields.numbers(key).value_or(std::vector<std::uint32_t>{});
  for (const std::uint32_t layer : listed) {
    if (layer >= first && layer - first < shape.layers) continue;
    return fields.fail(key, "names layer " + std::to_string(layer) + ", and there are " + std::to_string(shape.layers) +
                                ", from " + std::to_string(first));
  }
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const bool is_full = std::find(listed.begin(), listed.end(), i + first) != listed.end();
    (is_full ? shape.full : shape.recurrent).push_back(i);
  }
}

void take_marks(HfFields& fields, std::string_view key, const std::vector<std::uint32_t>& marks, HfShape& shape,
                std::vector<std::uint32_t>& marked, std::vector<std::uint32_t>& others) {
  if (marks.size() != shape.layers) {
    return fields.fail(key, "has " + std::to_string(marks.size()) + " entries, and there are " +
                                std::to_string(shape.layers) + " layers");
  }
  for (std::uint32_t i = 0; i < shape.layers; ++i) (marks[i] != 0 ? marked : others).push_back(i);
}

void take_period(std::uint32_t period, HfShape& shape, std::vector<std::uint32_t>& most,
                 std::vector<std::uint32_t>& last) {
  for (std::uint32_t i = 0; i < shape.layers; ++i) ((i + 1) % std::max(period, 1u) != 0 ? most : last).push_back(i);
}

void take_layer_heads(HfFields& fields, const std::vector<std::uint32_t>& layers, HfShape::Heads& heads) {
  const HfShape::Heads given = heads;
  for (const std::uint32_t layer : layers) {
    const auto get = [&](std::string_view key, std::uint32_t fallback) {
      const std::string number = std::to_string(layer), path = "per_layer_config.", end = "." + std::string(key);
      // As wide as the last number there is.
      return fields.get({path + number + end, path + "0" + number + end, path + "00" + number + end}, fallback);
    };
    HfShape::Heads own = given;
    own.kv_heads = get("num_key_value_heads", given.kv_heads);
    own.head_dim = get("head_dim", given.head_dim);
    if (layer == layers.front()) heads = own;
    if (own == heads) continue;
    return fields.refuse("per_layer_config: heads of layer " + std::to_string(layer) + " are not those of layer " +
                         std::to_string(layers.front()) + ", and one pool has both");
  }
}

}  // namespace larder
