// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_check.h"

#include <cerrno>
#include <set>

#include "sim/hooked_files.h"
#include "sim/sim_file_system.h"
#include "storage/file/segment_rewrite.h"
#include "storage/file/store_tools_test_util.h"

namespace larder::file_store {
namespace {

using sim::SimFileSystem;

const std::vector<std::string> kChecked = {"/a"};

class StoreCheck : public ::testing::Test {
 protected:
  void SetUp() override { make_test_volume(files_, "/a", store_, 0); }

  CheckReport check(bool repair, std::span<const std::string> directories = kChecked) {
    auto report = check_store(files_, clock_, directories, {.repair = repair, .progress = {}});
    EXPECT_TRUE(report.is_ok()) << report.status().to_string();
    return report.is_ok() ? std::move(*report) : CheckReport{};
  }
  // Finds `kind`, leaves the files alone without --repair, mends them with it, and then finds nothing.
  void expect_mended(FindingKind kind, std::span<const std::string> directories = kChecked) {
    const CheckReport found = check(false, directories);
    const auto has_kind = [&](const CheckReport& report) {
      return std::any_of(report.findings.begin(), report.findings.end(),
                         [&](const Finding& finding) { return finding.kind == kind; });
    };
    EXPECT_TRUE(has_kind(found));
    EXPECT_TRUE(has_kind(check(false, directories)));
    const CheckReport mended = check(true, directories);
    EXPECT_TRUE(has_kind(mended));
    for (const Finding& finding : mended.findings) EXPECT_TRUE(finding.is_repaired) << finding.what << finding.remedy;
    const CheckReport after = check(false, directories);
    EXPECT_TRUE(after.findings.empty()) << after.findings[0].what;
  }
  // Keys with their payloads, as the store holds them now.
  std::set<std::uint64_t> keys_present(std::uint64_t highest) {
    std::set<std::uint64_t> out;
    const auto report = inspect_store(files_, kChecked, {});
    for (const InspectedPage& page : report->pages) {
      for (std::uint64_t key = 1; key <= highest; ++key) {
        if (page.state == PageState::kLive && page.page.key == test_digest(key)) out.insert(key);
      }
    }
    return out;
  }

