// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/gguf_geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace larder::llama {
namespace {

constexpr std::uint64_t kNumberMax = 1 << 24;  // of heads, lengths and sizes: products of two stay below 2^63
constexpr std::int32_t kF32 = 0;

struct NamedType {
  std::string_view name;
  CacheType type;
};
// The types that llama.cpp takes for its cache.
constexpr std::array<NamedType, 9> kTypes = {{{"f32", {0, 1, 4}},
                                              {"f16", {1, 1, 2}},
                                              {"bf16", {30, 1, 2}},
                                              {"q8_0", {8, 32, 34}},
                                              {"q4_0", {2, 32, 18}},
                                              {"q4_1", {3, 32, 20}},
                                              {"q5_0", {6, 32, 22}},
                                              {"q5_1", {7, 32, 24}},
                                              {"iq4_nl", {20, 32, 18}}}};

// Every n-th layer sees all positions, if the file does not say which: the first of n, or the last.
struct WindowPattern {
  std::string_view architecture;
  std::uint32_t period;
  bool is_first_full;
};
constexpr std::array<WindowPattern, 14> kPatterns = {{{"gemma2", 2, false},
                                                      {"gemma3", 6, false},
                                                      {"gpt-oss", 2, false},
                                                      {"cohere2", 4, false},
                                                      {"cohere2moe", 4, true},
                                                      {"afmoe", 4, false},
                                                      {"exaone4", 4, false},
                                                      {"exaone-moe", 4, false},
                                                      {"olmo2", 4, false},
                                                      {"mellum", 4, false},
                                                      {"laguna", 4, true},
                                                      {"plamo3", 8, false},
                                                      {"smallthinker", 4, true},
                                                      {"muse-glimmer", 4, false}}};

constexpr std::string_view kAllLayersBoth[] = {"falcon-h1"};
constexpr std::string_view kAllRecurrent[] = {"mamba", "mamba2"};
constexpr std::string_view kByInterval[] = {"qwen3next", "qwen35", "qwen35moe", "minimax-01"};
constexpr std::string_view kWithoutHeads[] = {"jamba",  "granitehybrid", "nemotron_h", "nemotron_h_moe",
                                              "plamo2", "lfm2",          "lfm2moe",    "kimi-linear"};
// Caches of other kinds: chunks, layers that share keys, several caches in one.
constexpr std::string_view kOther[] = {"llama4",  "gemma3n",  "gemma4",     "deepseek4",  "deepseek32",
                                       "glm-dsa", "qwen4exp", "glm5-next",  "minimax-m3", "hy-v4",
                                       "rwkv6",   "rwkv7",    "rwkv6qwen2", "arwkv7"};

// Keys of layers that keep a state.
constexpr std::string_view kStateKeys[] = {"ssm.", "kda.", "shortconv.", "wkv."};
// Layers with 0 heads of keys keep nothing.
constexpr std::string_view kMayKeepNothing[] = {"deci"};
// llama.cpp computes without the window that the file has.
constexpr std::string_view kIgnoresWindow[] = {"phi3", "phimoe"};

template <std::size_t n>
bool is_one_of(const std::string& name, const std::string_view (&list)[n]) {
  return std::ranges::find(list, name) != std::end(list);
}

// What the layers keep: any of the three.
struct Layer {
  bool attention = true, sliding = false, recurrent = false;
  std::uint64_t kv_heads = 0;
};

// Reads keys "<architecture>.<name>"; the first one that is missing or senseless stays as the error.
class Keys {
 public:
  Keys(const GgufFile& file, const std::string& architecture) : file_(file), prefix_(architecture + ".") {}

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool has(std::string_view name) const { return file_.metadata.contains(prefix_ + std::string(name)); }
  [[nodiscard]] std::uint64_t number(std::string_view name, std::optional<std::uint64_t> otherwise = std::nullopt) {
    const std::string key = prefix_ + std::string(name);
    if (!has(name)) {
      if (!otherwise) fail(key, "is missing");
      return otherwise.value_or(0);
    }
    const auto value = file_.number(key);
    if (!value || *value > kNumberMax) fail(key, fmt::format("is not a number up to {}", kNumberMax));
    return value && *value <= kNumberMax ? *value : 0;
  }
  [[nodiscard]] std::vector<std::uint64_t> per_layer(std::string_view name, std::size_t layers) {
    const std::string key = prefix_ + std::string(name);
    auto values = file_.per_layer(key, layers);
    if (!values || std::ranges::any_of(*values, [](std::uint64_t v) { return v > kNumberMax; })) {
      fail(key, fmt::format("does not have a number for each of {} layers", layers));
      return std::vector<std::uint64_t>(layers, 0);
    }
    return std::move(*values);
  }
  // The first key whose name begins so; empty: none.
  [[nodiscard]] std::string_view first_of(std::string_view begin) const {
    const std::string whole = prefix_ + std::string(begin);
    const auto found = file_.metadata.lower_bound(whole);
    return found != file_.metadata.end() && found->first.starts_with(whole) ? found->first : std::string_view();
  }
  [[nodiscard]] bool is_array(std::string_view name) const {
    const auto found = file_.metadata.find(prefix_ + std::string(name));
    return found != file_.metadata.end() && std::holds_alternative<GgufArray>(found->second);
  }

