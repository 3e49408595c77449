// SPDX-License-Identifier: Apache-2.0
// What is particular to the file backend; the port's contract is in tests/conformance.
#include "storage/file/file_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

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
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
    ASSERT_TRUE(files_.make_dirs("/d").is_ok());
  }
  Result<std::unique_ptr<StorageBackend>> open(BackendOptions options = {}) {
    options.try_emplace("directory", "/d");
    return factory_.create("file", options, {&files_, &clock_, &executor_, {}});
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
  Status put(StorageBackend& backend, std::uint64_t i, std::size_t bytes = 1000, bool durable = false,
             std::optional<std::uint64_t> parent = std::nullopt) {
    std::vector<std::byte> content(bytes, static_cast<std::byte>(i));
    Status status = internal_error("no callback");
    WriteRequest request{scope_, {}, durable, {}};
    request.groups.push_back({{{PoolName::kKv, key(i), {{content.data(), content.size()}}, PageKey{}}}});
    if (parent) request.groups[0].items[0].parent = key(*parent);
    const Status submitted = backend.submit_write(std::move(request), [&](WriteResult r) { status = r.groups.at(0); });
    return submitted.is_ok() ? status : submitted;
  }
  static Status clear(StorageBackend& backend, std::shared_ptr<const StoreScope> scope) {
    Status status = internal_error("not done");
    EXPECT_TRUE(backend.submit_clear(std::move(scope), [&](Status s) { status = std::move(s); }).is_ok());
    return status;
  }
  bool has(StorageBackend& backend, std::uint64_t i) {
    bool present = false;
    EXPECT_TRUE(backend
                    .submit_exists({scope_, {key(i)}, {PoolName::kKv}, {}},
                                   [&](ExistsResult r) { present = r.presence.at(0).present[0]; })
                    .is_ok());
    return present;
  }
  Status get(StorageBackend& backend, std::uint64_t i, std::size_t bytes = 1000) {
    std::vector<std::byte> content(bytes);
    Status status = internal_error("no callback");
    EXPECT_TRUE(backend
                    .submit_read({scope_, {{PoolName::kKv, key(i), {{content.data(), content.size()}}}}, {}},
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
  std::size_t segments_on_disk(const std::string& directory = "/d") {
    std::size_t count = 0;
    const std::vector<std::string> names = files_.list(directory).value();
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

TEST_F(FileStoreTest, RegistersNoMemoryAfterItWasClosed) {
  auto store = must_open();
  ASSERT_TRUE(store->close(std::chrono::nanoseconds(0)).is_ok());
  EXPECT_EQ(store->register_memory({}).code(), StatusCode::kUnavailable);
}

TEST_F(FileStoreTest, RefusesAFormatItCannotRead) {
  make_file("/d/FORMAT", "larder file store\nformat_version = 9\nstore_id = 00\n");
  const Status newer = open().status();
  EXPECT_EQ(newer.code(), StatusCode::kUnsupported);
  EXPECT_NE(newer.message().find("format_version 9"), std::string::npos) << newer.message();
  make_file("/d/FORMAT", "not ours\n");
  const Status damaged = open().status();
  EXPECT_EQ(damaged.code(), StatusCode::kCorrupt);
  EXPECT_NE(damaged.message().find("/d: FORMAT is not that of a Larder file store; put FORMAT back"), std::string::npos)
      << damaged.message();
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
    EXPECT_EQ(status.message().find("bytes"), std::string::npos) << "no size is wrong: " << status.message();
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

// One page of 1000 bytes: a record of one block. The file is header | record | record | footer | trailer.
TEST_F(FileStoreTest, TornTailsAreCutAndCounted) {
  {
    auto backend = must_open({{"fsync", "off"}});
    ASSERT_TRUE(put(*backend, 1).is_ok() && put(*backend, 2).is_ok());
  }
  const std::string path = "/d/" + segment_name(1);
  EXPECT_EQ(files_.stat(path)->size_bytes, 5u * 4096) << "cut to its contents when it was sealed";
  OpenOptions options;
  options.write = true;
  auto file = files_.open(path, options);
  ASSERT_TRUE(file.is_ok());
  ASSERT_TRUE((*file)->truncate(2 * 4096 + 500).is_ok());
  auto backend = must_open();
  EXPECT_EQ(backend->stats().torn_tails, 1u);
  EXPECT_EQ(backend->stats().pages, 1u);
  EXPECT_EQ(files_.stat(path)->size_bytes, 4u * 4096) << "cut behind the last whole record, and sealed";
  EXPECT_TRUE(get(*backend, 1).is_ok());
  EXPECT_EQ(get(*backend, 2).code(), StatusCode::kNotFound);
  EXPECT_TRUE(put(*backend, 2).is_ok());
  EXPECT_TRUE(get(*backend, 2).is_ok());
}

// Two payloads of equal length change places on the disk: both are whole, but neither is what the index says.
TEST_F(FileStoreTest, SwappedPagesAreNeverReturned) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok() && put(*backend, 2).is_ok());
  OpenOptions options;
  options.write = true;
  auto file = files_.open("/d/" + segment_name(1), options);
  ASSERT_TRUE(file.is_ok());
  std::vector<std::byte> first(4096), second(4096);
  ASSERT_TRUE(read_exactly(**file, first, 4096).is_ok() && read_exactly(**file, second, 8192).is_ok());
  ASSERT_TRUE(write_fully(**file, second, 4096).is_ok() && write_fully(**file, first, 8192).is_ok());
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
  ASSERT_TRUE(file.is_ok() && (*file)->truncate(4500).is_ok());
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kCorrupt);
  EXPECT_EQ(get(*backend, 1).code(), StatusCode::kNotFound);
}

TEST_F(FileStoreTest, AFullDiskDropsASegmentAndGoesOn) {
  sim::SimFileSystem small(1, 1'000'000);
  const BackendEnvironment environment{&small, &clock_, &executor_, {}};
  auto opened =
      factory_.create("file", {{"directory", "/d"}, {"segment_size", "64Ki"}, {"max_size", "unlimited"}}, environment);
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  for (std::uint64_t i = 0; i < 400; ++i) {
    ASSERT_TRUE(put(**opened, i).is_ok()) << i;
    EXPECT_TRUE(get(**opened, i).is_ok()) << i;
  }
  EXPECT_GT((*opened)->stats().evicted, 0u);
  EXPECT_GT((*opened)->stats().pages, 100u);
  EXPECT_EQ(put(**opened, 999, 2'000'000).code(), StatusCode::kOverloaded) << "larger than the disk";
  clock_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(put(**opened, 1000).is_ok()) << "and it goes on";
}

TEST_F(FileStoreTest, AFailedWriteFailsOneGroupAndLeavesNoTrace) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  files_.fail_nth(1, sim::FileFault::kWriteTorn);
  EXPECT_EQ(put(*backend, 2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(get(*backend, 2).code(), StatusCode::kNotFound);
  EXPECT_TRUE(put(*backend, 2).is_ok()) << "in a new segment";
  EXPECT_EQ(backend->stats().write_errors, 1u);
  EXPECT_EQ(segments_on_disk(), 2u);
  backend.reset();
  backend = must_open();
  for (std::uint64_t i = 1; i <= 2; ++i) EXPECT_TRUE(get(*backend, i).is_ok()) << i;
}

// A disk that fails again and again is left alone for longer and longer; what it holds is still served.
TEST_F(FileStoreTest, RepeatedFailuresSuspendWritesAndServiceResumes) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  files_.fail_nth(1, sim::FileFault::kIoError, 1'000'000);
  EXPECT_EQ(put(*backend, 2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(put(*backend, 2).code(), StatusCode::kUnavailable);
  const std::uint64_t operations = files_.operations();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(put(*backend, 2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(files_.operations(), operations) << "not asked again before the back-off is over";
  EXPECT_EQ(backend->stats().suspended_volumes, 1u);
  files_.clear_fault();
  EXPECT_TRUE(get(*backend, 1).is_ok());
  clock_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(put(*backend, 2).is_ok());
  EXPECT_EQ(backend->stats().suspended_volumes, 0u);
}

TEST_F(FileStoreTest, AFailedFsyncFailsDurableWritesOnly) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  files_.fail_nth(2, sim::FileFault::kIoError);  // the write passes, the fdatasync fails
  EXPECT_EQ(put(*backend, 2, 1000, true).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(put(*backend, 3, 1000, true).is_ok()) << "in a new segment";
  EXPECT_EQ(segments_on_disk(), 2u);
}

TEST_F(FileStoreTest, AGroupThatIsNamedTwiceFailsTwice) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  std::vector<std::byte> content(1000, std::byte{2});
  const auto group = [&](std::uint64_t i) -> PageGroup {
    return {{{PoolName::kKv, key(i), {{content.data(), content.size()}}, PageKey{}}}};
  };
  WriteRequest request{scope_, {group(2), group(2), group(1)}, false, {}};
  files_.fail_nth(1, sim::FileFault::kIoError);
  std::vector<Status> results;
  ASSERT_TRUE(backend->submit_write(std::move(request), [&](WriteResult r) { results = r.groups; }).is_ok());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(results[1].code(), StatusCode::kUnavailable) << "its only copy was not written";
  EXPECT_TRUE(results[2].is_ok()) << "it was there before";
  EXPECT_FALSE(has(*backend, 2));
}

TEST_F(FileStoreTest, OpenFilesAreBounded) {
  auto backend = must_open({{"segment_size", "64Ki"}, {"open_files", "2"}});
  for (std::uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
  EXPECT_EQ(segments_on_disk(), 30u);
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < 30; ++i) EXPECT_TRUE(get(*backend, (i * 7) % 30, 50'000).is_ok());
  }
}

TEST_F(FileStoreTest, ADeletedSegmentIsAMiss) {
  auto backend = must_open({{"segment_size", "64Ki"}, {"open_files", "1"}});
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
  EXPECT_TRUE(get(*backend, 2, 50'000).is_ok());  // so that segment 1's file is closed
  ASSERT_TRUE(files_.remove("/d/" + segment_name(1)).is_ok());
  EXPECT_EQ(get(*backend, 0, 50'000).code(), StatusCode::kNotFound);
  EXPECT_FALSE(has(*backend, 0)) << "the index knows it now";
  EXPECT_TRUE(get(*backend, 1, 50'000).is_ok());
}

TEST_F(FileStoreTest, ADeletedDirectoryIsMadeAgain) {
  auto backend = must_open({{"segment_size", "64Ki"}});
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
  const std::vector<std::string> names = files_.list("/d").value();
  for (const std::string& name : names) ASSERT_TRUE(files_.remove("/d/" + name).is_ok());
  ASSERT_TRUE(files_.remove("/d").is_ok());
  Status status;
  for (std::uint64_t i = 10; i < 14; ++i) status = put(*backend, i, 50'000);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_TRUE(get(*backend, 13, 50'000).is_ok());
  EXPECT_FALSE(has(*backend, 0));
  EXPECT_TRUE(files_.stat("/d/FORMAT").is_ok());
  backend.reset();
  EXPECT_TRUE(get(*must_open(), 13, 50'000).is_ok());
}

// As a cleaner of old files does it. Its segments count, what was cleared stays cleared, and the next opening finds it.
TEST_F(FileStoreTest, FilesThatSomebodyDeletesBesideTheSegmentsAreWrittenAgain) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"FORMAT"}, {"CLEARED"}, {"LOCK"}, {"FORMAT", "CLEARED", "LOCK"}}) {
    SCOPED_TRACE(names.front() + " and " + std::to_string(names.size() - 1) + " more");
    auto backend = must_open({{"segment_size", "64Ki"}});
    ASSERT_TRUE(clear(*backend, nullptr).is_ok());
    for (std::uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
    ASSERT_TRUE(clear(*backend, scope_).is_ok());
    ASSERT_FALSE(has(*backend, 0));
    for (std::uint64_t i = 2; i < 4; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
    for (const std::string& name : names) ASSERT_TRUE(files_.remove("/d/" + name).is_ok()) << name;
    for (std::uint64_t i = 4; i < 8; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
    for (const std::string& name : names) EXPECT_TRUE(files_.stat("/d/" + name).is_ok()) << name;
    EXPECT_TRUE(get(*backend, 3, 50'000).is_ok());
    backend.reset();
    backend = must_open();
    for (std::uint64_t i = 2; i < 8; ++i) EXPECT_TRUE(get(*backend, i, 50'000).is_ok()) << i;
    for (std::uint64_t i = 0; i < 2; ++i) EXPECT_FALSE(has(*backend, i)) << i;
  }
}

TEST_F(FileStoreTest, AFormatThatIsGoneAtTheEndIsWrittenAgain) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  ASSERT_TRUE(files_.remove("/d/FORMAT").is_ok());
  backend.reset();
  EXPECT_TRUE(get(*must_open(), 1).is_ok());
}

// Its directory was moved away, on the same disk, and another store made where it was.
TEST_F(FileStoreTest, AnotherStoreInItsPlaceIsLeftAlone) {
  {
    auto other = must_open({{"directory", "/e"}, {"segment_size", "64Ki"}});
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(*other, 100 + i, 50'000).is_ok());
  }
  auto backend = must_open({{"segment_size", "64Ki"}});
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
  const auto move = [&](const std::string& from, const std::string& to) {
    ASSERT_TRUE(files_.make_dirs(to).is_ok());
    const std::vector<std::string> names = files_.list(from).value();
    for (const std::string& name : names) {
      if (name == "LOCK") continue;
      ASSERT_TRUE(files_.rename(from + "/" + name, to + "/" + name).is_ok()) << name;
    }
  };
  move("/d", "/old");
  move("/e", "/d");
  const std::vector<std::string> theirs = files_.list("/d").value();
  EXPECT_EQ(clear(*backend, nullptr).code(), StatusCode::kUnavailable);
  for (std::uint64_t i = 10; i < 14; ++i) (void)put(*backend, i, 50'000);
  EXPECT_NE(get(*backend, 0, 50'000).code(), StatusCode::kOk);
  backend.reset();
  EXPECT_EQ(files_.list("/d").value(), theirs);
  auto other = must_open();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(get(*other, 100 + i, 50'000).is_ok()) << i;
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

// A digest of 0 means every namespace in the file CLEARED.
TEST_F(FileStoreTest, AClearOfTheDigestThatIsNoneIsRefused) {
  auto backend = must_open();
  ASSERT_TRUE(put(*backend, 1).is_ok());
  EXPECT_EQ(backend->submit_clear(std::make_shared<StoreScope>(), [](Status) { FAIL(); }).code(),
            StatusCode::kInvalidArgument);
  backend.reset();
  EXPECT_EQ(must_open()->stats().pages, 1u);
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

TEST_F(FileStoreTest, MaxSizeMayBeAShareOfTheDisk) {
  sim::SimFileSystem small(1, 10u << 20);
  const auto capacity_of = [&](const BackendOptions& more) -> std::uint64_t {
    BackendOptions options = more;
    options["directory"] = "/not/yet/there";
    auto opened = factory_.create("file", options, {&small, &clock_, &executor_});
    EXPECT_TRUE(opened.is_ok()) << opened.status().to_string();
    return opened.is_ok() ? (*opened)->stats().capacity_bytes : 0;
  };
  const std::uint64_t disk = small.space("/")->total_bytes;
  EXPECT_EQ(capacity_of({{"max_size", "50%"}}), disk / 100 * 50);
  EXPECT_EQ(capacity_of({}), disk / 100 * 80) << "also where nothing is said";
  for (const char* wrong : {"0%", "101%", "-5%", "%", "5.5%", "x%", "50 %"}) {
    const auto refused =
        factory_.create("file", {{"directory", "/d"}, {"max_size", wrong}}, {&small, &clock_, &executor_});
    ASSERT_FALSE(refused.is_ok()) << wrong;
    EXPECT_NE(refused.status().message().find("'max_size'"), std::string::npos) << refused.status().message();
  }
}

TEST_F(FileStoreTest, ALowerMaxSizeIsReachedAtOnce) {
  {
    auto backend = must_open({{"segment_size", "64Ki"}});
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(put(*backend, i, 50'000).is_ok());
  }
  auto backend = must_open({{"max_size", "640Ki"}});
  EXPECT_LE(backend->stats().physical_bytes, 640u * 1024);
  ASSERT_TRUE(put(*backend, 1000, 50'000).is_ok());
  EXPECT_LE(backend->stats().physical_bytes, 640u * 1024);
  EXPECT_TRUE(get(*backend, 99, 50'000).is_ok()) << "the youngest stayed";
  EXPECT_EQ(get(*backend, 0, 50'000).code(), StatusCode::kNotFound);
}

// Prefixes lose their tails, not their heads: what is left of each conversation is a prefix of it.
TEST_F(FileStoreTest, EvictionTakesTailsBeforeHeadsAndKeepsTheBudget) {
  const BackendOptions options = {{"segment_size", "64Ki"}, {"max_size", "2Mi"}};
  auto backend = must_open(options);
  constexpr std::uint64_t kTurns = 24, kClients = 10;
  const auto page = [](std::uint64_t client, std::uint64_t turn) { return client * 1000 + turn; };
  for (std::uint64_t client = 0; client < kClients; ++client) {
    for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
      const auto parent = turn == 0 ? std::nullopt : std::optional(page(client, turn - 1));
      ASSERT_TRUE(put(*backend, page(client, turn), 20'000, false, parent).is_ok()) << turn << " " << client;
      ASSERT_LE(backend->stats().physical_bytes, 2u << 20);
      if (client > 0 && turn % 8 == 0) (void)get(*backend, page(0, turn / 4), 20'000);  // its head stays in use
    }
  }
  EXPECT_GT(backend->stats().evicted, 0u);
  EXPECT_GT(backend->stats().moved, 0u) << "segments were cleaned, too";
  std::uint64_t left = 0;
  for (std::uint64_t client = 0; client < kClients; ++client) {
    bool ended = false;
    for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
      const bool present = has(*backend, page(client, turn));
      EXPECT_FALSE(present && ended) << "client " << client << ": a page behind a hole, turn " << turn;
      ended = ended || !present;
      left += present ? 1 : 0;
      if (present) {
        EXPECT_TRUE(get(*backend, page(client, turn), 20'000).is_ok());
      }
    }
  }
  EXPECT_TRUE(has(*backend, page(0, 0))) << "used all the time";
  EXPECT_TRUE(has(*backend, page(kClients - 1, kTurns - 1))) << "the youngest";
  EXPECT_GT(left * 20'000, (2u << 20) / 2) << "most of the budget is used";
  const std::uint64_t pages = backend->stats().pages;
  backend.reset();
  EXPECT_GE(must_open(options)->stats().pages, pages) << "moved pages are found again";
}

TEST_F(FileStoreTest, AdmissionDeclinesWithoutFailing) {
  auto backend = must_open({{"admission", "second_offer"}});
  EXPECT_EQ(put(*backend, 1).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(put(*backend, 1).is_ok());
  EXPECT_TRUE(get(*backend, 1).is_ok());
  EXPECT_EQ(backend->stats().declined, 1u);
  EXPECT_EQ(backend->stats().write_errors, 0u);
}

TEST_F(FileStoreTest, SeveralDirectoriesShareTheLoad) {
  const BackendOptions options = {{"directory", "/d:/e:/f"}, {"segment_size", "64Ki"}};
  {
    auto backend = must_open(options);
    for (std::uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(put(*backend, i, 20'000, i % 3 == 0).is_ok());
    for (std::uint64_t i = 0; i < 30; ++i) EXPECT_TRUE(get(*backend, i, 20'000).is_ok());
  }
  for (const char* directory : {"/d", "/e", "/f"}) EXPECT_GE(segments_on_disk(directory), 3u) << directory;
  {
    auto backend = must_open({{"directory", "/f:/d:/e"}, {"segment_size", "64Ki"}});  // in any order
    EXPECT_EQ(backend->stats().pages, 30u);
    ASSERT_TRUE(backend->submit_clear(scope_, [](Status) {}).is_ok());
    for (std::uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(put(*backend, i, 20'000).is_ok());
  }
  ASSERT_TRUE(files_.corrupt_byte("/d/CLEARED", 30, 1).is_ok());
  EXPECT_EQ(must_open(options)->stats().pages, 30u) << "one whole list of three is enough";
  EXPECT_EQ(open({{"directory", "/d:/e"}}).status().code(), StatusCode::kUnavailable) << "a disk is missing";
}

TEST_F(FileStoreTest, DirectoriesOfDifferentStoresAreNotJoined) {
  { ASSERT_TRUE(put(*must_open(), 1).is_ok()); }
  clock_.advance(std::chrono::seconds(5));
  { ASSERT_TRUE(put(*must_open({{"directory", "/e"}}), 1).is_ok()); }
  const Status status = open({{"directory", "/d:/e"}}).status();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_NE(status.message().find("another store"), std::string::npos) << status.message();
  EXPECT_EQ(open({{"directory", "/d:/d"}}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace larder
