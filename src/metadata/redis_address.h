// SPDX-License-Identifier: Apache-2.0
// Where a Redis server is: "redis://[:password@]host[:port][/database]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace larder::metadata {

struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;
  std::string password;  // empty: none
  std::uint32_t database = 0;
  // "host:port/database", for messages: without the password.
  [[nodiscard]] std::string text() const;
};

// An IPv6 address stands in brackets; "%40" and the like in the password are decoded. kInvalidArgument says what is
// wrong, without the password.
[[nodiscard]] Result<RedisAddress> parse_redis_url(std::string_view url);

}  // namespace larder::metadata
