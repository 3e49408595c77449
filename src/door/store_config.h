// SPDX-License-Identifier: Apache-2.0
// The configuration of a store as JSON text: what the door takes for itself, and what goes to the backend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/parse_tree.h"
#include "door/store_core.h"
#include "storage/factory.h"

namespace larder {

struct StoreConfig {
  StoreLimits limits;
  std::string share_directory;  // empty: the store belongs to this process
  BackendOptions backend;
};

// `text`: a JSON object, or empty. kInvalidArgument names the key, what it is and what would be right.
[[nodiscard]] Result<StoreConfig> parse_store_config(std::string_view text);
// The value of a backend's option, which may be a number or a switch. kInvalidArgument: it is something else, or no
// text where only text says what was meant (a path, a key).
[[nodiscard]] Result<std::string> option_text_of(const std::string& key, const Tree& value);
// The keys that the door takes, for help texts.
[[nodiscard]] const std::vector<BackendOptionHelp>& store_option_help();

}  // namespace larder
