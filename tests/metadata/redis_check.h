// SPDX-License-Identifier: Apache-2.0
// The invariants of RedisMetadata's tables (metadata/redis_scripts.h has the layout), looked at from outside.
#pragma once

#include <string>

#include "base/status.h"
#include "tests/metadata/real_redis_server.h"

namespace larder::conformance {

// kInternal with what is wrong, in which namespace.
[[nodiscard]] Status check_redis_tables(RedisServer& server, const std::string& prefix = "larder");

}  // namespace larder::conformance
