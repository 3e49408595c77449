// SPDX-License-Identifier: Apache-2.0
// Where a Redis server is: "redis://[:password@]host[:port][/database]"; "rediss://..." over TLS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/tls_trust.h"

namespace larder::metadata {

struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;
  std::string password;  // empty: none
  std::uint32_t database = 0;
  std::shared_ptr<const TlsTrust> trust{};  // whom to believe that it is the host; null: redis://, not encrypted
  // "host:port/database", for messages: without the password.
  [[nodiscard]] std::string text() const;
};

// An IPv6 address stands in brackets; "%40" and the like in the password are decoded. kInvalidArgument says what is
// wrong, without the password. ca_file: whom to believe, as in TlsTrust::create(), which reads it; only rediss:// has a
// use for one.
[[nodiscard]] Result<RedisAddress> parse_redis_url(std::string_view url, const std::string& ca_file = {});

}  // namespace larder::metadata
