// SPDX-License-Identifier: Apache-2.0
// The "%40" of URLs: passwords and keys may hold bytes that a URL gives another meaning.
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace larder::metadata {

// "a%2Fb" is "a/b". Nothing: a '%' without two hex digits.
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view text);

}  // namespace larder::metadata
