// SPDX-License-Identifier: Apache-2.0
// A storage whose clear, or own work, hangs, as on a mount that has gone: it is let go within the limit, and holds
// nobody up.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "door/register_backends.h"
#include "sim/sim_file_system.h"
#include "storage/operation.h"
#include "tests/support/passing_backend.h"
#include "tests/support/scheduler_client.h"

namespace larder {
namespace {

constexpr Nanos kPatience = std::chrono::seconds(60);  // whatever takes longer hangs

// Clears on a thread of its own that waits for a disk; its end waits for that thread, as the port demands.
class HangingClearBackend final : public support::PassingBackend {
 public:
  struct Disk {
    std::promise<void> begun, is_back;
  };
  HangingClearBackend(std::unique_ptr<StorageBackend> inner, Disk& disk)
      : PassingBackend(std::move(inner)), disk_(disk), is_back_(disk.is_back.get_future().share()) {}
  ~HangingClearBackend() override { gate_.drain(); }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return submit_operation<ClearOperation>(gate_, thread_, std::move(scope), std::move(done), [this](const auto& op) {
      disk_.begun.set_value();
      is_back_.wait();
      op->result = Status::ok();
    });
  }
  // Work that nobody asked for, as a file store has when it makes room.
  [[nodiscard]] Status begin_own_work() {
    auto ticket = std::make_shared<OperationGate::Ticket>(gate_.hold());
    return thread_.post([this, ticket = std::move(ticket)] { is_back_.wait(); });
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override {
    LARDER_RETURN_IF_ERROR(gate_.close_within(limit));
    return inner_->close(limit);
  }

 private:
  Disk& disk_;
  const std::shared_future<void> is_back_;
  OperationGate gate_{"hanging clear", 16};
  ThreadPoolExecutor thread_{"clear", 1, 16};
};

class HangingClearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(register_backends(plain_).is_ok());
    Result<std::unique_ptr<Scheduler>> made =
        Scheduler::create(support::tiny_options(), files_, real_clock(), metrics_, [this](BackendFactory& factory) {
          return factory.add("hanging", {}, [this](const BackendOptions&, const BackendEnvironment& environment) {
            Made inner = plain_.create("memory", {}, environment);
            if (!inner.is_ok()) return inner;
            auto hanging = std::make_unique<HangingClearBackend>(std::move(inner).value(), disk_);
            hanging_ = hanging.get();
            return Made(std::move(hanging));
          });
        });
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    scheduler_ = std::move(made).value();
    ASSERT_TRUE(attach("hanging").is_ok());
  }
  void TearDown() override { come_back(); }

