// SPDX-License-Identifier: Apache-2.0
// The store door over backends that work, hang, fail and lie.
#include "door/page_store.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/thread_pool.h"
#include "tests/support/faulty_memory.h"
#include "tests/support/rest.h"

namespace larder {
namespace {

constexpr std::size_t kKvBytes = 9'000, kStateBytes = 700;
// A call's patience with a disk that hangs; a busy machine still submits within it.
constexpr Nanos kSoon = std::chrono::milliseconds(300);

class PageStoreTest : public ::testing::TestWithParam<bool> {  // zero copy
 protected:
  void SetUp() override {
    ASSERT_TRUE(support::add_faulty_memory(factory_, faulty_).is_ok());
    StoreOptions options;
    options.backend = "faulty";
    options.config = std::string(R"({"timeout_seconds": 20, "staging_bytes": "1Mi", "zero_copy": )") +
                     (GetParam() ? "true}" : "false}");
    store_ = PageStore::open(options, &factory_).value();
    SpaceDescription space;
    space.page_size = 16;
    space.identity = "m";
    space.pools = {{"kv", kKvBytes, "x", HitPolicy::kAllPages, 0, false},
                   {"mamba", kStateBytes, "y", HitPolicy::kTrailingPages, 1, false},
                   {"marker", 0, "z", HitPolicy::kAllPages, 0, false}};
    space_.emplace(PageSpace::create(space).value());
  }

  struct Page {
    std::vector<std::byte> bytes;
    std::vector<Segment> segments;
  };
  static PageKey key_of(std::size_t number) {
    PageKey key{};
    key.bytes[0] = static_cast<std::uint8_t>(number);
    key.bytes[1] = static_cast<std::uint8_t>(number >> 8);
    key.bytes[31] = 1;
    return key;
  }
  // Pages of `pool` for keys [0, count), in two segments each.
  std::vector<Page> make_pages(std::size_t pool, std::size_t count, bool is_filled) const {
    std::vector<Page> pages(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = space_->pools()[pool].page_bytes;
      pages[i].bytes.assign(size, std::byte{0});
      for (std::size_t b = 0; is_filled && b < size; ++b) pages[i].bytes[b] = static_cast<std::byte>(i * 31 + b + pool);
      if (size == 0) continue;
      pages[i].segments = {{pages[i].bytes.data(), size / 3}, {pages[i].bytes.data() + size / 3, size - size / 3}};
    }
    return pages;
  }
  static std::vector<CallPage> call_pages(std::size_t pool, const std::vector<Page>& pages) {
    std::vector<CallPage> out(pages.size());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      out[i].key = key_of(i);
      if (i > 0) out[i].parent = key_of(i - 1);
      out[i].pool = pool;
      out[i].segments = pages[i].segments;
    }
    return out;
  }
  std::vector<Status> put(std::size_t pool, std::size_t count, const CallTerms& terms = {}) {
    const std::vector<Page> pages = make_pages(pool, count, true);
    std::vector<CallPage> call = call_pages(pool, pages);
    store_->put(*space_, call, terms);
    return statuses(call);
  }
  static std::vector<Status> statuses(const std::vector<CallPage>& call) {
    std::vector<Status> out;
    for (const CallPage& page : call) out.push_back(page.status);
    return out;
  }
  static std::size_t count_of(const std::vector<Status>& all, StatusCode code) {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const Status& s) { return s.code() == code; }));
  }
  // Reads and compares; how many were ok.
  std::size_t get(std::size_t pool, std::size_t count, const CallTerms& terms = {}) {
    std::vector<Page> pages = make_pages(pool, count, false);
    const std::vector<Page> right = make_pages(pool, count, true);
    std::vector<CallPage> call = call_pages(pool, pages);
    store_->get(*space_, call, terms);
    for (std::size_t i = 0; i < count; ++i) {
      if (!call[i].status.is_ok()) continue;
      EXPECT_EQ(pages[i].bytes, right[i].bytes) << i;
    }
    return count_of(statuses(call), StatusCode::kOk);
  }
  std::vector<std::uint64_t> exists(std::size_t count, const CallTerms& terms = {}, Status* status = nullptr) {
    std::vector<PageKey> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(i));
    const std::vector<PoolNeed> needs = {{0, HitPolicy::kAllPages, 0}, {1, HitPolicy::kTrailingPages, 1}};
    std::vector<std::uint64_t> words((count + 63) / 64, 99);
    const Status got = store_->exists(*space_, keys, needs, terms, words, {});
    if (status != nullptr) *status = got;
    return words;
  }
  // Operations end on other threads: whether `holds` comes true before a busy machine's patience ends.
  static bool comes_true(const std::function<bool()>& holds) {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    while (!holds()) {
      if (real_clock().now() > end) return false;
      rest();
    }
    return true;
  }
  // Does something on another thread once an operation hangs.
  void when_hung(std::function<void()> then) {
    EXPECT_TRUE(helper_
                    .post([this, then = std::move(then)] {
                      while (faulty_->hung() == 0) rest();
                      then();
                    })
                    .is_ok());
  }

  BackendFactory factory_;
  sim::FaultyBackend* faulty_ = nullptr;
  std::optional<PageSpace> space_;
  std::unique_ptr<PageStore> store_;
  ThreadPoolExecutor helper_{"helper", 1, 4};  // last: its task ends first
};

