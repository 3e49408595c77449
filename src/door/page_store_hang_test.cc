// SPDX-License-Identifier: Apache-2.0
// What a disk that hangs in one direction leaves of a store to the other.
#include <gtest/gtest.h>

#include <optional>

#include "door/page_store.h"
#include "tests/support/faulty_memory.h"

namespace larder {
namespace {

constexpr std::size_t kHangPageBytes = std::size_t{256} << 10;  // four fill the arena

class PageStoreHangTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(support::add_faulty_memory(factory_, faulty_).is_ok());
    StoreOptions options;
    options.backend = "faulty";
    options.config = R"({"timeout_seconds": 20, "staging_bytes": "1Mi"})";
    store_ = PageStore::open(options, &factory_).value();
    SpaceDescription space;
    space.page_size = 16;
    space.identity = "m";
    space.pools = {{"kv", kHangPageBytes, "x", HitPolicy::kAllPages, 0, false}};
    space_.emplace(PageSpace::create(space).value());
  }
  StatusCode get(std::uint8_t number, Nanos timeout = {}) {
    CallPage page = page_of(number);
    store_->get(*space_, {&page, 1}, {timeout, nullptr});
    return page.status.code();
  }
  StatusCode put(std::uint8_t number, Nanos timeout = {}) {
    CallPage page = page_of(number);
    store_->put(*space_, {&page, 1}, {timeout, nullptr});
    return page.status.code();
  }

  BackendFactory factory_;
  sim::FaultyBackend* faulty_ = nullptr;
  std::optional<PageSpace> space_;
  std::unique_ptr<PageStore> store_;

 private:
  CallPage page_of(std::uint8_t number) {
    CallPage page;
    page.key.bytes[0] = number;
    page.key.bytes[31] = 1;
    page.segments = {&segment_, 1};
    return page;
  }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kHangPageBytes, std::byte{7});
  Segment segment_{bytes_.data(), kHangPageBytes};
};

TEST_F(PageStoreHangTest, HungReadsLeaveRoomForWrites) {
  EXPECT_EQ(put(1), StatusCode::kOk);
  faulty_->set_plan({.hang_percent = 100});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(get(1, std::chrono::milliseconds(50)), StatusCode::kDeadlineExceeded);
  faulty_->set_plan({});
  EXPECT_EQ(put(2), StatusCode::kOk);
  (void)faulty_->release_hung();
  (void)faulty_->release_all();
  EXPECT_EQ(get(2), StatusCode::kOk);
}

TEST_F(PageStoreHangTest, HungWritesLeaveRoomForReads) {
  EXPECT_EQ(put(1), StatusCode::kOk);
  faulty_->set_plan({.hang_percent = 100});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(put(2, std::chrono::milliseconds(50)), StatusCode::kDeadlineExceeded);
  faulty_->set_plan({});
  EXPECT_EQ(get(1), StatusCode::kOk);
  (void)faulty_->release_hung();
  (void)faulty_->release_all();
  EXPECT_EQ(put(3), StatusCode::kOk);
}

// A clear waits for the writes of its namespace, also when nobody waits for it any more: those of others go on.
TEST_F(PageStoreHangTest, AClearThatWaitsForAWriteHoldsUpNoOther) {
  SpaceDescription other;
  other.page_size = 16;
  other.identity = "other";
  other.pools = {{"kv", kHangPageBytes, "x", HitPolicy::kAllPages, 0, false}};
  const PageSpace second = PageSpace::create(other).value();
  faulty_->fail_nth(1, sim::StorageFault::kHung);
  EXPECT_EQ(put(1, std::chrono::milliseconds(100)), StatusCode::kDeadlineExceeded);
  const Status waits = store_->clear(&*space_, {std::chrono::milliseconds(100), nullptr});
  EXPECT_EQ(waits.code(), StatusCode::kDeadlineExceeded) << waits.to_string();
  const Status cleared = store_->clear(&second, {});
  EXPECT_TRUE(cleared.is_ok()) << cleared.to_string();
  EXPECT_EQ(faulty_->release_hung(), 1u);
}

}  // namespace
}  // namespace larder
