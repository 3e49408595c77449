// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/storage_conformance.h"

namespace larder::conformance {

TEST_P(StorageConformance, Holds) {
  const std::uint64_t seed = test_seed();
  const CheckOfBackend& param = GetParam();
  std::unique_ptr<StorageHarness> harness = param.backend.make(seed);
  const CheckOutcome outcome = run_check(*param.check, *harness, seed);
  if (outcome.is_stuck) (void)harness.release();  // its end would wait for what never ends
  for (const std::string& failure : outcome.failures) ADD_FAILURE() << failure;
  for (const std::string& part : outcome.left_out) printf("left out: %s\n", part.c_str());
  if (outcome.verdict == Verdict::kFailed) {
    printf("replay with LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  }
  if (outcome.verdict == Verdict::kSkipped) GTEST_SKIP() << outcome.skipped_because;
}

}  // namespace larder::conformance
