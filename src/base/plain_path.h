// SPDX-License-Identifier: Apache-2.0
// Where a path leads, however it is written.
//
// Threads: pure, but for looks at the file system; nothing is made or changed.
#pragma once

#include <filesystem>
#include <string_view>

namespace larder {

// Absolute, without `.`, `..` and a slash at its end, and without symbolic links as far as it exists.
[[nodiscard]] std::filesystem::path plain_path(std::string_view text);

// Is `inner` in `outer`, or the same? Both plain.
[[nodiscard]] bool lies_in(const std::filesystem::path& inner, const std::filesystem::path& outer);

}  // namespace larder