  SimFileSystem files_{7};
  ManualClock clock_{std::chrono::seconds(1'700'000'000)};
  StoreId store_ = test_store_id(5);
};

// Two records; groups {1, 2}, {3} and {4, 5}.
std::vector<std::uint64_t> write_groups(SegmentBuilder& segment) {
  auto places = segment.record({{.key = 1, .bytes = 20'000, .generation = 1},
                                {.key = 2, .parent = 1, .bytes = 100, .generation = 2},
                                {.key = 3, .parent = 2, .bytes = 3000, .generation = 3, .group = 1}});
  const auto more = segment.record(
      {{.key = 4, .bytes = 64, .generation = 4}, {.key = 5, .parent = 4, .bytes = 17'000, .generation = 5}});
  places.insert(places.end(), more.begin(), more.end());
  return places;
}

TEST_F(StoreCheck, AWholeStoreHasNoFindings) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  segment.seal();
  const CheckReport report = check(true);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.pages, 5u);
  EXPECT_EQ(report.segments, 1u);
}

TEST_F(StoreCheck, ADamagedPageGoesWithItsGroupAndNothingElse) {
  for (const std::uint64_t damaged : {1u, 2u, 3u, 4u, 5u}) {
    SimFileSystem files(damaged);
    make_test_volume(files, "/a", store_, 0);
    SegmentBuilder segment(files, "/a", store_, 1);
    const auto places = write_groups(segment);
    segment.seal();
    ASSERT_TRUE(files.corrupt_byte(segment.path(), places[damaged - 1] + 7, 0x10).is_ok());
    auto report = check_store(files, clock_, kChecked, {.repair = true, .progress = {}});
    ASSERT_TRUE(report.is_ok());
    EXPECT_FALSE(report->has_damage());
    EXPECT_EQ(report->removed_groups, 1u);
    files.crash();  // what the repair says is done is on disk
    const auto store = inspect_store(files, kChecked, {});
    ASSERT_TRUE(store.is_ok());
    std::set<Digest256> left;
    for (const InspectedPage& page : store->pages) {
      left.insert(page.page.key);
      EXPECT_EQ(page.page.location.generation, page.page.key == test_digest(1)   ? 1u
                                               : page.page.key == test_digest(2) ? 2u
                                               : page.page.key == test_digest(3) ? 3u
                                               : page.page.key == test_digest(4) ? 4u
                                                                                 : 5u);
    }
    std::set<Digest256> expected;
    if (damaged > 2) expected.insert({test_digest(1), test_digest(2)});
    if (damaged != 3) expected.insert(test_digest(3));
    if (damaged < 4) expected.insert({test_digest(4), test_digest(5)});
    EXPECT_EQ(left, expected) << "page " << damaged;
    EXPECT_EQ(verify_pages(files, *store, {}).pages, expected.size());
    ASSERT_EQ(store->segments.size(), 1u);
    EXPECT_EQ(store->segments[0].number, 1u);
    EXPECT_TRUE(store->segments[0].scan.has_footer);
  }
}

// The groups of a record stay together: one record each would cost up to a block for each of them.
TEST_F(StoreCheck, ARepairMakesASegmentNoLarger) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  std::uint64_t key = 0, first = 0;
  for (const std::size_t bytes : {100u, 5000u, 20'000u}) {
    for (int record = 0; record < 3; ++record) {
      std::vector<SegmentBuilder::Page> pages;
      for (std::uint32_t group = 0; group < 60; ++group) {
        ++key;
        pages.push_back({.key = key, .bytes = bytes, .generation = key, .group = group});
        ++key;
        pages.push_back({.key = key, .parent = key - 1, .bytes = 64, .generation = key, .group = group});
      }
      const auto places = segment.record(pages);
      if (first == 0) first = places[0];
    }
  }
  segment.seal();
  const std::uint64_t before = files_.stat(segment.path())->size_bytes;
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), first, 1).is_ok());
  const CheckReport report = check(true);
  EXPECT_EQ(report.removed_groups, 1u);
  EXPECT_EQ(report.removed_pages, 2u);
  EXPECT_LE(files_.stat(segment.path())->size_bytes, before + kBlockBytes);
  EXPECT_EQ(keys_present(key).size(), key - 2);
  // Each group is still one of its own: without the footer, too.
  const auto file = files_.open(segment.path(), {});
  const auto groups = read_groups(**file, store_, 1, files_.stat(segment.path())->size_bytes);
  ASSERT_TRUE(groups.is_ok());
  EXPECT_EQ(groups->size(), key / 2 - 1);
  for (const auto& group : *groups) EXPECT_EQ(group.size(), 2u);
}

TEST_F(StoreCheck, ASegmentWithoutAnythingLeftIsRemoved) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  const auto places = segment.record({{.key = 1, .bytes = 64, .generation = 1}});
  segment.seal();
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), places[0], 1).is_ok());
  expect_mended(FindingKind::kPage);
  EXPECT_EQ(files_.stat(segment.path()).status().code(), StatusCode::kNotFound);
}

TEST_F(StoreCheck, TailsAreCutAndFootersWritten) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  segment.append(test_payload(1, 10'000));
  segment.sync();
  expect_mended(FindingKind::kTail);
  EXPECT_EQ(keys_present(5).size(), 5u);
  SegmentBuilder whole(files_, "/a", store_, 2);  // all there, but not sealed: untidy, not damaged
  whole.record({{.key = 6, .bytes = 64, .generation = 6}});
  whole.sync();
  EXPECT_FALSE(check(false).has_damage());
  expect_mended(FindingKind::kTail);
  EXPECT_EQ(keys_present(6).size(), 6u);
}

// The server was told of a failed sync and ended. What its file reads as is on the disk nowhere, until it is written
// once more: only then may a footer say that it is there.
TEST_F(StoreCheck, WhatAFooterSaysIsOnTheDisk) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimFileSystem files(seed);
    make_test_volume(files, "/a", store_, 0);
    SegmentBuilder segment(files, "/a", store_, 1);
    write_groups(segment);
    auto file = files.open(segment.path(), {.write = true});
    ASSERT_TRUE(file.is_ok() && files.sync_dir("/a").is_ok());
    files.fail_nth(1, sim::FileFault::kSyncLost);
    EXPECT_FALSE((*file)->sync_data().is_ok());
    const auto report = check_store(files, clock_, kChecked, {.repair = true, .progress = {}});
    ASSERT_TRUE(report.is_ok()) << report.status().to_string();
    files.crash();
    const auto store = inspect_store(files, kChecked, {});
    ASSERT_TRUE(store.is_ok()) << store.status().to_string();
    ASSERT_EQ(store->segments.size(), 1u);
    EXPECT_TRUE(store->segments[0].scan.has_footer);
    const VerifyReport verified = verify_pages(files, *store, {});
    EXPECT_EQ(verified.pages, 5u);
    EXPECT_TRUE(verified.damaged.empty());
  }
}

