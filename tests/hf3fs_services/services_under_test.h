// SPDX-License-Identifier: Apache-2.0
// Page-index services that outlive the engines that use them: in the engine's process, over HTTP, on Redis.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "metadata/open_metadata.h"
#include "tests/metadata/real_redis_server.h"
#include "tests/metadata_http/http_harness.h"

namespace larder::conformance {

enum class ServiceKind : std::uint8_t { kEmbedded, kHttp, kRedis };

[[nodiscard]] inline std::string service_name(ServiceKind kind) {
  return kind == ServiceKind::kEmbedded ? "Embedded" : kind == ServiceKind::kHttp ? "Http" : "Redis";
}
// "": it can run here.
[[nodiscard]] inline std::string why_not_here(ServiceKind kind) {
  return kind == ServiceKind::kRedis && !RedisServer::is_installed() ? "redis-server is not installed" : "";
}

class ServiceUnderTest {
 public:
  explicit ServiceUnderTest(ServiceKind kind) {
    if (kind == ServiceKind::kHttp) http_ = std::make_unique<HttpServerUnderTest>();
    if (kind == ServiceKind::kRedis) redis_ = RedisServer::start();
  }
  // Option "metadata_server_url" of the backend.
  [[nodiscard]] std::string url() const { return http_ ? http_->url() : redis_ ? redis_->url() : ""; }
  // Keys stored in all namespaces. Not of one in the engine's process.
  [[nodiscard]] std::uint64_t stored() const {
    MetadataOptions options;
    options.url = url();
    const auto client = open_metadata(options, real_clock());
    if (!client.is_ok()) return 0;
    const auto stats = (*client)->stats();
    EXPECT_TRUE(stats.is_ok()) << stats.status().to_string();
    std::uint64_t keys = 0;
    if (stats.is_ok()) {
      for (const auto& [name, figures] : *stats) keys += figures.stored;
    }
    return keys;
  }

 private:
  std::unique_ptr<HttpServerUnderTest> http_;
  std::unique_ptr<RedisServer> redis_;
};

}  // namespace larder::conformance