TEST_P(PageStoreTest, PagesComeBackAsTheyWereAndLengthsAreJoint) {
  EXPECT_EQ(count_of(put(0, 300), StatusCode::kOk), 300u);  // more than the staging arena has room for
  EXPECT_EQ(get(0, 300), 300u);
  EXPECT_EQ(exists(300), (std::vector<std::uint64_t>{0, 0, 0, 0, 0}));  // no state anywhere
  EXPECT_EQ(count_of(put(1, 2), StatusCode::kOk), 2u);
  EXPECT_EQ(exists(300), (std::vector<std::uint64_t>{0b11, 0, 0, 0, 0}));
  EXPECT_EQ(get(1, 3), 2u);
}

TEST_P(PageStoreTest, MarkersHaveNoBytes) {
  EXPECT_EQ(get(2, 4), 0u);
  EXPECT_EQ(count_of(put(2, 4), StatusCode::kOk), 4u);
  EXPECT_EQ(get(2, 4), 4u);
}

TEST_P(PageStoreTest, SuccessivePagesWithOneKeyAreAGroup) {
  const std::vector<Page> states = make_pages(1, 1, true), kv = make_pages(0, 1, true);
  std::vector<CallPage> call = call_pages(1, states);
  call.push_back(call_pages(0, kv)[0]);
  faulty_->fail_nth(1, sim::StorageFault::kFailed);
  store_->put(*space_, call, {});
  EXPECT_EQ(count_of(statuses(call), StatusCode::kUnavailable), 2u);
  store_->put(*space_, call, {});
  EXPECT_EQ(count_of(statuses(call), StatusCode::kOk), 2u);
  EXPECT_EQ(exists(1)[0], 1u);
}