 private:
  void fail(const std::string& key, const std::string& text) {
    if (status_.is_ok()) status_ = invalid_argument(fmt::format("{} {}", key, text));
  }

  const GgufFile& file_;
  const std::string prefix_;
  Status status_;
};

void mark_recurrent(Keys& keys, const std::string& architecture, std::vector<Layer>& layers) {
  const auto set = [&](auto is_recurrent) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].recurrent = is_recurrent(i);
      layers[i].attention = !layers[i].recurrent;
    }
  };
  if (is_one_of(architecture, kAllLayersBoth)) {
    for (Layer& layer : layers) layer.recurrent = true;
  } else if (is_one_of(architecture, kAllRecurrent)) {
    set([](std::size_t) { return true; });
  } else if (is_one_of(architecture, kByInterval) && keys.has("attention.recurrent_layers")) {
    const auto marks = keys.per_layer("attention.recurrent_layers", layers.size());
    set([&](std::size_t i) { return marks[i] != 0; });
  } else if (is_one_of(architecture, kByInterval)) {
    const std::uint64_t interval = std::max<std::uint64_t>(1, keys.number("full_attention_interval", 4));
    set([&](std::size_t i) { return (i + 1) % interval != 0; });
  } else if (is_one_of(architecture, kWithoutHeads)) {
    const bool has_lengths = keys.is_array("feed_forward_length") && architecture.starts_with("nemotron_h");
    const auto lengths = has_lengths ? keys.per_layer("feed_forward_length", layers.size())
                                     : std::vector<std::uint64_t>(layers.size(), 0);
    set([&](std::size_t i) { return layers[i].kv_heads == 0 && lengths[i] == 0; });
    for (Layer& layer : layers) layer.attention = layer.kv_heads > 0;
  }
}

bool has_recurrent_rule(const std::string& architecture) {
  return is_one_of(architecture, kAllLayersBoth) || is_one_of(architecture, kAllRecurrent) ||
         is_one_of(architecture, kByInterval) || is_one_of(architecture, kWithoutHeads);
}

// False: no rule says which layers have it.
bool mark_sliding(Keys& keys, const std::string& architecture, std::uint64_t window, std::vector<Layer>& layers) {
  if (window == 0) return true;
  constexpr std::string_view kPatternKey = "attention.sliding_window_pattern";
  const auto* known = std::ranges::find(kPatterns, architecture, &WindowPattern::architecture);
  if (keys.is_array(kPatternKey)) {
    const auto marks = keys.per_layer(kPatternKey, layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) layers[i].sliding = marks[i] != 0;
  } else if (known != kPatterns.end()) {
    const std::uint64_t period = keys.number(kPatternKey, known->period);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::uint64_t in_period = period == 0 ? 0 : i % period;
      layers[i].sliding = period == 0 || (known->is_first_full ? in_period != 0 : in_period < period - 1);
    }
  } else if (architecture.starts_with("lfm2")) {
    for (Layer& layer : layers) layer.sliding = layer.attention;
  } else {
    return false;
  }
  return true;
}

Status unknown_sizes(const std::string& architecture, const std::string& why) {
  return unsupported(fmt::format("architecture {}: the sizes of its cache are not known{}", architecture, why));
}

// Bytes of a row; 0 and a message if it is no multiple of the type's blocks.
std::uint64_t row_bytes(std::uint64_t numbers, const CacheType& type, Status& status) {
  if (numbers % type.block_numbers != 0 && status.is_ok()) {
    status = invalid_argument(fmt::format("rows of {} numbers do not divide into blocks of {}: take another cache type",
                                          numbers, type.block_numbers));
  }
  return numbers / type.block_numbers * type.block_bytes;
}

