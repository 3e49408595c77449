// SPDX-License-Identifier: Apache-2.0
// --log-level and --log-format, which the servers have.
//
// Threads: main()'s, before any other logs.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace larder {

struct LogOptions {
  std::string level = "info", format = "text";
};

// `options` outlives the parsing.
void add_log_options(CLI::App& app, LogOptions& options);

// The process's log goes to stderr, one line for each message (server/log_lines.h). kInvalidArgument: no such level or
// format.
[[nodiscard]] Status set_log_options(const LogOptions& options);

}  // namespace larder