  void begin_clear() {
    ASSERT_TRUE(clearing_.post([this] { cleared_.set_value(scheduler_->clear_storage(kPatience)); }).is_ok());
    ASSERT_EQ(disk_.begun.get_future().wait_for(kPatience), std::future_status::ready);
  }
  Status attach(const char* backend, bool replace = false) {
    AttachRequest request;
    request.backend = backend;
    request.probe = false;  // which clears
    request.replace = replace;
    return scheduler_->attach_storage(request, kPatience);
  }
  // On another thread: under a defect it does not return before the disk is back. nullopt: it has not.
  std::optional<Status> detach(Nanos limit) {
    const auto ended = std::make_shared<std::promise<Status>>();
    std::future<Status> answer = ended->get_future();
    if (!detaching_.post([this, ended, limit] { ended->set_value(scheduler_->detach_storage(limit)); }).is_ok()) {
      return std::nullopt;
    }
    if (answer.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }
  void come_back() {
    if (!std::exchange(is_back_, true)) disk_.is_back.set_value();
  }
  bool generate(std::uint64_t seed) {
    const GenerateRequest request = support::request_of(support::random_prompt(seed, 300), 4);
    return support::generate(*scheduler_, request).last.status.is_ok();
  }
  // Until the retired backend has ended.
  [[nodiscard]] bool wait_until_none_is_retired() {
    const TimePoint give_up = real_clock().now() + kPatience;
    for (std::uint64_t seed = 100; scheduler_->storage().retired > 0; ++seed) {
      if (real_clock().now() > give_up || !generate(seed)) return false;
    }
    return true;
  }
  BackendStats stored() { return scheduler_->stats().storage.value_or(BackendStats{}); }

  using Made = Result<std::unique_ptr<StorageBackend>>;
  sim::SimFileSystem files_{1};
  MetricsRegistry metrics_;
  BackendFactory plain_;
  HangingClearBackend::Disk disk_;
  HangingClearBackend* hanging_ = nullptr;  // the scheduler's
  bool is_back_ = false;
  std::promise<Status> cleared_;
  std::unique_ptr<Scheduler> scheduler_;
  ThreadPoolExecutor clearing_{"clearing", 1, 1}, detaching_{"detaching", 1, 1};  // last: they end first
};

TEST_F(HangingClearTest, ADetachReturnsAndAnotherIsAttached) {
  ASSERT_NO_FATAL_FAILURE(begin_clear());
  const std::optional<Status> detached = detach(std::chrono::milliseconds(50));
  ASSERT_TRUE(detached.has_value()) << "it waits for the clear";
  EXPECT_TRUE(detached->is_ok()) << detached->to_string();
  EXPECT_EQ(scheduler_->storage().backend, "");
  EXPECT_EQ(scheduler_->storage().retired, 1u);
  ASSERT_TRUE(attach("memory").is_ok());
  EXPECT_TRUE(scheduler_->clear_storage(kPatience).is_ok()) << "the clear of the old one does not hold this one up";
  EXPECT_TRUE(generate(1));
  ASSERT_TRUE(scheduler_->quiesce(kPatience).is_ok());
  EXPECT_GT(stored().pages, 0u);
  come_back();
  EXPECT_TRUE(cleared_.get_future().get().is_ok()) << "who asked for it is told its end";
  ASSERT_TRUE(wait_until_none_is_retired());
  EXPECT_EQ(scheduler_->storage().backend, "memory");
}

// A server that stops waits for nobody's clear or detach; what was asked for goes on.
TEST_F(HangingClearTest, WhoWaitsIsLetGo) {
  ASSERT_NO_FATAL_FAILURE(begin_clear());
  std::future<Status> cleared = cleared_.get_future();
  scheduler_->end_waits();
  ASSERT_EQ(cleared.wait_for(kPatience / 2), std::future_status::ready);
  EXPECT_EQ(cleared.get().code(), StatusCode::kCancelled);
  const auto ended = std::make_shared<std::promise<Status>>();
  std::future<Status> detached = ended->get_future();
  ASSERT_TRUE(detaching_.post([this, ended] { ended->set_value(scheduler_->detach_storage(kPatience)); }).is_ok());
  const TimePoint give_up = real_clock().now() + kPatience;
  while (!scheduler_->storage().is_detaching) ASSERT_LT(real_clock().now(), give_up);
  scheduler_->end_waits();
  ASSERT_EQ(detached.wait_for(kPatience / 2), std::future_status::ready);
  EXPECT_EQ(detached.get().code(), StatusCode::kCancelled);
  EXPECT_TRUE(scheduler_->storage().is_detaching);
  come_back();
  while (scheduler_->storage().is_detaching) ASSERT_LT(real_clock().now(), give_up);
  EXPECT_EQ(scheduler_->storage().backend, "");
  EXPECT_TRUE(wait_until_none_is_retired());
  EXPECT_TRUE(attach("memory").is_ok());
  EXPECT_TRUE(scheduler_->quiesce(kPatience).is_ok()) << "later calls wait as ever";
}

// Nothing that the cache asked for is in flight, so the caller has it to close, and must come back from that.
TEST_F(HangingClearTest, ADetachReturnsFromAStoreThatDoesNotClose) {
  ASSERT_TRUE(hanging_->begin_own_work().is_ok());
  const std::optional<Status> detached = detach(std::chrono::milliseconds(50));
  ASSERT_TRUE(detached.has_value()) << "it waits for the store's own work";
  EXPECT_TRUE(detached->is_ok()) << detached->to_string();
  EXPECT_EQ(scheduler_->storage().retired, 1u);
  EXPECT_TRUE(attach("memory").is_ok());
  come_back();
  EXPECT_TRUE(wait_until_none_is_retired());
}

// The late clear is none of the store that is attached now: it keeps what it has, and nothing is written anew.
TEST_F(HangingClearTest, ALateClearSaysNothingOfTheNextStorage) {
  ASSERT_NO_FATAL_FAILURE(begin_clear());
  ASSERT_TRUE(attach("memory", true).is_ok());
  EXPECT_EQ(scheduler_->storage().retired, 1u);
  EXPECT_TRUE(generate(1));
  ASSERT_TRUE(scheduler_->quiesce(kPatience).is_ok());
  const BackendStats before = stored();
  EXPECT_GT(before.pages, 0u);
  come_back();
  EXPECT_TRUE(cleared_.get_future().get().is_ok());
  ASSERT_TRUE(scheduler_->quiesce(kPatience).is_ok());
  EXPECT_EQ(stored().pages, before.pages);
  EXPECT_EQ(stored().writes, before.writes);
  EXPECT_EQ(stored().duplicate_writes, before.duplicate_writes);
}

// One that ends in time is waited for: who detaches finds the store closed.
TEST_F(HangingClearTest, ADetachWaitsForAClearThatEnds) {
  ASSERT_NO_FATAL_FAILURE(begin_clear());
  const auto detached = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = detached->get_future();
  ASSERT_TRUE(
      detaching_.post([this, detached] { detached->set_value(scheduler_->detach_storage(kPatience)); }).is_ok());
  const TimePoint give_up = real_clock().now() + kPatience;
  while (!scheduler_->storage().is_detaching) ASSERT_LT(real_clock().now(), give_up);
  come_back();
  EXPECT_TRUE(answer.get().is_ok());
  EXPECT_TRUE(cleared_.get_future().get().is_ok());
  EXPECT_EQ(scheduler_->storage().backend, "");
  EXPECT_EQ(scheduler_->storage().retired, 0u);
}

}  // namespace
}  // namespace larder
