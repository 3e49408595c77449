// SPDX-License-Identifier: Apache-2.0
// Checks of pages: written, read, looked up.
#include <numeric>

#include "storage/conformance/checks.h"

namespace larder::conformance {
namespace {

std::uint64_t bytes_of(const std::vector<PageSpec>& pages) {
  return std::accumulate(pages.begin(), pages.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const PageSpec& page) { return sum + page.bytes; });
}

std::string bits_of(const PoolPresence& presence) {
  std::string out;
  for (const bool is_there : presence.present) out += is_there ? '1' : '0';
  return out;
}

}  // namespace

void check_round_trip_per_pool(CheckRun& run) {
  const std::vector<PageSpec> group = {{PoolName::kIndexer, 1, 133},
                                       {PoolName::kSwa, 1, 1},
                                       {PoolName::kMamba, 1, 70'001},
                                       {PoolName::kDeepseekV4C4, 1, 4096},
                                       {PoolName::kKv, 1, 65'536}};
  const BackendStats before = run.backend().stats();
  if (!run.expect_all_ok(run.write_groups({group}), "writing one group of five pools")) return;
  run.expect_all_ok(run.read_pages(group), "reading it back");
  const BackendStats after = run.backend().stats();
  run.expect_equal(after.read_hits - before.read_hits, group.size(), "stats: read_hits");
  if (!run.can_count_pages()) return;
  run.expect_equal(after.pages - before.pages, group.size(), "stats: pages");
  run.expect_equal(after.bytes - before.bytes, bytes_of(group), "stats: bytes (payloads)");
  run.expect(after.physical_bytes >= after.bytes, "stats: physical_bytes is at least bytes");
}

void check_zero_length_anchor(CheckRun& run) {
  const std::vector<PageSpec> group = {{PoolName::kDeepseekV4C4, 2, 500}, {PoolName::kKv, 2, 0}};
  if (!run.expect_all_ok(run.write_groups({group}), "writing a group with an anchor of no bytes")) return;
  run.expect_equal(run.presence(PoolName::kKv, {1, 2}), "01", "presence of the anchors of pages 1 (unwritten) and 2");
  run.expect_all_ok(run.read_pages(group), "reading it back");
  // A payload of no segments at all, rather than of empty ones.
  const ReadResult bare = run.read({run.scope(), {{PoolName::kKv, run.key(2), {}}}});
  run.expect_ok(bare.items[0], "reading a page of no bytes into no segments");
}

void check_many_small_segments(CheckRun& run) {
  const PageKey key = run.key(3);
  auto written = std::make_shared<PageBuffer>(5000, 3000, run.rng());  // more pieces than one preadv or pwritev takes
  written->fill(key, PoolName::kKv);
  const WriteResult write = run.write({run.scope(), {{{{PoolName::kKv, key, written->segments()}}}}}, written);
  if (!run.expect_all_ok(write.groups, "writing a page in 3000 pieces")) return;
  auto back = std::make_shared<PageBuffer>(5000, 2500, run.rng());
  const ReadResult read = run.read({run.scope(), {{PoolName::kKv, key, back->segments()}}}, back);
  if (!run.expect_ok(read.items[0], "reading it into 2500 pieces")) return;
  run.expect(back->holds(key, PoolName::kKv), "the pieces hold what was written (else: WRONG BYTES)");
}

void check_joint_exists_with_holes(CheckRun& run) {
  const auto written = run.write_groups({{{PoolName::kIndexer, 10, 10}, {PoolName::kKv, 10, 100}},
                                         {{PoolName::kKv, 11, 100}},
                                         {{PoolName::kSwa, 13, 50}}});
  if (!run.expect_all_ok(written, "writing three groups")) return;
  ExistsRequest request{run.scope(), {}, {PoolName::kKv, PoolName::kIndexer, PoolName::kSwa, PoolName::kDraft}};
  for (std::uint64_t key = 10; key < 15; ++key) request.keys.push_back(run.key(key));
  const ExistsResult result = run.exists(std::move(request));
  if (!run.expect_ok(result.status, "exists of five keys in four pools")) return;
  run.expect_equal(bits_of(result.presence[0]), "11000", "presence in kv");
  run.expect_equal(bits_of(result.presence[1]), "10000", "presence in indexer");
  run.expect_equal(bits_of(result.presence[2]), "00010", "presence in swa");
  run.expect_equal(bits_of(result.presence[3]), "00000", "presence in draft, a pool that the scope's model has not");
}

void check_empty_requests(CheckRun& run) {
  run.expect_ok(run.exists({run.scope(), {}, {}}).status, "exists of nothing");
  (void)run.read({run.scope(), {}});
  (void)run.write({run.scope(), {}});
  if (run.is_stuck()) return;
  StorageBackend& backend = run.backend();
  run.expect_code(backend.submit_read({nullptr, {}}, [](ReadResult) {}), StatusCode::kInvalidArgument,
                  "read without a scope");
  run.expect_code(backend.submit_write({nullptr, {}}, [](WriteResult) {}), StatusCode::kInvalidArgument,
                  "write without a scope");
  run.expect_code(backend.submit_exists({nullptr, {}, {}}, [](ExistsResult) {}), StatusCode::kInvalidArgument,
                  "exists without a scope");
  run.expect_code(backend.submit_exists({run.scope(), {}, {}}, nullptr), StatusCode::kInvalidArgument,
                  "exists without a callback");
}

void check_missing_keys_are_misses(CheckRun& run) {
  if (!run.expect_all_ok(run.write_groups({{{PoolName::kKv, 20, 64}}}), "writing a page")) return;
  const std::uint64_t before = run.backend().stats().read_misses;
  const std::vector<Status> got =
      run.read_pages({{PoolName::kKv, 19, 64}, {PoolName::kKv, 20, 64}, {PoolName::kSwa, 20, 64}});
  run.expect_code(got[0], StatusCode::kNotFound, "reading a key that was never written");
  run.expect_ok(got[1], "reading the page that was, in one request with others that were not");
  run.expect_code(got[2], StatusCode::kNotFound, "reading a key in a pool in which it was never written");
  run.expect_equal(run.backend().stats().read_misses - before, 2, "stats: read_misses");
  run.expect_equal(run.presence(PoolName::kKv, {19, 20}), "01", "presence of a missing page and one that is there");
}

void check_another_identity_is_a_miss(CheckRun& run) {
  if (!run.expect_all_ok(run.write_groups({{{PoolName::kKv, 30, 256}}}), "writing a page")) return;
  run.expect_equal(run.presence(PoolName::kKv, {30}, 2), "0", "presence of its key in another namespace");
  run.expect_code(run.read_page({PoolName::kKv, 30, 256}, 2), StatusCode::kNotFound,
                  "reading its key in another namespace");
  // The same namespace with another layout of the pool.
  auto other_layout = std::make_shared<StoreScope>(*run.scope());
  other_layout->set_pool(PoolName::kKv, run.key(999));
  auto buffer = std::make_shared<PageBuffer>(256, 1, run.rng());
  const ReadResult read = run.read({other_layout, {{PoolName::kKv, run.key(30), buffer->segments()}}}, buffer);
  run.expect_code(read.items[0], StatusCode::kNotFound, "reading its key in another layout of the pool");
  // Both may be there side by side under one key.
  run.expect_all_ok(run.write_groups({{{PoolName::kKv, 30, 256, 5}}}, 2), "writing the key in the other namespace");
  run.expect_ok(run.read_page({PoolName::kKv, 30, 256, 5}, 2), "reading it there");
  run.expect_ok(run.read_page({PoolName::kKv, 30, 256}, 1), "reading the first, which is there still");
}

void check_another_length_is_a_miss(CheckRun& run) {
  if (!run.expect_all_ok(run.write_groups({{{PoolName::kKv, 85, 100}}}), "writing a page of 100 bytes")) return;
  run.expect_code(run.read_page({PoolName::kKv, 85, 200}), StatusCode::kNotFound, "reading 200 bytes of it");
  run.expect_code(run.read_page({PoolName::kKv, 85, 99}), StatusCode::kNotFound, "reading 99 bytes of it");
  run.expect_ok(run.read_page({PoolName::kKv, 85, 100}), "reading its 100 bytes after that");
}

void check_duplicates_are_cheap_and_ok(CheckRun& run) {
  const std::vector<PageSpec> group = {{PoolName::kSwa, 40, 900}, {PoolName::kKv, 40, 8000}};
  if (!run.expect_all_ok(run.write_groups({group}), "writing a group")) return;
  const BackendStats before = run.backend().stats();
  run.expect_all_ok(run.write_groups({group, group, {group[1], group[1]}}), "writing its pages again, three groups");
  const BackendStats after = run.backend().stats();
  run.expect_equal(after.duplicate_writes - before.duplicate_writes, 6, "stats: duplicate_writes");
  run.expect_all_ok(run.read_pages(group), "reading the group");
  if (!run.can_count_pages()) return;
  run.expect_equal(after.pages, before.pages, "stats: pages, which duplicates do not change");
  run.expect_equal(after.bytes, before.bytes, "stats: bytes, which duplicates do not change");
  run.expect_equal(after.physical_bytes, before.physical_bytes, "stats: physical_bytes (a duplicate takes no room)");
}

void check_duplicates_in_one_request(CheckRun& run) {
  const BackendStats before = run.backend().stats();
  const auto written = run.write_groups(
      {{{PoolName::kKv, 41, 3000}}, {{PoolName::kKv, 41, 3000}}, {{PoolName::kKv, 42, 10}, {PoolName::kKv, 42, 10}}});
  run.expect_all_ok(written, "writing two pages twice each, in one request");
  const BackendStats after = run.backend().stats();
  run.expect_equal(after.duplicate_writes - before.duplicate_writes, 2, "stats: duplicate_writes");
  run.expect_ok(run.read_page({PoolName::kKv, 41, 3000}), "reading one of them");
  if (run.can_count_pages()) run.expect_equal(after.pages - before.pages, 2, "stats: pages");
}

void check_a_failed_group_stops_no_other(CheckRun& run) {
  const auto groups = run.write_groups({{{PoolName::kKv, 50, 100}},
                                        {{PoolName::kKv, 51, 100}, {PoolName::kDraft, 51, 10}},  // no such pool
                                        {},
                                        {{PoolName::kKv, 52, 100}}});
  run.expect_ok(groups[0], "the group before");
  run.expect_code(groups[1], StatusCode::kInvalidArgument, "a group with a page of a pool that the model has not");
  run.expect_code(groups[2], StatusCode::kInvalidArgument, "a group of no pages");
  run.expect_ok(groups[3], "the group behind");
  run.expect_equal(run.presence(PoolName::kKv, {50, 51, 52}), "101", "presence: all of a group or nothing");
}

}  // namespace larder::conformance
