// Small text files of configuration (internal to engine/).
#pragma once

#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/status.h"
#include "model/parse_tree.h"

namespace larder {

// The whole file. kNotFound, kUnavailable: as the file system says. kInvalidArgument: more than 1 MiB. May block.
[[nodiscard]] Result<std::string> read_text_file(FileSystem& files, const std::string& path);

// JSON or TOML, by the end of the name. kInvalidArgument: another ending, or a syntax error with its place.
[[nodiscard]] Result<Tree> parse_config_text(std::string_view text, const std::string& path);

}  // namespace larder
