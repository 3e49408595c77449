// SPDX-License-Identifier: Apache-2.0
// Each call, with each of its allocations failing once: the tables stay whole, and the journal says what they say.
#include <cstdlib>
#include <new>

#include "metadata/connection_pool.h"
#include "tests/metadata/embedded_harness.h"

namespace {
thread_local std::size_t allocations_left = 0;  // the last of them fails; 0: none does
thread_local bool all_after_fail = false;       // and so does each that follows
}  // namespace

// NOLINTBEGIN: the replaceable functions of the language
void* operator new(std::size_t size) {
  if (allocations_left > 0 && --allocations_left == 0) {
    allocations_left = all_after_fail ? 1 : 0;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace larder::conformance {
namespace {

constexpr std::size_t kMostAllocations = 500;

// True: the `number`-th allocation of the call failed. Those after it do not, unless `and_after`.
template <class Call>
bool fails_at(std::size_t number, Call call, bool and_after = false) {
  allocations_left = number;
  all_after_fail = and_after;
  call();
  const bool was_reached = allocations_left <= (and_after ? 1 : 0);
  allocations_left = 0;
  return was_reached;
}

class NoMemoryTest : public EmbeddedHarness, public ::testing::Test {
 public:
  [[nodiscard]] bool restart() override {
    open(metadata::open_memory_journal(disk_));
    return true;
  }
  // A new service on a new journal, with keys that fill its two pages; nobody reads them.
  Talker fresh() {
    disk_ = std::make_shared<metadata::MemoryDisk>();
    (void)restart();
    EXPECT_EQ(service().initialize(space_, 2).value_or(0), 2u);
    Talker kv(service(), space_);
    kv.store(session_of(1), {old_});
    kv.store(session_of(2), {"other"});
    advance(kMaxLease);
    return kv;
  }
  void expect_whole(std::size_t number) {
    EXPECT_TRUE(check().is_ok()) << "allocation " << number << ": " << check().to_string();
  }

 protected:
  const MetadataNamespace space_{0, "kv"};
  const std::string old_ = std::string(200, 'o'), new_ = std::string(200, 'n');  // too long for a page's entry
  std::shared_ptr<metadata::MemoryDisk> disk_;
};

TEST_F(NoMemoryTest, AnOpeningIsRefusedAndMayBeRepeated) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    (void)fresh();
    auto journal = metadata::open_memory_journal(disk_);
    Result<std::unique_ptr<EmbeddedMetadata>> opened = Status(StatusCode::kInternal, "");
    const EmbeddedMetadataOptions options = embedded_test_options();
    has_failed = fails_at(number, [&] { opened = EmbeddedMetadata::create(options, clock(), std::move(journal)); });
    EXPECT_EQ(opened.status().code(), has_failed ? StatusCode::kUnavailable : StatusCode::kOk) << number;
    (void)restart();
    EXPECT_EQ(Talker(service(), space_).presence({old_, "other"}), "11");
  }
  EXPECT_GT(number, 10u);
  EXPECT_LT(number, kMostAllocations);
}

TEST_F(NoMemoryTest, AReservationSentAgainIsWrittenDown) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    Talker kv = fresh();
    const std::vector<ReserveItems> items{{&kv.space(), {{new_, "parent"}}}};
    has_failed = fails_at(number, [&] { (void)service().reserve(session_of(3), items, kMaxTtl); });
    expect_whole(number);
    const auto given = kv.reserve(session_of(3), {new_}, kMaxTtl, "parent");
    ASSERT_EQ(outcomes(given), "R") << "allocation " << number;
    (void)restart();  // its writer may have written
    const auto found = Talker(service(), kv.space()).find({old_, "other"});
    for (const auto& ref : found) {
      EXPECT_TRUE(!ref || ref->page != given[0].ref.page) << "allocation " << number << ": another key's bytes";
    }
  }
  EXPECT_GT(number, 10u);
  EXPECT_LT(number, kMostAllocations);
}

TEST_F(NoMemoryTest, AClearEndsAndFindsWhatIsLeft) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    Talker kv = fresh();
    const std::vector<ReserveItems> items{{&kv.space(), {{new_, "parent"}}}};
    (void)fails_at(number, [&] { (void)service().reserve(session_of(3), items, kMaxTtl); });
    has_failed = fails_at(number, [&] { (void)service().clear(kv.space(), ""); });
    expect_whole(number);
    (void)kv.clear();
    EXPECT_EQ(kv.presence({old_, "other"}), "00");
    advance(kMaxTtl + kMaxIoLifetime + kSecond);
    EXPECT_EQ(kv.stats().free, 2u) << "allocation " << number;
    expect_whole(number);
    (void)restart();
    EXPECT_EQ(Talker(service(), kv.space()).presence({old_, "other"}), "00") << "allocation " << number;
  }
  EXPECT_LT(number, kMostAllocations);
}

