// SPDX-License-Identifier: Apache-2.0
#include "storage/file/store_inspect.h"

#include "sim/hooked_files.h"
#include "sim/sim_file_system.h"
#include "storage/file/store_tools_test_util.h"

namespace larder::file_store {
namespace {

using sim::SimFileSystem;

const std::vector<std::string> kInspected = {"/a"};
const std::vector<std::string> kTwo = {"/a", "/b"};

class StoreInspect : public ::testing::Test {
 protected:
  void SetUp() override { make_test_volume(files_, "/a", store_, 0); }
  StoreReport look(std::span<const std::string> directories = kInspected) {
    auto report = inspect_store(files_, directories, {});
    EXPECT_TRUE(report.is_ok()) << report.status().to_string();
    return report.is_ok() ? std::move(*report) : StoreReport{};
  }
  std::size_t count(const StoreReport& report, PageState state) {
    return static_cast<std::size_t>(std::count_if(report.pages.begin(), report.pages.end(),
                                                  [&](const InspectedPage& page) { return page.state == state; }));
  }

  SimFileSystem files_{7};
  StoreId store_ = test_store_id(5);
};

TEST_F(StoreInspect, ListsPagesOfSealedAndOpenSegments) {
  SegmentBuilder sealed(files_, "/a", store_, 1);
  sealed.record({{.key = 1, .bytes = 100, .generation = 1}, {.key = 2, .parent = 1, .bytes = 20'000, .generation = 2}});
  sealed.seal();
  SegmentBuilder open(files_, "/a", store_, 2);
  open.record({{.key = 3, .parent = 2, .bytes = 0, .generation = 3}});
  const StoreReport report = look();
  ASSERT_EQ(report.segments.size(), 2u);
  EXPECT_TRUE(report.segments[0].scan.has_footer);
  EXPECT_FALSE(report.segments[1].scan.has_footer);
  ASSERT_EQ(report.pages.size(), 3u);
  EXPECT_EQ(report.pages[1].page.parent, test_digest(1));
  EXPECT_EQ(report.path_of(report.pages[2]), "/a/segment-0000000000000002.larder");
  EXPECT_EQ(count(report, PageState::kLive), 3u);
  EXPECT_TRUE(check_volumes(report).is_ok());
  const VerifyReport verified = verify_pages(files_, report, {});
  EXPECT_EQ(verified.pages, 3u);
  EXPECT_EQ(verified.bytes, 20'100u);
  EXPECT_TRUE(verified.damaged.empty());
}

TEST_F(StoreInspect, OldGenerationsAndClearedNamespacesAreDead) {
  make_test_volume(files_, "/b", store_, 1);
  SegmentBuilder first(files_, "/a", store_, 1);
  first.record({{.key = 1, .bytes = 64, .generation = 1}, {.key = 2, .space = 2, .bytes = 64, .generation = 2}});
  first.seal();
  SegmentBuilder second(files_, "/b", store_, 2);
  second.record({{.key = 1, .bytes = 64, .generation = 3},
                 {.key = 1, .bytes = 64, .generation = 3},  // a copy: cleaning was interrupted
                 {.key = 2, .space = 2, .bytes = 64, .generation = 4}});
  second.seal();
  write_test_file(files_, "/b/CLEARED", encode_cleared(std::vector<Cleared>{{test_digest(2), 4}}));
  const StoreReport report = look(kTwo);
  ASSERT_EQ(report.pages.size(), 5u);
  EXPECT_EQ(report.pages[0].state, PageState::kSuperseded);
  EXPECT_EQ(report.pages[1].state, PageState::kCleared);
  EXPECT_EQ(report.pages[4].state, PageState::kLive);
  EXPECT_EQ(count(report, PageState::kLive), 2u);
  EXPECT_EQ(report.cleared.size(), 1u);
}

TEST_F(StoreInspect, WithoutAWholeClearedEveryPageCountsAsCleared) {
  make_test_volume(files_, "/b", store_, 1);
  SegmentBuilder segment(files_, "/a", store_, 1);
  segment.record({{.key = 1, .bytes = 64, .generation = 1}});
  segment.seal();
  write_test_file(files_, "/a/CLEARED", test_payload(1, 72));
  EXPECT_EQ(count(look(kTwo), PageState::kCleared), 1u);
  write_test_file(files_, "/b/CLEARED", encode_cleared(std::vector<Cleared>{{test_digest(9), 1}}));
  EXPECT_EQ(count(look(kTwo), PageState::kLive), 1u);
}

TEST_F(StoreInspect, FindsEveryFlippedBitOfAPayload) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  const auto places =
      segment.record({{.key = 1, .bytes = 5000, .generation = 1}, {.key = 2, .bytes = 16'384, .generation = 2}});
  segment.seal();
  Rng rng(11);
  for (int round = 0; round < 30; ++round) {
    const std::size_t which = rng.below(2);
    const std::uint64_t at = places[which] + rng.below(which == 0 ? 5000 : 16'384);
    const auto mask = static_cast<std::uint8_t>(1u << rng.below(8));
    ASSERT_TRUE(files_.corrupt_byte(segment.path(), at, mask).is_ok());
    const StoreReport report = look();
    const VerifyReport verified = verify_pages(files_, report, {});
    ASSERT_EQ(verified.damaged.size(), 1u) << "byte " << at;
    EXPECT_EQ(verified.damaged[0].page, which);
    EXPECT_EQ(verified.damaged[0].status.code(), StatusCode::kCorrupt);
    EXPECT_EQ(verified.pages, 1u);
    ASSERT_TRUE(files_.corrupt_byte(segment.path(), at, mask).is_ok());
  }
}

TEST_F(StoreInspect, AFailingSectorCostsOnlyItsPage) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  segment.record({{.key = 1, .bytes = 20'000, .generation = 1}, {.key = 2, .bytes = 20'000, .generation = 2}});
  segment.seal();
  const StoreReport report = look();
  files_.fail_nth(2, sim::FileFault::kIoError, 2);  // open; then the window, and the page alone
  const VerifyReport verified = verify_pages(files_, report, {});
  ASSERT_EQ(verified.damaged.size(), 1u);
  EXPECT_EQ(verified.damaged[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(verified.pages, 1u);
}

TEST_F(StoreInspect, WhatAServerChangesMeanwhileIsNoDamage) {
  SegmentBuilder removed(files_, "/a", store_, 1);
  removed.record({{.key = 1, .bytes = 64, .generation = 1}});
  removed.seal();
  SegmentBuilder growing(files_, "/a", store_, 2);
  growing.record({{.key = 2, .bytes = 64, .generation = 2}});
  growing.promise_synced();
  const auto places = growing.record({{.key = 3, .bytes = 64, .generation = 3}});
  ASSERT_TRUE(files_.corrupt_byte(growing.path(), places[0], 1).is_ok());  // its payload is still on the way
  growing.append(std::vector<std::byte>(2 * kBlockBytes));  // so is all of this record, but the one behind it is there
  growing.record({{.key = 4, .bytes = 64, .generation = 5}});
  const StoreReport report = look();
  ASSERT_EQ(report.pages.size(), 4u);
  EXPECT_EQ(report.segments[1].damaged_groups(), 0u);
  ASSERT_TRUE(files_.remove(removed.path()).is_ok());
  const VerifyReport verified = verify_pages(files_, report, {});
  EXPECT_EQ(verified.vanished, 1u);
  EXPECT_EQ(verified.unfinished, 1u);
  EXPECT_EQ(verified.pages, 2u);
  EXPECT_TRUE(verified.damaged.empty());
}

TEST_F(StoreInspect, AGapInWhatWasSyncedIsDamage) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  segment.append(std::vector<std::byte>(2 * kBlockBytes));
  segment.record({{.key = 1, .bytes = 64, .generation = 1}});
  EXPECT_EQ(look().segments[0].damaged_groups(), 0u);
  segment.promise_synced();
  segment.record({{.key = 2, .bytes = 64, .generation = 2}});
  const StoreReport report = look();
  EXPECT_EQ(report.segments[0].damaged_groups(), 1u);
  EXPECT_EQ(report.segments[0].problem().code(), StatusCode::kCorrupt);
}

// A sealed one, too, of which footer and a record's head are damaged: its file is named.
TEST_F(StoreInspect, ASegmentWithAProblemIsNamed) {
  SegmentBuilder segment(files_, "/a", store_, 1);
  segment.record({{.key = 1, .bytes = 64, .generation = 1}});
  const std::uint64_t second = segment.end();
  segment.record({{.key = 2, .bytes = 64, .generation = 2}});
  segment.promise_synced();
  segment.record({{.key = 3, .bytes = 64, .generation = 3}});
  const std::uint64_t footer = segment.end();
  segment.seal();
  EXPECT_TRUE(look().segments[0].problem().is_ok());
  for (const std::uint64_t at : {second, footer}) ASSERT_TRUE(files_.corrupt_byte(segment.path(), at + 40, 1).is_ok());
  const Status problem = look().segments[0].problem();
  EXPECT_EQ(problem.code(), StatusCode::kCorrupt);
  EXPECT_NE(problem.message().find(segment.path()), std::string::npos) << problem.message();
}

// The defect: `ls` and `export` beside a server told of damage where it had just sealed a segment.
TEST_F(StoreInspect, ASegmentThatIsSealedMeanwhileIsNoProblem) {
  sim::HookedFiles hooked(7);
  make_test_volume(hooked.inner, "/a", store_, 0);
  SegmentBuilder segment(hooked.inner, "/a", store_, 1);
  for (std::uint64_t key = 1; key <= 3; ++key) segment.record({{.key = key, .bytes = 64, .generation = key}});
  const std::uint64_t end = segment.end();
  const auto file = hooked.inner.open(segment.path(), {.write = true}).value();
  for (int reads_before = 1; reads_before <= 6; ++reads_before) {
    SCOPED_TRACE(reads_before);
    ASSERT_TRUE(file->truncate(end).is_ok());
    ASSERT_TRUE(file->allocate(0, end + (4 << 20)).is_ok());
    int reads = 0;
    hooked.before_read = [&](const std::string& path) {
      if (path == segment.path() && ++reads == reads_before) {
        EXPECT_TRUE(file->truncate(end).is_ok());
      }
      return Status::ok();
    };
    const auto report = inspect_store(hooked, kInspected, {});
    ASSERT_TRUE(report.is_ok()) << report.status().to_string();
    EXPECT_EQ(report->pages.size(), 3u);
    EXPECT_TRUE(report->segments.at(0).problem().is_ok()) << report->segments.at(0).problem().to_string();
  }
}

TEST_F(StoreInspect, SaysWhatIsNoStoreOrNotOne) {
  ASSERT_TRUE(files_.make_dirs("/empty").is_ok());
  EXPECT_EQ(inspect_store(files_, std::vector<std::string>{}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(inspect_store(files_, std::vector<std::string>{"/a", "/a/"}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(inspect_store(files_, std::vector<std::string>{"/none"}, {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(check_volumes(look(std::vector<std::string>{"/empty"})).code(), StatusCode::kNotFound);
  make_test_volume(files_, "/b", test_store_id(6), 1);
  EXPECT_EQ(check_volumes(look(kTwo)).code(), StatusCode::kConflict);
  make_test_volume(files_, "/b", store_, 0);
  EXPECT_EQ(check_volumes(look(kTwo)).code(), StatusCode::kConflict);
  write_test_file(files_, "/b/FORMAT", test_payload(3, 50));
  EXPECT_EQ(check_volumes(look(kTwo)).code(), StatusCode::kCorrupt);
}

TEST(PageSelection, DigitsPoolsAndKeys) {
  EXPECT_EQ(*parse_digest_prefix("--namespace", "ABcd"), "abcd");
  for (const char* bad : {"", "abc", "xyz1", "12345678901234567890123456789012345678901234567890123456789012345"}) {
    EXPECT_EQ(parse_digest_prefix("--namespace", bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  ListedPage page;
  page.identity = {test_digest(1), test_digest(2), PoolName::kMamba};
  page.key = test_digest(3);
  EXPECT_TRUE(is_selected({}, page));
  EXPECT_TRUE(is_selected(
      {test_digest(1).hex().substr(0, 6), {PoolName::kKv, PoolName::kMamba}, {"ffff", test_digest(3).hex()}}, page));
  EXPECT_FALSE(is_selected({"0000", {}, {}}, page));
  EXPECT_FALSE(is_selected({"", {PoolName::kKv}, {}}, page));
  EXPECT_FALSE(is_selected({"", {}, {test_digest(4).hex()}}, page));
}

// A server makes segments as empty files, gives them their room, and then a header.
TEST_F(StoreInspect, ASegmentThatIsBeingMadeIsNoProblem) {
  std::vector<std::byte> zeros(3 << 20);
  write_test_file(files_, join_path("/a", segment_name(1)), {});
  write_test_file(files_, join_path("/a", segment_name(2)), zeros);
  zeros.back() = std::byte{1};
  write_test_file(files_, join_path("/a", segment_name(3)), zeros);
  write_test_file(files_, join_path("/a", segment_name(4)), test_payload(1, 20'000));
  const StoreReport report = look();
  ASSERT_EQ(report.segments.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.segments[i].is_unwritten, i < 2) << i;
    EXPECT_EQ(report.segments[i].problem().is_ok(), i < 2) << i;
  }
}

}  // namespace
}  // namespace larder::file_store
