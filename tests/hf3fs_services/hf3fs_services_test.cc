// SPDX-License-Identifier: Apache-2.0
// Backend `hf3fs` under the conformance suite, with the metadata service in other processes: over HTTP and on Redis.
#include "base/metrics.h"
#include "metadata/embedded_metadata.h"
#include "metadata/http_metadata.h"
#include "metadata/redis_metadata.h"
#include "server/metadata_server.h"
#include "tests/conformance/hf3fs_harness.h"
#include "tests/metadata/real_redis_server.h"

namespace larder::conformance {
namespace {

using ServiceResult = Result<std::shared_ptr<MetadataService>>;

// The server outlives the backends, as it would.
class OverHttp final : public Hf3fsHarness {
 public:
  explicit OverHttp(std::uint64_t seed) : Hf3fsHarness(seed) {
    auto service = EmbeddedMetadata::create({}, clock_);
    EXPECT_TRUE(service.is_ok()) << service.status().to_string();
    service_ = std::move(service).value();
    MetadataServerParts parts;
    parts.service = service_.get();
    parts.clock = &clock_;
    parts.metrics = &metrics_;
    auto server = MetadataServer::create(parts);
    EXPECT_TRUE(server.is_ok()) << server.status().to_string();
    server_ = std::move(server).value();
  }

 protected:
  [[nodiscard]] ServiceResult open_service(const MetadataOptions& options) override {
    auto client = HttpMetadata::create({server_->url(), options.api_key, options.timeout}, real_clock());
    if (!client.is_ok()) return client.status();
    return std::shared_ptr<MetadataService>(std::move(client).value());
  }

 private:
  MetricsRegistry metrics_;
  std::unique_ptr<EmbeddedMetadata> service_;
  std::unique_ptr<MetadataServer> server_;
};

class OnRedis final : public Hf3fsHarness {
 public:
  explicit OnRedis(std::uint64_t seed) : Hf3fsHarness(seed), server_(RedisServer::start()) {}

 protected:
  [[nodiscard]] ServiceResult open_service(const MetadataOptions& options) override {
    RedisMetadataOptions redis;
    redis.url = server_ ? server_->url() : "";
    redis.timeout = options.timeout;
    redis.test_clock = &clock_;
    auto client = RedisMetadata::create(redis);
    if (!client.is_ok()) return client.status();
    return std::shared_ptr<MetadataService>(std::move(client).value());
  }

 private:
  std::unique_ptr<RedisServer> server_;
};

std::vector<BackendUnderTest> backends() {
  std::vector<BackendUnderTest> out = {{"Http", [](std::uint64_t seed) { return std::make_unique<OverHttp>(seed); }}};
  if (RedisServer::is_installed()) {
    out.push_back({"Redis", [](std::uint64_t seed) { return std::make_unique<OnRedis>(seed); }});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Hf3fs, StorageConformance, each_check(backends()), test_name);

}  // namespace
}  // namespace larder::conformance
