// SPDX-License-Identifier: Apache-2.0
// Pages that cannot be read now: they stay where they are, for their disk may come back; they are written anew when
// they are computed anew; and one bad block keeps no store from opening.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "storage/file/file_store.h"
#include "storage/file/file_store_open.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

constexpr std::size_t kUnreadPage = 40'000;  // one per segment
constexpr std::uint64_t kUnreadPages = 8;

class UnreadTest : public FailureTest {
 protected:
  void TearDown() override {
    files_->before_read = files_->before_open = files_->before_remove = nullptr;
    FailureTest::TearDown();
  }
  void fill(const std::string& directories, BackendOptions options = {}, bool is_durable = false) {
    directories_ = options["directory"] = directories;
    open(executor_, options);
    for (std::uint64_t i = 0; i < kUnreadPages; ++i) ASSERT_TRUE(put(i, kUnreadPage, is_durable).is_ok()) << i;
  }
  void reopen() {
    backend_.reset();
    open(executor_, {{"directory", directories_}});
  }
  static std::function<Status(const std::string&)> fails_below(const std::string& prefix) {
    return [prefix](const std::string& path) {
      return path.rfind(prefix, 0) == 0 ? status_from_errno(EIO, "read", path) : Status::ok();
    };
  }
  std::set<std::uint64_t> unreadable() {
    std::set<std::uint64_t> out;
    for (std::uint64_t i = 0; i < kUnreadPages; ++i) {
      if (!get(i, kUnreadPage).is_ok()) out.insert(i);
    }
    return out;
  }
  std::uint64_t duplicates() const { return backend_->stats().duplicate_writes; }
  // The files of segments, by number.
  std::vector<std::string> segments_in(const std::string& directory) {
    std::vector<std::string> out;
    const std::vector<std::string> names = files_->list(directory).value();
    for (const std::string& name : names) {
      if (parse_segment_name(name)) out.push_back(join_path(directory, name));
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  InlineExecutor executor_;
  std::string directories_;
};

// The defect: such a page was "here", so what was computed anew was taken for a duplicate and not written.
TEST_F(UnreadTest, APageOfADeadDiskIsWrittenAnewToAnotherOne) {
  for (const bool is_opening_what_fails : {false, true}) {
    SCOPED_TRACE(is_opening_what_fails ? "files cannot be opened" : "files cannot be read");
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(3);
    fill("/bad:/good");
    ASSERT_EQ(segments_in("/bad").size(), kUnreadPages / 2);
    if (is_opening_what_fails) reopen();  // so that no file is open
    (is_opening_what_fails ? files_->before_open : files_->before_read) = fails_below("/bad/");
    const std::set<std::uint64_t> lost = unreadable();
    EXPECT_EQ(lost.size(), kUnreadPages / 2);
    EXPECT_EQ(backend_->stats().pages, kUnreadPages) << "none is dropped";
    for (const std::uint64_t i : lost) {
      EXPECT_TRUE(put(i, kUnreadPage).is_ok());
      EXPECT_TRUE(get(i, kUnreadPage).is_ok())
          << "page " << i << " was computed and written, and the other disk has room";
    }
    EXPECT_EQ(duplicates(), 0u);
    for (std::uint64_t i = 0; i < kUnreadPages; ++i) {
      EXPECT_TRUE(put(i, kUnreadPage).is_ok());
      EXPECT_TRUE(get(i, kUnreadPage).is_ok()) << i;
    }
    EXPECT_EQ(duplicates(), kUnreadPages) << "once is enough";
    EXPECT_EQ(backend_->stats().pages, kUnreadPages);
  }
}

TEST_F(UnreadTest, ADiskThatComesBackHasItsPages) {
  fill("/bad:/good");
  files_->before_read = fails_below("/bad/");
  const std::set<std::uint64_t> lost = unreadable();
  ASSERT_FALSE(lost.empty());
  EXPECT_TRUE(put(*lost.begin(), kUnreadPage).is_ok());
  files_->before_read = nullptr;
  EXPECT_TRUE(unreadable().empty());
  for (const std::uint64_t page : lost) EXPECT_TRUE(put(page, kUnreadPage).is_ok());
  EXPECT_EQ(duplicates(), lost.size()) << "a page that could be read since is here";
  reopen();
  EXPECT_TRUE(unreadable().empty());
  EXPECT_EQ(backend_->stats().pages, kUnreadPages);
}

TEST_F(UnreadTest, ABadSpotOfTheOnlyDiskIsWrittenAnewElsewhere) {
  fill("/d");
  files_->before_read = fails_below(segments_in("/d").at(2));
  ASSERT_EQ(unreadable(), std::set<std::uint64_t>{2});
  EXPECT_TRUE(put(2, kUnreadPage).is_ok());
  EXPECT_TRUE(unreadable().empty());
  EXPECT_EQ(duplicates(), 0u);
}

// The old copy of a durable page counts until the new one is on the disk: also if the new one is not durable itself,
// and whether or not the segment of the old one takes appends.
TEST_F(UnreadTest, ADurablePageSurvivesThatItIsWrittenAnew) {
  for (const std::string fsync : {"segment", "group", "off"}) {
    for (const std::uint64_t page : {std::uint64_t{2}, kUnreadPages - 1}) {
      for (const bool is_durable : {false, true}) {
        SCOPED_TRACE("fsync " + fsync + ", page " + std::to_string(page) + (is_durable ? ", durable" : ""));
        backend_.reset();
        files_ = std::make_unique<sim::HookedFiles>(3);
        fill("/d", {{"fsync", fsync}, {"max_size", "1Mi"}}, true);
        files_->before_read = fails_below(segments_in("/d").at(page));
        ASSERT_EQ(unreadable(), std::set<std::uint64_t>{page});
        EXPECT_TRUE(put(page, kUnreadPage, is_durable).is_ok());
        EXPECT_EQ(duplicates(), 0u);
        EXPECT_TRUE(get(page, kUnreadPage).is_ok());
        files_->before_read = nullptr;
        cut_power();
        open(executor_, {{"directory", "/d"}});
        EXPECT_TRUE(unreadable().empty()) << "it was durable";
      }
    }
  }
}

// Its segment ends when it cannot be read, and not when the index has forgotten where the page was in it.
TEST_F(UnreadTest, ADurablePageOfASegmentThatTakesAppendsStaysListed) {
  constexpr std::size_t kSmall = 10'000;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {  // what a power cut takes
    SCOPED_TRACE("seed " + std::to_string(seed));
    backend_.reset();
    files_ = std::make_unique<sim::HookedFiles>(seed);
    open(executor_, {{"directory", "/bad:/good"}});
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(put(i, kSmall, true).is_ok());  // in turn
    files_->before_read = fails_below("/bad/");
    ASSERT_FALSE(get(2, kSmall).is_ok());
    EXPECT_TRUE(put(2, kSmall).is_ok());
    EXPECT_TRUE(get(2, kSmall).is_ok());
    EXPECT_TRUE(put(10, 50'000).is_ok());  // the turn of /bad: its segment has no room for that, and is sealed
    files_->before_read = nullptr;
    cut_power();
    open(executor_, {{"directory", "/bad:/good"}});
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(get(i, kSmall).is_ok()) << i;
  }
}

// The defect: an I/O error of one segment's first block, and the store was not opened.
TEST_F(UnreadTest, ASegmentThatCannotBeReadKeepsNoStoreShut) {
  fill("/d");
  const std::string bad = segments_in("/d").at(3);
  files_->before_read = fails_below(bad);
  reopen();
  EXPECT_EQ(unreadable(), std::set<std::uint64_t>{3});
  EXPECT_TRUE(put(3, kUnreadPage).is_ok());
  EXPECT_TRUE(unreadable().empty());
  Status cleared = internal_error("no callback");
  const auto other = std::make_shared<StoreScope>();
  other->namespace_digest.bytes[0] = 77;
  ASSERT_TRUE(backend_->submit_clear(other, [&](const Status& status) { cleared = status; }).is_ok());
  EXPECT_TRUE(cleared.is_ok()) << cleared.to_string();
  EXPECT_TRUE(files_->stat(bad).is_ok()) << "the disk may come back, whatever is removed meanwhile";
  files_->before_read = nullptr;
  reopen();
  EXPECT_TRUE(unreadable().empty());
  EXPECT_EQ(backend_->stats().pages, kUnreadPages);
}

// Generations: pages of a segment that could not be read are older than a clear that came meanwhile, whatever else the
// store still knows.
TEST_F(UnreadTest, WhatIsClearedMeanwhileStaysCleared) {
  constexpr std::size_t kSmall = 1'000;  // all of a round in one segment
  constexpr std::uint64_t kRounds = 3, kPerRound = 5;
  fill("/d");
  for (std::uint64_t round = 0; round < kRounds; ++round) {  // each time the youngest segment cannot be read
    files_->before_read = fails_below(segments_in("/d").back());
    reopen();
    files_->before_read = nullptr;
    for (std::uint64_t i = 0; i < kPerRound; ++i) {
      EXPECT_TRUE(put(100 + round * kPerRound + i, kSmall).is_ok());
    }
  }
  files_->before_read = files_->before_remove = fails_below(segments_in("/d").back());  // so it stays, too
  reopen();
  Status cleared = internal_error("no callback");
  ASSERT_TRUE(backend_->submit_clear(nullptr, [&](const Status& status) { cleared = status; }).is_ok());
  EXPECT_TRUE(cleared.is_ok()) << cleared.to_string();
  ASSERT_EQ(segments_in("/d").size(), 1u);
  files_->before_read = files_->before_remove = nullptr;
  reopen();
  for (std::uint64_t i = 0; i < kRounds * kPerRound; ++i) {
    EXPECT_EQ(get(100 + i, kSmall).code(), StatusCode::kNotFound) << "page " << i << " is back";
  }
}

// As many namespaces as the index has numbers, and one more.
class IdentitiesTest : public FailureTest {
 protected:
  void open_with(std::size_t identities) {
    backend_.reset();
    FileStoreOptions options;
    options.directories = {"/d"};
    options.max_bytes = std::uint64_t{16} << 20;
    options.segment_bytes = std::uint64_t{64} << 10;
    options.max_identities = identities;
    auto opened = open_store(options, *files_, clock_, &executor_);
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    for (Volume& volume : (*opened)->volumes) volume.io = create_executor_queue(executor_);
    const BackendEnvironment environment{files_.get(), &clock_, &executor_, {}};
    backend_ = std::make_unique<FileStore>(options, environment, std::move(**opened));
  }
  std::shared_ptr<StoreScope> scope_of(std::uint8_t name) {
    auto scope = std::make_shared<StoreScope>();
    scope->namespace_digest.bytes[0] = name;
    scope->set_pool(PoolName::kKv, Digest256{{2}});
    return scope;
  }
  Status put_in(std::uint8_t name, std::uint64_t page) {
    scope_ = scope_of(name);
    return put(page, 100);
  }
  bool has(std::uint8_t name, std::uint64_t page) {
    scope_ = scope_of(name);
    return get(page, 100).is_ok();
  }

  InlineExecutor executor_;
};

TEST_F(IdentitiesTest, TheColdestNamespaceMakesRoomForANewOne) {
  open_with(3);
  for (std::uint8_t name = 1; name <= 3; ++name) {
    ASSERT_TRUE(put_in(name, 0).is_ok());
    ASSERT_TRUE(put_in(name, 1).is_ok());
  }
  EXPECT_TRUE(has(1, 0));
  EXPECT_TRUE(has(1, 1));
  const Status status = put_in(4, 0);
  EXPECT_TRUE(status.is_ok()) << "the disk has room: " << status.to_string();
  EXPECT_TRUE(has(4, 0));
  EXPECT_TRUE(has(1, 0) && has(1, 1) && has(3, 0) && has(3, 1));
  EXPECT_FALSE(has(2, 0) || has(2, 1)) << "it was used longest ago";
  EXPECT_EQ(backend_->stats().evicted, 2u);
}

TEST_F(IdentitiesTest, AStoreOfMoreNamespacesThanTheIndexHasNumbersOpens) {
  open_with(10);
  for (std::uint8_t name = 1; name <= 10; ++name) ASSERT_TRUE(put_in(name, 0).is_ok());
  open_with(3);
  EXPECT_EQ(backend_->stats().pages, 3u);
  for (std::uint8_t name = 8; name <= 10; ++name) EXPECT_TRUE(has(name, 0)) << int{name};
}

}  // namespace
}  // namespace larder::file_store
