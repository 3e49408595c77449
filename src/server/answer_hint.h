// SPDX-License-Identifier: Apache-2.0
// What somebody who asked a server should do about its answer: for the ends of error messages.
//
// Threads: pure.
#pragma once

#include <string>

namespace larder {

// Begins with "; ". Empty: the answer says enough. `key_option`: the command's, for the server's key. `servers`: those
// that have what was asked for ("`larder serve`").
[[nodiscard]] std::string answer_hint(unsigned status, const char* key_option, const char* servers);

}  // namespace larder