TEST_F(StoreCheck, HeadersHeadsAndFootersAreWrittenAgain) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  const std::uint64_t footer = segment.end();
  segment.seal();
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), 30, 4).is_ok());
  expect_mended(FindingKind::kHeader);
  EXPECT_EQ(keys_present(5).size(), 5u);
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), footer + 20, 4).is_ok());
  expect_mended(FindingKind::kTail);
  EXPECT_EQ(keys_present(5).size(), 5u);
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), kBlockBytes + 60, 4).is_ok());  // the first record's head
  expect_mended(FindingKind::kHeads);
  EXPECT_EQ(keys_present(5).size(), 5u);
}

// Found by fuzzing: without its header and every head, a segment was removed. Its footer lists it all.
TEST_F(StoreCheck, AFooterAloneKeepsASegment) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  segment.record({{.key = 1, .bytes = 100, .generation = 1}, {.key = 2, .parent = 1, .bytes = 3000, .generation = 2}});
  segment.seal();
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), 30, 4).is_ok());
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), kBlockBytes + 60, 4).is_ok());
  EXPECT_EQ(keys_present(2).size(), 2u) << "that is how it is read, too";
  expect_mended(FindingKind::kHeader);
  EXPECT_EQ(keys_present(2).size(), 2u);
}

// Found by fuzzing: the power went, and it was back.
TEST_F(StoreCheck, ALeftOverFileIsGoneForGood) {
  write_test_file(files_, "/a/FORMAT.tmp", test_payload(1, 10));
  ASSERT_TRUE(files_.sync_dir("/a").is_ok());
  expect_mended(FindingKind::kTemporary);
  files_.crash();
  EXPECT_TRUE(check(false).findings.empty());
}

TEST_F(StoreCheck, SeveralKindsOfDamageInOneSegment) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  const auto places = write_groups(segment);
  segment.promise_synced();
  segment.record({{.key = 6, .bytes = 64, .generation = 6}});
  segment.append(test_payload(1, 5000));
  segment.sync();
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), 9, 4).is_ok());          // header
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), places[2], 4).is_ok());  // page 3
  write_test_file(files_, "/a/CLEARED.tmp", test_payload(1, 10));
  expect_mended(FindingKind::kTemporary);
  EXPECT_EQ(keys_present(6), (std::set<std::uint64_t>{1, 2, 4, 5, 6}));
}

TEST_F(StoreCheck, ADamagedClearedIsTakenFromAnotherVolumeOrClearsAll) {
  make_test_volume(files_, "/b", store_, 1);
  const std::vector<std::string> two = {"/a", "/b"};
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  segment.seal();
  const auto good = encode_cleared(std::vector<Cleared>{{test_digest(77), 3}});
  write_test_file(files_, "/b/CLEARED", good);
  write_test_file(files_, "/a/CLEARED", test_payload(4, good.size()));
  expect_mended(FindingKind::kCleared, two);
  auto store = inspect_store(files_, two, {});
  ASSERT_TRUE(store.is_ok());
  EXPECT_EQ(store->volumes[0].cleared.size(), 1u);
  EXPECT_EQ(store->pages[0].state, PageState::kLive);
  write_test_file(files_, "/a/CLEARED", test_payload(4, good.size()));
  write_test_file(files_, "/b/CLEARED", test_payload(5, good.size()));
  expect_mended(FindingKind::kCleared, two);
  store = inspect_store(files_, two, {});
  for (const InspectedPage& page : store->pages) EXPECT_EQ(page.state, PageState::kCleared);
}

