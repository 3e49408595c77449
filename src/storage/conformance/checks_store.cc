// SPDX-License-Identifier: Apache-2.0
// Checks of the store as a whole: clear, close, restart, damage, limits.
#include <algorithm>

#include "storage/conformance/checks.h"

namespace larder::conformance {
namespace {

using Groups = std::vector<std::vector<PageSpec>>;

std::vector<PageSpec> flatten(const Groups& groups) {
  std::vector<PageSpec> out;
  for (const auto& group : groups) out.insert(out.end(), group.begin(), group.end());
  return out;
}

std::uint64_t count_corrupt(const std::vector<Status>& statuses) {
  return static_cast<std::uint64_t>(std::count_if(
      statuses.begin(), statuses.end(), [](const Status& status) { return status.code() == StatusCode::kCorrupt; }));
}

}  // namespace

void check_clear_by_scope(CheckRun& run) {
  if (!run.backend().info().supports_clear) return run.skip("the backend does not support clear");
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 60, 100}}, {{PoolName::kSwa, 61, 100}}}, 1), "writing pages");
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 60, 100}}}, 2), "writing one in another namespace");
  if (!run.expect_ok(run.clear(run.scope(1)), "clear of the first namespace")) return;
  run.expect_equal(run.presence(PoolName::kKv, {60}, 1), "0", "presence in it after clear");
  run.expect_equal(run.presence(PoolName::kSwa, {61}, 1), "0", "presence in it after clear, another pool");
  run.expect_equal(run.presence(PoolName::kKv, {60}, 2), "1", "presence in the other namespace, which stays");
  run.expect_ok(run.read_page({PoolName::kKv, 60, 100}, 2), "reading it");
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 60, 100, 9}}}, 1), "writing what was cleared anew");
  run.expect_ok(run.read_page({PoolName::kKv, 60, 100, 9}, 1), "reading what was written anew");
  if (!run.harness().is_own_store()) return run.leave_out("clear of the whole store", "others may use it");
  if (!run.expect_ok(run.clear(nullptr), "clear of the whole store")) return;
  run.expect_equal(run.presence(PoolName::kKv, {60}, 1), "0", "presence after clear of the whole store");
  run.expect_equal(run.presence(PoolName::kKv, {60}, 2), "0", "presence after clear of the whole store");
  if (run.can_count_pages()) {
    run.expect_equal(run.backend().stats().pages, 0, "stats: pages of a store that was cleared");
    run.expect_equal(run.backend().stats().bytes, 0, "stats: bytes of a store that was cleared");
  }
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 60, 100}}}, 2), "writing after clear");
  run.expect_ok(run.read_page({PoolName::kKv, 60, 100}, 2), "reading after clear");
}

void check_refuses_after_close(CheckRun& run) {
  if (!run.expect_all_ok(run.write_groups({{{PoolName::kKv, 70, 100}}}), "writing a page")) return;
  if (!run.expect_ok(run.close(std::chrono::seconds(10)), "close of an idle backend")) return;
  if (!run.expect_ok(run.close(std::chrono::nanoseconds(0)), "close once more")) return;
  StorageBackend& backend = run.backend();
  auto ran = std::make_shared<bool>(false);
  run.expect_code(backend.submit_exists({run.scope(), {}, {}}, [ran](ExistsResult) { *ran = true; }),
                  StatusCode::kUnavailable, "exists after close");
  run.expect_code(backend.submit_read({run.scope(), {}}, [ran](ReadResult) { *ran = true; }), StatusCode::kUnavailable,
                  "read after close");
  run.expect_code(backend.submit_write({run.scope(), {}}, [ran](WriteResult) { *ran = true; }),
                  StatusCode::kUnavailable, "write after close");
  if (run.can_clear()) {
    run.expect_code(backend.submit_clear(run.scope(), [ran](Status) { *ran = true; }), StatusCode::kUnavailable,
                    "clear after close");
  }
  run.expect(!*ran, "the callback of a refused operation never runs");
  (void)backend.stats();  // works on
  (void)run.open();       // so that the page can be dropped
}

