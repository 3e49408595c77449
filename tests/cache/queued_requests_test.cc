// SPDX-License-Identifier: Apache-2.0
// Requests that queue, without a cache: whose turn it is, and whose wait ends first.
#include "controller/queued_requests.h"

#include <gtest/gtest.h>

#include "sim/world/small_models.h"
#include "tests/cache/patient_backend.h"

namespace larder {
namespace {

using std::chrono::seconds;

class QueuedRequestsTest : public ::testing::Test, protected HostRig {
 protected:
  QueuedRequestsTest() : HostRig(sim::simulated_model("full").value(), 1 << 12) {
    config_.prefetch_policy = PrefetchPolicy::kWaitComplete;
    config_.prefetch_wait_limit = seconds(100);
  }
  QueuedRequest& enter(std::uint64_t id) { return queue_.enter(RequestId(id), space_, tokens_, clock_.now()); }
  void wait_for_turn(QueuedRequest& r) { queue_.wait_for_turn(r, clock_.now()); }
  // Time passes. Whose wait for its turn is over; 0: nobody's.
  std::uint64_t pass(Nanos by) {
    clock_.advance(by);
    (void)ops_.collect(Nanos{0});
    std::uint64_t over = 0;
    for (const AgreedEvent& event : ops_.take_ended()) {
      const Op* const timer = ops_.find(event.op);
      if (const QueuedRequest* const r = timer != nullptr ? queue_.end_turn_wait(*timer) : nullptr) over = r->id.v;
      ops_.erase(event.op);
    }
    return over;
  }

  QueuedRequests queue_{config_, model_, host_.get(), tree_, ops_, room_};
  const std::vector<TokenId> tokens_ = std::vector<TokenId>(16, 1);
};

TEST_F(QueuedRequestsTest, WhoBeganToQueueFirstGivesUpFirst) {
  for (const std::uint64_t id : {5, 3, 9}) {
    wait_for_turn(enter(id));
    EXPECT_EQ(pass(seconds(10)), 0u);
  }
  EXPECT_EQ(pass(seconds(69)), 0u);
  EXPECT_EQ(pass(seconds(1)), 5u);
  EXPECT_TRUE(queue_.find(RequestId(5))->gave_up);
  EXPECT_EQ(pass(seconds(10)), 3u);
  EXPECT_EQ(pass(seconds(10)), 9u);
  for (const std::uint64_t id : {5, 3, 9}) queue_.leave(*queue_.find(RequestId(id)));
}

// A request that was retracted queues anew, behind those that have waited meanwhile, though its id is a smaller one.
// The defect: it took the turn of its id, the timer was its own, and the others waited beyond their limit.
TEST_F(QueuedRequestsTest, WhoWasRetractedIsLast) {
  wait_for_turn(enter(1));
  wait_for_turn(enter(2));
  EXPECT_EQ(pass(seconds(50)), 0u);
  queue_.start(*queue_.find(RequestId(1)));
  EXPECT_EQ(pass(seconds(30)), 0u);
  EXPECT_EQ(queue_.find(RequestId(1)), nullptr) << "no fetch is under way for it";
  // It is retracted.
  wait_for_turn(enter(1));
  EXPECT_EQ(pass(seconds(20)), 2u) << "a hundred seconds after it began to queue";
  EXPECT_EQ(pass(seconds(79)), 0u);
  EXPECT_EQ(pass(seconds(1)), 1u);
  for (const std::uint64_t id : {1, 2}) queue_.leave(*queue_.find(RequestId(id)));
}

// With timeout each has the time that a fetch may take before anything is known of it, what it waited before included.
TEST_F(QueuedRequestsTest, WithTimeoutEachHasALimitOfItsOwn) {
  config_.prefetch_policy = PrefetchPolicy::kTimeout;
  config_.prefetch_timeout_base = seconds(10);
  QueuedRequest& first = enter(1);
  QueuedRequest& second = enter(2);
  EXPECT_EQ(pass(seconds(50)), 0u) << "they queue, and wait for nothing";
  wait_for_turn(second);
  EXPECT_EQ(pass(seconds(6)), 0u);
  wait_for_turn(first);
  wait_for_turn(second);
  EXPECT_TRUE(queue_.waits_for_turn(second));
  EXPECT_EQ(pass(seconds(4)), 2u);
  EXPECT_TRUE(second.gave_up);
  EXPECT_FALSE(queue_.waits_for_turn(second));
  queue_.take_turn(first, clock_.now());
  EXPECT_FALSE(queue_.waits_for_turn(first));
  EXPECT_EQ(pass(seconds(20)), 0u);
  wait_for_turn(first);
  EXPECT_EQ(pass(seconds(5)), 0u);
  EXPECT_EQ(pass(seconds(1)), 1u);
  for (const std::uint64_t id : {1, 2}) queue_.leave(*queue_.find(RequestId(id)));
}

}  // namespace
}  // namespace larder
