// SPDX-License-Identifier: Apache-2.0
// --log-level and --log-format, which the servers have, and what else servers say.
//
// Threads: main()'s, before any other logs; tell_people() and finish_log(): any.
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

// The process's log goes to stderr, one line for each message (server/log_lines.h), and what tell_people() is given to
// stdout, each by a thread of its own: who reads them may stall, and SIGTERM must end the process all the same. However
// it ends, _exit() and signals that nobody handles apart, finish_log() is called before. Once in a process.
// kInvalidArgument: no such level or format. kUnavailable: no thread is left.
[[nodiscard]] Status set_log_options(const LogOptions& options);

// fail_command() of a server: its line comes behind those of the log, and does not wait for whoever reads them.
int fail_server(const char* command, const Status& status);

// What a server says to people on stdout: one line with its end, or several that belong together. Does not wait. After
// set_log_options(); a server writes to stdout in no other way.
void tell_people(std::string lines);

// Waits until the lines so far are written; a second at most, where nobody reads them. Nothing, before
// set_log_options().
void finish_log();

}  // namespace larder
