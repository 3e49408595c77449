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

// As JSON has it, without the quotes around it.
std::string escaped(std::string_view text) {
  std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
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
