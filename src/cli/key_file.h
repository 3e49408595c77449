// A secret in a file, so that it is in no process list.
//
// Threads: any.
#pragma once

#include <string>

#include "base/status.h"

namespace larder {

// Without the ends of lines behind it. kInvalidArgument: it has more than 4096 bytes.
[[nodiscard]] Result<std::string> read_key_file(const std::string& path);

}  // namespace larder
