// SPDX-License-Identifier: Apache-2.0
// Backend `mooncake` on the real package, over TCP: the conformance suite, and restored is recomputed.
#include "model/presets.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/exactness/restore_road.h"
#include "tests/mooncake_slow/real_store.h"

namespace larder::conformance {
namespace {

// One for all checks: each has names of its own.
mooncake_test::RealStore& shared_store() {
  static mooncake_test::RealStore store(256);
  return store;
}

class RealMooncakeHarness final : public HarnessBase {
 public:
  // The store is started here: a check opens its backend on a thread that ends, and the servers would end with it.
  explicit RealMooncakeHarness(std::uint64_t seed) : HarnessBase(3, seed) { (void)shared_store(); }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("mooncake", shared_store().options(), extra, &real_file_system());
  }
  [[nodiscard]] bool is_bounded() const override { return false; }
};

class RealMooncake : public testing::TestWithParam<const Check*> {
 protected:
  void SetUp() override {
    const std::string reason = mooncake_test::RealStore::why_not_here();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(RealMooncake, Holds) {
  RealMooncakeHarness harness(test_seed());
  const CheckOutcome outcome = run_check(*GetParam(), harness, test_seed());
  for (const std::string& failure : outcome.failures) ADD_FAILURE() << failure;
  ASSERT_FALSE(outcome.is_stuck);
  if (outcome.verdict == Verdict::kSkipped) GTEST_SKIP() << outcome.skipped_because;
}

std::vector<const Check*> checks() {
  std::vector<const Check*> out;
  for (const Check& check : all_checks()) out.push_back(&check);
  return out;
}

std::string check_name(const testing::TestParamInfo<const Check*>& check) { return check.param->name; }

INSTANTIATE_TEST_SUITE_P(Checks, RealMooncake, testing::ValuesIn(checks()), check_name);

class RealMooncakeRestore : public testing::TestWithParam<std::string> {};

TEST_P(RealMooncakeRestore, IsBitIdenticalAlsoAfterARestart) {
  const std::string reason = mooncake_test::RealStore::why_not_here();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const ModelSpec model = preset_model(GetParam()).value();
  const exactness::Script script(model);
  {
    const mooncake_test::RealStore store(64);
    exactness::check_road(script, model, HostLayout::kPageFirst, exactness::From::kMooncakeStore, store.options());
  }
  const mooncake_test::RealStore store(64);  // an empty one
  exactness::check_restart(script, model, exactness::From::kMooncakeStore, store.options());
}

INSTANTIATE_TEST_SUITE_P(Tiny, RealMooncakeRestore, testing::ValuesIn(exactness::tiny_presets()),
                         exactness::preset_test_name);

}  // namespace
}  // namespace larder::conformance
