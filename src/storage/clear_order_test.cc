// SPDX-License-Identifier: Apache-2.0
#include "storage/clear_order.h"

#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <new>
#include <optional>
#include <thread>

#include "base/executor.h"
#include "base/thread_pool.h"
#include "sim/faulty_backend.h"
#include "storage/memory/memory_backend.h"
#include "storage/pipeline/storage_pipeline.h"

namespace larder {
namespace {

constexpr std::size_t kBytes = 64;
using Answer = std::shared_ptr<std::optional<Status>>;

// Remembers what it saved, or fails.
class TestKeeper final : public ClearKeeper {
 public:
  struct Log {
    std::vector<ClearHistory> saved;
    Status status;
    std::function<void()> during;
  };
  explicit TestKeeper(std::shared_ptr<Log> log) : log_(std::move(log)) {}
  Status save(const ClearHistory& history) override {
    if (log_->during) log_->during();
    if (log_->status.is_ok()) log_->saved.push_back(history);
    return log_->status;
  }

 private:
  const std::shared_ptr<Log> log_;
};

class ClearOrderTest : public ::testing::Test {
 protected:
  ClearOrderTest() {
    for (std::uint8_t i = 0; i < 2; ++i) {
      auto scope = std::make_shared<StoreScope>();
      scope->namespace_digest.bytes[0] = static_cast<std::uint8_t>(i + 1);
      scope->set_pool(PoolName::kKv, Digest256{{7}});
      scopes_.push_back(scope);
    }
    make(ClearHistory::anew(clock_, 1));
  }

  std::unique_ptr<StorageBackend> memory(Executor& executor) {
    BackendFactory factory;
    EXPECT_TRUE(register_memory_backend(factory).is_ok());
    return factory.create("memory", {}, {nullptr, &clock_, &executor}).value();
  }
  void make(const ClearHistory& history, std::unique_ptr<ClearKeeper> keeper = nullptr) {
    order_.reset();
    auto faulty = std::make_unique<sim::FaultyBackend>(memory(executor_), 1);
    faulty_ = faulty.get();
    order_ = std::make_unique<ClearOrder>(std::move(faulty), history, std::move(keeper), &saver_);
  }
  void make_kept() { make(ClearHistory::anew(clock_, 1), std::make_unique<TestKeeper>(log_)); }

  WriteRequest request_of(std::uint8_t number, std::size_t scope, ClearMark as_of) {
    payloads_.emplace_back(kBytes, std::byte{number});
    WriteRequest request{scopes_[scope], {}, false, {}, as_of};
    request.groups.push_back({{{PoolName::kKv, PageKey{{number, 1}}, {{payloads_.back().data(), kBytes}}, {}}}});
    return request;
  }
  Answer write(std::uint8_t number, std::size_t scope = 0, ClearMark as_of = {}) {
    auto answer = std::make_shared<std::optional<Status>>();
    const Status taken = order_->submit_write(request_of(number, scope, as_of), [answer](const WriteResult& result) {
      EXPECT_FALSE(answer->has_value()) << "a callback runs once";
      *answer = result.groups.at(0);
    });
    EXPECT_TRUE(taken.is_ok()) << taken.to_string();
    return answer;
  }
  Answer clear(std::shared_ptr<const StoreScope> scope) {
    auto answer = std::make_shared<std::optional<Status>>();
    const Status taken = order_->submit_clear(std::move(scope), [answer](const Status& status) {
      EXPECT_FALSE(answer->has_value()) << "a callback runs once";
      *answer = status;
    });
    EXPECT_TRUE(taken.is_ok()) << taken.to_string();
    return answer;
  }
  static bool is_ok(const Answer& answer) { return answer->has_value() && (*answer)->is_ok(); }
  static bool is(const Answer& answer, StatusCode code) { return answer->has_value() && (*answer)->code() == code; }
  std::uint64_t pages() { return order_->stats().pages; }

