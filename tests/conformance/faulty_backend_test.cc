// SPDX-License-Identifier: Apache-2.0
#include "sim/faulty_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/executor.h"
#include "storage/memory/memory_backend.h"

namespace larder::sim {
namespace {

class FaultyBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    scope_ = std::make_shared<StoreScope>();
    scope_->namespace_digest.bytes[0] = 1;
    scope_->set_pool(PoolName::kKv, Digest256{{2}});
    ASSERT_TRUE(register_memory_backend(factory_).is_ok());
  }
  std::unique_ptr<FaultyBackend> make(const FaultPlan& plan, std::uint64_t seed = 7) {
    auto inner = factory_.create("memory", {}, {nullptr, nullptr, &inline_});
    EXPECT_TRUE(inner.is_ok());
    return std::make_unique<FaultyBackend>(std::move(inner).value(), seed, plan);
  }
  static PageKey key(std::uint8_t i) {
    PageKey k;
    k.bytes[0] = i;
    k.bytes[31] = 1;
    return k;
  }
  Status put(FaultyBackend& backend, std::uint8_t i, StorageBackend::WriteDone done) {
    return backend.submit_write({scope_, {{{{PoolName::kKv, key(i), {{content_.data(), content_.size()}}}}}}},
                                std::move(done));
  }

  std::shared_ptr<StoreScope> scope_;
  InlineExecutor inline_;
  BackendFactory factory_;
  std::vector<std::byte> content_ = std::vector<std::byte>(64, std::byte{9});
};

TEST_F(FaultyBackendTest, PassesThroughWithoutAPlan) {
  auto backend = make({});
  int done = 0;
  ASSERT_TRUE(put(*backend, 1, [&](WriteResult r) { done += r.groups.at(0).is_ok() ? 1 : 0; }).is_ok());
  std::vector<std::byte> back(64);
  ASSERT_TRUE(backend
                  ->submit_read({scope_, {{PoolName::kKv, key(1), {{back.data(), back.size()}}}}},
                                [&](ReadResult r) { done += r.items.at(0).is_ok() ? 1 : 0; })
                  .is_ok());
  EXPECT_EQ(done, 2);
  EXPECT_EQ(back, content_);
  EXPECT_TRUE(backend->close(std::chrono::nanoseconds(0)).is_ok());
}

TEST_F(FaultyBackendTest, HeldOperationsCompleteOutOfOrderWhenReleased) {
  auto backend = make({.is_holding = true});
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(put(*backend, static_cast<std::uint8_t>(i), [&order, i](WriteResult) { order.push_back(i); }).is_ok());
  }
  EXPECT_EQ(backend->held(), 20u);
  EXPECT_EQ(backend->stats().pages, 0u) << "what is held has not happened";
  EXPECT_EQ(backend->close(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(backend->release_all(), 20u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), 20u);
  EXPECT_EQ(backend->stats().pages, 20u);
}

TEST_F(FaultyBackendTest, HungOperationsAreCancelledAtTheEnd) {
  auto backend = make({.hang_percent = 100});
  std::vector<StatusCode> codes;
  const auto done = [&](WriteResult r) { codes.push_back(r.groups.at(0).code()); };
  ASSERT_TRUE(put(*backend, 1, done).is_ok());
  ASSERT_TRUE(put(*backend, 2, done).is_ok());
  EXPECT_EQ(backend->release_all(), 0u);
  EXPECT_EQ(backend->hung(), 2u);
  EXPECT_EQ(backend->release_hung(), 2u);
  EXPECT_TRUE(backend->release_one());
  EXPECT_EQ(codes, std::vector{StatusCode::kOk});
  backend.reset();
  EXPECT_EQ(codes, (std::vector{StatusCode::kOk, StatusCode::kCancelled}));
}

TEST_F(FaultyBackendTest, RefusesFailsAndFailsInPart) {
  auto backend = make({.refuse_percent = 100});
  bool ran = false;
  EXPECT_EQ(put(*backend, 1, [&](WriteResult) { ran = true; }).code(), StatusCode::kOverloaded);
  EXPECT_FALSE(ran);
  backend->set_plan({.fail_percent = 100});
  StatusCode code = StatusCode::kOk;
  ASSERT_TRUE(put(*backend, 1, [&](WriteResult r) { code = r.groups.at(0).code(); }).is_ok());
  EXPECT_EQ(code, StatusCode::kUnavailable);

  backend->set_plan({});
  for (std::uint8_t i = 0; i < 16; ++i) ASSERT_TRUE(put(*backend, i, [](WriteResult) {}).is_ok());
  backend->set_plan({.partial_percent = 100});
  std::vector<std::vector<std::byte>> buffers(16, std::vector<std::byte>(64));
  ReadRequest request{scope_, {}};
  for (std::uint8_t i = 0; i < 16; ++i) request.items.push_back({PoolName::kKv, key(i), {{buffers[i].data(), 64}}});
  std::vector<Status> got;
  ASSERT_TRUE(backend->submit_read(std::move(request), [&](ReadResult r) { got = std::move(r.items); }).is_ok());
  ASSERT_EQ(got.size(), 16u);
  std::size_t failed = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(got[i].is_ok(), buffers[i] == content_) << "garbage where it failed, and only there";
    failed += got[i].is_ok() ? 0 : 1;
  }
  EXPECT_GT(failed, 0u);
  EXPECT_LT(failed, 16u);
  EXPECT_EQ(backend->injected().partial, 1u);
}

TEST_F(FaultyBackendTest, TheSameSeedGivesTheSameFates) {
  const auto run = [&](std::uint64_t seed) {
    auto backend = make({.refuse_percent = 20, .hang_percent = 20, .fail_percent = 20, .partial_percent = 20}, seed);
    std::string out;
    for (std::uint8_t i = 0; i < 50; ++i) {
      const Status status = put(*backend, i, [&](WriteResult r) { out += r.groups.at(0).is_ok() ? 'o' : 'x'; });
      out += status.is_ok() ? '+' : '-';
    }
    return out;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace larder::sim