void check_bounded_queue_and_close_under_load(CheckRun& run) {
  if (!run.harness().is_manual()) return run.skip("needs a harness that holds work back");
  if (!run.open({{"queue_limit", "3"}})) return;
  auto buffer = std::make_shared<PageBuffer>(100, 1, run.rng());
  buffer->fill(run.key(80), PoolName::kKv);
  auto done = std::make_shared<int>(0);
  std::uint64_t next = 80;  // a page that is there already may end inside submit
  const auto submit = [&] {
    WriteRequest request{run.scope(), {{{{PoolName::kKv, run.key(next++), buffer->segments()}}}}};
    return run.backend().submit_write(std::move(request), [done, buffer](WriteResult) { ++*done; });
  };
  for (int i = 0; i < 3; ++i) run.expect_ok(submit(), "submitting below the limit");
  run.expect_equal(run.backend().stats().queued, 3, "stats: queued");
  run.expect_code(submit(), StatusCode::kOverloaded, "submitting one more than queue_limit");
  run.expect_equal(static_cast<std::uint64_t>(*done), 0, "callbacks before anything ran");
  run.harness().drain();
  run.expect_equal(static_cast<std::uint64_t>(*done), 3, "callbacks (the refused one's never runs)");
  run.expect_ok(submit(), "submitting when there is room again");
  StorageBackend& backend = run.backend();
  run.expect_code(backend.close(std::chrono::nanoseconds(0)), StatusCode::kDeadlineExceeded,
                  "close with an operation in flight");
  run.expect_code(submit(), StatusCode::kUnavailable, "submitting while it closes");
  run.harness().drain();
  run.expect_equal(static_cast<std::uint64_t>(*done), 4, "callbacks (what was taken before close completes)");
  run.expect_ok(backend.close(std::chrono::nanoseconds(0)), "close when nothing is in flight any more");
}

// Corrupt bytes: whatever is flipped, a read returns the right bytes or none.
void check_flipped_bits_are_never_returned(CheckRun& run) {
  if (!run.harness().is_own_store()) return run.skip("others may use the store");
  if (!run.backend().info().supports_clear) return run.skip("the backend does not support clear");
  constexpr std::uint64_t kPages = 40;
  Groups groups;
  for (std::uint64_t key = 0; key < kPages; ++key) {
    groups.push_back({{PoolName::kSwa, key, 40 + key}, {PoolName::kKv, key, 300 + key}});
  }
  const std::vector<PageSpec> all = flatten(groups);
  for (int round = 0; round < 20; ++round) {
    if (!run.expect_ok(run.clear(nullptr), "clear of the whole store")) return;
    if (!run.expect_all_ok(run.write_groups(groups), "writing the groups")) return;
    const std::size_t flipped = run.harness().flip_stored_bits(run.rng(), 1 + run.rng().below(20));
    if (flipped == 0) return run.skip("the stored bytes cannot be reached from here");
    const std::uint64_t before = run.backend().stats().corrupt;
    const std::uint64_t corrupt = count_corrupt(run.read_pages(all));  // read_pages compares the bytes
    run.expect_equal(run.backend().stats().corrupt - before, corrupt, "stats: corrupt");
    run.expect_equal(count_corrupt(run.read_pages(all)), 0, "corrupt pages at the second read (the first drops them)");
    run.expect_all_ok(run.write_groups(groups), "writing what was dropped again");
    run.expect_all_ok(run.read_pages(all), "reading it");
    // Flips that no read saw (commit records, padding) must not hurt a restart either.
    (void)run.harness().flip_stored_bits(run.rng(), 5);
    if (!run.open()) return;
    (void)run.read_pages(all);
  }
}

namespace {

// The second half of the next check: a store that was cleared stays empty, and what comes after is kept.
void check_clear_survives_restart(CheckRun& run, const Groups& groups) {
  if (!run.expect_ok(run.clear(nullptr), "clear of the whole store") || !run.open()) return;
  if (run.can_count_pages()) run.expect_equal(run.backend().stats().pages, 0, "stats: pages after clear and restart");
  if (!run.expect_all_ok(run.write_groups(groups), "writing after a clear of everything") || !run.open()) return;
  if (run.can_count_pages()) {
    run.expect_equal(run.backend().stats().pages, flatten(groups).size(), "stats: pages that were written after it");
  }
  run.expect_all_ok(run.read_pages(flatten(groups)), "reading them after a restart");
}

}  // namespace

