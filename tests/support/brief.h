// SPDX-License-Identifier: Apache-2.0
// Are long tests to do fewer rounds? With a sanitizer, which makes each of them several times as long, and with
// LARDER_TEST_BRIEF (./test.sh --fast).
#pragma once

#include <cstdlib>

#include "base/sanitized.h"

namespace larder::support {

[[nodiscard]] inline bool is_brief() { return kIsSanitized || std::getenv("LARDER_TEST_BRIEF") != nullptr; }

}  // namespace larder::support
