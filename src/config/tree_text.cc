// SPDX-License-Identifier: Apache-2.0
#include "config/tree_text.h"

#include <cmath>
#include <cstddef>

namespace larder {
namespace {

constexpr std::size_t kShownBytesMax = 60;  // of the user's text, inside a message
constexpr double kWholeMax = 1e15;          // beyond it a double has no fraction worth the name

}  // namespace

std::string in_quotes(std::string_view text) {
  const bool is_cut = text.size() > kShownBytesMax;
  return "'" + std::string(text.substr(0, kShownBytesMax)) + (is_cut ? "..." : "") + "'";
}

std::string shown(const Tree& tree) {
  if (const auto* text = tree.as<std::string>()) return in_quotes(*text);
  if (const auto* number = tree.as<std::uint64_t>()) return std::to_string(*number);
  if (const auto* number = tree.as<std::int64_t>()) return std::to_string(*number);
  if (const auto* number = tree.as<double>())
    return std::abs(*number) < kWholeMax ? "a fraction" : "too large a number";
  if (const auto* truth = tree.as<bool>()) return *truth ? "true" : "false";
  return tree.as<Tree::List>() != nullptr ? "a list" : tree.as<Tree::Table>() != nullptr ? "a table" : "null";
}

}  // namespace larder
