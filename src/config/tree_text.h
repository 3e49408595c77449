// SPDX-License-Identifier: Apache-2.0
// What stands in a file of options or of a model, for messages about it (internal to config/). Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "config/parse_tree.h"

namespace larder {

// At most 60 bytes of it.
[[nodiscard]] std::string in_quotes(std::string_view text);

// What was found in place of what was expected, briefly: 'word', -3, a fraction, true, a list, a table, null.
[[nodiscard]] std::string shown(const Tree& tree);

}  // namespace larder
