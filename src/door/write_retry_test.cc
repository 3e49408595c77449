// SPDX-License-Identifier: Apache-2.0
#include "door/write_retry.h"

#include <gtest/gtest.h>

#include <new>

#include "base/executor.h"
#include "sim/faulty_backend.h"
#include "storage/memory/memory_backend.h"

namespace larder {
namespace {

class WriteRetryTest : public ::testing::Test {
 protected:
  WriteRetryTest() {
    BackendFactory factory;
    EXPECT_TRUE(register_memory_backend(factory).is_ok());
    BackendEnvironment environment{nullptr, &clock_, &executor_, {}};
    faulty_ = std::make_unique<sim::FaultyBackend>(factory.create("memory", {}, environment).value(), 1);
    scope_->namespace_digest.bytes[0] = 1;
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
    make({});
  }
  ~WriteRetryTest() override { retry_->stop(); }

  void make(RetryOptions options) { retry_ = std::make_shared<WriteRetry>(*faulty_, clock_, options); }
  static PageKey key_of(std::uint8_t number) { return PageKey{{number, 1}}; }
  // A group of one page, whose bytes are gone when this returns.
  bool offer(std::uint8_t number, std::size_t bytes = 100) {
    std::vector<std::byte> payload(bytes, std::byte{number});
    PageGroup group;
    group.items.push_back(
        {PoolName::kKv, key_of(number), {{payload.data(), 40}, {payload.data() + 40, bytes - 40}}, {}});
    const bool taken = retry_->offer(scope_, group, false, retry_->epoch());
    payload.assign(bytes, std::byte{0xee});
    return taken;
  }
  // Whether the store has the page, with its own bytes.
  bool is_stored(std::uint8_t number, std::size_t bytes = 100) {
    std::vector<std::byte> got(bytes);
    ReadRequest request{scope_, {{PoolName::kKv, key_of(number), {{got.data(), bytes}}}}, {}};
    Status status = internal_error("not answered");
    EXPECT_TRUE(faulty_->inner().submit_read(request, [&](ReadResult result) { status = result.items[0]; }).is_ok());
    return status.is_ok() && got == std::vector<std::byte>(bytes, std::byte{number});
  }
  void tick_after(Nanos time) {
    clock_.advance(time);
    retry_->tick();
  }

  ManualClock clock_;
  InlineExecutor executor_;
  std::unique_ptr<sim::FaultyBackend> faulty_;
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

TEST_F(WriteRetryTest, AClearTakesWhatWaitsAndWhatIsOnItsWay) {
  faulty_->set_plan({.is_holding = true});
  EXPECT_TRUE(offer(1));
  retry_->tick();
  EXPECT_TRUE(offer(2));
  retry_->begin_clear(scope_.get());
  faulty_->set_plan({.fail_percent = 100});
  EXPECT_EQ(faulty_->release_all(), 1u);
  tick_after(std::chrono::minutes(1));
  EXPECT_EQ(retry_->stats().waiting, 0u);
  EXPECT_FALSE(is_stored(2));
}

TEST_F(WriteRetryTest, AClearWaitsForWritesThatBeganBefore) {
  const auto before = retry_->begin_write(*scope_);
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));  // nobody clears
  retry_->begin_clear(nullptr);
  const auto after = retry_->begin_write(*scope_);
  EXPECT_FALSE(retry_->wait_for_earlier(nullptr, Nanos{0}));
  before->end();
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));  // `after` is nobody's business
  std::byte byte{};
  PageGroup group;
  group.items.push_back({PoolName::kKv, key_of(1), {{&byte, 1}}, {}});
  EXPECT_FALSE(retry_->offer(scope_, group, false, before->epoch()));
  EXPECT_TRUE(retry_->offer(scope_, group, false, after->epoch()));
}

