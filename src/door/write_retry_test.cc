// SPDX-License-Identifier: Apache-2.0
#include "door/write_retry.h"

#include <gtest/gtest.h>

#include <new>

#include "base/executor.h"
#include "sim/faulty_backend.h"
#include "storage/clear_order.h"
#include "storage/memory/memory_backend.h"

namespace larder {
namespace {

class WriteRetryTest : public ::testing::Test {
 protected:
  WriteRetryTest() {
    BackendFactory factory;
    EXPECT_TRUE(register_memory_backend(factory).is_ok());
    BackendEnvironment environment{nullptr, &clock_, &executor_, {}};
    auto faulty = std::make_unique<sim::FaultyBackend>(factory.create("memory", {}, environment).value(), 1);
    faulty_ = faulty.get();
    order_ = std::make_unique<ClearOrder>(std::move(faulty), ClearHistory::anew(clock_, 1));
    scope_->namespace_digest.bytes[0] = 1;
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
    make({});
  }
  ~WriteRetryTest() override { retry_->stop(); }

  void make(RetryOptions options) { retry_ = std::make_shared<WriteRetry>(*order_, clock_, options); }
  static PageKey key_of(std::uint8_t number) { return PageKey{{number, 1}}; }
  // A group of one page, whose bytes are gone when this returns; as of now.
  bool offer(std::uint8_t number, std::size_t bytes = 100) {
    return offer_of(scope_, number, order_->clear_mark(), bytes);
  }
  bool offer_of(const std::shared_ptr<const StoreScope>& scope, std::uint8_t number, const ClearMark& as_of,
                std::size_t bytes = 100) {
    std::vector<std::byte> payload(bytes, std::byte{number});
    PageGroup group;
    group.items.push_back(
        {PoolName::kKv, key_of(number), {{payload.data(), 40}, {payload.data() + 40, bytes - 40}}, {}});
    const bool taken = retry_->offer(scope, group, false, as_of);
    payload.assign(bytes, std::byte{0xee});
    return taken;
  }
  // Whether the store has the page, with its own bytes.
  bool is_stored(std::uint8_t number, std::size_t bytes = 100) { return is_stored_of(scope_, number, bytes); }
  bool is_stored_of(const std::shared_ptr<const StoreScope>& scope, std::uint8_t number, std::size_t bytes = 100) {
    std::vector<std::byte> got(bytes);
    ReadRequest request{scope, {{PoolName::kKv, key_of(number), {{got.data(), bytes}}}}, {}};
    Status status = internal_error("not answered");
    EXPECT_TRUE(faulty_->inner().submit_read(request, [&](ReadResult result) { status = result.items[0]; }).is_ok());
    return status.is_ok() && got == std::vector<std::byte>(bytes, std::byte{number});
  }
  void clear(const std::shared_ptr<const StoreScope>& scope) {
    Status status = internal_error("not answered");
    EXPECT_TRUE(order_->submit_clear(scope, [&](const Status& told) { status = told; }).is_ok());
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  void tick_after(Nanos time) {
    clock_.advance(time);
    retry_->tick();
  }

  ManualClock clock_;
  InlineExecutor executor_;
  std::unique_ptr<ClearOrder> order_;
  sim::FaultyBackend* faulty_ = nullptr;
  std::shared_ptr<StoreScope> scope_ = std::make_shared<StoreScope>();
  std::shared_ptr<WriteRetry> retry_;
};

TEST_F(WriteRetryTest, WritesWhatItWasOfferedAlthoughTheBytesAreGone) {
  EXPECT_TRUE(offer(1));
  EXPECT_TRUE(offer(2));
  EXPECT_EQ(retry_->stats().waiting, 2u);
  retry_->tick();
  EXPECT_TRUE(is_stored(1));
  EXPECT_TRUE(is_stored(2));
  const RetryStats stats = retry_->stats();
  EXPECT_EQ(stats.stored, 2u);
  EXPECT_EQ(stats.waiting + stats.waiting_bytes, 0u);
}

TEST_F(WriteRetryTest, WaitsLongerAfterEachFailureAndThenStores) {
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_TRUE(offer(1));
  retry_->tick();
  const std::uint64_t once = faulty_->injected().failed;
  tick_after(std::chrono::milliseconds(199));
  EXPECT_EQ(faulty_->injected().failed, once);
  tick_after(std::chrono::milliseconds(1));
  EXPECT_EQ(faulty_->injected().failed, once + 1);
  tick_after(std::chrono::milliseconds(399));
  EXPECT_EQ(faulty_->injected().failed, once + 1);
  faulty_->set_plan({});
  tick_after(std::chrono::milliseconds(1));
  EXPECT_TRUE(is_stored(1));
}

TEST_F(WriteRetryTest, ManyNamespacesGoAsFastAsOne) {
  std::vector<std::shared_ptr<StoreScope>> scopes;
  for (std::uint8_t n = 0; n < 8; ++n) {
    scopes.push_back(std::make_shared<StoreScope>(*scope_));
    scopes.back()->namespace_digest.bytes[0] = static_cast<std::uint8_t>(n + 10);
  }
  for (std::uint8_t n = 0; n < 160; ++n) EXPECT_TRUE(offer_of(scopes[n % 8], n, order_->clear_mark()));
  retry_->tick();
  EXPECT_EQ(retry_->stats().stored, 160u);
  EXPECT_EQ(retry_->stats().waiting, 0u);
}

// Of two operations, the first is answered later, on a thread of the store: it submits the second itself.
TEST_F(WriteRetryTest, TheEndOfOneOperationSubmitsTheNext) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  for (std::uint8_t n = 0; n < 100; ++n) EXPECT_TRUE(offer(n));
  retry_->tick();
  EXPECT_EQ(retry_->stats().stored, 0u);
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_EQ(retry_->stats().stored, 100u);
}

TEST_F(WriteRetryTest, WhatHasFailedGoesBehindWhatWaits) {
  const auto other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  EXPECT_TRUE(offer(1));
  EXPECT_TRUE(offer_of(other, 2, order_->clear_mark()));
  faulty_->fail_nth(1, sim::StorageFault::kFailed);
  retry_->tick();
  faulty_->fail_nth(2, sim::StorageFault::kHung);
  tick_after(std::chrono::milliseconds(200));
  EXPECT_TRUE(is_stored_of(other, 2)) << "before the first one has its second try";
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_TRUE(is_stored(1));
}

TEST_F(WriteRetryTest, IsBoundedInBytesAndInAge) {
  make({.most_bytes = 5'000, .oldest = std::chrono::seconds(10)});
  faulty_->set_plan({.refuse_percent = 100});
  EXPECT_TRUE(offer(1, 3'000));
  EXPECT_FALSE(offer(2, 3'000));
  EXPECT_EQ(retry_->stats().refused, 1u);
  retry_->tick();
  tick_after(std::chrono::seconds(11));
  EXPECT_EQ(retry_->stats().dropped, 1u);
  EXPECT_EQ(retry_->stats().waiting_bytes, 0u);
  EXPECT_TRUE(offer(2, 3'000));
}

// By another process, say: nobody tells this queue.
TEST_F(WriteRetryTest, WhatWasPutBeforeAClearIsNotWrittenAfterIt) {
  const ClearMark before = order_->clear_mark();
  EXPECT_TRUE(offer(1));
  clear(scope_);
  EXPECT_TRUE(offer_of(scope_, 2, before)) << "the put began before, and failed after";
  EXPECT_TRUE(offer(3));
  tick_after(std::chrono::seconds(1));
  tick_after(std::chrono::seconds(1));
  EXPECT_FALSE(is_stored(1) || is_stored(2));
  EXPECT_TRUE(is_stored(3));
  EXPECT_EQ(retry_->stats().dropped, 2u);
  EXPECT_EQ(retry_->stats().waiting + retry_->stats().waiting_bytes, 0u);
}

TEST_F(WriteRetryTest, WhatIsOnItsWayAtAClearIsRefusedWhenItIsTriedAgain) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  EXPECT_TRUE(offer(1));
  retry_->tick();
  Status cleared = internal_error("not answered");
  ASSERT_TRUE(order_->submit_clear(scope_, [&](const Status& told) { cleared = told; }).is_ok());
  EXPECT_EQ(cleared.code(), StatusCode::kInternal) << "it waits for the write";
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_TRUE(cleared.is_ok());
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(retry_->stats().stored, 1u) << "before the clear";

  faulty_->fail_nth(1, sim::StorageFault::kFailed);
  EXPECT_TRUE(offer(2));
  retry_->tick();
  clear(nullptr);
  tick_after(std::chrono::seconds(1));
  EXPECT_FALSE(is_stored(2));
  EXPECT_EQ(retry_->stats().waiting, 0u);
}

TEST_F(WriteRetryTest, AClearOfOneNamespaceLeavesTheWritesOfOthers) {
  const auto other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  EXPECT_TRUE(offer_of(scope_, 1, order_->clear_mark()));
  EXPECT_TRUE(offer_of(other, 2, order_->clear_mark()));
  clear(scope_);
  for (int i = 0; i < 3; ++i) tick_after(std::chrono::seconds(1));
  EXPECT_FALSE(is_stored(1));
  EXPECT_TRUE(is_stored_of(other, 2));
}

TEST_F(WriteRetryTest, ForgettingMakesRoomOfWhatAClearWouldRefuse) {
  const auto other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  const ClearMark before = order_->clear_mark();
  EXPECT_TRUE(offer(1));
  EXPECT_TRUE(offer_of(other, 2, before));
  clear(scope_);
  EXPECT_TRUE(offer(3));
  retry_->forget(scope_.get(), before);
  EXPECT_EQ(retry_->stats().waiting, 2u);
  EXPECT_EQ(retry_->stats().dropped, 1u);
  retry_->forget(nullptr, before);
  EXPECT_EQ(retry_->stats().waiting, 1u) << "what was put after the clear stays";
  retry_->tick();
  EXPECT_TRUE(is_stored(3));
}

TEST_F(WriteRetryTest, WhatIsAsOfClearsThatNobodyKnowsGoes) {
  EXPECT_TRUE(offer_of(scope_, 1, {order_->clear_mark().store + 1, 0}));
  retry_->tick();
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(retry_->stats().waiting, 0u);
}

TEST_F(WriteRetryTest, AnOfferWithoutMemoryLeavesNothingBehind) {
  make({.most_bytes = UINT64_MAX});
  std::byte byte{};
  PageGroup group;
  group.items.push_back({PoolName::kKv, key_of(1), {{&byte, std::size_t{1} << 63}}, {}});
  bool was_taken = false;
  EXPECT_NO_THROW(was_taken = retry_->offer(scope_, group, false, {}));
  EXPECT_FALSE(was_taken);
  EXPECT_EQ(retry_->stats().waiting + retry_->stats().waiting_bytes, 0u);
}

// The queue's own writes: what could not be submitted is tried again, and nothing leaves tick().
TEST_F(WriteRetryTest, ATickThatRanOutOfMemoryIsAFailureThatPasses) {
  EXPECT_TRUE(offer(1));
  faulty_->fail_nth(1, sim::StorageFault::kRefused, [] { throw std::bad_alloc(); });
  EXPECT_NO_THROW(retry_->tick());
  EXPECT_EQ(retry_->stats().waiting, 1u);
  tick_after(std::chrono::seconds(1));
  EXPECT_TRUE(is_stored(1));
  clear(nullptr);  // waits for nothing
}

TEST_F(WriteRetryTest, AHungWriteHoldsTheNextAndALateAnswerAfterTheEndIsHarmless) {
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  EXPECT_TRUE(offer(1));
  retry_->tick();
  EXPECT_TRUE(offer(2));
  tick_after(std::chrono::seconds(1));
  EXPECT_FALSE(is_stored(2));  // one operation at a time
  retry_->stop();
  EXPECT_FALSE(offer(3));
  EXPECT_EQ(faulty_->release_hung(), 1u);
  faulty_->release_all();
  EXPECT_EQ(retry_->stats().waiting, 0u);
}

}  // namespace
}  // namespace larder
