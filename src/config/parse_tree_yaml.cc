// SPDX-License-Identifier: Apache-2.0
// YAML to a Tree, in a translation unit of its own: yaml-cpp's headers are heavy, and it throws.
//
// The core schema: plain null, booleans and numbers get their types, everything quoted is text. Refused are what no
// configuration needs and what makes small files large: anchors with aliases, tags, several documents.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "config/parse_tree.h"

namespace larder {
namespace {

constexpr std::size_t kShownBytes = 60;  // of the user's text, inside a message

std::string at(std::string_view source, const YAML::Mark& mark) {
  return std::string(source) + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": ";
}

template <class T>
bool is_number(const std::string& text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && rest == end;
}

// Of a plain scalar; quoted ones are text.
Tree scalar_of(const std::string& text) {
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

// Receives yaml-cpp's events. Its nodes would not show what was an alias, and its LoadAll() never comes back from some
// texts (","). After the first error, events are ignored.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view source) : source_(source) {}

  [[nodiscard]] Result<Tree> take() {
    if (!error_.is_ok()) return error_;
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (admits(mark, "", anchor) && is_value(mark)) place({});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override { (void)admits(mark, "", anchor); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!admits(mark, tag, anchor)) return;
    if (needs_key()) return add_key(mark, value);
    place(tag == kQuotedTag ? Tree{value} : scalar_of(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, {Tree::List{}});
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, {Tree::Table{}});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  // A list or table begun and not ended. Stays valid: its parent gets no sibling before it closes.
  struct Open {
    Tree* tree;
    bool has_key = false;  // of a table: a key waits for its value
  };
  static constexpr std::string_view kQuotedTag = "!", kPlainTag = "?";  // yaml-cpp's own

  void fail(const YAML::Mark& mark, const std::string& what) {
    if (error_.is_ok()) error_ = invalid_argument(at(source_, mark) + what);
  }
  bool admits(const YAML::Mark& mark, std::string_view tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor)
      fail(mark, "anchors (&) and aliases (*) are not taken; quote the text, or write it out");
    if (!tag.empty() && tag != kQuotedTag && tag != kPlainTag) fail(mark, "tags (!) are not taken");
    return error_.is_ok();
  }
  [[nodiscard]] bool needs_key() const {
    return !open_.empty() && open_.back().tree->as<Tree::Table>() != nullptr && !open_.back().has_key;
  }
  bool is_value(const YAML::Mark& mark) {
    if (needs_key()) fail(mark, "a key must be plain text");
    return error_.is_ok();
  }
  void add_key(const YAML::Mark& mark, const std::string& key) {
    auto& table = std::get<Tree::Table>(open_.back().tree->value);
    for (const TreeEntry& other : table) {
      if (other.first == key) return fail(mark, "key '" + key.substr(0, kShownBytes) + "' is there twice");
    }
    table.push_back({key, Tree{}});
    open_.back().has_key = true;
  }
  // Puts a value where the parser stands: the root, the end of a list, or the key just read.
  Tree* place(Tree tree) {
    Tree* to = &root_;
    if (!open_.empty()) {
      Open& parent = open_.back();
      auto* const list = std::get_if<Tree::List>(&parent.tree->value);
      to = list ? &list->emplace_back() : &std::get<Tree::Table>(parent.tree->value).back().second;
      parent.has_key = false;
    }
    *to = std::move(tree);
    return to;
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Tree tree) {
    if (!admits(mark, tag, anchor) || !is_value(mark)) return;
    if (open_.size() >= kTreeDepthMax) return fail(mark, "nested deeper than " + std::to_string(kTreeDepthMax));
    open_.push_back({place(std::move(tree))});
  }
  void close() {
    if (error_.is_ok()) open_.pop_back();
  }

  std::string_view source_;
  Tree root_;
  std::vector<Open> open_;  // outermost first
  Status error_;
};

}  // namespace

Result<Tree> parse_yaml_tree(std::string_view text, std::string_view source) {
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    TreeBuilder first(source), second(source);
    if (!parser.HandleNextDocument(first)) return Tree{};
    Result<Tree> tree = first.take();
    // What a document leaves unread is another one to the parser: a stray ',' or ']' ends here, too.
    if (tree.is_ok() && parser.HandleNextDocument(second)) {
      return invalid_argument(std::string(source) + ": more than one YAML document, or something follows it");
    }
    return tree;
  } catch (const YAML::Exception& error) {  // yaml-cpp's way to say "syntax"
    return invalid_argument(at(source, error.mark) + error.msg);
  } catch (const std::exception& error) {
    return invalid_argument(std::string(source) + ": " + error.what());
  }
}

}  // namespace larder
