// SPDX-License-Identifier: Apache-2.0
#include "storage/operation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "base/executor.h"
#include "base/thread_pool.h"
#include "storage/memory/memory_backend.h"
#include "tests/support/rest.h"

namespace larder {
namespace {

TEST(OperationGate, BoundsAndCloses) {
  OperationGate gate("test", 2);
  auto a = gate.enter();
  auto b = gate.enter();
  ASSERT_TRUE(a.is_ok() && b.is_ok());
  EXPECT_EQ(gate.enter().status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(gate.enter_inline().is_ok()) << "not bounded";
  EXPECT_EQ(gate.in_flight(), 2u);
  gate.close();
  EXPECT_EQ(gate.enter_inline().status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(gate.wait_idle(std::chrono::nanoseconds(0)));
  { const OperationGate::Ticket gone = std::move(a).value(); }
  { const OperationGate::Ticket gone = std::move(b).value(); }
  EXPECT_TRUE(gate.wait_idle(std::chrono::nanoseconds(0)));
}

// The defect: each operation that came or went began the wait anew, and a store that maintains itself never closed.
TEST(OperationGate, TheLimitIsOfTheWholeWait) {
  OperationGate gate("test", 1);
  ThreadPoolExecutor pool("test", 1, 1);
  auto ticket = std::make_unique<OperationGate::Ticket>(gate.hold());
  ASSERT_TRUE(pool.post([&] {
                    for (int i = 0; i < 500; ++i) {
                      ticket = std::make_unique<OperationGate::Ticket>(gate.hold());
                      rest();
                    }
                    ticket.reset();
                  })
                  .is_ok());
  EXPECT_FALSE(gate.wait_idle(std::chrono::milliseconds(50)));
  EXPECT_TRUE(gate.wait_idle(std::chrono::nanoseconds(-1)));
  pool.wait_idle();
}

TEST(OperationGate, TicketsOutliveTheGate) {
  auto gate = std::make_unique<OperationGate>("test", 1);
  auto ticket = gate->enter();
  gate.reset();
  { const OperationGate::Ticket gone = std::move(ticket).value(); }
}

// Tasks that an executor drops unrun still end their operations: cancelled, exactly once.
TEST(Operation, DroppedTasksCancel) {
  BackendFactory factory;
  ASSERT_TRUE(register_memory_backend(factory).is_ok());
  ManualExecutor executor;
  auto backend = factory.create("memory", {}, {nullptr, nullptr, &executor});
  ASSERT_TRUE(backend.is_ok());
  auto scope = std::make_shared<StoreScope>();
  int calls = 0;
  ASSERT_TRUE((*backend)
                  ->submit_read({scope, {{PoolName::kKv, {}, {}}, {PoolName::kKv, {}, {}}}},
                                [&](ReadResult r) {
                                  ++calls;
                                  ASSERT_EQ(r.items.size(), 2u);
                                  EXPECT_EQ(r.items[1].code(), StatusCode::kCancelled);
                                })
                  .is_ok());
  EXPECT_EQ((*backend)->stats().queued, 1u);
  EXPECT_EQ(executor.drop_all(), 1u);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE((*backend)->close(std::chrono::nanoseconds(0)).is_ok());
}

// An executor that refuses makes submit refuse, and the callback never runs.
TEST(Operation, FullExecutorRefuses) {
  BackendFactory factory;
  ASSERT_TRUE(register_memory_backend(factory).is_ok());
  ManualExecutor executor(1);
  auto backend = factory.create("memory", {}, {nullptr, nullptr, &executor});
  ASSERT_TRUE(backend.is_ok());
  auto scope = std::make_shared<StoreScope>();
  int calls = 0;
  ASSERT_TRUE((*backend)->submit_write({scope, {}}, [&](WriteResult) { ++calls; }).is_ok());
  EXPECT_EQ((*backend)->submit_write({scope, {}}, [&](WriteResult) { calls += 100; }).code(), StatusCode::kOverloaded);
  EXPECT_EQ(executor.run_all(), 1u);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ((*backend)->stats().queued, 0u);
}

}  // namespace
}  // namespace larder
