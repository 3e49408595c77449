// SPDX-License-Identifier: Apache-2.0
// The nth file operation fails while conversations run: for some n, and for a while from some n on. All n: disk_slow.
#include "tests/disk/nth_fault.h"

namespace larder::disk {
namespace {

TEST(NthFault, SomeOperationsFail) {
  for (const sim::FileFault fault : kFaults) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{30}}) {
      std::uint64_t n = 1 + static_cast<std::uint64_t>(fault);
      while (run_with_fault(n, fault, count, "group") && !testing::Test::HasFailure()) n += 47;
      EXPECT_GT(n, 94u) << "the run has become too short to say anything";
    }
  }
}

TEST(NthFault, WhileItStarts) {
  std::uint64_t n = 1;
  while (start_with_fault(n, sim::FileFault::kIoError) && !testing::Test::HasFailure()) ++n;
  EXPECT_GT(n, 5u);
}

}  // namespace
}  // namespace larder::disk
