// SPDX-License-Identifier: Apache-2.0
// Configuration as anybody may see it: of a secret only whether it is set.
//
// Purpose: what answers, below the admin's level, show of options. A secret is the value of a key that ends in api_key,
// password, token or secret (in any case, with '-', '_' or nothing between the words), and what stands in front of the
// '@' of a URL.
// Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace larder {

// In place and at any depth: a secret becomes "***", an unset one ("" or null) null; user and password of a URL "***".
// Cost: the depth of `value` is that of the stack; parse_json_object() limits it.
void mask_secrets(nlohmann::ordered_json& value);

// The text of --hicache-storage-backend-extra-config: JSON comes back without blanks, in its order and masked; "@path"
// stays, as the file is not read; empty stays empty. "***" for anything else: what cannot be read may be a secret.
[[nodiscard]] std::string masked_config(std::string_view text);

}  // namespace larder
