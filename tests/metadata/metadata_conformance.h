// SPDX-License-Identifier: Apache-2.0
// The suite that every MetadataService passes. One joins by one line in a
// conformance_<name>_test.cc (what does not end so goes into a library, where the linker drops it):
//   INSTANTIATE_TEST_SUITE_P(Memory, MetadataConformance, testing::Values(MetadataUnderTest{...}), test_name);
#pragma once

#include <memory>

#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {

class MetadataConformance : public testing::TestWithParam<MetadataUnderTest> {
 protected:
  void SetUp() override { harness_ = GetParam().make(); }
  void TearDown() override {
    const Status status = harness_->check();
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  [[nodiscard]] MetadataService& service() { return harness_->service(); }
  // A namespace with so many pages.
  Talker open(std::uint64_t pages, const MetadataNamespace& name_space = {0, "kv"}) {
    const auto given = service().initialize(name_space, pages);
    EXPECT_TRUE(given.is_ok()) << given.status().to_string();
    return Talker(service(), name_space);
  }

  std::unique_ptr<MetadataHarness> harness_;
};

}  // namespace larder::conformance
