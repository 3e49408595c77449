// SPDX-License-Identifier: Apache-2.0
// What somebody who asked a server should do about its answer: for the ends of error messages.
//
// Threads: pure.
#pragma once

#include <string>

#include "base/status.h"

namespace larder {

// Begins with "; ". Empty: the answer says enough. `key_option`: the command's, for the server's key. `servers`: those
// that have what was asked for ("`larder serve`").
[[nodiscard]] std::string answer_hint(unsigned status, const char* key_option, const char* servers);

// For a command that has asked a server which its user did not name. Where nobody listens: `status`, and which option
// names another server; any other status as it is. `example`: with which value, "" for none.
[[nodiscard]] Status with_url_hint(const Status& status, const char* example);

}  // namespace larder
