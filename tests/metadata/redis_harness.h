// SPDX-License-Identifier: Apache-2.0
// RedisMetadata on a redis-server of the test's own, with a clock that the test moves.
#pragma once

#include <memory>
#include <utility>

#include "metadata/redis_metadata.h"
#include "tests/metadata/metadata_harness.h"
#include "tests/metadata/real_redis_server.h"
#include "tests/metadata/redis_check.h"

// Leaves the test, aloud, where there is no Redis to start.
#define LARDER_NEEDS_REDIS()                                                                                   \
  do {                                                                                                         \
    if (!RedisServer::is_installed()) GTEST_SKIP() << "no /usr/bin/redis-server here (tools/install_deps.sh)"; \
  } while (false)

namespace larder::conformance {

[[nodiscard]] inline RedisMetadataOptions redis_test_options(const RedisServer& server) {
  RedisMetadataOptions options;
  options.url = server.url();
  options.timeout = std::chrono::seconds(30);
  options.max_lease = kMaxLease;
  options.max_ttl = kMaxTtl;
  options.max_io_lifetime = kMaxIoLifetime;
  return options;
}

[[nodiscard]] inline std::unique_ptr<RedisMetadata> open_redis(const RedisMetadataOptions& options) {
  auto service = RedisMetadata::create(options);
  EXPECT_TRUE(service.is_ok()) << service.status().to_string();
  return service.is_ok() ? std::move(service).value() : nullptr;
}

}  // namespace larder::conformance
