#include "cli/log_option.h"

#include "base/log.h"

namespace larder {

Status set_log_option(const std::string& name) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (log_level_name(level) != name) continue;
    set_log_level(level);
    return Status::ok();
  }
  return invalid_argument("--log-level is '" + name + "': it must be debug, info, warning, error or off");
}

}  // namespace larder
