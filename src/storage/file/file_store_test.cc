// What is particular to the file backend; the port's contract is in tests/conformance.
#include "storage/file/file_store.h"

#include <gtest/gtest.h>

#include "base/executor.h"
#include "sim/sim_file_system.h"
#include "storage/file/file_backend.h"

namespace larder {
namespace {

using file_store::segment_name;

class FileStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(register_file_backend(factory_).is_ok());
    scope_ = std::make_shared<StoreScope>();
    scope_->namespace_digest.bytes[0] = 1;
    scope_->layout_fingerprints[0].bytes[0] = 2;
    ASSERT_TRUE(files_.make_dirs("/d").is_ok());
  }
  Result<std::unique_ptr<StorageBackend>> open(BackendOptions options = {}) {
    options.try_emplace("directory", "/d");
    return factory_.create("file", options, {&files_, &clock_, &executor_});
  }
  std::unique_ptr<StorageBackend> must_open(const BackendOptions& options = {}) {
    auto opened = open(options);
    if (!opened.is_ok()) throw std::runtime_error(opened.status().to_string());
    return std::move(opened).value();
  }
  static PageKey key(std::uint64_t i) {
    PageKey k;
    store_le<std::uint64_t>(k.bytes.data() + 8, i + 1);
    return k;
  }
  Status put(StorageBackend& backend, std::uint64_t i, std::size_t bytes = 1000, bool durable = false) {
    std::vector<std::byte> content(bytes, static_cast<std::byte>(i));
    Status status = internal_error("no callback");
    const Status submitted =
        backend.submit_write({scope_, {{{{PoolName::kKv, key(i), {{content.data(), content.size()}}}}}}, durable},
                             [&](WriteResult r) { status = r.groups.at(0); });
    return submitted.is_ok() ? status : submitted;
  }
  Status get(StorageBackend& backend, std::uint64_t i, std::size_t bytes = 1000) {
    std::vector<std::byte> content(bytes);
    Status status = internal_error("no callback");
    EXPECT_TRUE(backend
                    .submit_read({scope_, {{PoolName::kKv, key(i), {{content.data(), content.size()}}}}},
                                 [&](ReadResult r) { status = r.items.at(0); })
                    .is_ok());
    EXPECT_TRUE(!status.is_ok() || content == std::vector<std::byte>(bytes, static_cast<std::byte>(i)));
    return status;
  }
  void make_file(const std::string& path, std::string_view text) {
    OpenOptions options;
    options.write = options.create = options.truncate = true;
    auto file = files_.open(path, options);
    ASSERT_TRUE(file.is_ok());
    ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok());
  }
  std::size_t segments_on_disk() {
    std::size_t count = 0;
    const std::vector<std::string> names = files_.list("/d").value();
    for (const std::string& name : names) count += file_store::parse_segment_name(name) ? 1 : 0;
    return count;
  }

  sim::SimFileSystem files_{3};
  ManualClock clock_;
  InlineExecutor executor_;
  BackendFactory factory_;
  std::shared_ptr<StoreScope> scope_;
};

TEST_F(FileStoreTest, RefusesADirectoryOfSomebodyElse) {
  make_file("/d/thesis.tex", "years of work");
  const Status status = open().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("thesis.tex"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("empty or new directory"), std::string::npos) << status.message();
  EXPECT_EQ(files_.list("/d").value(), std::vector<std::string>{"thesis.tex"}) << "untouched, not even a LOCK";
}

TEST_F(FileStoreTest, RefusesASecondOwner) {
  auto first = must_open();
  const Status status = open().status();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_NE(status.message().find("one process"), std::string::npos) << status.message();
  ASSERT_TRUE(first->close(std::chrono::nanoseconds(0)).is_ok());
  EXPECT_TRUE(open().is_ok()) << "close() gives the directory back, not only the destructor";
}

TEST_F(FileStoreTest, RefusesAFormatItCannotRead) {
  make_file("/d/FORMAT", "larder file store\nformat_version = 9\nstore_id = 00\n");
  const Status newer = open().status();
  EXPECT_EQ(newer.code(), StatusCode::kUnsupported);
  EXPECT_NE(newer.message().find("format_version 9"), std::string::npos) << newer.message();
  make_file("/d/FORMAT", "not ours\n");
  EXPECT_EQ(open().status().code(), StatusCode::kCorrupt);
  ASSERT_TRUE(files_.remove("/d/FORMAT").is_ok());
  make_file("/d/" + segment_name(1), "who knows");
  EXPECT_EQ(open().status().code(), StatusCode::kConflict) << "segments without FORMAT";
  EXPECT_EQ(segments_on_disk(), 1u) << "not deleted";
}

