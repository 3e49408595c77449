// SPDX-License-Identifier: Apache-2.0
#include "server/log_lines.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

namespace larder {
namespace {

std::string time_text(std::int64_t unix_milliseconds) {
  const std::time_t seconds = unix_milliseconds / 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), unix_milliseconds % 1000);
}

// As JSON has it, without the quotes around it; DEL and the controls from U+0080 to U+009F, too, which a terminal may
// obey.
std::string escaped(std::string_view text) {
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  for (std::size_t i = 1; i + 1 < quoted.size(); ++i) {
    const auto byte = static_cast<unsigned char>(quoted[i]);
    const auto next = static_cast<unsigned char>(quoted[i + 1]);
    const bool is_upper_control = byte == 0xc2 && next < 0xa0;
    if (byte != 0x7f && !is_upper_control) {
      out += quoted[i];
      continue;
    }
    out += fmt::format("\\u{:04x}", is_upper_control ? next : byte);
    i += is_upper_control ? 1 : 0;
  }
  return out;
}

bool is_plain(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) return false;
  }
  return true;
}

}  // namespace

std::string log_line_text(LogFormat format, std::int64_t unix_milliseconds, LogLevel level, std::string_view component,
                          std::string_view message) {
  const std::string time = time_text(unix_milliseconds);
  if (format == LogFormat::kJson) {
    return fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",\"component\":\"{}\",\"message\":\"{}\"}}\n", time,
                       log_level_name(level), escaped(component), escaped(message));
  }
  return fmt::format("{} {} {}: {}\n", time, log_level_name(level), component,
                     is_plain(message) ? std::string(message) : escaped(message));
}

}  // namespace larder
