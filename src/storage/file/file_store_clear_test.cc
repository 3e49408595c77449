// SPDX-License-Identifier: Apache-2.0
// Clears of one namespace of a file store: as many as there may be, and nobody waits for a large one.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "storage/file/volume.h"
#include "tests/support/failing_file_store.h"

namespace larder::file_store {
namespace {

class ClearTest : public FailureTest {
 protected:
  static constexpr std::size_t kPage = 100;

  static std::shared_ptr<StoreScope> scope_of(std::uint64_t number) {
    auto scope = std::make_shared<StoreScope>();
    store_le<std::uint64_t>(scope->namespace_digest.bytes.data(), number + 1);
    scope->set_pool(PoolName::kKv, Digest256{{2}});
    return scope;
  }
  // Below, puts and gets are of this namespace.
  void use(std::uint64_t number) { scope_ = scope_of(number); }
  // kInternal: it has not ended.
  std::shared_ptr<Status> begin_clear(std::uint64_t number) {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    const Status taken = backend_->submit_clear(scope_of(number), [status](Status s) { *status = std::move(s); });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
  std::size_t listed() {
    const auto file = files_->open("/d/CLEARED", {}).value();
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size_bytes().value()));
    EXPECT_TRUE(read_exactly(*file, bytes, 0).is_ok());
    return decode_cleared(bytes).value().size();
  }
  // In one operation.
  std::shared_ptr<Status> begin_put_many(std::uint64_t count) {
    auto status = std::make_shared<Status>(internal_error("no callback"));
    auto content = std::make_shared<std::vector<std::byte>>(content_of(0, kPage));
    WriteRequest request{scope_, {}, false, {}};
    for (std::uint64_t i = 0; i < count; ++i) {
      request.groups.push_back({{{PoolName::kKv, key(i), {{content->data(), content->size()}}, PageKey{}}}});
    }
    const Status taken =
        backend_->submit_write(std::move(request), [status, content](const WriteResult& r) { *status = r.groups[0]; });
    if (!taken.is_ok()) *status = taken;
    return status;
  }
};

// The defect: one page that is never evicted kept every clear on the list, and when that was full no namespace could be
// cleared, and no store attached (its trial clears what it wrote).
TEST_F(ClearTest, NoEndOfClearsBesideALivePage) {
  InlineExecutor executor;
  open(executor);
  use(0);
  ASSERT_TRUE(put(7, kPage, true).is_ok());
  constexpr std::uint64_t kClears = kMaxCleared + kMaxCleared / 2;
  std::size_t most_listed = 0;
  for (std::uint64_t number = 1; number <= kClears; ++number) {
    if (number % 64 == 0) {
      use(number);
      ASSERT_TRUE(put(7, kPage).is_ok());
    }
    const Status cleared = *begin_clear(number);
    ASSERT_TRUE(cleared.is_ok()) << number << ": " << cleared.to_string();
    most_listed = std::max(most_listed, listed());
  }
  EXPECT_LE(most_listed, kMaxCleared / 2 + 1) << "half of the list is for those that come while a segment is cleaned";
  for (const bool is_reopened : {false, true}) {
    SCOPED_TRACE(is_reopened ? "opened again" : "at once");
    if (is_reopened) {
      cut_power();
      open(executor);
    }
    EXPECT_EQ(backend_->stats().pages, 1u);
    use(0);
    EXPECT_TRUE(get(7, kPage).is_ok());
    for (std::uint64_t number = 64; number <= kClears; number += 64) {
      use(number);
      EXPECT_EQ(get(7, kPage).code(), StatusCode::kNotFound) << number;
    }
  }
}

// What cannot be cleaned now is not dropped for the list's sake, and keeps nobody from clearing as long as there is
// room on it.
TEST_F(ClearTest, ASegmentThatCannotBeReadKeepsItsPagesAndTheList) {
  InlineExecutor executor;
  open(executor);
  use(0);
  ASSERT_TRUE(put(7, kPage, true).is_ok());
  files_->before_read = [](const std::string& path) {
    return path.find("segment-") == std::string::npos ? Status::ok() : status_from_errno(EIO, "read", path);
  };
  std::uint64_t number = 1;
  for (; number <= kMaxCleared; ++number) ASSERT_TRUE(begin_clear(number)->is_ok()) << number;
  EXPECT_EQ(begin_clear(number)->code(), StatusCode::kOverloaded);
  files_->before_read = nullptr;
  clock_.advance(std::chrono::minutes(2));
  const Status cleared = *begin_clear(number);
  EXPECT_TRUE(cleared.is_ok()) << "it waits for the cleaning: " << cleared.to_string();
  EXPECT_LE(listed(), 2u);
  use(0);
  EXPECT_TRUE(get(7, kPage).is_ok());
}

// The defect: a clear held the store's mutex until all pages of the store had been looked at.
TEST_F(ClearTest, OthersAreServedWhileALargeNamespaceGoes) {
  constexpr std::uint64_t kPages = 6000, kMostRounds = 1000;
  InlineExecutor executor;
  ThreadPoolExecutor other("other", 1, 1);
  open(executor, {{"segment_size", "64Mi"}});
  use(0);
  ASSERT_TRUE(put(1, kPage).is_ok());
  use(1);
  bool is_seen = false;
  for (std::uint64_t round = 0; round < kMostRounds && !is_seen; ++round) {
    ASSERT_TRUE(begin_put_many(kPages)->is_ok());
    std::atomic<bool> is_over{false};
    const Status posted = other.post([&] {
      while (!is_over.load() && !is_seen) {
        const BackendStats stats = backend_->stats();
        is_seen = stats.pages == 1 && stats.bytes > kPage;  // nothing finds them, and some are still there
      }
    });
    const Status cleared = *begin_clear(1);
    is_over = true;
    other.wait_idle();
    ASSERT_TRUE(posted.is_ok());
    ASSERT_TRUE(cleared.is_ok()) << cleared.to_string();
    EXPECT_EQ(backend_->stats().bytes, kPage);
    EXPECT_EQ(get(5, kPage).code(), StatusCode::kNotFound);
  }
  EXPECT_TRUE(is_seen) << "it goes in steps";
}

// The defect: a step of a clear was a task behind all others, and the clear of a small namespace of a large store took
// thousands of them.
TEST_F(ClearTest, AClearIsNotBehindWhatComesLater) {
  constexpr std::uint64_t kPages = 6000;
  ManualExecutor executor;
  open(executor, {{"segment_size", "64Mi"}});
  const auto finish = [&](const std::shared_ptr<Status>& status) {
    executor.run_all();
    return *status;
  };
  use(0);
  ASSERT_TRUE(finish(begin_put_many(kPages)).is_ok());
  use(1);
  ASSERT_TRUE(finish(begin_put(1, kPage)).is_ok());
  const auto cleared = begin_clear(1);
  const auto put = begin_put(1, kPage);  // it comes after the clear
  ASSERT_TRUE(executor.run_one());
  EXPECT_TRUE(cleared->is_ok()) << cleared->to_string();
  EXPECT_TRUE(finish(put).is_ok()) << put->to_string();
  for (const bool is_reopened : {false, true}) {
    SCOPED_TRACE(is_reopened ? "opened again" : "at once");
    if (is_reopened) {
      backend_.reset();
      open(executor, {{"segment_size", "64Mi"}});
    }
    EXPECT_EQ(backend_->stats().pages, kPages + 1);
    EXPECT_TRUE(finish(begin_get(1, kPage)).is_ok());
  }
}

TEST_F(ClearTest, AKillInTheMiddleLeavesItDoneOrNot) {
  constexpr std::uint64_t kPages = 300;
  bool is_ever_done = false;
  for (std::uint64_t calls = 1; !is_ever_done; ++calls) {
    SCOPED_TRACE(std::to_string(calls) + " calls");
    ASSERT_LE(calls, 100u);
    files_ = std::make_unique<sim::HookedFiles>(calls);
    {
      InlineExecutor executor;
      open(executor, {{"segment_size", "64Mi"}});
      for (const std::uint64_t number : {0, 1}) {
        use(number);
        ASSERT_TRUE(begin_put_many(kPages)->is_ok());
      }
      files_->inner.fail_nth(calls, sim::FileFault::kIoError, 1'000'000'000);  // from there on nothing reaches the disk
      is_ever_done = begin_clear(1)->is_ok();
      backend_.reset();
      files_->inner.clear_fault();
    }
    InlineExecutor executor;
    open(executor, {{"segment_size", "64Mi"}});
    use(1);
    const bool is_there = get(0, kPage).is_ok();
    EXPECT_FALSE(is_ever_done && is_there);
    EXPECT_EQ(backend_->stats().pages, is_there ? 2 * kPages : kPages);
    use(0);
    EXPECT_TRUE(get(0, kPage).is_ok());
    backend_.reset();
  }
}

// A list that is full when the store is opened: older versions left such.
class FullListTest : public ClearTest {
 protected:
  static constexpr std::uint64_t kLarge = 8000;

  // Pages of namespace 0, as many as fit.
  void make(std::uint64_t pages, const BackendOptions& options = {}) {
    InlineExecutor executor;
    open(executor, options);
    use(0);
    for (std::uint64_t i = 0; i < pages; ++i) ASSERT_TRUE(put(i, kLarge, true).is_ok()) << i;
    backend_.reset();
    std::vector<Cleared> list;
    for (std::uint64_t i = 0; i < kMaxCleared; ++i) {
      list.push_back({scope_of(1'000'000 + i)->namespace_digest, 1'000'000 + i});
    }
    ASSERT_TRUE(replace_file(*files_, "/d", kClearedName, encode_cleared(list)).is_ok());
  }
};

// The defect: who opened such a store to clear a namespace, or to attach it, was refused, and closed it at once.
TEST_F(FullListTest, AClearWaitsForTheCleaning) {
  make(3);
  ManualExecutor executor;
  open(executor);
  for (const std::uint64_t number : {1, 2}) {
    const auto cleared = begin_clear(number);
    executor.run_all();
    EXPECT_TRUE(cleared->is_ok()) << cleared->to_string();
  }
  EXPECT_LE(listed(), 3u);
  const auto got = begin_get(2, kLarge);
  executor.run_all();
  EXPECT_TRUE(got->is_ok());
}

TEST_F(FullListTest, AClearThatWaitsEndsWithTheStore) {
  make(3);
  ManualExecutor executor;
  open(executor);
  const auto cleared = begin_clear(1);
  EXPECT_EQ(backend_->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded);
  executor.run_all();
  EXPECT_NE(cleared->code(), StatusCode::kInternal);
  EXPECT_TRUE(backend_->close(Nanos(0)).is_ok());
}

// The defect: writes that waited for room waited until all old segments had been cleaned for the list.
TEST_F(FullListTest, WritesThatWaitForRoomDoNotWaitForTheList) {
  const BackendOptions options = {{"max_size", "1Mi"}};
  make(300, options);
  ManualExecutor executor;
  open(executor, options);
  const std::uint64_t pages = backend_->stats().pages;
  ASSERT_GE(pages, 60u);
  std::uint64_t most_moved = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint64_t before = backend_->stats().moved;
    const auto put = begin_put(1000 + i, kLarge);
    while (put->code() == StatusCode::kInternal) ASSERT_TRUE(executor.run_one());
    EXPECT_TRUE(put->is_ok()) << put->to_string();
    most_moved = std::max(most_moved, backend_->stats().moved - before);
  }
  EXPECT_LE(most_moved, pages / 2);
  executor.run_all();
}

}  // namespace
}  // namespace larder::file_store
