// SPDX-License-Identifier: Apache-2.0
// The seeds of fuzz/corpus that are made: those that are text are written by hand, beside these.
//
// Purpose: a format that changes takes its seeds with it. The same bytes on every machine. Threads: confined.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace larder::fuzz {

// folder: of all corpora, fuzz/corpus. Files that are there already are written anew.
[[nodiscard]] Status write_seeds(const std::string& folder);
// What in that folder is not as write_seeds() would leave it, a line each; seeds made by hand are no such thing.
[[nodiscard]] Result<std::vector<std::string>> strange_seeds(const std::string& folder);

}  // namespace larder::fuzz
