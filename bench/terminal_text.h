// SPDX-License-Identifier: Apache-2.0
// Texts of files and traces, which may hold anything, for people's screens.
//
// Threads: pure.
#pragma once

#include <string>
#include <string_view>

namespace larder {

// For a terminal: what is not printable ASCII is escaped as JSON has it, quotes and backslashes, too.
[[nodiscard]] std::string terminal_text(std::string_view text);

// For a picture: valid UTF-8 (U+FFFD for what is not), with a blank for each control character.
[[nodiscard]] std::string drawable_text(std::string_view text);

}  // namespace larder
