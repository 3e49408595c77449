// SPDX-License-Identifier: Apache-2.0
// Restored is recomputed, also where the page index is in another process: tests/exactness over HTTP and on Redis.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "model/presets.h"
#include "tests/exactness/restore_road.h"
#include "tests/hf3fs_services/services_under_test.h"

namespace larder::exactness {
namespace {

using conformance::ServiceKind;
using conformance::ServiceUnderTest;

class ServicesRestore : public testing::TestWithParam<std::tuple<ServiceKind, std::string>> {
 protected:
  void SetUp() override {
    const std::string reason = conformance::why_not_here(kind_);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] static BackendOptions options_of(const ServiceUnderTest& service) {
    return {{"metadata_server_url", service.url()}};
  }

  const ServiceKind kind_ = std::get<0>(GetParam());
};

// In one layout: hf3fs copies through its staging memory in all of them.
TEST_P(ServicesRestore, IsBitIdenticalAlsoAfterARestart) {
  const ModelSpec model = preset_model(std::get<1>(GetParam())).value();
  const Script script(model);
  // One for each: a mount of its own would make the keys of the other misses.
  const ServiceUnderTest of_the_road(kind_), of_the_restart(kind_);
  check_road(script, model, HostLayout::kPageFirst, From::kHf3fsStore, options_of(of_the_road));
  check_restart(script, model, From::kHf3fsStore, options_of(of_the_restart));
  EXPECT_GT(of_the_road.stored(), 0u) << "the pages' keys were kept somewhere else";
  EXPECT_GT(of_the_restart.stored(), 0u);
}

std::string test_name(const testing::TestParamInfo<std::tuple<ServiceKind, std::string>>& info) {
  return conformance::service_name(std::get<0>(info.param)) + '_' +
         preset_test_name({std::get<1>(info.param), info.index});
}

INSTANTIATE_TEST_SUITE_P(Tiny, ServicesRestore,
                         testing::Combine(testing::Values(ServiceKind::kHttp, ServiceKind::kRedis),
                                          testing::ValuesIn(tiny_presets())),
                         test_name);

}  // namespace
}  // namespace larder::exactness
