// SPDX-License-Identifier: Apache-2.0
// A Redis server over TLS: whom the client believes, and how it says that it does not. The conformance suite runs over
// TLS, too.
#include "metadata/real_redis_connection.h"

#include <gtest/gtest.h>

#include "tests/metadata/redis_harness.h"

namespace larder::conformance {
namespace {

using metadata::RedisConnection;
using metadata::RedisReply;

constexpr Nanos kRedisPatience = std::chrono::seconds(20);

Result<std::unique_ptr<RedisConnection>> connect_to(const std::string& url, const std::string& ca_file,
                                                    Nanos limit = kRedisPatience) {
  const auto address = metadata::parse_redis_url(url, ca_file);
  if (!address.is_ok()) return address.status();
  return RedisConnection::open(*address, limit, real_clock().now() + kRedisPatience);
}

class RedisTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LARDER_NEEDS_REDIS();
    server_ = RedisServer::start(certificate_.settings());
    ASSERT_NE(server_, nullptr);
  }
  const RedisCertificate certificate_, namesake_, other_{"another authority"};
  std::unique_ptr<RedisServer> server_;
};

TEST_F(RedisTlsTest, AnswersOfAnySize) {
  const auto connection = connect_to(server_->tls_url() + "/1", certificate_.ca_file());
  ASSERT_TRUE(connection.is_ok()) << connection.status().to_string();
  const std::string large(3u << 20, 'x');
  const TimePoint end = real_clock().now() + kRedisPatience;
  const std::string_view set[] = {"SET", "a", large}, get[] = {"GET", "a"};
  ASSERT_TRUE((*connection)->call(set, end).is_ok());
  const Result<RedisReply> reply = (*connection)->call(get, end);
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_TRUE(reply->text == large);
  EXPECT_FALSE((*connection)->facts().run_id.empty());
}

TEST_F(RedisTlsTest, WhoIsNotBelievedIsRefused) {
  for (const std::string& ca_file : {other_.ca_file(), namesake_.ca_file(), std::string()}) {
    const auto connection = connect_to(server_->tls_url(), ca_file);
    EXPECT_EQ(connection.status().code(), StatusCode::kInvalidArgument) << connection.status().to_string();
    EXPECT_NE(connection.status().message().find("unknown here"), std::string::npos) << connection.status().message();
  }
}

TEST_F(RedisTlsTest, TheOtherPortIsRefused) {
  const std::string port = std::to_string(server_->port());
  // It waits for the end of a line, which TLS's first message has not, or takes it for commands.
  const auto clear = connect_to("rediss://127.0.0.1:" + port, certificate_.ca_file(), std::chrono::milliseconds(100));
  EXPECT_FALSE(clear.is_ok());
  EXPECT_NE(clear.status().message().find("TLS"), std::string::npos) << clear.status().message();
  const auto secure = connect_to("redis" + server_->tls_url().substr(6), {});
  EXPECT_EQ(secure.status().code(), StatusCode::kUnavailable) << secure.status().to_string();
}

TEST_F(RedisTlsTest, AServerThatDiesIsUnavailableAndComesBack) {
  RedisMetadataOptions options = redis_test_options(*server_);
  options.url = server_->tls_url();
  options.ca_file = certificate_.ca_file();
  const auto service = open_redis(options);
  const MetadataNamespace space{0, "kv"};
  ASSERT_TRUE(service->initialize(space, 8).is_ok());
  server_->kill();
  EXPECT_EQ(service->initialize(space, 8).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(server_->restart());
  EXPECT_TRUE(service->initialize(space, 8).is_ok());
}

}  // namespace
}  // namespace larder::conformance