TEST_F(FileStoreTest, SaysWhatToDoWhenItCannotWrite) {
  for (std::uint64_t n = 1; n <= 3; ++n) {
    files_.fail_nth(n, sim::FileFault::kIoError);
    const Status status = open({{"directory", "/new/place"}}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << n;
    EXPECT_NE(status.message().find(';'), std::string::npos) << "advice: " << status.message();
  }
  files_.clear_fault();
  make_file("/file", "x");
  EXPECT_FALSE(open({{"directory", "/file"}}).is_ok());
}

TEST_F(FileStoreTest, ASegmentOfAnotherStoreIsRefused) {
  { ASSERT_TRUE(put(*must_open(), 1).is_ok()); }
  clock_.advance(std::chrono::seconds(5));
  { ASSERT_TRUE(put(*must_open({{"directory", "/e"}}), 1).is_ok()); }
  ASSERT_TRUE(files_.rename("/e/" + segment_name(1), "/d/" + segment_name(7)).is_ok());
  const Status status = open().status();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_NE(status.message().find("move it away"), std::string::npos) << status.message();
}

TEST_F(FileStoreTest, TornTailsAreCutAndCounted) {
  {
    auto backend = must_open({{"fsync", "off"}});
    ASSERT_TRUE(put(*backend, 1).is_ok() && put(*backend, 2).is_ok());
  }
  const std::string path = "/d/" + segment_name(1);
  OpenOptions options;
  options.write = true;
  auto file = files_.open(path, options);
  ASSERT_TRUE(file.is_ok());
  const std::uint64_t size = (*file)->size_bytes().value();
  ASSERT_TRUE((*file)->truncate(size - 100).is_ok());
  auto backend = must_open();
  EXPECT_EQ(backend->stats().torn_tails, 1u);
  EXPECT_EQ(backend->stats().pages, 1u);
  EXPECT_EQ(files_.stat(path)->size_bytes, 64u + (size - 64) / 2) << "cut behind the last whole group";
  EXPECT_TRUE(get(*backend, 1).is_ok());
  EXPECT_EQ(get(*backend, 2).code(), StatusCode::kNotFound);
  EXPECT_TRUE(put(*backend, 2).is_ok());
  EXPECT_TRUE(get(*backend, 2).is_ok());
}

// Two pages of equal length change places on the disk: both are whole, but neither is what the index says.
TEST_F(FileStoreTest, SwappedPagesAreNeverReturned) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok() && put(*backend, 2).is_ok());
  OpenOptions options;
  options.write = true;
  auto file = files_.open("/d/" + segment_name(1), options);
  ASSERT_TRUE(file.is_ok());
  std::vector<std::byte> first(1160), second(1160);
  const std::uint64_t second_at = 64 + file_store::record_bytes(1000) + file_store::commit_bytes(1);
  ASSERT_TRUE(read_exactly(**file, first, 64).is_ok() && read_exactly(**file, second, second_at).is_ok());
  ASSERT_TRUE(write_fully(**file, second, 64).is_ok() && write_fully(**file, first, second_at).is_ok());
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kCorrupt);
  EXPECT_EQ(get(*backend, 2).code(), StatusCode::kCorrupt);
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kNotFound) << "dropped";
  EXPECT_EQ(backend->stats().corrupt, 2u);
  EXPECT_EQ(backend->stats().pages, 0u);
}

TEST_F(FileStoreTest, ATruncatedSegmentIsCorruptNotACrash) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  OpenOptions options;
  options.write = true;
  auto file = files_.open("/d/" + segment_name(1), options);
  ASSERT_TRUE(file.is_ok() && (*file)->truncate(500).is_ok());
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kCorrupt);
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kNotFound);
}

