// SPDX-License-Identifier: Apache-2.0
// A secret in a file, so that it is in no process list.
//
// Threads: any.
#pragma once

#include <string>

#include "base/status.h"

namespace larder {

// Without the ends of lines behind it. kInvalidArgument: it has more than 4096 bytes, or none: an empty key would let
// everybody in.
[[nodiscard]] Result<std::string> read_key_file(const std::string& path);

// The same, of a key that stands in a header. kInvalidArgument, too: no header could carry it, as it begins or ends
// with a blank, or has a control character.
[[nodiscard]] Result<std::string> read_bearer_file(const std::string& path);

// Where the key of a command comes from, but for the file. `option`: gives it, and the option with "-file" behind it
// names a file ("--api-key").
struct KeyNames {
  const char* option;
  const char* variable;
};
// What a variable that is set and empty means. A server's user meant to ask for a key; a client goes without one.
enum class EmptyVariable : bool { kRefused, kNoKey };

// Fills `key`, if it is empty, from the file, if one is named, else from the environment's variable, if that is set.
// Errors as read_bearer_file, also about a key that was given; they begin with what it came from.
[[nodiscard]] Status fill_key(std::string& key, const std::string& path, KeyNames names, EmptyVariable empty);

}  // namespace larder
