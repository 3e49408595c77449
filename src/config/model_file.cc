// SPDX-License-Identifier: Apache-2.0
#include "config/model_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/nearest_word.h"
#include "config/parse_tree.h"
#include "config/tree_text.h"
#include "model/model_limits.h"

namespace larder {
namespace {

constexpr std::size_t kTextBytesMax = 1u << 20;

// Where a value stands: "model.toml: dims.window".
class Place {
 public:
  explicit Place(std::string_view source) : text_(source) {}
  [[nodiscard]] Place key(std::string_view name) const {
    return Place(text_ + (is_root_ ? ": " : ".") + std::string(name), false);
  }
  [[nodiscard]] Place element(std::size_t index) const {
    return Place(text_ + "[" + std::to_string(index) + "]", false);
  }
  [[nodiscard]] Status error(std::string_view what) const { return invalid_argument(text_ + ": " + std::string(what)); }

 private:
  Place(std::string text, bool is_root) : text_(std::move(text)), is_root_(is_root) {}
  std::string text_;
  bool is_root_ = true;
};

// "; did you mean 'window'?" when something is near, else the whole list.
std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  if (std::string meant = did_you_mean(word, known); !meant.empty()) return meant;
  std::string list;
  for (const std::string_view candidate : known) list += (list.empty() ? "" : ", ") + std::string(candidate);
  return "; known are: " + list;
}

template <class Unsigned>
Status read_number(const Tree& tree, const Place& place, Unsigned& out) {
  constexpr std::uint64_t kHigh = std::numeric_limits<Unsigned>::max();
  const auto* number = tree.as<std::uint64_t>();
  if (number == nullptr || *number > kHigh) {
    return place.error("expected a whole number from 0 to " + std::to_string(kHigh) + ", got " + shown(tree));
  }
  out = static_cast<Unsigned>(*number);
  return Status::ok();
}

Status read_text(const Tree& tree, const Place& place, std::string& out) {
  const auto* text = tree.as<std::string>();
  if (text == nullptr) return place.error("expected a text, got " + shown(tree));
  out = *text;
  return Status::ok();
}

Status read_dtype(const Tree& value, const Place& place, Dtype& out) {
  static constexpr std::array<std::string_view, 5> kNames = {"f32", "bf16", "f16", "fp8_e4m3", "u8"};
  std::string name;
  LARDER_RETURN_IF_ERROR(read_text(value, place, name));
  const std::optional<Dtype> dtype = parse_dtype(name);
  if (!dtype) return place.error("unknown dtype " + in_quotes(name) + suggestion(name, kNames));
  out = *dtype;
  return Status::ok();
}

// Calls read(key, value, place of the value) for each member of a table whose keys must all be known.
template <class Read>
Status read_table(const Tree& tree, const Place& place, std::span<const std::string_view> known, Read read) {
  const auto* table = tree.as<Tree::Table>();
  if (table == nullptr) return place.error("expected a table, got " + shown(tree));
  for (const auto& [key, value] : *table) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return place.error("unknown key " + in_quotes(key) + suggestion(key, known));
    }
    LARDER_RETURN_IF_ERROR(read(std::string_view(key), value, place.key(key)));
  }
  return Status::ok();
}

Status read_layer_name(const Tree& value, const Place& place, std::vector<LayerKind>& layers) {
  std::string name;
  LARDER_RETURN_IF_ERROR(read_text(value, place, name));
  const std::optional<LayerKind> kind = parse_layer_kind(name);
  if (!kind) {
    std::vector<std::string_view> names;
    for (const LayerKind known : kAllLayerKinds) names.push_back(layer_kind_name(known));
    return place.error("unknown layer " + in_quotes(name) + suggestion(name, names));
  }
  if (layers.size() >= kLayersMax) return place.error("more than " + std::to_string(kLayersMax) + " layers");
  layers.push_back(*kind);
  return Status::ok();
}

Status read_layer_names(const Tree& tree, const Place& place, std::vector<LayerKind>& layers) {
  const auto* list = tree.as<Tree::List>();
  if (list == nullptr) return place.error("expected a list of layer names, got " + shown(tree));
  for (std::size_t i = 0; i < list->size(); ++i) {
    LARDER_RETURN_IF_ERROR(read_layer_name((*list)[i], place.element(i), layers));
  }
  return Status::ok();
}

// {pattern = [names], repeat = n}
Status read_pattern(const Tree& value, const Place& place, std::vector<LayerKind>& layers) {
  static constexpr std::array<std::string_view, 2> kKeys = {"pattern", "repeat"};
  std::vector<LayerKind> pattern;
  std::uint32_t repeat = 1;
  LARDER_RETURN_IF_ERROR(
      read_table(value, place, kKeys, [&](std::string_view key, const Tree& member, const Place& at) {
        return key == "repeat" ? read_number(member, at, repeat) : read_layer_names(member, at, pattern);
      }));
  if (pattern.empty() || repeat == 0)
    return place.error("needs a pattern with at least one layer, and a repeat above 0");
  if (layers.size() + std::uint64_t{repeat} * pattern.size() > kLayersMax) {
    return place.error("makes more than " + std::to_string(kLayersMax) + " layers");
  }
  for (std::uint32_t i = 0; i < repeat; ++i) layers.insert(layers.end(), pattern.begin(), pattern.end());
  return Status::ok();
}

