// SPDX-License-Identifier: Apache-2.0
// The keys of a Hugging Face config.json, with one place for all that can be wrong with them (internal to
// config/hf_config.cc and hf_families.cc).
//
// Errors: the first one sticks, and what is read after it is 0 or empty: a reader reads all it wants, and looks at
// status() once. Threads: confined. Lifetime: the trees outlive it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/parse_tree.h"

namespace larder {

inline constexpr std::uint32_t kHfNumberMax = 1u << 20;  // no product of three overflows 64 bits

class HfFields {
 public:
  // Keys are those of `text`; what it lacks may be in `top` where a method says so. "a.b" is key b of the table under
  // a, "a.0" the first of the list under it.
  HfFields(std::string source, const Tree::Table& top, const Tree::Table& text)
      : source_(std::move(source)), top_(top), text_(text) {}

  // A whole number from 1 to kHfNumberMax under the first of the keys that is there (null and "auto" count as not
  // there).
  [[nodiscard]] std::uint32_t need(std::initializer_list<std::string_view> keys);
  [[nodiscard]] std::uint32_t need(std::string_view key) { return need({key}); }
  // As need(), and `fallback` where none is there. 0 is allowed.
  [[nodiscard]] std::uint32_t get(std::initializer_list<std::string_view> keys, std::uint32_t fallback,
                                  std::uint32_t most = kHfNumberMax);
  [[nodiscard]] std::uint32_t get(std::string_view key, std::uint32_t fallback) { return get({key}, fallback); }
  // There is such a key, be it null.
  [[nodiscard]] bool has(std::string_view key) const { return at(text_, key) != nullptr; }
  [[nodiscard]] bool flag(std::string_view key, bool fallback);
  // A text of `text` or else of `top`; empty: neither has one.
  [[nodiscard]] std::string word(std::string_view key);
  // nullopt: not there.
  [[nodiscard]] std::optional<std::vector<std::string>> words(std::initializer_list<std::string_view> keys);
  [[nodiscard]] std::optional<std::vector<std::uint32_t>> numbers(std::string_view key);

  void fail(std::string_view key, std::string_view what);
  void refuse(std::string_view what);
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  // nullptr: not there; find(): or null.
  [[nodiscard]] static const Tree* at(const Tree::Table& table, std::string_view key);
  [[nodiscard]] static const Tree* inside(const Tree& tree, std::string_view rest);
  [[nodiscard]] static const Tree* find(const Tree::Table& table, std::string_view key);

  const std::string source_;
  const Tree::Table& top_;
  const Tree::Table& text_;
  Status status_;
};

}  // namespace larder
