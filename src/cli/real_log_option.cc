// SPDX-License-Identifier: Apache-2.0
#include "cli/real_log_option.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "server/log_lines.h"

namespace larder {
namespace {

Status set_level(const std::string& name) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (log_level_name(level) != name) continue;
    set_log_level(level);
    return Status::ok();
  }
  return invalid_argument("--log-level is '" + name + "': it must be debug, info, warning, error or off");
}

}  // namespace

void add_log_options(CLI::App& app, LogOptions& options) {
  app.add_option("--log-level", options.level, "debug, info, warning, error or off")
      ->capture_default_str()
      ->type_name("LEVEL");
  app.add_option("--log-format", options.format, "text, or json: an object a line")
      ->capture_default_str()
      ->type_name("FORMAT");
}

Status set_log_options(const LogOptions& options) {
  LARDER_RETURN_IF_ERROR(set_level(options.level));
  if (options.format != "text" && options.format != "json") {
    return invalid_argument("--log-format is '" + options.format + "': it must be text or json");
  }
  const LogFormat format = options.format == "json" ? LogFormat::kJson : LogFormat::kText;
  set_log_sink([format](LogLevel level, std::string_view component, std::string_view message) {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    const std::string line = log_line_text(
        format, std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count(), level, component, message);
    (void)std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of processes do not mix
  });
  return Status::ok();
}

}  // namespace larder