Status read_layers(const Tree& tree, const Place& place, std::vector<LayerKind>& layers) {
  layers.clear();
  if (tree.as<Tree::Table>() != nullptr) return read_pattern(tree, place, layers);
  const auto* list = tree.as<Tree::List>();
  if (list == nullptr) return place.error("expected a list of layer names or {pattern, repeat}, got " + shown(tree));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Tree& element = (*list)[i];
    const bool is_table = element.as<Tree::Table>() != nullptr;
    LARDER_RETURN_IF_ERROR((is_table ? read_pattern : read_layer_name)(element, place.element(i), layers));
  }
  return Status::ok();
}

Status read_dims(const Tree& value, const Place& place, ModelDims& dims) {
  std::array<std::string_view, kDimFields.size()> names;
  std::transform(kDimFields.begin(), kDimFields.end(), names.begin(), [](const DimField& field) { return field.name; });
  return read_table(value, place, names, [&](std::string_view key, const Tree& member, const Place& at) {
    const auto field =
        std::find_if(kDimFields.begin(), kDimFields.end(), [&](const DimField& f) { return f.name == key; });
    return read_number(member, at, dims.*field->member);
  });
}

Status read_draft(const Tree& value, const Place& place, DraftSpec& draft) {
  static constexpr std::array<std::string_view, 1> kKeys = {"layers"};
  return read_table(value, place, kKeys, [&](std::string_view, const Tree& member, const Place& at) {
    return read_number(member, at, draft.layers);
  });
}

Status read_member(std::string_view key, const Tree& value, const Place& place, ModelSpec& spec) {
  if (key == "id") return read_text(value, place, spec.id);
  if (key == "revision") return read_text(value, place, spec.revision);
  if (key == "page_size") return read_number(value, place, spec.page_size);
  if (key == "vocab_size") return read_number(value, place, spec.vocab_size);
  if (key == "context_length") return read_number(value, place, spec.context_length);
  if (key == "weight_seed") return read_number(value, place, spec.weight_seed);
  if (key == "kv_dtype") return read_dtype(value, place, spec.kv_dtype);
  if (key == "conv_dtype") return read_dtype(value, place, spec.conv_dtype);
  if (key == "ssm_dtype") return read_dtype(value, place, spec.ssm_dtype);
  if (key == "dims") return read_dims(value, place, spec.dims);
  if (key == "layers") return read_layers(value, place, spec.layers);
  return read_draft(value, place, spec.draft);
}

Status read_model(const Tree& tree, const Place& place, ModelSpec& spec) {
  static constexpr std::array<std::string_view, 12> kKeys = {
      "id",       "revision",   "page_size", "vocab_size", "context_length", "weight_seed",
      "kv_dtype", "conv_dtype", "ssm_dtype", "dims",       "layers",         "draft"};
  const auto has_key = [&](std::string_view wanted) {
    const auto* table = tree.as<Tree::Table>();
    return table != nullptr &&
           std::any_of(table->begin(), table->end(), [&](const auto& m) { return m.first == wanted; });
  };
  if (has_key("pools")) return place.key("pools").error("pools are derived from layers and dims; remove this key");
  LARDER_RETURN_IF_ERROR(read_table(tree, place, kKeys, [&](std::string_view key, const Tree& value, const Place& at) {
    return read_member(key, value, at, spec);
  }));
  for (const std::string_view required : {"id", "layers"}) {
    if (!has_key(required)) return place.error("key " + in_quotes(required) + " is missing");
  }
  return Status::ok();
}

}  // namespace

std::optional<ModelFileFormat> model_file_format(std::string_view path) {
  if (path.ends_with(".json")) return ModelFileFormat::kJson;
  if (path.ends_with(".toml")) return ModelFileFormat::kToml;
  return std::nullopt;
}

Result<ModelSpec> load_model_file(std::string_view text, ModelFileFormat format, std::string_view source_name) {
  const Place root(source_name);
  if (text.size() > kTextBytesMax) {
    return root.error("is " + std::to_string(text.size()) + " bytes; a model file has at most " +
                      std::to_string(kTextBytesMax));
  }
  const Result<Tree> tree =
      format == ModelFileFormat::kJson ? parse_json_tree(text, source_name) : parse_toml_tree(text, source_name);
  if (!tree) return tree.status();
  ModelSpec spec;
  LARDER_RETURN_IF_ERROR(read_model(*tree, root, spec));
  if (const Status status = finalize_model(spec); !status.is_ok()) return root.error(status.message());
  return spec;
}

std::string model_to_json(const ModelSpec& spec) {
  // ordered_json: the document lists its keys in the order of the header's picture.
  nlohmann::ordered_json dims;
  for (const DimField& field : kDimFields) dims[std::string(field.name)] = spec.dims.*field.member;
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const LayerKind kind : spec.layers) layers.push_back(std::string(layer_kind_name(kind)));
  nlohmann::ordered_json document;
  document["id"] = spec.id;
  document["revision"] = spec.revision;
  document["page_size"] = spec.page_size;
  document["vocab_size"] = spec.vocab_size;
  document["context_length"] = spec.context_length;
  document["weight_seed"] = spec.weight_seed;
  document["kv_dtype"] = std::string(dtype_name(spec.kv_dtype));
  document["conv_dtype"] = std::string(dtype_name(spec.conv_dtype));
  document["ssm_dtype"] = std::string(dtype_name(spec.ssm_dtype));
  document["layers"] = std::move(layers);
  document["dims"] = std::move(dims);
  document["draft"]["layers"] = spec.draft.layers;
  // An id that is no UTF-8 cannot come from a file; replacing beats throwing.
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace larder
