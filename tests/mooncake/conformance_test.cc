// SPDX-License-Identifier: Apache-2.0
// Backend `mooncake` on the fake store under the conformance suite.
#include "tests/conformance/storage_conformance.h"
#include "tests/mooncake/fake_store.h"

namespace larder::conformance {
namespace {

class MooncakeHarness final : public HarnessBase {
 public:
  explicit MooncakeHarness(std::uint64_t seed) : HarnessBase(3, seed) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("mooncake", store_.options(), extra, &real_file_system());
  }
  [[nodiscard]] bool is_bounded() const override { return false; }
  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override { return store_.flip_bits(rng, flips); }

 private:
  mooncake_test::FakeStore store_;
};

const BackendUnderTest kFake{"Fake", [](std::uint64_t seed) { return std::make_unique<MooncakeHarness>(seed); }};

INSTANTIATE_TEST_SUITE_P(Mooncake, StorageConformance, each_check({kFake}), test_name);

}  // namespace
}  // namespace larder::conformance
