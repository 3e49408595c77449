// SPDX-License-Identifier: Apache-2.0
// Model files (model/model_file.h) and the three parsers below them (model/parse_tree.h).
//
// Fed: a format, and a text.
// Checked: refusals are kInvalidArgument, begin with the source's name and say more. A model that is taken is written
// as JSON and read back as an equal one; its pools are what a cache can work with: storage order, one anchor per
// component, the anchor last, pages within the limit, every chunk inside its page and no two in one place; its
// fingerprints and digests tell layouts and ranks apart. A tree that a parser takes is no deeper than the limit, has no
// key twice, and is the same when it is written as JSON and read back.
#include <set>

#include <nlohmann/json.hpp>

#include "config/model_file.h"
#include "config/parse_tree.h"
#include "fuzz/fuzz_input.h"
#include "model/model_limits.h"

namespace larder::fuzz {
namespace {

constexpr std::string_view kSource = "source";

void check_refusal(const Status& status) {
  fuzz_check(status.code() == StatusCode::kInvalidArgument, "refused with " + status.to_string());
  fuzz_check(status.message().starts_with(kSource) && status.message().size() > kSource.size() + 2,
             "an error that does not say where: " + status.message());
}

// Corners of each plane: a chunk lies inside of the page; first and last chunks of all planes differ.
void check_chunks(const PoolSpec& pool, HostLayout layout) {
  std::set<std::size_t> places;
  for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
    const PlaneSpec& shape = pool.planes[plane];
    fuzz_check(shape.rows > 0 && shape.heads > 0 && shape.head_bytes() > 0, "a plane without bytes");
    for (const std::size_t layer : std::set<std::size_t>{0, pool.layers.size() - 1}) {
      for (const std::size_t row : std::set<std::size_t>{0, shape.rows - 1}) {
        for (const std::size_t head : std::set<std::size_t>{0, shape.heads - 1}) {
          const std::size_t offset = chunk_offset(pool, layout, plane, layer, row, head);
          fuzz_check(offset + shape.head_bytes() <= pool.page_bytes(), "a chunk behind its page");
          fuzz_check(places.insert(offset).second, "two chunks in one place");
        }
      }
    }
  }
}

void check_pools(const ModelSpec& model) {
  fuzz_check(!model.pools.empty() && model.layer_count() <= kLayersMax, "a model without pools, or of many layers");
  for (std::size_t i = 0; i < model.pools.size(); ++i) {
    const PoolSpec& pool = model.pools[i];
    const bool is_last = i + 1 == model.pools.size() || model.pools[i + 1].component != pool.component;
    fuzz_check(pool.is_anchor == is_last, "an anchor that is not the last of its component");
    fuzz_check(is_last || i + 1 < model.pools.size(), "no anchor");
    fuzz_check(i == 0 || model.pools[i - 1].component <= pool.component, "components out of order");
    fuzz_check(model.find_pool(pool.name) == &pool, "two pools with one name");
    fuzz_check(pool.page_bytes() <= kPageBytesMax, "a page beyond the limit");
    fuzz_check(std::is_sorted(pool.layers.begin(), pool.layers.end()), "layers out of order");
    fuzz_check(pool.layers.empty() || pool.layers.back() < model.layer_count(), "a layer that is not there");
    for (const HostLayout layout : kAllHostLayouts) {
      if (!pool.layers.empty()) check_chunks(pool, layout);
    }
  }
}

void check_identity(const ModelSpec& model) {
  std::set<Digest256> digests;
  for (const HostLayout layout : kAllHostLayouts) {
    NamespaceScope scope;
    scope.layout = layout;
    digests.insert(namespace_digest(model, scope));
    scope.salt = "tenant";
    digests.insert(namespace_digest(model, scope));
    std::set<Digest256> pools;
    for (const PoolSpec& pool : model.pools) pools.insert(layout_fingerprint(model, pool, layout));
    fuzz_check(pools.size() == model.pools.size(), "two pools with one fingerprint");
  }
  fuzz_check(digests.size() == 2 * kAllHostLayouts.size() && !digests.contains(Digest256{}), "namespaces meet");
}

void check_model(std::string_view text, ModelFileFormat format) {
  const Result<ModelSpec> model = load_model_file(text, format, kSource);
  if (!model.is_ok()) return check_refusal(model.status());
  const std::string written = model_to_json(*model);
  const Result<ModelSpec> again = load_model_file(written, ModelFileFormat::kJson, kSource);
  fuzz_check(again.is_ok(), "what was written is refused: " + again.status().message());
  fuzz_check(model_to_json(*again) == written && again->pools == model->pools && again->dims == model->dims,
             "what was written is read as another model");
  fuzz_check(namespace_digest(*again, {}) == namespace_digest(*model, {}), "a copy has another identity");
  check_pools(*model);
  check_identity(*model);
}

nlohmann::ordered_json json_of(const Tree& tree, std::size_t depth) {
  using nlohmann::ordered_json;
  const bool is_inner = tree.as<Tree::List>() != nullptr || tree.as<Tree::Table>() != nullptr;
  fuzz_check(depth <= kTreeDepthMax + (is_inner ? 0 : 1), "a tree deeper than the limit");
  if (const auto* list = tree.as<Tree::List>()) {
    ordered_json out = ordered_json::array();
    for (const Tree& element : *list) out.push_back(json_of(element, depth + 1));
    return out;
  }
  if (const auto* table = tree.as<Tree::Table>()) {
    ordered_json out = ordered_json::object();
    for (const TreeEntry& entry : *table) {
      fuzz_check(!out.contains(entry.first), "a key is there twice");
      out[entry.first] = json_of(entry.second, depth + 1);
    }
    return out;
  }
  if (const auto* text = tree.as<std::string>()) return *text;
  if (const auto* number = tree.as<std::uint64_t>()) return *number;
  if (const auto* number = tree.as<std::int64_t>()) return *number;
  if (const auto* number = tree.as<double>()) return *number;
  if (const auto* truth = tree.as<bool>()) return *truth;
  return nullptr;
}

bool has_only_finite(const Tree& tree) {
  if (const auto* number = tree.as<double>()) return *number - *number == 0;
  if (const auto* list = tree.as<Tree::List>()) return std::all_of(list->begin(), list->end(), has_only_finite);
  const auto* table = tree.as<Tree::Table>();
  return table == nullptr || std::all_of(table->begin(), table->end(),
                                         [](const TreeEntry& entry) { return has_only_finite(entry.second); });
}

void check_tree(const Result<Tree>& tree) {
  if (!tree.is_ok()) return check_refusal(tree.status());
  const auto json = json_of(*tree, 1);
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    return;  // a YAML text need not be UTF-8
  }
  if (!has_only_finite(*tree)) return;
  const Result<Tree> again = parse_json_tree(text, kSource);
  fuzz_check(again.is_ok() && json_of(*again, 1) == json, "a tree written as JSON is another");
}

void run(FuzzInput input) {
  const std::uint64_t format = input.below(3);
  const std::string_view text = input.rest_text();
  switch (format) {
    case 0: check_tree(parse_json_tree(text, kSource)); return check_model(text, ModelFileFormat::kJson);
    case 1: check_tree(parse_toml_tree(text, kSource)); return check_model(text, ModelFileFormat::kToml);
    default: return check_tree(parse_yaml_tree(text, kSource));
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
