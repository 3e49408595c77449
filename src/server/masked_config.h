// SPDX-License-Identifier: Apache-2.0
// Configuration as anybody may see it: of a secret only whether it is set.
//
// Purpose: what answers, below the admin's level, show of options. A secret is the value of a key in whose name stands
// secret, passw, passphrase, credential, authorization, privatekey, accesskey, apikey or token (in any case, with '-',
// '_' or nothing between the words), and what stands in front of the '@' of a URL. None is a file or a path (a name
// that ends so: api_key_file), a tokenizer, a count of tokens (max_tokens, with no text in it), and the time
// prefetch_timeout_per_ki_token. Of the keys of our own backends one is a secret: metadata_api_key.
// Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace larder {

// In place and at any depth: a secret becomes "***", an unset one ("" or null) null; user and password of a URL "***".
// Cost: the depth of `value` is that of the stack; parse_json_object() limits it.
void mask_secrets(nlohmann::ordered_json& value);

// The text of --hicache-storage-backend-extra-config for `backend`: JSON comes back without blanks, in its order and
// masked; "@path" stays, as the file is not read; empty stays empty. "***" for anything else: what cannot be read may
// be a secret. Of backend "plugin", whose keys are anybody's, no value is shown but those that Larder itself reads: the
// library, and what every store has.
[[nodiscard]] std::string masked_config(std::string_view backend, std::string_view text);

}  // namespace larder
