// SPDX-License-Identifier: Apache-2.0
// A number from text: all of it, or nothing.
//
// Threads: any.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace larder {

// As std::from_chars has it: no space, no plus, no minus for unsigned types; `more` is what it takes besides (a base).
template <class Number, class... More>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text, More... more) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, more...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace larder
