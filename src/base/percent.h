// SPDX-License-Identifier: Apache-2.0
// The "%40" of URLs: bytes that a URL gives another meaning.
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace larder {

// "a%2Fb+c" is "a/b+c", or "a/b c" if `plus_is_space`. Nothing: a '%' without two hex digits.
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);

}  // namespace larder
