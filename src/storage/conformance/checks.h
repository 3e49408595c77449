// SPDX-License-Identifier: Apache-2.0
// The conformance checks: what every storage backend must do, one check for each part of the port's contract.
//
// The test suite (tests/conformance) runs them over the backends of this project, and `larder conformance` over any
// backend, one from a shared library too. A check that needs what a harness or backend has not is skipped, and says
// why. Threads: one check at a time on one harness. Cost: milliseconds to a second each.
#pragma once

#include <cstdint>
#include <span>

#include "storage/conformance/check_run.h"
#include "storage/conformance/harness.h"

namespace larder::conformance {

struct Check {
  const char* name;   // snake_case, unique
  const char* about;  // what must hold, in one line
  void (*run)(CheckRun& run);
};

[[nodiscard]] std::span<const Check> all_checks();

// Opens the backend, runs the check, drops what it wrote where others may use the store, and closes. The same seed on
// the same store does the same.
[[nodiscard]] CheckOutcome run_check(const Check& check, StorageHarness& harness, std::uint64_t seed);

// The checks themselves, for the table of all_checks().
void check_round_trip_per_pool(CheckRun& run);
void check_zero_length_anchor(CheckRun& run);
void check_many_small_segments(CheckRun& run);
void check_joint_exists_with_holes(CheckRun& run);
void check_empty_requests(CheckRun& run);
void check_missing_keys_are_misses(CheckRun& run);
void check_another_identity_is_a_miss(CheckRun& run);
void check_another_length_is_a_miss(CheckRun& run);
void check_duplicates_are_cheap_and_ok(CheckRun& run);
void check_duplicates_in_one_request(CheckRun& run);
void check_a_failed_group_stops_no_other(CheckRun& run);
void check_clear_by_scope(CheckRun& run);
void check_refuses_after_close(CheckRun& run);
void check_bounded_queue_and_close_under_load(CheckRun& run);
void check_flipped_bits_are_never_returned(CheckRun& run);
void check_survives_restart(CheckRun& run);
void check_bounded_size(CheckRun& run);
void check_groups_are_seen_whole(CheckRun& run);
void check_concurrent_readers_and_writers(CheckRun& run);

}  // namespace larder::conformance
