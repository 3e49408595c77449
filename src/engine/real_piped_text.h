// SPDX-License-Identifier: Apache-2.0
// What comes out of a pipe: `<(command)` of a shell, /dev/stdin. It has neither a size nor places to read at.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace larder {

// From where the descriptor stands to the end; of more than `max_bytes` the first `max_bytes` + 1. An empty regular
// file is empty text. path: for messages. kUnavailable: the system's error. Blocks until the writer has closed it.
[[nodiscard]] Result<std::string> read_piped_text(int descriptor, const std::string& path, std::uint64_t max_bytes);

}  // namespace larder
