#include "storage/file/segment_scan.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "sim/sim_file_system.h"
#include "storage/file/segment_writer.h"

namespace larder::file_store {
namespace {

constexpr SegmentId kSegment = 3;

// A segment of several groups on simulated files; page g.i of group g has key (g, i) and a payload of 100 * (i + 1).
class SegmentScanTest : public testing::Test {
 protected:
  void SetUp() override {
    store_[0] = 1;
    ASSERT_TRUE(files_.make_dirs("/d").is_ok());
    writer_ = std::make_unique<SegmentWriter>(files_, "/d", store_, 10, 20);
    ASSERT_TRUE(writer_->open_new(kSegment, 0).is_ok());
  }
  void append(std::uint8_t group, std::uint8_t count) {
    std::vector<std::vector<std::byte>> payloads;
    std::vector<Segment> pieces(count);
    std::vector<PageToAppend> pages;
    for (std::uint8_t i = 0; i < count; ++i) {
      payloads.emplace_back(100 * (i + 1u), static_cast<std::byte>(group * 16 + i));
      pieces[i] = {payloads.back().data(), payloads.back().size()};
      PageToAppend page;
      page.key.bytes[0] = group;
      page.key.bytes[1] = i;
      page.identity.namespace_digest.bytes[0] = 7;
      page.payload = {&pieces[i], 1};
      page.payload_bytes = pieces[i].size;
      page.checksum = payload_checksum(page.payload);
      pages.push_back(page);
    }
    std::vector<PageLocation> locations;
    ASSERT_TRUE(writer_->append_group(pages, locations).is_ok());
    group_end_.push_back(writer_->end_bytes());
    places_.push_back(locations);
  }
  std::string path() const { return "/d/" + segment_name(kSegment); }
  ScanResult scan(bool check = true) {
    auto file = files_.open(path(), {});
    EXPECT_TRUE(file.is_ok());
    auto found = scan_segment(**file, store_, kSegment, check);
    EXPECT_TRUE(found.is_ok()) << found.status().to_string();
    return found.is_ok() ? std::move(found).value() : ScanResult{};
  }
  // Groups found, by the first byte of the key; each must be whole.
  std::string groups_of(const ScanResult& found) {
    std::map<int, std::size_t> counts;
    for (const ScannedPage& page : found.pages) ++counts[page.key.bytes[0]];
    std::string out;
    for (const auto& [group, count] : counts) {
      EXPECT_EQ(count, places_.at(static_cast<std::size_t>(group)).size()) << "half of group " << group;
      out += std::to_string(group);
    }
    return out;
  }
  void flip(std::uint64_t offset) { ASSERT_TRUE(files_.corrupt_byte(path(), offset, 0x10).is_ok()); }

