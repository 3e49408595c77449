// SPDX-License-Identifier: Apache-2.0
#include "storage/conformance/checks.h"

namespace larder::conformance {
namespace {

constexpr Check kChecks[] = {
    {"round_trip_per_pool", "pages of every kind of pool read back as they were written", check_round_trip_per_pool},
    {"zero_length_anchor", "a page of no bytes is there or not, as any other", check_zero_length_anchor},
    {"many_small_segments", "a page may come in thousands of pieces", check_many_small_segments},
    {"joint_exists_with_holes", "presence is told for each pool and key", check_joint_exists_with_holes},
    {"empty_requests", "requests of nothing are done; requests without a scope are refused", check_empty_requests},
    {"missing_keys_are_misses", "what is not there is not found, and is no error", check_missing_keys_are_misses},
    {"another_identity_is_a_miss", "another namespace or layout never meets these pages",
     check_another_identity_is_a_miss},
    {"another_length_is_a_miss", "a page of another length is not found", check_another_length_is_a_miss},
    {"duplicates_are_cheap_and_ok", "writing what is there is ok, and takes no room",
     check_duplicates_are_cheap_and_ok},
    {"duplicates_in_one_request", "one request may write a page twice", check_duplicates_in_one_request},
    {"a_failed_group_stops_no_other", "all of a group or nothing, and the others go on",
     check_a_failed_group_stops_no_other},
    {"clear_by_scope", "clear drops one namespace, and no other", check_clear_by_scope},
    {"refuses_after_close", "close ends what runs, and refuses the rest", check_refuses_after_close},
    {"bounded_queue_and_close_under_load", "a full queue refuses; close waits for what was taken",
     check_bounded_queue_and_close_under_load},
    {"flipped_bits_are_never_returned", "damaged pages are misses, counted, dropped, and can be written again",
     check_flipped_bits_are_never_returned},
    {"survives_restart", "a persistent store has after a restart what it had before", check_survives_restart},
    {"bounded_size", "max_size is kept; what is unused leaves first, groups as a whole", check_bounded_size},
    {"groups_are_seen_whole", "no reader sees half a group", check_groups_are_seen_whole},
    {"concurrent_readers_and_writers", "many threads: every callback once, never wrong bytes",
     check_concurrent_readers_and_writers},
};

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

CheckOutcome run_check(const Check& check, StorageHarness& harness, std::uint64_t seed) {
  CheckRun run(harness, seed, check.name);
  if (run.open()) {
    run.drop_own_pages();  // of an earlier run with this seed that did not come to its end
    check.run(run);
  }
  return run.finish();
}

}  // namespace larder::conformance
