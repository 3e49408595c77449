// SPDX-License-Identifier: Apache-2.0
#include "config/hf_fields.h"

#include <algorithm>
#include <charconv>

#include "config/tree_text.h"

namespace larder {

const Tree* HfFields::at(const Tree::Table& table, std::string_view key) {
  const std::string_view first = key.substr(0, key.find('.'));
  const auto found = std::find_if(table.begin(), table.end(), [&](const TreeEntry& e) { return e.first == first; });
  return found == table.end() ? nullptr : inside(found->second, key.substr(first.size()));
}

// rest: "", or ".b.c".
const Tree* HfFields::inside(const Tree& tree, std::string_view rest) {
  if (rest.empty()) return &tree;
  rest.remove_prefix(1);
  if (const auto* const table = tree.as<Tree::Table>()) return at(*table, rest);
  const auto* const list = tree.as<Tree::List>();
  const std::string_view first = rest.substr(0, rest.find('.'));
  std::size_t number = 0;
  const char* const end = first.data() + first.size();
  const bool is_number = std::from_chars(first.data(), end, number).ptr == end;
  if (list == nullptr || !is_number || number >= list->size()) return nullptr;
  return inside((*list)[number], rest.substr(first.size()));
}

const Tree* HfFields::find(const Tree::Table& table, std::string_view key) {
  const Tree* const tree = at(table, key);
  return tree == nullptr || tree->as<std::monostate>() != nullptr ? nullptr : tree;
}

void HfFields::fail(std::string_view key, std::string_view what) {
  if (!status_.is_ok()) return;
  status_ = invalid_argument(source_ + ": " + std::string(key) + ": " + std::string(what));
}

void HfFields::refuse(std::string_view what) {
  if (status_.is_ok()) status_ = unsupported(source_ + ": " + std::string(what));
}

std::uint32_t HfFields::get(std::initializer_list<std::string_view> keys, std::uint32_t fallback, std::uint32_t most) {
  for (const std::string_view key : keys) {
    const Tree* const tree = find(text_, key);
    if (tree == nullptr) continue;
    if (const auto* const word = tree->as<std::string>(); word != nullptr && *word == "auto") continue;
    const auto* const number = tree->as<std::uint64_t>();
    if (number != nullptr && *number <= most) return static_cast<std::uint32_t>(*number);
    fail(key, "expected a whole number from 0 to " + std::to_string(most) + ", got " + shown(*tree));
    return 0;
  }
  return fallback;
}

std::uint32_t HfFields::need(std::initializer_list<std::string_view> keys) {
  const std::uint32_t value = get(keys, 0);
  if (value == 0) fail(*keys.begin(), "is missing or 0, and models of this family need it");
  return value;
}

bool HfFields::flag(std::string_view key, bool fallback) {
  const Tree* const tree = find(text_, key);
  if (tree == nullptr) return fallback;
  if (const bool* const value = tree->as<bool>()) return *value;
  fail(key, "expected true or false, got " + shown(*tree));
  return fallback;
}

std::string HfFields::word(std::string_view key) {
  for (const Tree::Table* const table : {&text_, &top_}) {
    const Tree* const tree = find(*table, key);
    if (tree == nullptr) continue;
    if (const auto* const value = tree->as<std::string>()) return *value;
    fail(key, "expected a text, got " + shown(*tree));
    return {};
  }
  return {};
}

std::optional<std::vector<std::string>> HfFields::words(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const Tree* const tree = find(text_, key);
    if (tree == nullptr) continue;
    std::vector<std::string> all;
    const auto* const list = tree->as<Tree::List>();
    if (list == nullptr) fail(key, "expected a list of names of layers, got " + shown(*tree));
    for (const Tree& element : list == nullptr ? Tree::List{} : *list) {
      const auto* const name = element.as<std::string>();
      if (name == nullptr) fail(key, "expected a list of names of layers, and one is " + shown(element));
      all.push_back(name == nullptr ? "" : *name);
    }
    return all;
  }
  return std::nullopt;
}

std::optional<std::vector<std::uint32_t>> HfFields::numbers(std::string_view key) {
  const Tree* const tree = find(text_, key);
  if (tree == nullptr) return std::nullopt;
  std::vector<std::uint32_t> all;
  const auto* const list = tree->as<Tree::List>();
  if (list == nullptr) fail(key, "expected a list of whole numbers, got " + shown(*tree));
  for (const Tree& element : list == nullptr ? Tree::List{} : *list) {
    const auto* const number = element.as<std::uint64_t>();
    if (number == nullptr || *number > kHfNumberMax) {
      fail(key,
           "expected a list of whole numbers up to " + std::to_string(kHfNumberMax) + ", and one is " + shown(element));
    }
    all.push_back(number == nullptr ? 0 : static_cast<std::uint32_t>(std::min<std::uint64_t>(*number, kHfNumberMax)));
  }
  return all;
}

}  // namespace larder