TEST_P(PageStoreTest, OneWrongPageStopsTheWholeCall) {
  std::vector<Page> pages = make_pages(0, 3, true);
  pages[1].segments.pop_back();
  std::vector<CallPage> call = call_pages(0, pages);
  store_->put(*space_, call, {});
  EXPECT_EQ(call[0].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(call[1].status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(call[1].status.message().find("3000 bytes; a page of pool 'kv' has 9000"), std::string::npos);
  EXPECT_EQ(get(0, 1), 0u);
  call[1].pool = 3;
  store_->get(*space_, call, {});
  EXPECT_EQ(call[1].status.code(), StatusCode::kInvalidArgument);
}

TEST_P(PageStoreTest, FailuresAreToldAndAreNoData) {
  EXPECT_EQ(count_of(put(0, 20), StatusCode::kOk), 20u);
  faulty_->set_plan({.partial_percent = 100});
  EXPECT_LT(get(0, 20), 20u);
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(get(0, 20), 0u);
  faulty_->set_plan({.refuse_percent = 100});
  EXPECT_EQ(get(0, 20), 0u);
  Status status;
  EXPECT_EQ(exists(3, {}, &status)[0], 0u);
  EXPECT_FALSE(status.is_ok());
}

TEST_P(PageStoreTest, AFailedGroupIsWrittenLaterIfTheCallAsksForIt) {
  CallTerms terms;
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(count_of(put(0, 5, terms), StatusCode::kOk), 0u);
  terms.retry = true;
  EXPECT_EQ(count_of(put(0, 5, terms), StatusCode::kOk), 5u);
  faulty_->set_plan({});
  EXPECT_TRUE(comes_true([&] { return get(0, 5) == 5; }));
  EXPECT_EQ(get(0, 5), 5u);
}

TEST_P(PageStoreTest, ACancelledExistsEndsWhileTheBackendHangs) {
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  CallTerms terms;
  terms.cancel = flag;
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  when_hung([&] { flag->store(true); });
  Status status;
  EXPECT_EQ(exists(3, terms, &status)[0], 0u);
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  faulty_->release_hung();
  faulty_->release_all();
}

TEST_P(PageStoreTest, AHungReadTouchesNothingAfterTheCall) {
  if (GetParam()) GTEST_SKIP() << "zero copy waits for the disk";
  EXPECT_EQ(count_of(put(0, 3), StatusCode::kOk), 3u);
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  CallTerms terms;
  terms.timeout = kSoon;
  std::vector<Page> pages = make_pages(0, 3, false);
  const std::vector<Page> untouched = pages;
  std::vector<CallPage> call = call_pages(0, pages);
  store_->get(*space_, call, terms);
  EXPECT_EQ(count_of(statuses(call), StatusCode::kDeadlineExceeded), 3u);
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_EQ(get(0, 3), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(pages[i].bytes, untouched[i].bytes);
}

TEST_P(PageStoreTest, AHungWriteHasCapturedItsBytes) {
  if (GetParam()) GTEST_SKIP() << "zero copy waits for the disk";
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  CallTerms terms;
  terms.timeout = kSoon;
  terms.retry = true;
  EXPECT_EQ(count_of(put(0, 3, terms), StatusCode::kOk), 3u);  // the pages' memory is gone now
  ASSERT_TRUE(comes_true([&] { return faulty_->hung() == 1; }));
  EXPECT_EQ(get(0, 3), 0u);
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_TRUE(comes_true([&] { return get(0, 3) == 3; }));
}

TEST_P(PageStoreTest, ADurableWriteIsNotAnsweredOkBeforeItIsDone) {
  CallTerms terms;
  terms.retry = terms.durable = true;
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(count_of(put(0, 5, terms), StatusCode::kUnavailable), 5u);
  faulty_->set_plan({});
  EXPECT_TRUE(comes_true([&] { return get(0, 5) == 5; }));  // it is written later all the same
  if (GetParam()) return;                                   // zero copy waits for the disk
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  terms.timeout = kSoon;
  EXPECT_EQ(count_of(put(1, 3, terms), StatusCode::kDeadlineExceeded), 3u);
  ASSERT_TRUE(comes_true([&] { return faulty_->hung() == 1; }));
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(comes_true([&] { return get(1, 3) == 3; }));
}

TEST_P(PageStoreTest, AZeroCopyReadIsWaitedFor) {
  if (!GetParam()) GTEST_SKIP() << "staged calls leave it behind";
  EXPECT_EQ(count_of(put(0, 3), StatusCode::kOk), 3u);
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  CallTerms terms;
  terms.timeout = kSoon;
  when_hung([&] {
    const TimePoint late = real_clock().now() + 2 * kSoon;
    while (real_clock().now() < late) rest();
    faulty_->release_hung();
    faulty_->release_all();
  });
  EXPECT_EQ(get(0, 3, terms), 3u);
}

TEST_P(PageStoreTest, ClearDropsPagesAndWhatWaitsToBeWritten) {
  EXPECT_EQ(count_of(put(0, 4), StatusCode::kOk), 4u);
  EXPECT_TRUE(store_->clear(&*space_, {}).is_ok());
  EXPECT_EQ(get(0, 4), 0u);
  EXPECT_EQ(count_of(put(0, 4), StatusCode::kOk), 4u);
  EXPECT_TRUE(store_->clear(nullptr, {}).is_ok());
  EXPECT_EQ(get(0, 4), 0u);
}

TEST_P(PageStoreTest, AWriteThatWasAnsweredDoesNotComeAfterAClear) {
  if (GetParam()) GTEST_SKIP() << "zero copy waits for the disk";
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  CallTerms terms;
  terms.timeout = kSoon;
  terms.retry = true;
  EXPECT_EQ(count_of(put(0, 3, terms), StatusCode::kOk), 3u);
  EXPECT_EQ(store_->clear(&*space_, terms).code(), StatusCode::kDeadlineExceeded);
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(store_->clear(&*space_, {}).is_ok());
  EXPECT_EQ(get(0, 3), 0u);
}

// Kept for another try before the clear: gone with it. Kept after it: written.
TEST_P(PageStoreTest, WhatWasKeptBeforeAClearIsNotWrittenAfterIt) {
  CallTerms terms;
  terms.retry = true;
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(count_of(put(0, 3, terms), StatusCode::kOk), 3u);
  EXPECT_FALSE(store_->clear(&*space_, {}).is_ok()) << "it fails, too";
  faulty_->set_plan({});
  EXPECT_TRUE(comes_true([&] { return store_->clear(&*space_, {}).is_ok(); }));  // a breaker may have opened
  EXPECT_TRUE(comes_true([&] { return store_->stats_json().find("\"waiting\":0") != std::string::npos; }));
  EXPECT_EQ(get(0, 3), 0u);
  faulty_->fail_nth(1, sim::StorageFault::kFailed);
  EXPECT_EQ(count_of(put(1, 1, terms), StatusCode::kOk), 1u);
  EXPECT_TRUE(comes_true([&] { return get(1, 1) == 1; }));
  EXPECT_EQ(get(0, 3), 0u);
}

TEST_P(PageStoreTest, AClearWaitsForWritesOfConnectors) {
  const std::vector<Page> pages = make_pages(0, 1, true);
  const auto write = [&](std::atomic<int>& ended) {
    WriteRequest request;
    request.scope = space_->scope();
    request.groups.push_back({{{space_->number_of(0), key_of(0), pages[0].segments, {}}}});
    return store_->backend().submit_write(std::move(request), [&ended](const WriteResult&) { ++ended; });
  };
  std::atomic<int> ended{0};
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  ASSERT_TRUE(write(ended).is_ok());
  CallTerms terms;
  terms.timeout = kSoon;
  const ClearMark before = store_->emptied_mark();
  EXPECT_EQ(store_->clear(nullptr, terms).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_->emptied_mark(), before);
  faulty_->release_hung();
  faulty_->release_all();
  EXPECT_TRUE(store_->clear(nullptr, {}).is_ok());
  EXPECT_EQ(ended.load(), 1) << "it waits for the write";
  const ClearMark after = store_->emptied_mark();
  EXPECT_NE(after, before);
  EXPECT_EQ(store_->backend().stats().pages, 0u);
  EXPECT_TRUE(store_->clear(&*space_, {}).is_ok());
  EXPECT_EQ(store_->emptied_mark(), after) << "it was one namespace";
  ASSERT_TRUE(write(ended).is_ok());
  EXPECT_TRUE(comes_true([&] { return ended == 2; }));
  EXPECT_EQ(store_->backend().stats().pages, 1u);
}

TEST_P(PageStoreTest, CloseWaitsAndMayBeRepeated) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  CallTerms terms;
  terms.timeout = kSoon;
  if (!GetParam()) {
    EXPECT_EQ(get(0, 1, terms), 0u);
    EXPECT_EQ(store_->close(std::chrono::milliseconds(1)).code(), StatusCode::kDeadlineExceeded);
    faulty_->release_hung();
    faulty_->release_all();
  }
  EXPECT_TRUE(store_->close(std::chrono::seconds(20)).is_ok());
}

TEST_P(PageStoreTest, StatisticsAreJsonAndCount) {
  EXPECT_EQ(count_of(put(0, 4), StatusCode::kOk), 4u);
  EXPECT_EQ(get(0, 5), 4u);
  const std::string json = store_->stats_json();
  EXPECT_NE(json.find("\"pages_stored\":4"), std::string::npos) << json;
  EXPECT_NE(json.find("\"pages_read\":4"), std::string::npos) << json;
  EXPECT_NE(json.find("\"pages_missed\":1"), std::string::npos) << json;
  const std::string metrics = store_->metrics_text();
  EXPECT_NE(metrics.find("larder_storage_pages_total"), std::string::npos);
  EXPECT_NE(metrics.find("larder_door_get_pages_total{result=\"missed\"} 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("larder_door_retry_bytes 0\n"), std::string::npos) << metrics;
}

INSTANTIATE_TEST_SUITE_P(Door, PageStoreTest, ::testing::Values(false, true),
                         [](const auto& mode) { return mode.param ? "ZeroCopy" : "Staged"; });

}  // namespace
}  // namespace larder
