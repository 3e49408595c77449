// SPDX-License-Identifier: Apache-2.0
// A server with calls that take long: whom they hold up, and whom not. The test decides how long.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "metadata/metadata_wire.h"
#include "tests/metadata_http/http_harness.h"
#include "tests/support/rest.h"
#include "tests/support/signal.h"

namespace larder::conformance {
namespace {

const MetadataNamespace kHeldPages{0, "kv"};
constexpr Nanos kLongEnough = std::chrono::seconds(20);
constexpr Nanos kSoon = std::chrono::seconds(5);  // less than a signal waits

// Lookups of more than one key, and questions for figures, wait until they are let go.
class HeldService final : public ServiceInFront {
 public:
  using ServiceInFront::ServiceInFront;
  Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                Nanos lease) override {
    if (wanted.front().keys.size() > 1) hold();
    return ServiceInFront::find(wanted, lease);
  }
  Result<std::map<MetadataNamespace, NamespaceStats>> stats() override {
    hold();
    return ServiceInFront::stats();
  }
  [[nodiscard]] int held() const { return held_.load(); }
  void let_go() { gate_.set(); }

 private:
  void hold() {
    held_.fetch_add(1);
    gate_.wait();
  }
  std::atomic<int> held_{0};
  support::Signal gate_;
};

class BusyServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto embedded = EmbeddedMetadata::create(embedded_test_options(), clock_);
    ASSERT_TRUE(embedded.is_ok());
    embedded_ = std::move(*embedded);
    ASSERT_TRUE(embedded_->initialize(kHeldPages, 8).is_ok());
    service_ = std::make_unique<HeldService>(*embedded_);
    MetadataServerParts parts;
    parts.service = service_.get();
    parts.clock = &clock_;
    parts.metrics = &metrics_;
    parts.api_key = "secret";
    parts.listen.io_threads = 2;
    auto server = MetadataServer::create(parts);
    ASSERT_TRUE(server.is_ok()) << server.status().to_string();
    server_ = std::move(*server);
  }
  // 0: no answer in time.
  [[nodiscard]] unsigned status_of(std::string_view method, std::string_view target, std::string_view body,
                                   Nanos patience, const std::string& key = "secret") const {
    const auto reply = HttpClient(*parse_http_url(server_->url()), patience, key).request(method, target, body);
    return reply.is_ok() ? reply->status : 0;
  }
  [[nodiscard]] std::uint64_t connections() {
    return metrics_.counter("larder_http_connections_total", "Connections accepted.").value();
  }

  ManualClock clock_;
  MetricsRegistry metrics_;
  std::unique_ptr<EmbeddedMetadata> embedded_;
  std::unique_ptr<HeldService> service_;
  std::unique_ptr<MetadataServer> server_;
};

TEST_F(BusyServerTest, LargeLookupsHoldUpNobodyElse) {
  const std::vector<std::string> keys(1000, std::string(100, 'k'));
  const std::vector<MetadataKeys> wanted{{&kHeldPages, {keys.begin(), keys.end()}}};
  const std::string binary = *metadata::encode_find(wanted, Nanos{0});
  const std::string json = nlohmann::json{{"keys", keys}}.dump();
  ASSERT_GT(std::min(binary.size(), json.size()), 65'536u);
  ThreadPoolExecutor clients("ask", 4, 4);
  std::atomic<int> answered{0};
  const auto ask = [&](const char* target, const std::string& body) {
    ASSERT_TRUE(clients
                    .post([&, target] {
                      if (status_of("POST", target, body, kLongEnough) == 200) answered.fetch_add(1);
                    })
                    .is_ok());
  };
  for (int i = 0; i < 2; ++i) {
    ask("/v1/metadata", binary);
    ask("/0/exists", json);
  }
  while (service_->held() < 2) rest();  // as many as there are I/O threads
  EXPECT_EQ(status_of("GET", "/health", {}, kSoon, {}), 200u);
  EXPECT_EQ(status_of("POST", "/0/exists", R"({"keys":["k"]})", kSoon), 200u);
  EXPECT_EQ(status_of("POST", "/0/initialize", R"({"num_pages":8})", kSoon), 204u);
  EXPECT_EQ(answered.load(), 0);
  service_->let_go();
  clients.wait_idle();
  EXPECT_EQ(answered.load(), 4);
}

TEST_F(BusyServerTest, MetricsWithoutAKeyTakeNoThreadOfCallsWithOne) {
  constexpr unsigned kScrapes = 12;  // more than there are threads that may wait
  ThreadPoolExecutor clients("ask", kScrapes, kScrapes);
  std::atomic<unsigned> answered{0};
  for (unsigned i = 0; i < kScrapes; ++i) {
    ASSERT_TRUE(clients
                    .post([&] {
                      if (status_of("GET", "/metrics", {}, kLongEnough, {}) == 200) answered.fetch_add(1);
                    })
                    .is_ok());
  }
  while (service_->held() < 1 || connections() < kScrapes) rest();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(status_of("GET", "/health", {}, kSoon, {}), 200u);
  EXPECT_EQ(status_of("POST", "/0/initialize", R"({"num_pages":8})", kSoon), 204u);
  service_->let_go();
  clients.wait_idle();
  EXPECT_EQ(answered.load(), kScrapes);
}

TEST_F(BusyServerTest, AnAnnouncedStopIsSeenByHealthAlone) {
  EXPECT_EQ(status_of("GET", "/health", {}, kSoon, {}), 200u);
  server_->announce_stop();
  EXPECT_EQ(status_of("GET", "/health", {}, kSoon, {}), 503u);
  EXPECT_EQ(status_of("POST", "/0/exists", R"({"keys":["k"]})", kSoon), 200u) << "it is still taken";
}

}  // namespace
}  // namespace larder::conformance
