// --log-level, which several subcommands have.
#pragma once

#include <string>

#include "base/status.h"

namespace larder {

// Sets the process's log level. kInvalidArgument: no level of that name.
[[nodiscard]] Status set_log_option(const std::string& name);

}  // namespace larder