Result<BlobGeometry> attention_parts(Keys& keys, const std::vector<Layer>& layers, std::uint64_t window,
                                     const CacheType& key_type, const CacheType& value_type) {
  const std::uint64_t heads =
      std::max<std::uint64_t>(1, keys.is_array("attention.head_count") ? 1 : keys.number("attention.head_count", 1));
  const std::uint64_t head_length = keys.number("embedding_length") / heads;
  const std::uint64_t key_length = keys.number("attention.key_length", head_length);
  const std::uint64_t value_length = keys.number("attention.value_length", head_length);
  const std::uint64_t key_sliding = keys.number("attention.key_length_swa", key_length);
  const std::uint64_t value_sliding = keys.number("attention.value_length_swa", value_length);
  const bool is_latent = keys.number("attention.key_length_mla", 0) > 0;
  bool has_sections = false;
  if (keys.is_array("rope.dimension_sections")) {
    const auto sections = keys.per_layer("rope.dimension_sections", 2);
    has_sections = sections[0] > 0 && sections[1] > 0;
  }
  AttentionGeometry full, sliding;
  Status status;
  for (const Layer& layer : layers) {
    if (!layer.attention) continue;
    AttentionGeometry& part = layer.sliding ? sliding : full;
    const std::uint64_t k = layer.kv_heads * (layer.sliding ? key_sliding : key_length);
    const std::uint64_t v = layer.kv_heads * (layer.sliding ? value_sliding : value_length);
    part.keys.push_back({key_type.type, row_bytes(k, key_type, status)});
    if (!is_latent) part.values.push_back({value_type.type, row_bytes(v, value_type, status)});
  }
  LARDER_RETURN_IF_ERROR(status);
  full.has_cell_extensions = sliding.has_cell_extensions = has_sections;
  BlobGeometry geometry;
  if (!full.keys.empty()) geometry.full = std::move(full);
  if (!sliding.keys.empty()) {
    geometry.window = std::move(sliding);
    geometry.window_tokens = static_cast<std::uint32_t>(window);
  }
  return geometry;
}

// More than any row may have counts as just more than that.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kTooLarge = kRowBytesMax + 1;
  return b != 0 && a > kTooLarge / b ? kTooLarge : std::min(a * b, kTooLarge);
}

// Rows of one recurrent layer, in numbers: convolution, state.
std::pair<std::uint64_t, std::uint64_t> recurrent_row(Keys& keys) {
  const std::uint64_t embedding = keys.number("embedding_length");
  if (keys.has("shortconv.l_cache")) {
    const std::uint64_t taps = std::max<std::uint64_t>(1, keys.number("shortconv.l_cache"));
    return {product(embedding, taps - 1), 0};
  }
  if (keys.has("kda.head_dim")) {
    const std::uint64_t head = keys.number("kda.head_dim"), heads = keys.number("attention.head_count");
    const std::uint64_t taps = keys.number("ssm.conv_kernel", 4);
    return {product(3 * (std::max<std::uint64_t>(taps, 1) - 1), product(heads, head)),
            product(product(head, head), heads)};
  }
  const std::uint64_t taps = std::max<std::uint64_t>(1, keys.number("ssm.conv_kernel"));
  const std::uint64_t inner = keys.number("ssm.inner_size"), state = keys.number("ssm.state_size");
  return {product(taps - 1, inner + 2 * product(keys.number("ssm.group_count", 0), state)), product(state, inner)};
}

Status check_rows(const BlobGeometry& blob) {
  const auto is_large = [](const std::vector<RowKind>& rows) {
    return std::ranges::any_of(rows, [](const RowKind& row) { return row.bytes > kRowBytesMax; });
  };
  const auto check = [&](const auto& part) { return part && (is_large(part->keys) || is_large(part->values)); };
  const bool is_state_large = blob.recurrent && (is_large(blob.recurrent->conv) || is_large(blob.recurrent->state));
  if (!check(blob.full) && !check(blob.window) && !is_state_large) return Status::ok();
  return invalid_argument(fmt::format("a row of a layer has more than {} bytes", kRowBytesMax));
}

