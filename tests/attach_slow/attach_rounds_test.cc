// SPDX-License-Identifier: Apache-2.0
// A thousand rounds each, and half as many where most of the time is waiting for what hangs: see tests/attach.
#include <gtest/gtest.h>

#include "tests/attach/attach_rig.h"
#include "tests/attach/rounds.h"

namespace larder::attach {
namespace {

constexpr std::size_t kRounds = 1000, kSickRounds = 500;

TEST(AttachRoundsSlow, HealthyBackendsWithStates) { run_rounds({"gdn-tiny", kRounds, test_seed() + 1, false}); }
TEST(AttachRoundsSlow, HealthyBackendsWithWindows) { run_rounds({"swa-tiny", kRounds, test_seed() + 2, false}); }
TEST(AttachRoundsSlow, SickBackendsWithStates) { run_rounds({"gdn-tiny", kSickRounds, test_seed() + 3, true}); }
TEST(AttachRoundsSlow, SickBackendsWithWindows) { run_rounds({"swa-tiny", kSickRounds, test_seed() + 4, true}); }

}  // namespace
}  // namespace larder::attach
