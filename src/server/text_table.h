// SPDX-License-Identifier: Apache-2.0
// Tables and numbers for people.
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// Columns as wide as their widest cell; the first is left-aligned, the others right-aligned.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : head_(std::move(head)) {}
  // Missing cells are empty; surplus ones are dropped.
  void add_row(std::vector<std::string> cells);
  // A line across, above the next row.
  void add_rule() { rows_.emplace_back(); }
  // Lines ended by '\n', each indented by `indent` spaces.
  [[nodiscard]] std::string text(std::size_t indent = 0) const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;  // an empty one is a rule
};

// "1.5 MiB", "17 B".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);
// "12,345".
[[nodiscard]] std::string count_text(std::uint64_t count);
// "1 page", "12 pages".
[[nodiscard]] std::string counted_text(std::uint64_t count, std::string_view singular);
// "+1.50", "-0.25"; what is rounded to zero is "+0.00".
[[nodiscard]] std::string signed_text(double value, int digits);
// Seconds as milliseconds: "12.3".
[[nodiscard]] std::string millis_text(double seconds);

}  // namespace larder
