// SPDX-License-Identifier: Apache-2.0
// In place of real_redis_connection.cc in a build without hiredis (CMake option LARDER_REDIS). There is never a
// connection, so nothing of it is called but what answers that.
#include "metadata/real_redis_connection.h"

namespace larder::metadata {

void RedisConnection::ContextDeleter::operator()(redisContext*) const {}
RedisConnection::~RedisConnection() = default;

Status RedisConnection::built() {
  return unsupported(
      "redis: this build of Larder has no hiredis; install libhiredis-dev and build with -DLARDER_REDIS=ON, or write "
      "http://host:port of a `larder metadata-server`");
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisAddress&, Nanos, TimePoint) {
  return built();
}

Result<RedisReply> RedisConnection::call(std::span<const std::string_view>, TimePoint) { return built(); }

}  // namespace larder::metadata
