// SPDX-License-Identifier: Apache-2.0
// The real Mooncake Store, killed, stopped, restarted and full: misses and errors in time, then as before.
#include <fstream>

#include "tests/mooncake/backend_rig.h"
#include "tests/mooncake_slow/real_store.h"

namespace larder::mooncake_test {
namespace {

constexpr Nanos kRealPatience = std::chrono::seconds(90);

class RealMooncakeFailures : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = RealStore::why_not_here();
    if (!reason.empty()) GTEST_SKIP() << reason;
    store_ = std::make_unique<RealStore>(64, std::chrono::seconds(1));  // a loaded machine reads in less
    rig_ = std::make_unique<BackendRig>(store_->options());
    ASSERT_TRUE(rig_->start({{"client_timeout", "35"}}));
    ASSERT_TRUE(rig_->put({{{kSwa, 1}, {kKv, 1}}})[0].is_ok());
    ASSERT_TRUE(rig_->get({{kSwa, 1}, {kKv, 1}})[1].is_ok());
  }
  // Pages can be written and read again.
  void expect_recovery() {
    const TimePoint end = real_clock().now() + kRealPatience;
    Status put, got;
    std::uint64_t key = 1000;
    do {
      put = rig_->put({{{kSwa, ++key}, {kKv, key}}})[0];
      got = rig_->get({{kKv, key}})[0];
    } while (!(put.is_ok() && got.is_ok()) && real_clock().now() < end);
    EXPECT_TRUE(put.is_ok()) << put.to_string();
    EXPECT_TRUE(got.is_ok()) << got.to_string();
  }

  std::unique_ptr<RealStore> store_;
  std::unique_ptr<BackendRig> rig_;
};

TEST_F(RealMooncakeFailures, AMasterThatIsKilledAndStartedAgain) {
  store_->kill_master();
  EXPECT_FALSE(rig_->get({{kKv, 1}})[0].is_ok());
  EXPECT_FALSE(rig_->put({{{kKv, 2}}})[0].is_ok());
  EXPECT_TRUE(rig_->there({{kKv, 1}}).starts_with("error: unavailable"));
  store_->start_master();
  expect_recovery();  // what was stored is forgotten: the master knows nothing of it
}

TEST_F(RealMooncakeFailures, AMasterThatHangs) {
  store_->stop_master();
  const TimePoint begin = real_clock().now();
  EXPECT_FALSE(rig_->get({{kKv, 1}})[0].is_ok());
  EXPECT_LT(real_clock().now() - begin, std::chrono::seconds(45));
  store_->let_master_go_on();
  expect_recovery();
}

TEST_F(RealMooncakeFailures, AnOwnerOfBytesThatIsKilled) {
  store_->kill_owner();
  EXPECT_FALSE(rig_->get({{kKv, 1}})[0].is_ok());
  store_->start_owner();
  expect_recovery();
}

// A small store, and ten times as much as fits: every answer is ok or "no room", what is there is whole and right.
TEST_F(RealMooncakeFailures, AFullStore) {
  std::uint64_t written = 0, refused = 0;
  for (std::uint64_t key = 10; key < 74; ++key) {
    const Status put = rig_->put({{{kSwa, key, 1'000'000}, {kKv, key, 4'000'000}}})[0];
    put.is_ok() ? ++written : ++refused;
    EXPECT_TRUE(put.is_ok() || put.code() == StatusCode::kOverloaded) << put.to_string();
    const std::vector<Status> got = rig_->get({{kSwa, key, 1'000'000}, {kKv, key, 4'000'000}});
    for (const Status& page : got) {
      EXPECT_TRUE(page.is_ok() || page.code() == StatusCode::kNotFound) << page.to_string();
    }
  }
  EXPECT_GE(written, 8u) << refused << " were refused";
  for (std::uint64_t key = 10; key < 74; ++key) {
    const std::string both = rig_->there({{kSwa, key}, {kKv, key}});
    EXPECT_TRUE(both == "00" || both == "11") << key << ": " << both << ": a group leaves as a whole";
  }
}

// Bytes of memory that this process has in use.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST_F(RealMooncakeFailures, MemoryStaysFlat) {
  const auto round = [&](std::uint64_t key) {
    EXPECT_TRUE(rig_->put({{{kSwa, key, 10'000}, {kKv, key, 40'000}}})[0].is_ok());
    EXPECT_TRUE(rig_->get({{kSwa, key, 10'000}, {kKv, key, 40'000}})[1].is_ok());
  };
  for (std::uint64_t key = 2000; key < 2200; ++key) round(key);
  const std::uint64_t before = resident_bytes();
  for (std::uint64_t key = 2200; key < 3000; ++key) round(key);
  EXPECT_LT(resident_bytes(), before + (8 << 20));
}

}  // namespace
}  // namespace larder::mooncake_test
