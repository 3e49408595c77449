// SPDX-License-Identifier: Apache-2.0
#include "base/file_system.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

namespace larder {
namespace {

// A fresh directory under the system's temporary one, removed at the end.
class RealFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = testing::TempDir() + "larder_files_" + std::to_string(getpid()) + test->name();
    std::filesystem::remove_all(root_);
    ASSERT_TRUE(files_.make_dirs(join_path(root_, "a/b")).is_ok());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  FileSystem& files_ = real_file_system();
  std::string root_;
};

TEST_F(RealFiles, WritesReadsSyncsRenamesRemoves) {
  const std::string path = join_path(root_, "a/b/f.tmp");
  auto file = files_.open(path, {.write = true, .create = true, .exclusive = true});
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  const std::vector<std::byte> data(1000, std::byte{9});
  ASSERT_TRUE((*file)->allocate(0, 2000).is_ok());
  ASSERT_TRUE(write_fully(**file, data, 10).is_ok());
  ASSERT_TRUE((*file)->sync_data().is_ok());
  std::vector<std::byte> first(10);
  std::vector<std::byte> second(1000);
  const std::span<std::byte> parts[] = {first, second};
  EXPECT_EQ((*file)->readv_at(parts, 0).value(), 1010u);
  EXPECT_EQ(second, data);
  EXPECT_EQ(*(*file)->size_bytes(), 2000u);
  EXPECT_GE((*file)->native_handle(), 0);
  const std::string target = join_path(root_, "a/b/f");
  ASSERT_TRUE(files_.rename(path, target).is_ok());
  ASSERT_TRUE(files_.sync_dir(parent_path(target)).is_ok());
  EXPECT_EQ(*files_.list(join_path(root_, "a/b")), std::vector<std::string>{"f"});
  EXPECT_EQ(read_exactly(**file, second, 1500).code(), StatusCode::kCorrupt);
  ASSERT_TRUE(files_.remove(target).is_ok());
  ASSERT_TRUE(files_.remove(join_path(root_, "a/b")).is_ok());
  EXPECT_GT(files_.space(root_)->total_bytes, 0u);
}

// Pages hold what people wrote, and whoever may open a lock's file can hold it.
TEST_F(RealFiles, MakesFilesAndFoldersForThisUserAlone) {
  namespace fs = std::filesystem;
  const fs::perms others = fs::perms::group_all | fs::perms::others_all;
  ASSERT_TRUE(files_.open(join_path(root_, "a/b/new"), {.write = true, .create = true}).is_ok());
  ASSERT_TRUE(files_.open(join_path(root_, "shared"), {.write = true, .create = true, .for_others = true}).is_ok());
  ASSERT_TRUE(files_.lock(join_path(root_, "a/b/lock")).is_ok());
  EXPECT_NE(fs::status(join_path(root_, "shared")).permissions() & fs::perms::group_read, fs::perms::none);
  for (const char* name : {"", "a", "a/b", "a/b/new", "a/b/lock"}) {
    EXPECT_EQ(fs::status(join_path(root_, name)).permissions() & others, fs::perms::none) << name;
  }
}

TEST_F(RealFiles, SaysWhatWentWrongAndWhere) {
  const std::string path = join_path(root_, "none");
  const Status status = files_.open(path, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find(path), std::string::npos);
  EXPECT_NE(status.message().find("No such file"), std::string::npos);
  EXPECT_EQ(files_.make_dirs("/proc/none/none").code(), StatusCode::kNotFound);
  for (const int full : {ENOSPC, EDQUOT}) {
    EXPECT_EQ(status_from_errno(full, "write", "f").code(), StatusCode::kOverloaded) << full;
  }
  for (const int other : {EIO, EROFS, EFBIG, EMFILE, ENFILE, ENOMEM, EAGAIN}) {
    EXPECT_EQ(status_from_errno(other, "write", "f").code(), StatusCode::kUnavailable) << other;
  }
}

TEST_F(RealFiles, ALockExcludesUntilItEnds) {
  const std::string path = join_path(root_, "lock");
  auto held = files_.lock(path);
  ASSERT_TRUE(held.is_ok());
  EXPECT_EQ(files_.lock(path).status().code(), StatusCode::kConflict);
  held->reset();
  EXPECT_TRUE(files_.lock(path).is_ok());
}

// A child has a copy of each descriptor of its parent, until it runs another program or ends.
TEST_F(RealFiles, ALockEndsThoughAChildLives) {
  const std::string path = join_path(root_, "lock");
  auto held = files_.lock(path);
  ASSERT_TRUE(held.is_ok());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    (void)!::read(ends[0], &byte, 1);  // until the parent closes its end
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  held->reset();
  auto again = files_.lock(path);
  EXPECT_TRUE(again.is_ok()) << again.status().to_string();
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(RealFiles, AChildThatEndsTakesNoLockFromItsParent) {
  const std::string path = join_path(root_, "lock");
  auto held = files_.lock(path);
  ASSERT_TRUE(held.is_ok());
  const pid_t child = ::fork();
  if (child == 0) {
    held->reset();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(files_.lock(path).status().code(), StatusCode::kConflict);
}

TEST(Paths, SplitAndJoin) {
  EXPECT_EQ(parent_path("a/b/c"), "a/b");
  EXPECT_EQ(parent_path("c"), ".");
  EXPECT_EQ(parent_path("/c"), "/");
  EXPECT_EQ(join_path("/a/", "b"), "/a/b");
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
}

}  // namespace
}  // namespace larder
