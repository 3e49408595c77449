// SPDX-License-Identifier: Apache-2.0
// A secret in a file, so that it is in no process list.
//
// Threads: any.
#pragma once

#include <string>

#include "base/status.h"

namespace larder {

// Without the ends of lines behind it. kInvalidArgument: it has more than 4096 bytes, or none: an empty key would let
// everybody in.
[[nodiscard]] Result<std::string> read_key_file(const std::string& path);

// Fills `key`, if it is empty, from the file, if one is named, else from the environment's `variable`. As
// read_key_file.
[[nodiscard]] Status fill_key(std::string& key, const std::string& path, const char* variable);

}  // namespace larder
