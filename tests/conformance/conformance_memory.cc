// SPDX-License-Identifier: Apache-2.0
// Backend `memory` under the conformance suite.
#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {
namespace {

class MemoryHarness final : public HarnessBase {
 public:
  using HarnessBase::HarnessBase;
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("memory", {{"max_size", "64Mi"}}, extra, nullptr);
  }
};

const BackendUnderTest kManual{"Manual", [](std::uint64_t seed) { return std::make_unique<MemoryHarness>(0, seed); }};
const BackendUnderTest kThreads{"Threads", [](std::uint64_t seed) { return std::make_unique<MemoryHarness>(3, seed); }};

INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance, each_check({kManual, kThreads}), test_name);

}  // namespace
}  // namespace larder::conformance