  sim::SimFileSystem files_{1};
  StoreId store_{};
  std::unique_ptr<SegmentWriter> writer_;
  std::vector<std::uint64_t> group_end_;
  std::vector<std::vector<PageLocation>> places_;
};

TEST_F(SegmentScanTest, FindsWhatWasWritten) {
  for (std::uint8_t g = 0; g < 4; ++g) append(g, static_cast<std::uint8_t>(g + 1));
  const ScanResult found = scan();
  EXPECT_EQ(groups_of(found), "0123");
  EXPECT_EQ(found.pages.size(), 10u);
  EXPECT_EQ(found.end_bytes, found.file_bytes);
  EXPECT_EQ(found.end_bytes, group_end_.back());
  EXPECT_EQ(found.max_generation, 10u + 9);
  EXPECT_EQ(found.max_group, 20u + 3);
  EXPECT_EQ(found.synced_bytes, 0u);
  EXPECT_EQ(found.pages[1].location.offset, places_[1][0].offset);
  EXPECT_EQ(found.pages[2].location.generation, places_[1][1].generation);
}

TEST_F(SegmentScanTest, ASealedSegmentIsMarkedAsSynced) {
  append(0, 2);
  EXPECT_TRUE(writer_->seal(true));
  const ScanResult found = scan();
  EXPECT_EQ(found.synced_bytes, group_end_[0]);
  EXPECT_EQ(found.end_bytes, group_end_[0] + commit_bytes(0));
  EXPECT_EQ(groups_of(found), "0");
}

TEST_F(SegmentScanTest, DamageCostsOnlyItsGroup) {
  for (std::uint8_t g = 0; g < 4; ++g) append(g, 2);
  // In the first envelope, the second one, the first payload, and the commit record of group 1.
  const std::uint64_t commit_at = group_end_[1] - commit_bytes(2);
  for (const std::uint64_t at : {places_[1][0].offset + 20, places_[1][1].offset + 130,
                                 places_[1][0].offset + kEnvelopeBytes + 5, commit_at + 3, commit_at + 70}) {
    flip(at);
    const ScanResult found = scan();
    EXPECT_EQ(groups_of(found), "023") << at;
    EXPECT_EQ(found.corrupt_groups, 1u) << at;
    EXPECT_EQ(found.end_bytes, found.file_bytes) << "no torn tail";
    flip(at);
  }
  flip(places_[1][0].offset + kEnvelopeBytes + 5);
  EXPECT_EQ(groups_of(scan(false)), "0123") << "payloads are not read unless asked; a read finds out";
}

TEST_F(SegmentScanTest, SyncedPayloadsAreNotRead) {
  append(0, 1);
  EXPECT_TRUE(writer_->seal(true));
  flip(places_[0][0].offset + kEnvelopeBytes + 5);
  EXPECT_EQ(groups_of(scan(true)), "0");
}

TEST_F(SegmentScanTest, ADamagedHeaderCostsNothing) {
  append(0, 1);
  flip(20);
  EXPECT_EQ(groups_of(scan()), "0");
}

TEST_F(SegmentScanTest, TornTails) {
  for (std::uint8_t g = 0; g < 3; ++g) append(g, 2);
  OpenOptions options;
  options.write = true;
  auto file = files_.open(path(), options);
  ASSERT_TRUE(file.is_ok());
  for (std::uint64_t size = group_end_[2] - 1; size >= group_end_[1]; --size) {
    ASSERT_TRUE((*file)->truncate(size).is_ok());
    const ScanResult found = scan();
    EXPECT_EQ(groups_of(found), "01") << size;
    EXPECT_EQ(found.end_bytes, group_end_[1]) << size;
  }
  ASSERT_TRUE((*file)->truncate(70).is_ok());
  EXPECT_EQ(scan().end_bytes, kSegmentHeaderBytes);
  ASSERT_TRUE((*file)->truncate(10).is_ok());
  EXPECT_EQ(scan_segment(**file, store_, kSegment, true).status().code(), StatusCode::kCorrupt);
}

// An envelope that is whole, but not the one that was committed (a stale sector of an undone group).
TEST_F(SegmentScanTest, EnvelopesMustBeTheCommittedOnes) {
  append(0, 2);
  append(1, 2);
  OpenOptions options;
  options.write = true;
  auto file = files_.open(path(), options);
  ASSERT_TRUE(file.is_ok());
  EnvelopeBytes bytes;
  ASSERT_TRUE(read_exactly(**file, bytes, places_[0][0].offset).is_ok());
  Envelope envelope = decode_envelope(bytes).value();
  envelope.key.bytes[5] ^= 1;
  ASSERT_TRUE(write_fully(**file, encode_envelope(envelope), places_[0][0].offset).is_ok());
  const ScanResult found = scan(false);
  EXPECT_EQ(groups_of(found), "1");
  EXPECT_EQ(found.corrupt_groups, 1u);
}

TEST_F(SegmentScanTest, AnotherStoreOrNumberIsRefused) {
  append(0, 1);
  auto file = files_.open(path(), {});
  ASSERT_TRUE(file.is_ok());
  StoreId other = store_;
  other[15] ^= 1;
  EXPECT_EQ(scan_segment(**file, other, kSegment, true).status().code(), StatusCode::kConflict);
  EXPECT_EQ(scan_segment(**file, store_, kSegment + 1, true).status().code(), StatusCode::kConflict);
}

TEST_F(SegmentScanTest, AFailedAppendIsCutOff) {
  append(0, 1);
  const std::uint64_t end = writer_->end_bytes();
  files_.fail_nth(1, sim::FileFault::kWriteTorn);
  Segment piece{nullptr, 0};
  PageToAppend page;
  page.payload = {&piece, 1};
  std::vector<PageLocation> locations;
  EXPECT_EQ(writer_->append_group({&page, 1}, locations).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files_.stat(path())->size_bytes, end);
  EXPECT_TRUE(writer_->has_file());
  append(1, 1);
  EXPECT_EQ(groups_of(scan()), "01");
}

// Whatever the damage: no crash, no half groups, and groups that no damage touched in front of a whole one survive.
TEST_F(SegmentScanTest, RandomDamage) {
  for (std::uint8_t g = 0; g < 9; ++g) append(g, static_cast<std::uint8_t>(1 + g % 4));
  const std::uint64_t size = files_.stat(path())->size_bytes;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<std::uint64_t> flips;
    for (std::uint64_t i = 0, count = 1 + rng.below(6); i < count; ++i) flips.push_back(rng.below(size));
    for (const std::uint64_t at : flips) flip(at);
    const std::string found = groups_of(scan());
    std::uint64_t start = kSegmentHeaderBytes;
    for (std::size_t g = 0; g < group_end_.size(); ++g) {
      const auto hits = [&](std::uint64_t at) { return at >= start && at < group_end_[g]; };
      const bool is_untouched = std::none_of(flips.begin(), flips.end(), hits);
      const bool is_found = found.find(std::to_string(g)) != std::string::npos;
      EXPECT_TRUE(is_found || !is_untouched) << "group " << g << " in " << found;
      start = group_end_[g];
    }
    for (const std::uint64_t at : flips) flip(at);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace larder::file_store