TEST_F(WriteRetryTest, AClearOfOneNamespaceLeavesTheWritesOfOthers) {
  const auto other = std::make_shared<StoreScope>(*scope_);
  other->namespace_digest.bytes[0] = 2;
  const auto mine = retry_->begin_write(*scope_);
  const auto theirs = retry_->begin_write(*other);
  retry_->begin_clear(scope_.get());
  std::byte byte{};
  PageGroup group;
  group.items.push_back({PoolName::kKv, key_of(1), {{&byte, 1}}, {}});
  EXPECT_FALSE(retry_->offer(scope_, group, false, mine->epoch()));
  EXPECT_TRUE(retry_->offer(other, group, false, theirs->epoch()));
  EXPECT_FALSE(retry_->wait_for_earlier(scope_.get(), Nanos{0}));
  EXPECT_TRUE(retry_->wait_for_earlier(other.get(), Nanos{0}));
  mine->end();
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));
  retry_->begin_clear(nullptr);
  EXPECT_FALSE(retry_->wait_for_earlier(other.get(), Nanos{0}));
  EXPECT_FALSE(retry_->offer(other, group, false, theirs->epoch()));
}

// The oldest of very many clears are forgotten; a write that began before them is refused whatever its namespace is.
TEST_F(WriteRetryTest, ClearsOfManyNamespacesAreKeptInALittleMemory) {
  const auto before = retry_->begin_write(*scope_);
  StoreScope other = *scope_;
  for (std::size_t i = 0; i < 3'000; ++i) {
    store_le(other.namespace_digest.bytes.data() + 8, i);
    retry_->begin_clear(&other);
  }
  std::byte byte{};
  PageGroup group;
  group.items.push_back({PoolName::kKv, key_of(1), {{&byte, 1}}, {}});
  EXPECT_FALSE(retry_->offer(scope_, group, false, before->epoch()));
  EXPECT_TRUE(offer(1));
}

TEST_F(WriteRetryTest, AnOfferWithoutMemoryLeavesNothingBehind) {
  make({.most_bytes = UINT64_MAX});
  std::byte byte{};
  PageGroup group;
  group.items.push_back({PoolName::kKv, key_of(1), {{&byte, std::size_t{1} << 63}}, {}});
  bool was_taken = false;
  EXPECT_NO_THROW(was_taken = retry_->offer(scope_, group, false, retry_->epoch()));
  EXPECT_FALSE(was_taken);
  EXPECT_EQ(retry_->stats().waiting + retry_->stats().waiting_bytes, 0u);
}

TEST_F(WriteRetryTest, AWriteEndsOnceWhateverBecomesOfItsSubmit) {
  faulty_->fail_nth(1, sim::StorageFault::kRefused, [] { throw std::bad_alloc(); });
  const auto submit = [this] {
    const auto write = retry_->begin_write(*scope_);
    return faulty_->submit_write(WriteRequest{scope_, {}, false, {}}, [write](const WriteResult&) { write->end(); });
  };
  EXPECT_THROW((void)submit(), std::bad_alloc);
  retry_->begin_clear(nullptr);
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));
  const auto other = retry_->begin_write(*scope_);
  {
    const auto write = retry_->begin_write(*scope_);
    write->end();
  }
  retry_->begin_clear(nullptr);
  EXPECT_FALSE(retry_->wait_for_earlier(nullptr, Nanos{0})) << "the one that is under way was ended in another's place";
  other->end();
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));
}

// The queue's own writes: what could not be submitted is tried again, and nothing leaves tick().
TEST_F(WriteRetryTest, ATickThatRanOutOfMemoryIsAFailureThatPasses) {
  EXPECT_TRUE(offer(1));
  faulty_->fail_nth(1, sim::StorageFault::kRefused, [] { throw std::bad_alloc(); });
  EXPECT_NO_THROW(retry_->tick());
  EXPECT_EQ(retry_->stats().waiting, 1u);
  tick_after(std::chrono::seconds(1));
  EXPECT_TRUE(is_stored(1));
  retry_->begin_clear(nullptr);
  EXPECT_TRUE(retry_->wait_for_earlier(nullptr, Nanos{0}));
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
