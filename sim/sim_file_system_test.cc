// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_file_system.h"

#include <gtest/gtest.h>

#include <string>

namespace larder::sim {
namespace {

std::vector<std::byte> filled(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

std::unique_ptr<File> open_new(FileSystem& files, const std::string& path) {
  auto file = files.open(path, {.write = true, .create = true});
  EXPECT_TRUE(file.is_ok()) << file.status().to_string();
  return std::move(file).value();
}

TEST(SimFileSystem, ReadsBackAndReportsShortReads) {
  SimFileSystem files(1);
  ASSERT_TRUE(files.make_dirs("/a/b").is_ok());
  auto file = open_new(files, "/a/b/f");
  ASSERT_TRUE(write_fully(*file, filled(100, 7), 50).is_ok());
  EXPECT_EQ(*file->size_bytes(), 150u);
  auto into = filled(200, 1);
  EXPECT_EQ(*file->read_at(into, 0), 150u);
  EXPECT_EQ(into[49], std::byte{0});  // a hole
  EXPECT_EQ(into[50], std::byte{7});
  EXPECT_EQ(read_exactly(*file, into, 0).code(), StatusCode::kCorrupt);
  EXPECT_EQ(*files.list("/a"), std::vector<std::string>{"b"});
  EXPECT_EQ(files.open("/none", {}).status().code(), StatusCode::kNotFound);
}

TEST(SimFileSystem, SyncedContentsAndNamesSurviveEveryCrash) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimFileSystem files(seed);
    auto file = open_new(files, "/f.tmp");
    ASSERT_TRUE(write_fully(*file, filled(3000, 5), 0).is_ok());
    ASSERT_TRUE(file->sync_data().is_ok());
    ASSERT_TRUE(files.rename("/f.tmp", "/f").is_ok());
    ASSERT_TRUE(files.sync_dir("/").is_ok());
    files.crash();
    EXPECT_EQ(file->sync_data().code(), StatusCode::kUnavailable);
    auto again = files.open("/f", {});
    ASSERT_TRUE(again.is_ok());
    auto into = filled(3000, 0);
    ASSERT_TRUE(read_exactly(**again, into, 0).is_ok());
    EXPECT_EQ(into, filled(3000, 5));
    EXPECT_EQ(files.stat("/f.tmp").status().code(), StatusCode::kNotFound);
  }
}

TEST(SimFileSystem, EachDiskHasItsOwnJournal) {
  bool only_second = false;  // a later change survives while an earlier one, on another disk, does not
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimFileSystem files(seed);
    files.add_disk("/a");
    files.add_disk("/b");
    EXPECT_NE(files.stat("/a")->device_id, files.stat("/b")->device_id);
    (void)open_new(files, "/a/f");
    (void)open_new(files, "/b/f");
    EXPECT_FALSE(files.rename("/a/f", "/b/g").is_ok());
    const bool sync = seed % 2 == 0;
    if (sync) {
      ASSERT_TRUE(files.sync_dir("/b").is_ok());
    }
    files.crash();
    const bool first = files.stat("/a/f").is_ok(), second = files.stat("/b/f").is_ok();
    if (sync) {
      EXPECT_TRUE(second);
    }
    only_second = only_second || (second && !first);
    EXPECT_TRUE(files.list("/a").is_ok());
  }
  EXPECT_TRUE(only_second);
}

TEST(SimFileSystem, UnsyncedWritesAreKeptDroppedOrTornInSectors) {
  bool saw_old = false;
  bool saw_new = false;
  bool saw_torn = false;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SimFileSystem files(seed);
    auto file = open_new(files, "/f");
    ASSERT_TRUE(write_fully(*file, filled(2048, 1), 0).is_ok());
    ASSERT_TRUE(file->sync_data().is_ok());
    ASSERT_TRUE(files.sync_dir("/").is_ok());
    ASSERT_TRUE(write_fully(*file, filled(2048, 2), 0).is_ok());
    files.crash();
    auto into = filled(2048, 0);
    ASSERT_TRUE(read_exactly(**files.open("/f", {}), into, 0).is_ok());
    std::size_t fresh = 0;
    for (std::size_t sector = 0; sector < 4; ++sector) {
      const auto begin = into.begin() + static_cast<std::ptrdiff_t>(sector * kSectorBytes);
      EXPECT_EQ(std::vector<std::byte>(begin, begin + kSectorBytes), filled(kSectorBytes, static_cast<int>(*begin)));
      fresh += *begin == std::byte{2} ? 1 : 0;
    }
    saw_old |= fresh == 0;
    saw_new |= fresh == 4;
    saw_torn |= fresh > 0 && fresh < 4;
  }
  EXPECT_TRUE(saw_old && saw_new && saw_torn);
}

