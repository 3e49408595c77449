// SPDX-License-Identifier: Apache-2.0
// Whose a store's directories are: what root writes there its owner cannot open, and the owner's server does not start
// any more.
//
// Threads: main()'s.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace larder {

// kUnavailable: this process is root's and a directory is another user's; the message names both and says how to run
// the command. A directory that is not there belongs to nobody.
[[nodiscard]] Status check_store_owner(const std::vector<std::string>& directories);

}  // namespace larder
