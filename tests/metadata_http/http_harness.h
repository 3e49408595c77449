// SPDX-License-Identifier: Apache-2.0
// A metadata server on a free port over EmbeddedMetadata, with a clock that tests move; and clients for it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/http_client.h"
#include "base/metrics.h"
#include "metadata/embedded_metadata.h"
#include "metadata/http_metadata.h"
#include "server/metadata_server.h"
#include "tests/metadata/embedded_harness.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {

// Passes every call on. Tests override what they are about.
class ServiceInFront : public MetadataService {
 public:
  explicit ServiceInFront(MetadataService& behind) : behind_(behind) {}
  Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override {
    return behind_.initialize(name_space, pages);
  }
  Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                Nanos lease) override {
    return behind_.find(wanted, lease);
  }
  Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                     std::span<const ReserveItems> wanted, Nanos ttl) override {
    return behind_.reserve(session, wanted, ttl);
  }
  Result<std::vector<Status>> confirm(const ConfirmRequest& request) override { return behind_.confirm(request); }
  Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override { return behind_.remove(items); }
  Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override {
    return behind_.clear(name_space, prefix);
  }
  Result<std::map<MetadataNamespace, NamespaceStats>> stats() override { return behind_.stats(); }

 private:
  MetadataService& behind_;
};

class HttpServerUnderTest {
 public:
  explicit HttpServerUnderTest(std::string api_key = {}, bool changes_wait = false, bool is_secure = false)
      : api_key_(std::move(api_key)), changes_wait_(changes_wait), is_secure_(is_secure) {
    if (is_secure_) {
      const support::CertificateAuthority authority("an authority of tests");
      const support::IssuedCertificate issued = authority.issue();
      support::put_file(path("both.pem"), issued.certificate + issued.key);
      support::put_file(ca_file(), authority.pem());
    }
    open();
  }

  // Ends service and server as kill -9 would, and starts them again on the same port and disk.
  void reopen() {
    close();
    open();
  }
  void close() {
    if (server_) port_ = server_->port();
    server_.reset();
    service_.reset();
  }
  void open() {
    auto service = EmbeddedMetadata::create(embedded_test_options(), clock_, metadata::open_memory_journal(disk_));
    ASSERT_TRUE(service.is_ok()) << service.status().to_string();
    service_ = std::move(*service);
    MetadataServerParts parts;
    parts.service = service_.get();
    parts.clock = &clock_;
    parts.metrics = &metrics_;
    parts.listen.port = port_;
    if (is_secure_) parts.listen.tls.certificate = path("both.pem");
    parts.api_key = api_key_;
    parts.changes_wait = changes_wait_;
    parts.reference.process = {17, 4};
    parts.reference.ttl = kMaxTtl;
    parts.reference.lease = kMaxLease;
    auto server = MetadataServer::create(parts);
    ASSERT_TRUE(server.is_ok()) << server.status().to_string();
    server_ = std::move(*server);
  }

  [[nodiscard]] EmbeddedMetadata& service() { return *service_; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] std::string url() const { return server_->url(); }
  [[nodiscard]] HttpUrl http_url() const { return *parse_http_url(server_->url(), ca_file()); }
  [[nodiscard]] metadata::MemoryDisk& disk() { return *disk_; }

  [[nodiscard]] HttpReply call(std::string_view method, std::string_view target, std::string_view body = {},
                               const std::string& bearer = {}) const {
    HttpClient client(http_url(), std::chrono::seconds(20), bearer);
    Result<HttpReply> reply = client.request(method, target, body);
    EXPECT_TRUE(reply.is_ok()) << target << ' ' << reply.status().to_string();
    return reply.is_ok() ? *reply : HttpReply{};
  }
  [[nodiscard]] HttpReply post(std::string_view target, std::string_view body) const {
    return call("POST", target, body);
  }
  [[nodiscard]] std::unique_ptr<HttpMetadata> client(const std::string& api_key = {}) const {
    HttpMetadataOptions options;
    options.url = url();
    options.ca_file = ca_file();
    options.api_key = api_key;
    options.timeout = std::chrono::seconds(20);
    auto made = HttpMetadata::create(options, real_clock());
    EXPECT_TRUE(made.is_ok());
    return std::move(*made);
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] std::string ca_file() const { return is_secure_ ? path("ca.pem") : ""; }

  const std::string api_key_;
  const bool changes_wait_, is_secure_;
  const support::TemporaryDirectory folder_;
  ManualClock clock_;
  MetricsRegistry metrics_;
  std::shared_ptr<metadata::MemoryDisk> disk_ = std::make_shared<metadata::MemoryDisk>();
  std::unique_ptr<EmbeddedMetadata> service_;
  std::unique_ptr<MetadataServer> server_;
  std::uint16_t port_ = 0;
};

}  // namespace larder::conformance
