// SPDX-License-Identifier: Apache-2.0
#include "transfer/layer_gate.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/thread_pool.h"

namespace larder {
namespace {

using std::chrono::nanoseconds;
constexpr nanoseconds kForEver = nanoseconds::max();

TEST(LayerGate, ArrivalIsMonotone) {
  LayerGate gate(4);
  EXPECT_FALSE(gate.ready(0));
  gate.arrive(2);
  gate.arrive(0);
  EXPECT_TRUE(gate.ready(0) && gate.ready(1) && gate.ready(2));
  EXPECT_FALSE(gate.ready(3));
  EXPECT_FALSE(gate.finished());
  EXPECT_EQ(gate.wait(2, nanoseconds(0)).to_string(), "ok");
  EXPECT_EQ(gate.wait(3, nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  gate.arrive(3);
  EXPECT_TRUE(gate.finished());
  EXPECT_EQ(gate.wait(3, kForEver).to_string(), "ok");
}

TEST(LayerGate, TheFirstFailureReachesEveryWaiter) {
  LayerGate gate(2);
  gate.arrive(0);
  gate.fail(corrupt("first"));
  gate.fail(cancelled("second"));
  gate.arrive(1);
  for (const std::uint32_t layer : {0u, 1u}) {
    EXPECT_EQ(gate.wait(layer, kForEver).to_string(), "corrupt: first");
    EXPECT_FALSE(gate.ready(layer));
  }
  EXPECT_TRUE(gate.finished());
}

TEST(LayerGate, BadArgumentsAreHarmless) {
  LayerGate gate(2);
  EXPECT_EQ(gate.wait(2, kForEver).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(gate.ready(7));
  gate.arrive(std::numeric_limits<std::uint32_t>::max());  // more layers than there are: all of them
  EXPECT_TRUE(gate.finished());
  EXPECT_TRUE(gate.ready(1));
  LayerGate failed(1);
  failed.fail(Status::ok());
  EXPECT_EQ(failed.wait(0, kForEver).code(), StatusCode::kInternal);
}

TEST(LayerGate, WaitersWakeLayerByLayer) {
  constexpr std::uint32_t kLayers = 50;
  LayerGate gate(kLayers);
  std::vector<Status> seen(kLayers, internal_error("not set"));
  {
    ThreadPoolExecutor waiter("waiter", 1, 1);
    ASSERT_TRUE(waiter
                    .post([&] {
                      for (std::uint32_t layer = 0; layer < kLayers; ++layer) seen[layer] = gate.wait(layer, kForEver);
                    })
                    .is_ok());
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) gate.arrive(layer);
  }
  for (const Status& status : seen) EXPECT_EQ(status.to_string(), "ok");
}

TEST(LayerGate, AFailureWakesAWaiter) {
  LayerGate gate(1);
  Status seen;
  {
    ThreadPoolExecutor waiter("waiter", 1, 1);
    ASSERT_TRUE(waiter.post([&] { seen = gate.wait(0, kForEver); }).is_ok());
    gate.fail(unavailable("gone"));
  }
  EXPECT_EQ(seen.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace larder
