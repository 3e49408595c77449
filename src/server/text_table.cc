// SPDX-License-Identifier: Apache-2.0
#include "server/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace larder {
namespace {

void append_line(std::string& out, const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                 std::size_t indent) {
  std::string line(indent, ' ');
  for (std::size_t c = 0; c < widths.size(); ++c) {
    const std::string_view cell = c < cells.size() ? std::string_view(cells[c]) : std::string_view{};
    if (c > 0) line += "  ";
    line += c == 0 ? fmt::format("{:<{}}", cell, widths[c]) : fmt::format("{:>{}}", cell, widths[c]);
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  out += line + "\n";
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
  cells.resize(head_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::text(std::size_t indent) const {
  std::vector<std::size_t> widths;
  for (const std::string& cell : head_) widths.push_back(cell.size());
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  std::string out;
  append_line(out, head_, widths, indent);
  append_line(out, rule, widths, indent);
  for (const auto& row : rows_) append_line(out, row.empty() ? rule : row, widths, indent);
  return out;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string count_text(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string counted_text(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count_text(count), singular, count == 1 ? "" : "s");
}

std::string signed_text(double value, int digits) {
  std::string text = fmt::format("{:+.{}f}", value, digits);
  if (text.find_first_not_of("-0.") == text.npos) text[0] = '+';
  return text;
}

std::string millis_text(double seconds) { return fmt::format("{:.1f}", seconds * 1000); }

}  // namespace larder