// Nothing is written while a segment is there that nobody can read: pages in it may be newer than all that is known.
TEST_F(StoreCheck, ADamagedClearedWaitsForEverySegment) {
  sim::HookedFiles files(7);
  make_test_volume(files, "/a", store_, 0);
  for (SegmentId number = 1; number <= 2; ++number) {
    SegmentBuilder segment(files, "/a", store_, number);
    segment.record({{.key = number, .bytes = 64, .generation = number}});
    segment.seal();
  }
  const auto damaged = test_payload(4, 72);
  write_test_file(files, "/a/CLEARED", damaged);
  const std::string unreadable = join_path("/a", segment_name(2));
  files.before_open = [&](const std::string& path) {
    return path == unreadable ? status_from_errno(EACCES, "open", path) : Status::ok();
  };
  const auto check_with = [&](bool repair) {
    return check_store(files, clock_, kChecked, {.repair = repair, .progress = {}}).value();
  };
  const CheckReport refused = check_with(true);
  const auto about_cleared = [](const Finding& finding) { return finding.kind == FindingKind::kCleared; };
  const auto finding = std::find_if(refused.findings.begin(), refused.findings.end(), about_cleared);
  ASSERT_NE(finding, refused.findings.end());
  EXPECT_FALSE(finding->is_repaired);
  EXPECT_NE(finding->remedy.find("cannot be read"), std::string::npos) << finding->remedy;
  files.before_open = nullptr;
  EXPECT_TRUE(check_with(true).findings[0].is_repaired);
  const auto store = inspect_store(files, kChecked, {});
  ASSERT_EQ(store->pages.size(), 2u);
  for (const InspectedPage& page : store->pages) EXPECT_EQ(page.state, PageState::kCleared);
}

// A page of 0 bytes at the end of a group lies where the next group begins, and a list by offset alone may name it
// behind that group's pages.
TEST_F(StoreCheck, GroupsThatEndInAPageOfNoBytesStayWhole) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  const auto places = segment.record(
      {{.key = 1, .pool = PoolName::kDeepseekV4C4, .bytes = 16384, .generation = 1},
       {.key = 1, .bytes = 0, .generation = 2},
       {.key = 2, .parent = 1, .pool = PoolName::kDeepseekV4C4, .bytes = 16384, .generation = 3, .group = 1},
       {.key = 2, .parent = 1, .bytes = 0, .generation = 4, .group = 1}});
  ASSERT_EQ(places[1], places[2]);
  segment.swap_in_footer(1, 2);
  segment.seal();
  ASSERT_TRUE(files_.corrupt_byte(segment.path(), places[0], 4).is_ok());
  const CheckReport mended = check(true);
  EXPECT_EQ(mended.removed_groups, 1u);
  EXPECT_EQ(mended.removed_pages, 2u) << "page 1 and its mark";
  const auto store = inspect_store(files_, kChecked, {});
  ASSERT_EQ(store->pages.size(), 2u);
  for (const InspectedPage& page : store->pages) EXPECT_EQ(page.page.key, test_digest(2));
}

TEST_F(StoreCheck, LeavesToPeopleWhatIsTheirs) {
  SegmentBuilder foreign(files_, "/a", test_store_id(9), 1);
  foreign.record({{.key = 1, .bytes = 64, .generation = 1}});
  foreign.seal();
  write_test_file(files_, "/a/notes.txt", test_payload(1, 10));
  const std::uint64_t before = files_.used_bytes();
  const CheckReport report = check(true);
  ASSERT_EQ(report.findings.size(), 2u);
  EXPECT_EQ(report.findings[0].kind, FindingKind::kForeignFile);
  EXPECT_EQ(report.findings[1].kind, FindingKind::kSegment);
  EXPECT_TRUE(report.has_damage());
  EXPECT_EQ(files_.used_bytes(), before);
  write_test_file(files_, "/a/FORMAT", test_payload(1, 10));  // now nothing at all is written
  write_test_file(files_, "/a/FORMAT.tmp", test_payload(1, 10));
  EXPECT_TRUE(check(true).has_damage());
  EXPECT_TRUE(files_.stat("/a/FORMAT.tmp").is_ok());
}