void check_survives_restart(CheckRun& run) {
  if (!run.backend().info().persistent) return run.skip("the backend is not persistent");
  Groups groups;
  for (std::uint64_t key = 0; key < 50; ++key) {
    groups.push_back({{PoolName::kIndexer, key, 33}, {PoolName::kKv, key, 1000 + 7 * key}});
  }
  const std::vector<PageSpec> all = flatten(groups);
  const std::uint64_t pages_before = run.backend().stats().pages;
  if (!run.expect_all_ok(run.write_groups(groups), "writing 50 groups")) return;
  const bool is_clearing = run.can_clear();
  if (is_clearing) {
    run.expect_all_ok(run.write_groups({{{PoolName::kKv, 7, 64, 3}}}, 2), "writing in another namespace");
    if (!run.expect_ok(run.clear(run.scope(2)), "clear of that namespace")) return;
  }
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 8, 64, 3}}}, 2), "writing in another namespace");
  for (int restart = 1; restart <= 3; ++restart) {
    if (!run.open()) return;
    const std::string when = " after restart " + std::to_string(restart);
    if (run.can_count_pages()) {
      run.expect_equal(run.backend().stats().pages - pages_before, all.size() + 1, "stats: pages" + when);
    }
    run.expect_all_ok(run.read_pages(all), "reading all pages" + when);
    if (is_clearing) {
      run.expect_equal(run.presence(PoolName::kKv, {7, 8}, 2), "01", "presence (cleared, written later)" + when);
    }
    run.expect_ok(run.read_page({PoolName::kKv, 8, 64, 3}, 2), "reading the other namespace" + when);
  }
  if (!run.harness().is_own_store()) return run.leave_out("clear of the whole store", "others may use it");
  if (is_clearing) check_clear_survives_restart(run, groups);
}

void check_bounded_size(CheckRun& run) {
  if (!run.harness().is_own_store()) return run.skip("others may use the store");
  if (!run.harness().is_bounded()) return run.skip("the backend has no max_size (a library: --extra max_size=SIZE)");
  if (!run.open({{"max_size", "512Ki"}})) return;
  constexpr std::uint64_t kMaxSize = 512 << 10;
  std::uint64_t most = 0;
  for (std::uint64_t key = 0; key < 600; ++key) {
    const auto written = run.write_groups({{{PoolName::kSwa, key, 500}, {PoolName::kKv, key, 1500}}});
    if (!run.expect_all_ok(written, "writing a group when the store is full")) return;
    most = std::max(most, run.backend().stats().physical_bytes);
    run.expect_ok(run.read_page({PoolName::kKv, key, 1500}), "reading the newest page");
    (void)run.read_page({PoolName::kKv, 0, 1500});  // keeps page 0 in use
  }
  run.expect(run.backend().stats().evicted > 0, "stats: evicted grows");
  if (run.can_count_pages()) {
    const std::string shown = " (" + std::to_string(most) + " of " + std::to_string(kMaxSize) + ")";
    run.expect(most <= kMaxSize, "physical_bytes stays within max_size" + shown);
    run.expect(most > kMaxSize / 2, "half of max_size is used" + shown);
  }
  run.expect_equal(run.presence(PoolName::kKv, {0, 60, 599}), "101",
                   "presence: what is used stays, what is not leaves");
  const auto large = run.write_groups({{{PoolName::kKv, 5000, 1'000'000}}});
  run.expect(!large[0].is_ok(), "a page larger than the store is refused");
  if (!run.harness().evicts_whole_groups()) return;
  std::vector<std::uint64_t> keys(600);
  for (std::uint64_t key = 0; key < 600; ++key) keys[key] = key;
  // Groups may still leave between two queries; then the third one differs from the first.
  std::string before, between, after;
  for (int attempt = 0; attempt < 100 && (attempt == 0 || before != after); ++attempt) {
    before = run.presence(PoolName::kSwa, keys);
    between = run.presence(PoolName::kKv, keys);
    after = run.presence(PoolName::kSwa, keys);
  }
  run.expect_equal(before, between, "presence in two pools: a group leaves as a whole");
}

}  // namespace larder::conformance
