// SPDX-License-Identifier: Apache-2.0
// How the subcommands of `larder` read their command lines, and how they fail: one wording, and one rule for exit
// codes.
//
// Threads: confined, as CLI::App is.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/status.h"

namespace CLI {  // NOLINT: their name
class App;
class Validator;
}  // namespace CLI

namespace larder {

// For CLI::Option::check(). Each unsigned option needs whole_number(): CLI11 takes "-1" for 18446744073709551615.
[[nodiscard]] CLI::Validator whole_number(std::uint64_t least = 0,
                                          std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
// Finite.
[[nodiscard]] CLI::Validator number_in(double least, double most);

// Fills the options of `app`, whose name is as it is typed ("larder sim"). Empty: go on. Else the exit code: 0 after
// --help, which is on standard output; 2 after anything else, with one line on standard error that names the argument.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

// Says why `command` ("larder serve") could not do what it was asked, and answers its exit code: 2 where the command
// line, or what it names, is to be mended, so that another start would be in vain; else 1. Precondition: not ok.
int fail_command(const char* command, const Status& status);
// What it says, with the line's end, and what it answers.
[[nodiscard]] std::string failure_line(const char* command, const Status& status);
[[nodiscard]] int failure_exit_code(const Status& status);

}  // namespace larder