// What the file says of its layers, and no rule explains, is refused: taken for full attention, it would be sized
// wrong.
Result<std::vector<Layer>> layers_of(Keys& keys, const std::string& architecture, std::uint64_t count,
                                     std::uint64_t window) {
  std::vector<Layer> layers(static_cast<std::size_t>(count));
  const bool is_recurrent = is_one_of(architecture, kAllRecurrent);
  const std::string_view heads =
      keys.has("attention.head_count_kv") ? "attention.head_count_kv" : "attention.head_count";
  const auto kv_heads =
      is_recurrent ? std::vector<std::uint64_t>(layers.size(), 0) : keys.per_layer(heads, layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].kv_heads = kv_heads[i];
  mark_recurrent(keys, architecture, layers);
  const bool has_window_rule = mark_sliding(keys, architecture, window, layers);
  if (!keys.status().is_ok()) return keys.status();
  for (const std::string_view begin : kStateKeys) {
    const std::string_view key = keys.first_of(begin);
    if (!key.empty() && !has_recurrent_rule(architecture)) {
      return unknown_sizes(architecture, fmt::format(": which layers keep a state ({}) is not", key));
    }
  }
  if (!has_window_rule) {
    return unknown_sizes(architecture, fmt::format(": which layers have the window of {} tokens is not", window));
  }
  const auto empty = std::ranges::find_if(layers, [](const Layer& l) { return l.attention && l.kv_heads == 0; });
  if (empty != layers.end() && !is_one_of(architecture, kMayKeepNothing)) {
    return unknown_sizes(architecture, fmt::format(": layer {} has no heads of keys", empty - layers.begin()));
  }
  return layers;
}

}  // namespace

Result<CacheType> cache_type(std::string_view name) {
  std::string known;
  for (const NamedType& type : kTypes) {
    if (type.name == name) return type.type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  return invalid_argument(fmt::format("cache type \"{}\": it is one of {}", name, known));
}

std::uint32_t sliding_window_of(const GgufFile& file) {
  const auto tokens = file.number(file.text("general.architecture").value_or("") + ".attention.sliding_window");
  return tokens && *tokens <= kWindowTokensMax ? static_cast<std::uint32_t>(*tokens) : 0;
}

Result<GgufGeometry> gguf_geometry(const GgufFile& file, const CacheType& keys_type, const CacheType& values_type) {
  GgufGeometry geometry;
  const auto architecture = file.text("general.architecture");
  if (!architecture || architecture->empty()) return invalid_argument("general.architecture is missing");
  geometry.architecture = *architecture;
  geometry.name = file.text("general.name").value_or("");
  Keys keys(file, *architecture);
  const bool has_indexer = keys.has("attention.indexer.head_count") || keys.has("attention.shared_kv_layers") ||
                           keys.has("attention.chunk_size");
  if (is_one_of(*architecture, kOther) || has_indexer) {
    return unknown_sizes(*architecture, "");
  }
  const std::uint64_t blocks = keys.number("block_count"), predictors = keys.number("nextn_predict_layers", 0);
  if (keys.status().is_ok() && (blocks == 0 || blocks > kBlobLayersMax || predictors >= blocks)) {
    return invalid_argument(fmt::format("{}.block_count is {}", *architecture, blocks));
  }
  geometry.context_length = static_cast<std::uint32_t>(keys.number("context_length"));
  const bool ignores_window = is_one_of(*architecture, kIgnoresWindow);
  const std::uint64_t window = ignores_window ? 0 : keys.number("attention.sliding_window", 0);
  if (!keys.status().is_ok()) return keys.status();
  if (window > kWindowTokensMax) {
    return unsupported(fmt::format("a sliding window of {} tokens: at most {}", window, kWindowTokensMax));
  }
  geometry.layers = static_cast<std::uint32_t>(blocks - predictors);
  const Result<std::vector<Layer>> layers = layers_of(keys, *architecture, geometry.layers, window);
  if (!layers) return layers.status();
  Result<BlobGeometry> blob = attention_parts(keys, *layers, window, keys_type, values_type);
  if (!keys.status().is_ok()) return keys.status();
  if (!blob) return blob.status();
  geometry.blob = std::move(*blob);
  const auto recurrent = static_cast<std::size_t>(std::ranges::count(*layers, true, &Layer::recurrent));
  if (recurrent > 0) {
    const auto [conv, state] = recurrent_row(keys);
    geometry.blob.recurrent =
        RecurrentGeometry{geometry.layers, std::vector<RowKind>(recurrent, RowKind{kF32, conv * 4}),
                          std::vector<RowKind>(recurrent, RowKind{kF32, state * 4})};
  }
  if (!keys.status().is_ok()) return keys.status();
  LARDER_RETURN_IF_ERROR(check_rows(geometry.blob));
  return geometry;
}

}  // namespace larder::llama
