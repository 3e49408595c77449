// SPDX-License-Identifier: Apache-2.0
#include "config/parse_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace larder {
namespace {

std::string at(std::string_view source, std::size_t line, std::size_t column) {
  return std::string(source) + ":" + std::to_string(line) + ":" + std::to_string(column) + ": ";
}

std::string too_deep(std::string_view source) {
  return std::string(source) + ": nested more than " + std::to_string(kTreeDepthMax) + " deep";
}

// byte: 1-based index of the last byte read, as nlohmann counts.
std::string at_byte(std::string_view text, std::string_view source, std::size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return at(source, line, before.size() - line_start + 1);
}

// nlohmann's text without its "[json.exception...] parse error at line 1, column 2: ": we give the position ourselves.
std::string plain_message(std::string_view what) {
  const std::size_t bracket = what.find("] ");
  if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
  const std::size_t colon = what.find(": ");
  if (what.starts_with("parse error") && colon != std::string_view::npos) what.remove_prefix(colon + 2);
  return std::string(what);
}

// Receives nlohmann's events. The DOM parser would keep the last of equal keys without a word and nest without limit.
// Returning false stops the parser.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  [[nodiscard]] Result<Tree> take() {
    if (!error_.empty()) return invalid_argument(error_);
    return std::move(root_);
  }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(number_integer_t value) override {
    if (value >= 0) return add({static_cast<std::uint64_t>(value)});
    return add({std::int64_t{value}});
  }
  bool number_unsigned(number_unsigned_t value) override { return add({std::uint64_t{value}}); }
  bool number_float(number_float_t value, const string_t&) override { return add({value}); }
  bool string(string_t& value) override { return add({std::move(value)}); }
  bool binary(binary_t&) override { return fail(std::string(source_) + ": binary values mean nothing here"); }
  bool start_object(std::size_t) override { return open({Tree::Table{}}); }
  bool start_array(std::size_t) override { return open({Tree::List{}}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& table = std::get<Tree::Table>(open_.back()->value);
    const auto is_same = [&](const auto& member) { return member.first == name; };
    if (std::any_of(table.begin(), table.end(), is_same)) {
      return fail(std::string(source_) + ": key '" + name.substr(0, 60) + "' is there twice");
    }
    table.emplace_back(std::move(name), Tree{});
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    return fail(at_byte(text_, source_, position) + plain_message(error.what()));
  }

 private:
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  // Puts a value where the parser stands: the root, the end of a list, or the key just read.
  Tree* place(Tree tree) {
    if (open_.empty()) {
      root_ = std::move(tree);
      return &root_;
    }
    if (auto* list = std::get_if<Tree::List>(&open_.back()->value)) return &list->emplace_back(std::move(tree));
    Tree& slot = std::get<Tree::Table>(open_.back()->value).back().second;
    slot = std::move(tree);
    return &slot;
  }

  bool add(Tree tree) {
    place(std::move(tree));
    return true;
  }

  bool open(Tree tree) {
    if (open_.size() >= kTreeDepthMax) return fail(too_deep(source_));
    open_.push_back(place(std::move(tree)));  // stays valid: its parent gets no sibling before it closes
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string_view source_;
  Tree root_;
  std::vector<Tree*> open_;  // lists and tables begun and not ended, outermost first
  std::string error_;
};

}  // namespace

Result<Tree> parse_json_tree(std::string_view text, std::string_view source) {
  // To the parser a NUL is the end of the text; to JSON it is nothing that may stand anywhere.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument(at_byte(text, source, nul + 1) + "syntax error: a NUL");
  }
  TreeBuilder builder(text, source);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace larder