TEST(SimFileSystem, UnsyncedNamesMayVanishAndKeepTheirOrder) {
  bool lost = false;
  bool kept = false;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimFileSystem files(seed);
    open_new(files, "/first");
    open_new(files, "/second");
    files.crash();
    const bool first = files.stat("/first").is_ok();
    const bool second = files.stat("/second").is_ok();
    EXPECT_TRUE(first || !second);
    lost |= !first;
    kept |= second;
  }
  EXPECT_TRUE(lost && kept);
}

TEST(SimFileSystem, FailsTheNthOperation) {
  SimFileSystem files(1);
  auto file = open_new(files, "/f");
  files.fail_nth(2, FileFault::kNoSpace);
  EXPECT_TRUE(file->write_at(filled(8, 1), 0).is_ok());
  EXPECT_EQ(file->write_at(filled(8, 1), 8).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(files.fault_fired());
  EXPECT_TRUE(file->sync_data().is_ok());
  files.fail_nth(1, FileFault::kShort);
  EXPECT_EQ(*file->write_at(filled(8, 1), 0), 4u);
  files.fail_nth(1, FileFault::kIoError);
  EXPECT_EQ(file->sync_data().code(), StatusCode::kUnavailable);
}

// What a failed sync of the kernel leaves behind: pages that are read, count as clean, and are not on the disk.
TEST(SimFileSystem, ALostSyncIsToldOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimFileSystem files(seed);
    auto file = open_new(files, "/f");
    ASSERT_TRUE(write_fully(*file, filled(2048, 1), 0).is_ok());
    ASSERT_TRUE(file->sync_data().is_ok());
    ASSERT_TRUE(files.sync_dir("/").is_ok());
    ASSERT_TRUE(write_fully(*file, filled(2048, 2), 0).is_ok());
    files.fail_nth(1, FileFault::kSyncLost);
    EXPECT_EQ(file->sync_data().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(file->sync_data().is_ok());
    auto into = filled(2048, 0);
    ASSERT_TRUE(read_exactly(*file, into, 0).is_ok());
    EXPECT_EQ(into, filled(2048, 2));
    files.crash();
    ASSERT_TRUE(read_exactly(**files.open("/f", {}), into, 0).is_ok());
    EXPECT_EQ(into, filled(2048, 1)) << "seed " << seed;
  }
}

TEST(SimFileSystem, IsFullWhenFull) {
  SimFileSystem files(1, 1000);
  auto file = open_new(files, "/f");
  EXPECT_EQ(*file->write_at(filled(1500, 1), 0), 1000u);
  EXPECT_EQ(write_fully(*file, filled(1, 1), 1000).code(), StatusCode::kOverloaded);
  EXPECT_TRUE(file->write_at(filled(10, 2), 0).is_ok());  // over what is there
  EXPECT_EQ(files.space("/")->free_bytes, 0u);
}

TEST(SimFileSystem, LocksExcludeAndEndWithACrash) {
  SimFileSystem files(1);
  auto held = files.lock("/lock");
  ASSERT_TRUE(held.is_ok());
  EXPECT_EQ(files.lock("/lock").status().code(), StatusCode::kConflict);
  files.crash();
  auto after = files.lock("/lock");
  ASSERT_TRUE(after.is_ok());
  held->reset();  // of the time before: must not free the new one
  EXPECT_EQ(files.lock("/lock").status().code(), StatusCode::kConflict);
}

TEST(SimFileSystem, DirectFilesInsistOnAlignment) {
  SimFileSystem files(1);
  auto file = files.open("/f", {.write = true, .create = true, .direct = true});
  ASSERT_TRUE(file.is_ok());
  alignas(kDirectAlignment) static std::byte buffer[2 * kDirectAlignment] = {};
  EXPECT_TRUE((*file)->write_at(std::span(buffer, kDirectAlignment), 0).is_ok());
  EXPECT_EQ((*file)->write_at(std::span(buffer, 512), 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*file)->read_at(std::span(buffer + 1, kDirectAlignment), 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(SimFileSystem, CorruptByteFlipsBits) {
  SimFileSystem files(1);
  auto file = open_new(files, "/f");
  ASSERT_TRUE(write_fully(*file, filled(4, 0), 0).is_ok());
  ASSERT_TRUE(files.corrupt_byte("/f", 2, 0x81).is_ok());
  auto into = filled(4, 9);
  ASSERT_TRUE(read_exactly(*file, into, 0).is_ok());
  EXPECT_EQ(into[2], std::byte{0x81});
}

}  // namespace
}  // namespace larder::sim
