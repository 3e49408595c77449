// SPDX-License-Identifier: Apache-2.0
// A small run of conversations whose nth file operation fails.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/sim_file_system.h"
#include "tests/disk/disk_rig.h"

namespace larder::disk {

inline constexpr sim::FileFault kFaults[] = {sim::FileFault::kIoError, sim::FileFault::kNoSpace, sim::FileFault::kShort,
                                             sim::FileFault::kWriteTorn, sim::FileFault::kSyncLost};

inline Options nth_options(const std::string& fsync) {
  return file_options("/disk/store", R"(, "segment_size": "64Ki", "fsync": ")" + fsync + "\"");
}

// Operations n .. n + count - 1 after the start fail. False: the run has fewer than n.
inline bool run_with_fault(std::uint64_t n, sim::FileFault fault, std::uint64_t count, const std::string& fsync) {
  const std::uint64_t seed = test_seed();
  const std::string where = "LARDER_TEST_SEED=" + std::to_string(seed) + ", fsync " + fsync + ", operation " +
                            std::to_string(n) + " + " + std::to_string(count) + ", fault " +
                            std::to_string(static_cast<int>(fault));
  SCOPED_TRACE(where);
  sim::SimFileSystem files(seed + n);
  FastClock clock;
  auto made = SteppedEngine::create(nth_options(fsync), files, clock);
  if (!made.is_ok()) {
    ADD_FAILURE() << made.status().to_string();
    return false;
  }
  Engine& engine = **made;
  files.fail_nth(n, fault, count);
  (void)converse(engine, Script::of(seed, 4, 4), where);
  const bool has_fired = files.fault_fired();
  files.clear_fault();
  engine.check_sound();
  expect_service(engine, clock, where);
  engine.check_sound();
  // What this life left behind serves the next one.
  made->reset();
  auto again = SteppedEngine::create(nth_options(fsync), files, clock);
  EXPECT_TRUE(again.is_ok()) << again.status().to_string();
  if (again.is_ok()) (void)converse(**again, Script::of(seed, 2, 3), where + ", next life");
  return has_fired;
}

// The nth operation of a start fails. The engine starts, or says why not, and starts when asked again.
inline bool start_with_fault(std::uint64_t n, sim::FileFault fault) {
  SCOPED_TRACE("operation " + std::to_string(n));
  sim::SimFileSystem files(n);
  FastClock clock;
  files.fail_nth(n, fault);
  auto made = SteppedEngine::create(nth_options("group"), files, clock);
  const bool has_fired = files.fault_fired();
  files.clear_fault();
  if (!made.is_ok()) {
    EXPECT_NE(made.status().message().find("--hicache-storage-backend"), std::string::npos)
        << made.status().to_string();
    made = SteppedEngine::create(nth_options("group"), files, clock);
  }
  EXPECT_TRUE(made.is_ok()) << made.status().to_string();
  if (made.is_ok()) expect_service(**made, clock, "after the start");
  return has_fired;
}

}  // namespace larder::disk