TEST_F(FileStoreTest, AFullDiskDropsTheOldestSegmentAndGoesOn) {
  sim::SimFileSystem small(1, 60'000);
  const BackendEnvironment environment{&small, &clock_, &executor_};
  auto opened = factory_.create("file", {{"directory", "/d"}, {"segment_size", "10Ki"}}, environment);
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(put(**opened, i).is_ok()) << i;
    EXPECT_TRUE(get(**opened, i).is_ok()) << i;
  }
  EXPECT_GT((*opened)->stats().evicted, 0u);
  EXPECT_GT((*opened)->stats().pages, 20u);
  EXPECT_EQ(put(**opened, 999, 100'000).code(), StatusCode::kOverloaded) << "larger than the disk";
  EXPECT_TRUE(put(**opened, 1000).is_ok()) << "and it goes on";
}

TEST_F(FileStoreTest, AFailedWriteFailsOneGroupAndLeavesNoTrace) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  const std::uint64_t size = files_.stat("/d/" + segment_name(1))->size_bytes;
  files_.fail_nth(1, sim::FileFault::kWriteTorn);
  EXPECT_EQ(put(*backend, 2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files_.stat("/d/" + segment_name(1))->size_bytes, size);
  EXPECT_EQ(get(*backend, 2).code(), StatusCode::kNotFound);
  EXPECT_TRUE(put(*backend, 2).is_ok());
  EXPECT_EQ(backend->stats().write_errors, 1u);
  EXPECT_EQ(segments_on_disk(), 1u);
  // If the tail cannot be cut either, the segment is given up and the next group gets a new one.
  files_.fail_nth(1, sim::FileFault::kWriteTorn, 2);
  EXPECT_EQ(put(*backend, 3).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(put(*backend, 3).is_ok());
  EXPECT_EQ(segments_on_disk(), 2u);
  backend.reset();
  backend = must_open();
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(get(*backend, i).is_ok()) << i;
}

TEST_F(FileStoreTest, AFailedFsyncFailsDurableWritesOnly) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  files_.fail_nth(2, sim::FileFault::kIoError);  // the write passes, the fdatasync fails
  EXPECT_EQ(put(*backend, 2, 1000, true).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(put(*backend, 3, 1000, true).is_ok()) << "in a new segment";
  EXPECT_EQ(segments_on_disk(), 2u);
}

TEST_F(FileStoreTest, OpenFilesAreBounded) {
  auto backend = must_open({{"segment_size", "4Ki"}, {"open_files", "2"}});
  for (std::uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(put(*backend, i, 3000).is_ok());
  EXPECT_EQ(segments_on_disk(), 30u);
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < 30; ++i) EXPECT_TRUE(get(*backend, (i * 7) % 30, 3000).is_ok());
  }
}

TEST_F(FileStoreTest, ADeletedSegmentIsAMiss) {
  auto backend = must_open({{"segment_size", "4Ki"}, {"open_files", "1"}});
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(*backend, i, 3000).is_ok());
  EXPECT_TRUE(get(*backend, 2, 3000).is_ok());  // so that segment 1's file is closed
  ASSERT_TRUE(files_.remove("/d/" + segment_name(1)).is_ok());
  EXPECT_EQ(get(*backend, 0, 3000).code(), StatusCode::kNotFound);
  EXPECT_TRUE(get(*backend, 1, 3000).is_ok());
}

TEST_F(FileStoreTest, ClearLeavesOtherFilesAlone) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  make_file("/d/notes.txt", "put there while it ran");
  Status status = internal_error("");
  ASSERT_TRUE(backend->submit_clear(nullptr, [&](Status s) { status = s; }).is_ok());
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(segments_on_disk(), 0u);
  EXPECT_TRUE(files_.stat("/d/notes.txt").is_ok());
}

TEST_F(FileStoreTest, ADamagedClearedListDropsEverything) {
  {
    auto backend = must_open();
    ASSERT_TRUE(put(*backend, 1).is_ok());
    ASSERT_TRUE(backend->submit_clear(scope_, [](Status) {}).is_ok());
    scope_ = std::make_shared<StoreScope>(*scope_);
    const_cast<StoreScope&>(*scope_).namespace_digest.bytes[0] = 9;
    ASSERT_TRUE(put(*backend, 2).is_ok());
  }
  ASSERT_TRUE(files_.corrupt_byte("/d/CLEARED", 40, 1).is_ok());
  { EXPECT_EQ(must_open()->stats().pages, 0u) << "which pages were cleared is not known, so all are"; }
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 3).is_ok());
  backend.reset();
  EXPECT_EQ(must_open()->stats().pages, 1u) << "and it works from there on";
}

TEST_F(FileStoreTest, ALowerMaxSizeIsReachedByTheNextWrites) {
  {
    auto backend = must_open({{"segment_size", "16Ki"}});
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(put(*backend, i).is_ok());
  }
  auto backend = must_open({{"max_size", "64Ki"}});
  EXPECT_GT(backend->stats().physical_bytes, 100'000u);
  ASSERT_TRUE(put(*backend, 1000).is_ok());
  EXPECT_LE(backend->stats().physical_bytes, 64u * 1024);
  EXPECT_TRUE(get(*backend, 99).is_ok()) << "the youngest stayed";
  EXPECT_EQ(get(*backend, 0).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace larder
