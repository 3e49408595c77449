// SPDX-License-Identifier: Apache-2.0
// HttpMetadata, through a real listener to EmbeddedMetadata, under the conformance suite. A restart is one of the
// server: the client and its connections stay.
#include "tests/metadata/metadata_conformance.h"
#include "tests/metadata_http/http_harness.h"

namespace larder::conformance {
namespace {

class HttpHarness final : public MetadataHarness {
 public:
  explicit HttpHarness(bool changes_wait, bool is_secure = false)
      : server_({}, changes_wait, is_secure), client_(server_.client()) {}
  [[nodiscard]] MetadataService& service() override { return *client_; }
  void advance(Nanos by) override { server_.clock().advance(by); }
  [[nodiscard]] bool restart() override {
    server_.reopen();
    return true;
  }
  [[nodiscard]] Status check() override { return server_.service().check(); }

 private:
  HttpServerUnderTest server_;
  std::unique_ptr<HttpMetadata> client_;
};

const MetadataUnderTest kOnIoThreads{"OnIoThreads", [] { return std::make_unique<HttpHarness>(false); }};
const MetadataUnderTest kOnExecutor{"OnExecutor", [] { return std::make_unique<HttpHarness>(true); }};
const MetadataUnderTest kOverTls{"OverTls", [] { return std::make_unique<HttpHarness>(false, true); }};

INSTANTIATE_TEST_SUITE_P(Http, MetadataConformance, testing::Values(kOnIoThreads, kOnExecutor, kOverTls), test_name);

}  // namespace
}  // namespace larder::conformance