  ManualClock clock_;
  InlineExecutor executor_;
  ManualExecutor saver_;
  std::deque<std::vector<std::byte>> payloads_;
  std::vector<std::shared_ptr<const StoreScope>> scopes_;
  std::shared_ptr<TestKeeper::Log> log_ = std::make_shared<TestKeeper::Log>();
  std::unique_ptr<ClearOrder> order_;
  sim::FaultyBackend* faulty_ = nullptr;
};

TEST_F(ClearOrderTest, PagesOfBeforeAClearAreRefused) {
  const ClearMark before = order_->clear_mark();
  EXPECT_NE(before.store, 0u);
  EXPECT_TRUE(is_ok(write(1, 0, before)));
  EXPECT_TRUE(is_ok(clear(scopes_[0])));
  EXPECT_EQ(pages(), 0u);
  const Answer late = write(1, 0, before);
  EXPECT_TRUE(is(late, StatusCode::kCancelled));
  EXPECT_NE((*late)->message().find("cleared"), std::string::npos);
  EXPECT_EQ(pages(), 0u);
  EXPECT_TRUE(is_ok(write(1, 1, before))) << "another namespace";
  EXPECT_TRUE(is_ok(write(1, 0, order_->clear_mark())));
  EXPECT_TRUE(is_ok(write(2, 0))) << "as of now";
  EXPECT_TRUE(is_ok(clear(nullptr)));
  EXPECT_TRUE(is(write(1, 1, before), StatusCode::kCancelled));
  EXPECT_EQ(pages(), 0u);
}

TEST_F(ClearOrderTest, MarksThatNobodyKnowsAreRefused) {
  const ClearMark now = order_->clear_mark();
  EXPECT_TRUE(is(write(1, 0, {now.store + 1, now.count}), StatusCode::kCancelled));
  EXPECT_TRUE(is(write(1, 0, {now.store, now.count + 1}), StatusCode::kCancelled)) << "of the future";
  EXPECT_EQ(pages(), 0u);
  EXPECT_NE(ClearHistory::anew(clock_, 1).store, ClearHistory::anew(clock_, 2).store);
  clock_.advance(Nanos(1));
  EXPECT_NE(ClearHistory::anew(clock_, 1).store, now.store);
}

TEST_F(ClearOrderTest, AClearWaitsForEarlierWritesOfItsNamespaceOnly) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  const Answer hung = write(1);
  const Answer one = clear(scopes_[0]), two = clear(scopes_[0]), all = clear(nullptr), other = clear(scopes_[1]);
  EXPECT_TRUE(is_ok(other)) << "nothing of it is under way";
  EXPECT_FALSE(one->has_value() || two->has_value() || all->has_value());
  EXPECT_EQ(order_->stats().queued, 3u);
  EXPECT_TRUE(is_ok(write(2, 1))) << "writes do not wait for clears";
  EXPECT_TRUE(is_ok(write(3, 0, order_->clear_mark())));
  EXPECT_EQ(order_->emptied_mark().count, 0u);
  EXPECT_EQ(faulty_->release_hung(), 1u);
  EXPECT_EQ(faulty_->release_all(), 1u);
  EXPECT_TRUE(is_ok(hung) && is_ok(one) && is_ok(two) && is_ok(all));
  EXPECT_EQ(pages(), 0u);
  EXPECT_EQ(order_->stats().queued, 0u);
}

TEST_F(ClearOrderTest, AClearIsDoneAfterTheAnswersToEarlierWrites) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  Answer cleared;
  bool is_answered = false;
  const Status taken = order_->submit_write(request_of(1, 0, {}), [&](const WriteResult&) {
    is_answered = true;
    EXPECT_FALSE(cleared->has_value());
  });
  ASSERT_TRUE(taken.is_ok()) << taken.to_string();
  cleared = clear(scopes_[0]);
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(is_answered && is_ok(cleared));
}

