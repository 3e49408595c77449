// SPDX-License-Identifier: Apache-2.0
// What the checks of the page index and of its tables say.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace larder::file_store {

[[nodiscard]] inline Status broken_index(const char* what, std::uint64_t number) {
  return internal_error("page index: " + std::string(what) + ", number " + std::to_string(number));
}

}  // namespace larder::file_store
