// SPDX-License-Identifier: Apache-2.0
#include "bench/terminal_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace larder {
namespace {

std::string quoted_text(std::string_view text, bool is_ascii) {
  return nlohmann::json(text).dump(-1, ' ', is_ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  const std::string quoted = quoted_text(text, true);
  return quoted.substr(1, quoted.size() - 2);
}

std::string drawable_text(std::string_view text) {
  auto out = nlohmann::json::parse(quoted_text(text, false)).get<std::string>();
  std::ranges::replace_if(
      out, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return out;
}

}  // namespace larder