TEST_F(ClearOrderTest, AWriteOfAfterTheMarkDoesNotHoldUpTheClear) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  (void)write(1);
  const Answer first = clear(scopes_[0]);
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  (void)write(2);
  EXPECT_EQ(faulty_->release_hung(), 2u);
  while (!first->has_value()) ASSERT_TRUE(faulty_->release_one());
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  (void)write(3);
  const Answer second = clear(scopes_[0]);
  EXPECT_FALSE(second->has_value()) << "it is earlier than this one";
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(is_ok(first) && is_ok(second));
}

TEST_F(ClearOrderTest, TheWholeStoreIsEmptiedWhenItsClearHasEnded) {
  const ClearMark before = order_->emptied_mark();
  EXPECT_EQ(before.store, order_->clear_mark().store);
  EXPECT_TRUE(is_ok(clear(scopes_[0])));
  EXPECT_EQ(order_->emptied_mark(), before) << "it was one namespace";
  faulty_->set_plan({.is_holding = true});
  const Answer whole = clear(nullptr);
  EXPECT_EQ(order_->emptied_mark(), before);
  EXPECT_EQ(order_->clear_mark().count, 2u) << "it has begun";
  faulty_->release_all();
  EXPECT_TRUE(is_ok(whole));
  const ClearMark after = order_->emptied_mark();
  EXPECT_EQ(after.count, 2u);
  faulty_->set_plan({.refuse_percent = 100});
  EXPECT_TRUE(is(clear(nullptr), StatusCode::kOverloaded));
  EXPECT_EQ(order_->emptied_mark(), after) << "the backend did not take it";
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_TRUE(is(clear(nullptr), StatusCode::kUnavailable));
  EXPECT_NE(order_->emptied_mark(), after) << "a part may be gone";
}

TEST_F(ClearOrderTest, AWriteThatIsNotTakenIsNotWaitedFor) {
  const auto ignore = [](const WriteResult&) { FAIL() << "refused, and called back"; };
  faulty_->set_plan({.refuse_percent = 100});
  EXPECT_EQ(order_->submit_write(request_of(1, 0, {}), ignore).code(), StatusCode::kOverloaded);
  faulty_->set_plan({});
  faulty_->fail_nth(1, sim::StorageFault::kRefused, [] { throw std::bad_alloc(); });
  EXPECT_THROW((void)order_->submit_write(request_of(1, 0, {}), ignore), std::bad_alloc);
  EXPECT_FALSE(order_->submit_write({}, ignore).is_ok()) << "no scope";
  EXPECT_TRUE(is_ok(clear(nullptr)));
}

// The clear waits, and its own turn ends in the middle of another's completion.
TEST_F(ClearOrderTest, AClearThatCannotBePassedOnEndsWithTheReason) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  (void)write(1);
  const Answer waiting = clear(scopes_[0]);
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->fail_nth(1, sim::StorageFault::kRefused, [] { throw std::bad_alloc(); });
  faulty_->release_all();
  EXPECT_TRUE(is(waiting, StatusCode::kOverloaded));
  EXPECT_TRUE(is_ok(clear(scopes_[0])));
}

TEST_F(ClearOrderTest, AWaitingClearEndsWithTheStoreAndNeverRuns) {
  EXPECT_TRUE(is_ok(write(9)));
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  const Answer hung = write(1);
  const Answer waiting = clear(scopes_[0]), all = clear(nullptr);
  EXPECT_EQ(order_->close(Nanos(0)).code(), StatusCode::kDeadlineExceeded) << "the write hangs";
  EXPECT_TRUE(is(waiting, StatusCode::kCancelled) && is(all, StatusCode::kCancelled));
  EXPECT_FALSE(hung->has_value());
  EXPECT_EQ(order_->submit_clear(nullptr, [](const Status&) { FAIL(); }).code(), StatusCode::kUnavailable);
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(is_ok(hung));
  EXPECT_TRUE(order_->close(Nanos(0)).is_ok());
  EXPECT_EQ(pages(), 2u);
  EXPECT_EQ(order_->emptied_mark().count, 0u);
}

