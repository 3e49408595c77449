// SPDX-License-Identifier: Apache-2.0
#include "base/percent.h"

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace larder {

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' && plus_is_space ? ' ' : text[i];
      continue;
    }
    std::array<std::uint8_t, 1> byte{};
    if (!hex_decode(text.substr(i + 1, 2), byte).is_ok()) return std::nullopt;
    out += static_cast<char>(byte[0]);
    i += 2;
  }
  return out;
}

}  // namespace larder
