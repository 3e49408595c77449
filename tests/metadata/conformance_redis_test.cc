// SPDX-License-Identifier: Apache-2.0
// RedisMetadata under the conformance suite: on a server that keeps nothing, on one with an append-only file, and over
// TLS.
#include <cstdlib>

#include "tests/metadata/metadata_conformance.h"
#include "tests/metadata/redis_harness.h"

namespace larder::conformance {
namespace {

enum class RedisKind { kVolatile, kDurable, kSecure };

const RedisCertificate& certificate_of_all() {
  static const RedisCertificate kCertificate;
  return kCertificate;
}

// One server for all tests of a process; each begins with an empty one.
RedisServer& shared_server(RedisKind kind) {
  static const std::unique_ptr<RedisServer> kVolatile = RedisServer::start();
  static const std::unique_ptr<RedisServer> kDurable =
      RedisServer::start({"--appendonly", "yes", "--appendfsync", "always"});
  if (kind != RedisKind::kSecure) return kind == RedisKind::kDurable ? *kDurable : *kVolatile;
  static const std::unique_ptr<RedisServer> kSecure = RedisServer::start(certificate_of_all().settings());
  return *kSecure;
}

class OnRedis final : public MetadataHarness {
 public:
  explicit OnRedis(RedisKind kind) : is_durable_(kind == RedisKind::kDurable), server_(shared_server(kind)) {
    (void)server_.command({"FLUSHALL"});
    RedisMetadataOptions options = redis_test_options(server_);
    if (kind == RedisKind::kSecure) {
      options.url = server_.tls_url();
      options.ca_file = certificate_of_all().ca_file();
    }
    options.test_clock = &clock_;
    service_ = open_redis(options);
  }
  [[nodiscard]] MetadataService& service() override { return *service_; }
  void advance(Nanos by) override { clock_.advance(by); }
  [[nodiscard]] bool restart() override { return is_durable_ && server_.restart(); }
  [[nodiscard]] Status check() override { return check_redis_tables(server_); }

 private:
  const bool is_durable_;
  RedisServer& server_;
  ManualClock clock_;
  std::unique_ptr<RedisMetadata> service_;
};

std::vector<MetadataUnderTest> services() {
  if (!RedisServer::is_installed()) return {};
  return {{"Redis", [] { return std::make_unique<OnRedis>(RedisKind::kVolatile); }},
          {"RedisWithAppendOnlyFile", [] { return std::make_unique<OnRedis>(RedisKind::kDurable); }},
          {"RedisOverTls", [] { return std::make_unique<OnRedis>(RedisKind::kSecure); }}};
}

INSTANTIATE_TEST_SUITE_P(Redis, MetadataConformance, testing::ValuesIn(services()), test_name);

// Without a redis-server the suite above is empty. ./test.sh, which has installed one, says so in the environment.
TEST(RedisConformanceTest, RedisIsThere) {
  if (std::getenv("LARDER_TEST_ALL_SERVERS") == nullptr) LARDER_NEEDS_REDIS();
  EXPECT_TRUE(RedisServer::is_installed()) << "LARDER_TEST_ALL_SERVERS is set, but there is no /usr/bin/redis-server";
}

}  // namespace
}  // namespace larder::conformance