TEST_F(StoreCheck, RefusesWhileTheStoreIsInUseAndWhereNoneIs) {
  ASSERT_TRUE(files_.make_dirs("/none").is_ok());
  EXPECT_EQ(check_store(files_, clock_, std::vector<std::string>{"/none"}, {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files_.list("/none")->size(), 0u);
  const auto lock = files_.lock("/a/LOCK");
  ASSERT_TRUE(lock.is_ok());
  const auto refused = check_store(files_, clock_, kChecked, {.repair = true, .progress = {}});
  EXPECT_EQ(refused.status().code(), StatusCode::kConflict);
  EXPECT_NE(refused.status().message().find("A store has one process"), std::string::npos)
      << refused.status().message();
}

// Each operation of a repair fails once, and each may be the last before a crash: no whole group is ever lost.
TEST_F(StoreCheck, ARepairThatFailsOrCrashesLosesNothing) {
  bool ended = false;
  for (std::uint64_t n = 1; !ended; ++n) {
    SCOPED_TRACE("operation " + std::to_string(n));
    SimFileSystem files(n);
    make_test_volume(files, "/a", store_, 0);
    ASSERT_TRUE(files.sync_dir("/").is_ok());
    ASSERT_TRUE(files.sync_dir("/a").is_ok());
    SegmentBuilder segment(files, "/a", store_, 1);
    const auto places = write_groups(segment);
    segment.seal();
    ASSERT_TRUE(files.sync_dir("/a").is_ok());
    ASSERT_TRUE(files.corrupt_byte(segment.path(), places[2], 1).is_ok());
    files.fail_nth(n, sim::FileFault::kIoError, n % 2 == 0 ? 1 : 1'000'000);
    (void)check_store(files, clock_, kChecked, {.repair = true, .progress = {}});
    ended = !files.fault_fired();
    files.clear_fault();
    files.crash();
    const auto again = check_store(files, clock_, kChecked, {.repair = true, .progress = {}});
    ASSERT_TRUE(again.is_ok()) << again.status().to_string();
    for (const Finding& f : again->findings) EXPECT_TRUE(f.is_repaired || !f.is_damage) << f.path << f.what << f.remedy;
    const auto store = inspect_store(files, kChecked, {});
    ASSERT_TRUE(store.is_ok());
    std::set<Digest256> live;
    for (const InspectedPage& page : store->pages) {
      if (page.state == PageState::kLive) live.insert(page.page.key);
    }
    EXPECT_EQ(live, (std::set<Digest256>{test_digest(1), test_digest(2), test_digest(4), test_digest(5)}));
    EXPECT_TRUE(verify_pages(files, *store, {}).damaged.empty());
  }
}

// The defect: a check by root made a LOCK that the server's user may not open.
TEST_F(StoreCheck, WithoutRepairNoFileIsMade) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  segment.seal();
  const auto before = files_.list("/a");
  EXPECT_TRUE(check(false).findings.empty());
  EXPECT_EQ(*files_.list("/a"), *before);
  EXPECT_TRUE(check(true).findings.empty());
  EXPECT_TRUE(files_.stat("/a/LOCK").is_ok()) << "a repair takes the store for itself";
}

// A segment is made as an empty file, gets its room, and then a header: the power may go between.
TEST_F(StoreCheck, ASegmentThatWasBeingMadeIsUntidyNotDamaged) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  write_groups(segment);
  segment.seal();
  write_test_file(files_, join_path("/a", segment_name(2)), {});
  write_test_file(files_, join_path("/a", segment_name(3)), std::vector<std::byte>(3 << 20));
  const CheckReport found = check(false);
  EXPECT_EQ(found.findings.size(), 2u);
  EXPECT_FALSE(found.has_damage());
  expect_mended(FindingKind::kHeader);
  EXPECT_EQ(keys_present(5).size(), 5u);
  EXPECT_FALSE(files_.stat(join_path("/a", segment_name(2))).is_ok());
}

}  // namespace
}  // namespace larder::file_store
