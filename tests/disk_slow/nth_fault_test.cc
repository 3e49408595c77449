// SPDX-License-Identifier: Apache-2.0
// Every file operation of a small run fails, one by one, and a stretch of operations from each on.
#include "tests/disk/nth_fault.h"

namespace larder::disk {
namespace {

class EveryOperation : public testing::TestWithParam<sim::FileFault> {
 protected:
  static void sweep(std::uint64_t count, std::uint64_t stride, const std::string& fsync) {
    std::uint64_t n = 1;
    while (run_with_fault(n, GetParam(), count, fsync) && !HasFailure()) n += stride;
    EXPECT_GT(n, 40u) << "the run has become too short to say anything";
  }
};

TEST_P(EveryOperation, FailsOnce) { sweep(1, 1, "group"); }
TEST_P(EveryOperation, FailsForAWhile) { sweep(25, 5, "group"); }
TEST_P(EveryOperation, FailsForLong) { sweep(1'000'000, 9, "group"); }
TEST_P(EveryOperation, FailsWithSyncsOfSegmentsOnly) { sweep(3, 2, "segment"); }

std::string fault_name(const testing::TestParamInfo<sim::FileFault>& fault) {
  constexpr const char* kNames[] = {"IoError", "NoSpace", "Short", "WriteTorn", "SyncLost"};
  static_assert(std::size(kNames) == sim::kFileFaultCount);
  return kNames[static_cast<int>(fault.param)];
}
INSTANTIATE_TEST_SUITE_P(Fault, EveryOperation, testing::ValuesIn(kFaults), fault_name);

}  // namespace
}  // namespace larder::disk
