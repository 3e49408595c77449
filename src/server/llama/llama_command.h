// SPDX-License-Identifier: Apache-2.0
// What the command line of a llama-server, and the variables that it reads, say about its slots and its numbers.
//
// llama.cpp reads underscores in the names of options as dashes, and so do these. command: the executable, then its
// options.
// Threads: any, while nobody changes the environment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder::llama {

// "--name" or "--name=...".
[[nodiscard]] bool has_option(const std::vector<std::string>& command, std::string_view name);
// Whether a llama-server with these options moves what is in a full slot; the environment counts, too.
[[nodiscard]] bool shifts_context(const std::vector<std::string>& command);
// Whether its slots keep the rows behind sliding windows; the environment counts, too.
[[nodiscard]] bool has_full_windows(const std::vector<std::string>& command);
// Whether its slots may use less than the context that there is.
[[nodiscard]] bool caps_slots(const std::vector<std::string>& command);
// Of a llama-server's options those that change its numbers, in their order, and then such variables of the
// environment: part of its pages' identity.
[[nodiscard]] std::string numeric_options(const std::vector<std::string>& command);
// The files of its control vectors: another one may have the path of an earlier one.
[[nodiscard]] std::vector<std::string> control_vectors(const std::vector<std::string>& command);
// What larder proxy starts: `command`, and behind it, where the last value counts, the options that the proxy needs.
// kInvalidArgument: it is empty, or has one that only the proxy may give.
[[nodiscard]] Result<std::vector<std::string>> proxied_command(std::vector<std::string> command, std::uint16_t port,
                                                               const std::string& slot_directory);
// A key that a llama-server with these options takes, the first of several: of --api-key, of the file that
// --api-key-file names, or of the environment's LLAMA_API_KEY. Empty: it asks for none. Errors: the file's.
[[nodiscard]] Result<std::string> key_of(const std::vector<std::string>& command);

}  // namespace larder::llama