TEST_F(ClearOrderTest, TheDestructorEndsEverything) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  const Answer hung = write(1);
  const Answer waiting = clear(nullptr);
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  const Answer below = clear(scopes_[1]);
  order_.reset();
  EXPECT_TRUE(is(hung, StatusCode::kCancelled));
  EXPECT_TRUE(is(waiting, StatusCode::kCancelled));
  EXPECT_TRUE(is(below, StatusCode::kCancelled));
}

TEST_F(ClearOrderTest, ManyClearsAtOnceAreRefused) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  (void)write(1);
  std::vector<Answer> waiting;
  for (std::size_t i = 0; i < ClearOrder::kMostClears; ++i) waiting.push_back(clear(scopes_[0]));
  EXPECT_EQ(order_->submit_clear(nullptr, [](const Status&) { FAIL(); }).code(), StatusCode::kOverloaded);
  faulty_->release_hung();
  faulty_->release_all();
  for (const Answer& answer : waiting) EXPECT_TRUE(is_ok(answer));
  EXPECT_TRUE(is_ok(clear(nullptr)));
}

// What is forgotten is refused, whatever its namespace is; what is newer than that is not.
TEST(ClearHistory, ClearsOfManyNamespacesAreKeptInALittleMemory) {
  ManualClock clock;
  ClearHistory history = ClearHistory::anew(clock, 1);
  Digest256 digest{}, other{{9}};
  const auto nth = [&](std::uint64_t i) {
    store_le(digest.bytes.data() + 8, i);
    return digest;
  };
  for (std::uint64_t i = 0; i < 3'000; ++i) {
    (void)nth(i);
    EXPECT_EQ(history.begin(&digest), i + 1);
  }
  EXPECT_EQ(history.namespaces.size(), ClearHistory::kMostNamespaces);
  EXPECT_EQ(history.whole, 0u);
  EXPECT_EQ(history.floor, 3'000 - ClearHistory::kMostNamespaces);
  EXPECT_EQ(history.cleared_at(nth(0)), history.floor);
  EXPECT_EQ(history.cleared_at(other), history.floor);
  EXPECT_EQ(history.cleared_at(nth(2'999)), 3'000u);
  EXPECT_EQ(history.begin(&digest), 3'001u) << "again";
  EXPECT_EQ(history.namespaces.size(), ClearHistory::kMostNamespaces);
  EXPECT_EQ(history.begin(nullptr), 3'002u);
  EXPECT_EQ(history.cleared_at(other), 3'002u);
  EXPECT_TRUE(history.namespaces.empty());
  EXPECT_EQ(history.whole, 3'002u);
}

TEST_F(ClearOrderTest, TheNextOneGoesOnWithTheHistory) {
  ClearHistory history = ClearHistory::anew(clock_, 3);
  const ClearMark before{history.store, 0};
  (void)history.begin(&scopes_[0]->namespace_digest);
  make(history);
  EXPECT_EQ(order_->clear_mark(), (ClearMark{history.store, 1}));
  EXPECT_TRUE(is(write(1, 0, before), StatusCode::kCancelled));
  EXPECT_TRUE(is_ok(write(1, 1, before)));
  (void)history.begin(nullptr);
  make(history);
  EXPECT_EQ(order_->emptied_mark(), (ClearMark{history.store, 2})) << "whether it came to its end is not known";
}

TEST_F(ClearOrderTest, AMarkIsKeptBeforeAnybodyHearsOfIt) {
  make_kept();
  EXPECT_TRUE(is_ok(write(1)));
  const ClearMark before = order_->clear_mark();
  log_->during = [&] { EXPECT_EQ(order_->clear_mark(), before) << "told before it was kept"; };
  const Answer one = clear(scopes_[0]), all = clear(nullptr);
  EXPECT_FALSE(one->has_value());
  EXPECT_TRUE(is_ok(write(2, 0, before))) << "the clear has not begun";
  EXPECT_EQ(saver_.waiting(), 1u) << "one job for both";
  saver_.run_all();
  EXPECT_TRUE(is_ok(one) && is_ok(all));
  ASSERT_EQ(log_->saved.size(), 1u);
  EXPECT_EQ(log_->saved[0].count, 2u);
  EXPECT_EQ(log_->saved[0].whole, 2u);
  EXPECT_EQ(order_->clear_mark().count, 2u);
  EXPECT_EQ(pages(), 0u);
}

TEST_F(ClearOrderTest, AClearWhoseMarkIsNotKeptClearsNothing) {
  make_kept();
  EXPECT_TRUE(is_ok(write(1)));
  const ClearMark before = order_->clear_mark();
  log_->status = unavailable("the disk is full");
  const Answer failed = clear(nullptr);
  saver_.run_all();
  EXPECT_TRUE(is(failed, StatusCode::kUnavailable));
  EXPECT_EQ(pages(), 1u);
  EXPECT_EQ(order_->clear_mark(), before);
  log_->status = Status::ok();
  log_->during = [] { throw std::bad_alloc(); };
  const Answer poor = clear(nullptr);
  saver_.run_all();
  EXPECT_TRUE(is(poor, StatusCode::kOverloaded));
  log_->during = nullptr;
  const Answer dropped = clear(nullptr);
  EXPECT_EQ(saver_.drop_all(), 1u);
  EXPECT_TRUE(is(dropped, StatusCode::kCancelled));
  EXPECT_EQ(order_->clear_mark(), before);
  const Answer done = clear(nullptr);
  saver_.run_all();
  EXPECT_TRUE(is_ok(done));
  EXPECT_EQ(log_->saved.at(0).count, before.count + 1);
}

TEST_F(ClearOrderTest, AnExecutorThatRefusesDoesNotStopAClear) {
  make_kept();
  while (saver_.post([] {}).is_ok()) {}
  const Answer here = clear(nullptr);
  EXPECT_TRUE(is_ok(here));
  EXPECT_EQ(log_->saved.size(), 1u);
}

TEST_F(ClearOrderTest, AClearThatIsNotKeptYetEndsWithTheStore) {
  make_kept();
  EXPECT_TRUE(is_ok(write(1)));
  const Answer unsaved = clear(nullptr);
  EXPECT_TRUE(order_->close(Nanos(0)).is_ok());
  EXPECT_TRUE(is(unsaved, StatusCode::kCancelled));
  EXPECT_EQ(pages(), 1u);
  order_.reset();
  saver_.run_all();
  EXPECT_TRUE(log_->saved.empty());
}

TEST_F(ClearOrderTest, AnotherProcessReadsTheMarksInItsMemory) {
  const auto words = std::make_shared<ClearWords>();
  EXPECT_TRUE(is_ok(clear(nullptr)));
  auto handle = order_->tell(words);
  EXPECT_EQ(words->count.load(), 1u);
  EXPECT_EQ(words->emptied.load(), 1u);
  faulty_->set_plan({.is_holding = true});
  const Answer whole = clear(nullptr);
  EXPECT_EQ(words->count.load(), 2u) << "before it is done";
  EXPECT_EQ(words->emptied.load(), 1u);
  faulty_->release_all();
  EXPECT_TRUE(is_ok(whole));
  EXPECT_EQ(words->emptied.load(), 2u);
  handle.reset();
  (void)clear(nullptr);
  EXPECT_EQ(words->count.load(), 2u);
  handle = order_->tell(words);
  order_.reset();
  handle.reset();
  EXPECT_EQ(words->count.load(), 3u);
}

// A pipeline in front: what waits in its queue came into being before the clear, and is written never.
TEST_F(ClearOrderTest, WhatAClearFindsInAQueueIsRefused) {
  auto faulty = std::make_unique<sim::FaultyBackend>(memory(executor_), 1);
  sim::FaultyBackend& backend = *faulty;
  PipelineOptions options;
  options.max_writes_in_flight = 1;
  const auto pipeline = make_pipeline(std::make_unique<ClearOrder>(std::move(faulty), ClearHistory::anew(clock_, 1)),
                                      options, clock_, nullptr, 1);
  EXPECT_NE(pipeline->clear_mark().store, 0u);
  std::vector<Status> ended;
  const auto put = [&](std::uint8_t number) {
    const Status taken = pipeline->submit_write(
        request_of(number, 0, {}), [&](const WriteResult& result) { ended.push_back(result.groups.at(0)); });
    EXPECT_TRUE(taken.is_ok()) << taken.to_string();
  };
  backend.fail_nth(1, sim::StorageFault::kHung);
  put(1);
  put(2);
  Status cleared = internal_error("not answered");
  ASSERT_TRUE(pipeline->submit_clear(scopes_[0], [&](const Status& status) { cleared = status; }).is_ok());
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(backend.release_hung(), 1u);
  backend.release_all();
  EXPECT_TRUE(cleared.is_ok()) << cleared.to_string();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_TRUE(ended[0].is_ok());
  EXPECT_EQ(ended[1].code(), StatusCode::kCancelled);
  EXPECT_EQ(pipeline->stats().pages, 0u);
  put(3);
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_TRUE(ended[2].is_ok()) << "of after the clear";
  EXPECT_EQ(pipeline->stats().pages, 1u);
  EXPECT_EQ(pipeline->emptied_mark().count, 0u);
}

// Writers that keep the mark of when they began, as long as they like, beside clears: what was answered before a clear
// began is not there after it.
TEST_F(ClearOrderTest, NothingOfBeforeComesAfterUnderThreads) {
  constexpr std::uint32_t kRounds = 200, kPages = 8;
  ThreadPoolExecutor workers("workers", 3, 10'000), writers("writers", 3, 10'000);
  ClearOrder order(memory(workers), ClearHistory::anew(clock_, 5));
  std::atomic<std::uint32_t> answered{0}, submitted{0};
  std::vector<std::byte> payload(kBytes);
  const auto put = [&](std::uint32_t number, ClearMark as_of) {
    WriteRequest request{scopes_[0], {}, false, {}, as_of};
    PageKey key{};
    store_le(key.bytes.data(), number);
    request.groups.push_back({{{PoolName::kKv, key, {{payload.data(), kBytes}}, {}}}});
    const Status status = order.submit_write(std::move(request), [&](const WriteResult&) { ++answered; });
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    ++submitted;
  };
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const ClearMark before = order.clear_mark();
    for (std::uint32_t i = 0; i < kPages; ++i) put(i, before);
    for (std::uint32_t i = 0; i < kPages; ++i) {  // kept, and written whenever it happens
      ASSERT_TRUE(writers.post([&, i, before] { put(kPages + i, before); }).is_ok());
    }
    std::promise<Status> cleared;
    const Status taken = order.submit_clear(round % 2 == 0 ? scopes_[0] : nullptr,
                                            [&](Status status) { cleared.set_value(std::move(status)); });
    ASSERT_TRUE(taken.is_ok()) << taken.to_string();
    EXPECT_TRUE(cleared.get_future().get().is_ok());
    EXPECT_EQ(order.stats().pages, 0u) << "round " << round;
  }
  while (submitted < 2 * kRounds * kPages || answered < submitted) std::this_thread::yield();
  EXPECT_EQ(order.stats().pages, 0u);
  EXPECT_TRUE(order.close(std::chrono::seconds(10)).is_ok());
}

}  // namespace
}  // namespace larder
