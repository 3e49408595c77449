// SPDX-License-Identifier: Apache-2.0
// Text files of configuration and of state that is imported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/status.h"
#include "config/parse_tree.h"

namespace larder {

inline constexpr std::uint64_t kConfigBytesMax = std::uint64_t{1} << 20;

// The whole file, or all that comes out of a pipe. kNotFound, kUnavailable: as the file system says. kInvalidArgument:
// more than `max_bytes`. May block, on a pipe until its writer has closed it.
[[nodiscard]] Result<std::string> read_text_file(FileSystem& files, const std::string& path,
                                                 std::uint64_t max_bytes = kConfigBytesMax);

// Does it begin as a GGUF file does? False, too, where it cannot be read.
[[nodiscard]] bool is_gguf_file(FileSystem& files, const std::string& path);

// JSON or TOML, by the end of the name. kInvalidArgument: another ending, or a syntax error with its place.
[[nodiscard]] Result<Tree> parse_config_text(std::string_view text, const std::string& path);

}  // namespace larder