// A chain, so that what goes has children that wait for it. The first call may have dropped some; the second says that
// all is gone.
TEST_F(NoMemoryTest, WhatIsGoneStaysAwayAfterARestart) {
  const std::vector<std::string> chain{"a", "b", "c"};
  for (const bool is_clear : {false, true}) {
    std::size_t number = 1;
    for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
      (void)fresh();
      const MetadataNamespace swa{0, "swa"};
      EXPECT_EQ(service().initialize(swa, 8).value_or(0), 8u);
      Talker kv(service(), swa);
      kv.store(session_of(1), chain);
      (void)kv.reserve(session_of(2), {"d"}, kMaxTtl, "c");
      std::vector<ConfirmItem> items;
      for (const std::string& key : chain) items.push_back({&swa, key, {}});
      const auto call = [&] { (void)(is_clear ? service().clear(swa, "") : service().remove(items)); };
      has_failed = fails_at(number, call);
      expect_whole(number);
      call();
      EXPECT_EQ(kv.presence(chain), "000");
      expect_whole(number);
      (void)restart();
      EXPECT_EQ(Talker(service(), swa).presence(chain), "000") << "allocation " << number << ", clear: " << is_clear;
      expect_whole(number);
    }
    EXPECT_GT(number, 5u);
    EXPECT_LT(number, kMostAllocations);
  }
}

// A journal that cannot even say why it fails does not keep those who come later waiting.
TEST_F(NoMemoryTest, WhoComesAfterACallWithoutAnyMemoryIsServed) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    Talker kv = fresh();
    const std::vector<ReserveItems> items{{&kv.space(), {{new_, "parent"}}}};
    has_failed = fails_at(
        number, [&] { (void)service().reserve(session_of(3), items, kMaxTtl); }, true);
    expect_whole(number);
    const auto pages = kv.reserve(session_of(3), {new_}, kMaxTtl, "parent");
    ASSERT_EQ(outcomes(pages), "R") << "allocation " << number;
    EXPECT_TRUE(kv.confirm(session_of(3), {new_}, pages).is_ok());
  }
  EXPECT_GT(number, 10u);
  EXPECT_LT(number, kMostAllocations);
}

TEST_F(NoMemoryTest, AConfirmationSentAgainHolds) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    Talker kv = fresh();
    const auto pages = kv.reserve(session_of(3), {new_}, kMaxTtl, "parent");
    ASSERT_EQ(outcomes(pages), "R");
    const ConfirmRequest request{session_of(3), {{{&kv.space(), new_, pages[0].ref}}}, {}, false};
    has_failed = fails_at(number, [&] { (void)service().confirm(request); });
    expect_whole(number);
    EXPECT_TRUE(kv.confirm(session_of(3), {new_}, pages).is_ok()) << "allocation " << number;
    EXPECT_EQ(kv.presence({new_}), "1") << "allocation " << number;
    (void)restart();
    EXPECT_EQ(Talker(service(), kv.space()).presence({new_}), "1") << "allocation " << number;
    expect_whole(number);
  }
  EXPECT_GT(number, 5u);
  EXPECT_LT(number, kMostAllocations);
}

TEST_F(NoMemoryTest, ANamespaceThatWasNotMadeLeavesNoGap) {
  std::size_t number = 1;
  for (bool has_failed = true; has_failed && number < kMostAllocations; ++number) {
    (void)fresh();
    const MetadataNamespace swa{0, "a namespace whose name is too long for a string without memory of its own"};
    has_failed = fails_at(number, [&] { (void)service().initialize(swa, 8); });
    EXPECT_TRUE(service().stats().is_ok());
    EXPECT_EQ(service().initialize({1, "kv"}, 8).value_or(0), 8u);
    (void)restart();
    EXPECT_EQ(service().initialize(swa, 8).value_or(0), 8u) << "allocation " << number;
    expect_whole(number);
  }
  EXPECT_GT(number, 5u);
  EXPECT_LT(number, kMostAllocations);
}

TEST(NoMemoryConnectionPoolTest, GivingBackAConnectionNeedsNone) {
  metadata::ConnectionPool<int> pool(2);
  auto loan = pool.take(real_clock(), TimePoint::max());
  ASSERT_TRUE(loan);
  loan->connection() = std::make_unique<int>(7);
  EXPECT_FALSE(fails_at(1, [&] { pool.drop_idle(); }));
  EXPECT_FALSE(fails_at(1, [&] { loan.reset(); })) << "also after the idle ones were dropped";
  auto again = pool.take(real_clock(), TimePoint::max());
  EXPECT_TRUE(again && again->connection() != nullptr);
}

}  // namespace
}  // namespace larder::conformance
