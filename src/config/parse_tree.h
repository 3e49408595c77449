// SPDX-License-Identifier: Apache-2.0
// JSON, TOML or YAML text to one tree, with positions in syntax errors.
//
// All formats become the same Tree, so that one reader with one set of messages serves them, and no header of the core
// includes their libraries. Threads: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace larder {

struct TreeEntry;
struct Tree {
  using List = std::vector<Tree>;
  using Table = std::vector<TreeEntry>;  // in the order of the text; no key twice

  // monostate: JSON null. Whole numbers are uint64_t unless they are negative.
  std::variant<std::monostate, bool, std::uint64_t, std::int64_t, double, std::string, List, Table> value;

  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&value);
  }
};

// Not a std::pair: that would have to know whether Tree can be made before Tree is complete (clang refuses it).
struct TreeEntry {
  std::string first;  // key
  Tree second;
};

// Deeper nesting is an error; no model file needs more than 4.
inline constexpr std::size_t kTreeDepthMax = 16;

// Errors (kInvalidArgument) read "<source>:<line>:<column>: <what>" for syntax, "<source>: <what>" for the rest: a key
// that is there twice, nesting beyond the limit.
[[nodiscard]] Result<Tree> parse_json_tree(std::string_view text, std::string_view source);
// As above. TOML's dates and times are refused. kUnsupported: the library was built without the `larder` command.
[[nodiscard]] Result<Tree> parse_toml_tree(std::string_view text, std::string_view source);
// As parse_toml_tree(). Anchors, aliases and several documents are refused. An empty text is null.
[[nodiscard]] Result<Tree> parse_yaml_tree(std::string_view text, std::string_view source);

}  // namespace larder
