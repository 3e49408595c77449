// YAML to a Tree, in a translation unit of its own: yaml-cpp's headers are heavy, and it throws.
//
// The core schema: plain null, booleans and numbers get their types, everything quoted is text. Refused are what no
// configuration needs and what makes small files large: anchors with aliases, tags, several documents.
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "model/parse_tree.h"

namespace larder {
namespace {

std::string at(std::string_view source, const YAML::Mark& mark) {
  return std::string(source) + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": ";
}

template <class T>
bool is_number(const std::string& text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && rest == end;
}

Tree scalar_of(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return {text};  // it was quoted
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text == "true" || text == "True" || text == "TRUE") return {true};
  if (text == "false" || text == "False" || text == "FALSE") return {false};
  std::uint64_t whole = 0;
  std::int64_t negative = 0;
  double fraction = 0;
  if (is_number(text, whole)) return {whole};
  if (is_number(text, negative)) return {negative};
  // from_chars takes "inf" and "nan" for numbers; a configuration means text by them.
  const bool looks_like_number = text.find_first_of("0123456789") != std::string::npos;
  if (looks_like_number && is_number(text, fraction) && std::isfinite(fraction)) return {fraction};
  return {text};
}

Result<Tree> tree_of(const YAML::Node& node, std::string_view source, std::size_t depth) {
  if (depth > kTreeDepthMax) {
    return invalid_argument(at(source, node.Mark()) + "nested deeper than " + std::to_string(kTreeDepthMax));
  }
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null: return Tree{};
    case YAML::NodeType::Scalar: return scalar_of(node);
    case YAML::NodeType::Sequence: {
      Tree::List list;
      for (const YAML::Node& item : node) {
        Result<Tree> one = tree_of(item, source, depth + 1);
        if (!one.is_ok()) return one;
        list.push_back(std::move(one).value());
      }
      return Tree{std::move(list)};
    }
    case YAML::NodeType::Map: break;
  }
  Tree::Table table;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) return invalid_argument(at(source, entry.first.Mark()) + "a key must be plain text");
    const std::string& key = entry.first.Scalar();
    for (const TreeEntry& other : table) {
      if (other.first == key)
        return invalid_argument(at(source, entry.first.Mark()) + "key '" + key + "' is there twice");
    }
    Result<Tree> value = tree_of(entry.second, source, depth + 1);
    if (!value.is_ok()) return value;
    table.push_back({key, std::move(value).value()});
  }
  return Tree{std::move(table)};
}

// An alias may stand for a large node any number of times; the parsed tree does not show which node was one.
bool has_alias(std::string_view text) {
  bool is_single = false, is_double = false, is_comment = false;
  char before = '\n';
  for (const char c : text) {
    if (c == '\n') is_comment = false;
    if (is_comment) continue;
    const bool starts_value = before == ' ' || before == '\n' || before == '[' || before == ',' || before == '\t';
    if (!is_single && !is_double && starts_value) {
      if (c == '#') is_comment = true;
      if (c == '*' || c == '&') return true;
    }
    if (c == '\'' && !is_double && (is_single || starts_value)) is_single = !is_single;
    if (c == '"' && !is_single && before != '\\' && (is_double || starts_value)) is_double = !is_double;
    before = c;
  }
  return false;
}

}  // namespace

Result<Tree> parse_yaml_tree(std::string_view text, std::string_view source) {
  if (has_alias(text)) {
    return invalid_argument(std::string(source) +
                            ": anchors (&) and aliases (*) are not taken; quote the text, or write it out");
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) return invalid_argument(std::string(source) + ": more than one YAML document");
    if (documents.empty()) return Tree{};
    return tree_of(documents.front(), source, 1);
  } catch (const YAML::Exception& error) {  // yaml-cpp's way to say "syntax"
    return invalid_argument(at(source, error.mark) + error.msg);
  } catch (const std::exception& error) {
    return invalid_argument(std::string(source) + ": " + error.what());
  }
}

}  // namespace larder
