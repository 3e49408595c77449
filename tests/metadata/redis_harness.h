// SPDX-License-Identifier: Apache-2.0
// RedisMetadata on a redis-server of the test's own, with a clock that the test moves.
#pragma once

#include <memory>
#include <utility>

#include "metadata/redis_metadata.h"
#include "tests/metadata/metadata_harness.h"
#include "tests/metadata/real_redis_server.h"
#include "tests/metadata/redis_check.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

// Leaves the test, aloud, where there is no Redis to start.
#define LARDER_NEEDS_REDIS()                                                                                   \
  do {                                                                                                         \
    if (!RedisServer::is_installed()) GTEST_SKIP() << "no /usr/bin/redis-server here (tools/install_deps.sh)"; \
  } while (false)

namespace larder::conformance {

// Files of a server that speaks TLS, and of those that believe it.
class RedisCertificate {
 public:
  explicit RedisCertificate(const std::string& issuer = "an authority of tests") {
    const support::CertificateAuthority authority(issuer);
    const support::IssuedCertificate issued = authority.issue();
    support::put_file(path("cert.pem"), issued.certificate);
    support::put_file(path("key.pem"), issued.key);
    support::put_file(path("ca.pem"), authority.pem());
  }
  [[nodiscard]] std::vector<std::string> settings() const {
    return {"--tls-cert-file",    path("cert.pem"), "--tls-key-file",     path("key.pem"),
            "--tls-ca-cert-file", path("ca.pem"),   "--tls-auth-clients", "no"};
  }
  [[nodiscard]] std::string ca_file() const { return path("ca.pem"); }

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  const support::TemporaryDirectory folder_;
};

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
