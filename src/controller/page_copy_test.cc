// SPDX-License-Identifier: Apache-2.0
// Copies between host and engine without a connector: every byte arrives however both sides are cut, and a copy that
// was revoked touches nothing.
#include "controller/page_copy.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "sim/sim_clock.h"

namespace larder {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Segment> cut(Bytes& bytes, Rng& rng) {
  std::vector<Segment> out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = std::min<std::size_t>(bytes.size() - at, rng.below(40));  // now and then none
    out.push_back({bytes.data() + at, size});
    at += size;
  }
  return out;
}

TEST(PageCopy, EveryByteArrivesHoweverBothSidesAreCut) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    Bytes from(rng.below(500)), to(from.size());
    for (std::byte& b : from) b = static_cast<std::byte>(rng.below(256));
    PageCopy copy;
    copy.add(cut(from, rng), cut(to, rng));
    EXPECT_EQ(copy.bytes(), from.size());
    ASSERT_TRUE(copy.begin());
    EXPECT_FALSE(copy.begin()) << "once";
    EXPECT_TRUE(copy.run().is_ok());
    EXPECT_EQ(to, from) << "seed " << seed;
  }
}

class PageCopierTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::shared_ptr<PageCopy> copy_of(PageReader reader) {
    auto copy = std::make_shared<PageCopy>();
    copy->set_reader(std::move(reader));
    copy->add_page(PoolName::kKv, 0, {{bytes_.data(), bytes_.size()}});
    return copy;
  }
  [[nodiscard]] Status ended(OpId id) {
    (void)ops_.collect(Nanos{0});
    ops_.agree();
    for (const AgreedEvent& event : ops_.take_ended()) {
      if (event.op == id) return std::get<TransferDone>(ops_.find(id)->completion).status;
    }
    return not_found("it has not ended");
  }

  sim::SimClock clock_;
  OpTable ops_{{}, clock_, nullptr, [](Op&) { return OutcomeBits{1}; }};
  Bytes bytes_ = Bytes(8);
};

TEST_F(PageCopierTest, WithoutAnExecutorItEndsAtTheNextLook) {
  PageCopier copier(ops_, nullptr);
  const OpId good = ops_.add(OpKind::kBackup).id;
  copier.submit(good, copy_of([](PoolName, std::uint64_t, std::span<const Segment>) { return Status::ok(); }));
  EXPECT_TRUE(ended(good).is_ok());
  const OpId bad = ops_.add(OpKind::kBackup).id;
  copier.submit(bad, copy_of([](PoolName, std::uint64_t, std::span<const Segment>) { return corrupt("no"); }));
  EXPECT_EQ(ended(bad).code(), StatusCode::kCorrupt);
}

TEST_F(PageCopierTest, AnExecutorThatRefusesEndsItWithItsStatus) {
  ManualExecutor full(1);
  ASSERT_TRUE(full.post([] {}).is_ok());
  PageCopier copier(ops_, &full);
  const OpId id = ops_.add(OpKind::kLoad).id;
  copier.submit(id, copy_of([](PoolName, std::uint64_t, std::span<const Segment>) { return Status::ok(); }));
  EXPECT_EQ(ended(id).code(), StatusCode::kOverloaded);
}

TEST_F(PageCopierTest, WhatHasNotBegunNeverRuns) {
  ManualExecutor later;
  PageCopier copier(ops_, &later);
  bool has_run = false;
  copier.submit(ops_.add(OpKind::kLoad).id, copy_of([&](PoolName, std::uint64_t, std::span<const Segment>) {
                  has_run = true;
                  return Status::ok();
                }));
  copier.close();
  EXPECT_TRUE(later.run_one());
  EXPECT_FALSE(has_run);
}

// What runs is waited for: it has the engine's memory.
TEST_F(PageCopierTest, CloseWaitsForWhatRuns) {
  ThreadPoolExecutor threads("copy", 1, 16), other("other", 1, 16);
  PageCopier copier(ops_, &threads);
  std::promise<void> begun, let_go;
  std::shared_future<void> is_begun = begun.get_future().share();
  std::atomic<bool> has_ended = false;
  copier.submit(ops_.add(OpKind::kLoad).id, copy_of([&](PoolName, std::uint64_t, std::span<const Segment>) {
                  begun.set_value();
                  let_go.get_future().wait();
                  has_ended = true;
                  return Status::ok();
                }));
  is_begun.wait();
  ASSERT_TRUE(other.post([&] { let_go.set_value(); }).is_ok());
  copier.close();
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace larder
