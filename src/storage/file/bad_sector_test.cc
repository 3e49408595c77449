// SPDX-License-Identifier: Apache-2.0
// Recovery on a disk with a sector that cannot be read.
#include <cerrno>
#include <memory>
#include <utility>

#include "sim/passing_file.h"
#include "sim/sim_file_system.h"
#include "storage/file/segment_scan.h"
#include "storage/file/store_tools_test_util.h"

namespace larder::file_store {
namespace {

constexpr std::uint64_t kBadSectorPages = 200;
constexpr std::size_t kPageBytesEach = 6000;

class BadSectorFile final : public sim::PassingFile {
 public:
  BadSectorFile(std::unique_ptr<File> file, std::uint64_t sector)
      : PassingFile(std::move(file)), begin_(sector * sim::kSectorBytes) {}
  [[nodiscard]] Result<std::size_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    if (offset < begin_ + sim::kSectorBytes && begin_ < offset + into.size()) {
      ++errors;
      return status_from_errno(EIO, "read", path());
    }
    return PassingFile::read_at(into, offset);
  }
  int errors = 0;

 private:
  const std::uint64_t begin_;
};

class BadSector : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(files_.make_dirs("/a").is_ok()); }
  // An unsealed segment; where its pages lie. Records before the last few are promised to be on disk.
  std::vector<std::uint64_t> write() {
    SegmentBuilder segment(files_, "/a", store_, 1);
    std::vector<std::uint64_t> places;
    for (std::uint64_t i = 1; i <= kBadSectorPages; ++i) {
      if (i == kBadSectorPages / 2) segment.promise_synced();
      places.push_back(segment.record({{.key = i, .bytes = kPageBytesEach, .generation = i}}).at(0));
    }
    segment.sync();
    return places;
  }
  std::unique_ptr<BadSectorFile> open(std::uint64_t bad_byte) {
    auto file = files_.open(join_path("/a", segment_name(1)), {});
    EXPECT_TRUE(file.is_ok()) << file.status().to_string();
    return std::make_unique<BadSectorFile>(std::move(file).value(), bad_byte / sim::kSectorBytes);
  }

  sim::SimFileSystem files_{7};
  StoreId store_ = test_store_id(5);
};

// The defect: a head is read with what lies behind it, and the error of a payload there was taken for the head's, so
// that the scan ended.
TEST_F(BadSector, InAPayloadItCostsNoOtherPage) {
  const std::vector<std::uint64_t> places = write();
  for (const std::uint64_t damaged : {std::uint64_t{0}, std::uint64_t{1}, kBadSectorPages / 2, kBadSectorPages - 1}) {
    SCOPED_TRACE("page " + std::to_string(damaged));
    const auto file = open(places[damaged] + kPageBytesEach / 2);
    const auto found = scan_segment(*file, store_, 1, false);
    ASSERT_TRUE(found.is_ok()) << found.status().to_string();
    EXPECT_TRUE(found->io.is_ok()) << found->io.to_string();
    EXPECT_EQ(found->pages.size(), kBadSectorPages) << "a read of that page will tell";
    EXPECT_EQ(found->corrupt_groups, 0u);
    EXPECT_LE(file->errors, 2) << "a dying disk takes its time for each";
  }
}

// Payloads that nobody has promised are read, too: the bad one is kept, as a read may succeed next time.
TEST_F(BadSector, InAPayloadThatIsCheckedItCostsNoOtherPage) {
  const std::vector<std::uint64_t> places = write();
  for (const std::uint64_t damaged : {std::uint64_t{3}, kBadSectorPages / 2 + 20}) {
    SCOPED_TRACE("page " + std::to_string(damaged));
    const auto file = open(places[damaged] + kPageBytesEach / 2);
    const auto found = scan_segment(*file, store_, 1, true);
    ASSERT_TRUE(found.is_ok()) << found.status().to_string();
    EXPECT_EQ(found->pages.size(), kBadSectorPages);
    EXPECT_EQ(found->io.is_ok(), damaged < kBadSectorPages / 2) << "what was promised is not read";
  }
}

TEST_F(BadSector, InAHeadItIsSaid) {
  const std::vector<std::uint64_t> places = write();
  const auto file = open(places[50] / kBlockBytes * kBlockBytes);
  const auto found = scan_segment(*file, store_, 1, false);
  ASSERT_TRUE(found.is_ok()) << found.status().to_string();
  EXPECT_FALSE(found->io.is_ok()) << "what lies behind is unknown, not torn";
  EXPECT_EQ(found->pages.size(), 50u);
}

}  // namespace
}  // namespace larder::file_store
