// SPDX-License-Identifier: Apache-2.0
#include "server/json_text.h"

namespace larder {

void append_json_escaped(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (u < 0x20) {
          out += "\\u00";
          out += kHex[u >> 4];
          out += kHex[u & 15];
        } else {
          out += c;
        }
    }
  }
}

std::size_t utf8_cut(std::string_view text, std::size_t begin, std::size_t limit) {
  if (text.size() - begin <= limit) return text.size();
  std::size_t end = begin + limit;
  while (end > begin && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

std::string cut_text(std::string_view text, std::size_t most) {
  const std::size_t end = utf8_cut(text, 0, most);
  return std::string(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

}  // namespace larder
