// SPDX-License-Identifier: Apache-2.0
// A disk that fills up, is mounted read-only, goes away, comes back; a directory that is deleted: while conversations
// run. The same on a real ext4 volume: disk_slow.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <filesystem>

#include "tests/disk/mounted_files.h"
#include "tests/disk/trouble.h"

namespace larder::disk {
namespace {

TEST_F(Trouble, SomebodyElseFillsTheDisk) {
  auto& files = own<sim::SimFileSystem>(test_seed(), 64 << 20);
  start(file_options("/store", R"(, "segment_size": "64Ki")"), files);
  converse_through(
      *engine_, [&] { fill_up(files, "/filler"); }, [&] { EXPECT_TRUE(files.remove("/filler")); });
  EXPECT_GT(engine_->stats().storage->write_errors + engine_->stats().storage->evicted, 0u) << "it never was full";
}

TEST_F(Trouble, TheStoreItselfFillsTheDisk) {
  auto& files = own<sim::SimFileSystem>(test_seed(), 1 << 20);
  start(file_options("/store", R"(, "segment_size": "64Ki", "max_size": "unlimited")"), files);
  for (std::uint64_t i = 0; i < 6; ++i) (void)converse(*engine_, Script::of(test_seed() + i, kClients, 2), "filling");
  EXPECT_GT(engine_->stats().storage->evicted, 0u) << "it never was full";
  EXPECT_LE(files.used_bytes(), 1u << 20);
  expect_service(*engine_, clock_, "full");
  engine_->check_sound();
}

TEST_F(Trouble, ReadOnlyForAWhile) {
  auto& files = own<MountedFiles>("/disk", test_seed());
  start(file_options("/disk/store", R"(, "segment_size": "256Ki")"), files);
  converse_through(
      *engine_, [&] { files.is_read_only = true; }, [&] { files.is_read_only = false; });
  EXPECT_GT(engine_->stats().storage->write_errors, 0u);
}

// What cannot be removed while the disk is read-only is removed later: the budget does not shrink.
TEST_F(Trouble, ReadOnlyWhileTheBudgetIsFull) {
  auto& files = own<MountedFiles>("/disk", test_seed());
  start(file_options("/disk/store", R"(, "segment_size": "64Ki", "max_size": "1Mi")"), files);
  std::uint64_t next = test_seed() + 10;
  const auto churn = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) (void)converse(*engine_, Script::of(next++, kClients, 1), "churn");
  };
  churn(8);
  const std::uint64_t pages = engine_->stats().storage->pages;
  ASSERT_GT(engine_->stats().storage->evicted, 0u) << "the budget never was full";
  for (int i = 0; i < 6; ++i) {
    files.is_read_only = true;
    churn(1);
    clock_.jump(kBeyondBackOff);
    churn(1);
    files.is_read_only = false;
  }
  expect_service(*engine_, clock_, "writable again");
  churn(12);
  const BackendStats now = *engine_->stats().storage;
  EXPECT_GE(now.pages * 4, pages * 3) << "before: " << pages;
  EXPECT_LE(bytes_in(files, "/disk/store"), 1u << 20);
  expect_counted(files, "/disk/store");
}

// The disk goes and comes back. What lies below its mount point must not be filled meanwhile, and what is on the disk
// is there when it is back: without a restart, and whatever number the disk has then.
TEST_F(Trouble, TheMountGoesAwayAndComesBack) {
  struct Case {
    std::string directory;
    bool has_new_number, has_old_store_below;
  };
  for (const auto& [directory, has_new_number, has_old_store_below] : {Case{"/disk", false, false},
                                                                       {"/disk", true, true},
                                                                       {"/disk/a/store", true, false},
                                                                       {"/disk/a/store", false, true}}) {
    SCOPED_TRACE(directory + (has_new_number ? ", another number" : "") +
                 (has_old_store_below ? ", a store below" : ""));
    auto& files = own<MountedFiles>("/disk", test_seed());
    const Options options = file_options(directory, R"(, "segment_size": "64Ki", "open_files": 2)");
    if (has_old_store_below) {
      files.is_mounted = false;
      start(options, files);
      engine_.reset();
      files.is_mounted = true;
    }
    start(options, files);
    (void)converse(*engine_, Script::of(500, kClients, 1), "before");
    const std::uint64_t below = files.below.used_bytes();
    const bool is_new = has_new_number;
    converse_through(
        *engine_, [&] { files.is_mounted = false; },
        [&] {
          if (is_new) files.disk_device = 3;
          files.is_mounted = true;
        });
    EXPECT_EQ(files.below.used_bytes(), below) << "the disk below was written to";
    EXPECT_GT(engine_->stats().storage->write_errors, 0u) << "it never was away";
    EXPECT_GT(converse(*engine_, Script::of(500, kClients, 1), "what was stored before"), 0u);
    expect_counted(files, directory);
  }
}

// A disk that was away and whose open files are dead: a network file system whose server forgot them.
TEST_F(Trouble, OpenFilesDie) {
  auto& files = own<sim::SimFileSystem>(test_seed());
  start(file_options("/store", R"(, "segment_size": "256Ki", "fsync": "group")"), files);
  (void)converse(*engine_, Script::of(500, kClients, 2), "before");
  converse_through(
      *engine_, [&] { files.crash(); }, [] {});
  expect_old_content();
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "larder-disk-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { remove(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  // Also while somebody makes files in it.
  static void remove(const std::string& directory) {
    std::error_code error;
    for (int tries = 0; tries < 100 && std::filesystem::exists(directory, error); ++tries) {
      std::filesystem::remove_all(directory, error);
    }
  }

 private:
  std::string path_;
};

TEST_F(Trouble, TheDirectoryIsDeleted) {
  const TemporaryDirectory temporary;
  for (const std::string name : {"store", "a/b/store"}) {
    SCOPED_TRACE(name);
    const std::string directory = temporary.path() + "/" + name;
    start(file_options(directory, R"(, "segment_size": "256Ki")"), real_file_system());
    converse_through(
        *engine_, [&] { TemporaryDirectory::remove(temporary.path() + "/" + name.substr(0, name.find('/'))); }, [] {});
    EXPECT_TRUE(real_file_system().stat(directory + "/FORMAT").is_ok());
    expect_counted(real_file_system(), directory);
    engine_.reset();
  }
}

// A storage that has been sick for long costs no more memory than one that has been sick for a short time.
TEST_F(Trouble, MemoryStaysBounded) {
  auto& files = own<sim::SimFileSystem>(test_seed());
  start(file_options("/store", R"(, "segment_size": "256Ki")"), files);
  const auto round = [&](std::uint64_t i) { (void)converse(*engine_, Script::of(700 + i % 4, kClients, 1), "sick"); };
  files.fail_nth(1, sim::FileFault::kIoError, 1'000'000'000);
  for (std::uint64_t i = 0; i < 8; ++i) round(i);
  const std::size_t before = ::mallinfo2().uordblks;
  for (std::uint64_t i = 0; i < 16; ++i) round(i);
  EXPECT_LT(::mallinfo2().uordblks, before + (1 << 20));
  files.clear_fault();
  expect_service(*engine_, clock_, "well again");
  engine_->check_sound();
  EXPECT_LE(engine_->most_queued, 64u) << "of " << kClients << " clients and 16 writes";
}

}  // namespace
}  // namespace larder::disk
