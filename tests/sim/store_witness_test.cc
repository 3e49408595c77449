// SPDX-License-Identifier: Apache-2.0
// The witness finds a storage that breaks its word: pages that come back after a clear, and pages that are gone.
#include <gtest/gtest.h>

#include <functional>

#include "sim/world/store_witness.h"
#include "sim/world/story.h"
#include "tests/support/passing_backend.h"

namespace larder::sim {
namespace {

// Answers as the test says, at once.
class SayingBackend final : public support::StubBackend {
 public:
  bool has_pages = true, holds_writes = false;
  std::function<void()> held;
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    done({Status::ok(), {{request.pools.at(0), Presence(request.keys.size(), has_pages)}}});
    return Status::ok();
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    done({std::vector<Status>(request.items.size(), has_pages ? Status::ok() : not_found("said"))});
    return Status::ok();
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    const auto end = [groups = request.groups.size(), done] { done({std::vector<Status>(groups)}); };
    holds_writes ? static_cast<void>(held = end) : end();
    return Status::ok();
  }
};

class StoreWitnessTest : public testing::Test {
 protected:
  void write(bool is_durable = false) {
    StoreWitness witness(storage_, record_, is_durable);
    WriteRequest request{scope_, {}};
    request.groups.push_back({{{PoolName::kKv, key_, {}, {}}}});
    EXPECT_TRUE(witness.submit_write(std::move(request), [](const WriteResult&) {}).is_ok());
  }
  void ask() {
    EXPECT_TRUE(witness_.submit_exists({scope_, {key_}, {PoolName::kKv}}, [](const ExistsResult&) {}).is_ok());
  }
  void read() {
    EXPECT_TRUE(witness_.submit_read({scope_, {{PoolName::kKv, key_, {}}}}, [](const ReadResult&) {}).is_ok());
  }
  void clear() {
    EXPECT_TRUE(witness_.submit_clear(nullptr, [](const Status&) {}).is_ok());
  }
  [[nodiscard]] bool is_lost() const { return !record_->lost().empty(); }
  [[nodiscard]] bool has_come_back() const { return !record_->came_back().empty(); }

  const std::shared_ptr<StoreScope> scope_ = std::make_shared<StoreScope>();
  const PageKey key_{{1}};
  SayingBackend storage_;
  std::shared_ptr<StoreRecord> record_ = std::make_shared<StoreRecord>();
  StoreWitness witness_{storage_, record_, false};
};

TEST_F(StoreWitnessTest, APageThatComesBackAfterAClearIsFound) {
  write();
  read();
  EXPECT_EQ(record_->stored(PoolName::kKv), 1u);
  EXPECT_FALSE(has_come_back());
  clear();
  EXPECT_EQ(record_->stored(PoolName::kKv), 0u);
  read();
  EXPECT_TRUE(has_come_back());
}

TEST_F(StoreWitnessTest, APageThatIsWrittenAgainHasNotComeBack) {
  write();
  clear();
  write();
  read();
  EXPECT_FALSE(has_come_back());
}

// Its write was under way, and may come after the clear.
TEST_F(StoreWitnessTest, APageThatWasBeingWrittenMaySurviveAClear) {
  storage_.holds_writes = true;
  write();
  clear();
  storage_.held();
  read();
  EXPECT_FALSE(has_come_back());
  storage_.has_pages = false;
  record_ = std::make_shared<StoreRecord>();
  ask();
  EXPECT_FALSE(is_lost());
}

TEST_F(StoreWitnessTest, APageThatIsGoneIsFound) {
  storage_.has_pages = false;
  ask();
  EXPECT_FALSE(is_lost()) << "nobody has written it";
  write();
  ask();
  EXPECT_TRUE(is_lost());
}

TEST_F(StoreWitnessTest, OnlyADurablePageOutlivesThePower) {
  for (const bool is_durable : {false, true}) {
    write(is_durable);
    record_->power_went();
    storage_.has_pages = false;
    ask();
    EXPECT_EQ(is_lost(), is_durable);
    storage_.has_pages = true;
  }
}

// What else is drawn suits what is wished.
TEST(WorldWishes, ComeBeforeWhatFollowsFromThem) {
  std::size_t remote = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    EXPECT_EQ(draw_world(seed, {.door = "cache"}).door, "cache");
    EXPECT_EQ(draw_world(seed, {.model = "full_swa"}).model, "full_swa");
    const WorldSpec hf3fs = draw_world(seed, {.storage = "hf3fs"});
    EXPECT_EQ(hf3fs.storage, "hf3fs");
    remote += hf3fs.service == "remote" ? 1 : 0;
    const WorldSpec file = draw_world(seed, {.storage = "file", .door = "connector"});
    EXPECT_EQ(file.service, "inside");
    EXPECT_EQ(file.odd, 0u) << "of the cache's own door";
  }
  EXPECT_GT(remote, 20u);
}

}  // namespace
}  // namespace larder::sim
