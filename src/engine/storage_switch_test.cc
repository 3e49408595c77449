// SPDX-License-Identifier: Apache-2.0
// Attaching to several schedulers at once, and backends that must not be attached or do not let go.
#include "engine/storage_switch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

#include "base/thread_pool.h"
#include "door/register_backends.h"
#include "sim/faulty_backend.h"
#include "sim/sim_file_system.h"
#include "storage/operation.h"
#include "tests/support/passing_backend.h"
#include "tests/support/scheduler_client.h"

namespace larder {
namespace {

constexpr Nanos kSwitchLimit = std::chrono::seconds(60);

// Flips a bit in what it reads, as bad memory or a wrong driver would.
class LyingBackend final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    std::vector<Segment> firsts;
    for (const ReadItem& item : request.items) firsts.push_back(item.payload.front());
    return inner_->submit_read(std::move(request), [firsts, done](ReadResult result) {
      for (const Segment& piece : firsts) piece.data[piece.size / 2] ^= std::byte{4};
      done(std::move(result));
    });
  }
};

// Empties itself, and says that it could not.
class ForgetfulBackend final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return inner_->submit_clear(std::move(scope), [done](const Status&) { done(unavailable("no room for a note")); });
  }
};

// Throws out of info() when told to, against the port's contract.
class ThrowingBackend final : public support::PassingBackend {
 public:
  ThrowingBackend(std::unique_ptr<StorageBackend> inner, std::atomic<bool>& throws_once)
      : PassingBackend(std::move(inner)), throws_once_(throws_once) {}
  [[nodiscard]] const BackendInfo& info() const override {
    if (throws_once_.exchange(false)) throw std::runtime_error("it has no name");
    return inner_->info();
  }

 private:
  std::atomic<bool>& throws_once_;
};

// Looks at what it writes on a storage thread, as a backend does that computes checksums there.
class QueueingBackend final : public support::PassingBackend {
 public:
  QueueingBackend(std::unique_ptr<StorageBackend> inner, Executor& threads)
      : PassingBackend(std::move(inner)), threads_(threads) {}
  ~QueueingBackend() override {
    gate_.close();
    (void)gate_.wait_idle(Nanos(-1));
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    LARDER_ASSIGN_OR_RETURN(OperationGate::Ticket ticket, gate_.enter());
    using WriteOperation = Operation<WriteRequest, WriteResult>;
    auto op = std::make_shared<WriteOperation>(std::move(request), std::move(done), std::move(ticket));
    return threads_.post([op] {
      std::size_t sum = 0;
      for (const PageGroup& group : op->request.groups) {
        for (const WriteItem& item : group.items) {
          for (const Segment& piece : item.payload) sum += static_cast<std::size_t>(piece.data[piece.size / 2]);
        }
      }
      op->result.groups.assign(op->request.groups.size(), sum > 0 ? Status::ok() : unavailable("all zeros"));
    });
  }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override {
    gate_.close();
    return gate_.wait_idle(limit) ? Status::ok() : deadline_exceeded("in flight");
  }

 private:
  Executor& threads_;
  OperationGate gate_{"queueing", 1024};
};

class StorageSwitchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(register_backends(plain_).is_ok()); }
  Status more_backends(BackendFactory& factory) {
    const auto memory = [this](const BackendEnvironment& environment) {
      return plain_.create("memory", {}, environment);
    };
    using Made = Result<std::unique_ptr<StorageBackend>>;
    LARDER_RETURN_IF_ERROR(factory.add("lying", {}, [memory](const BackendOptions&, const BackendEnvironment& e) {
      Made inner = memory(e);
      return inner.is_ok() ? Made(std::make_unique<LyingBackend>(std::move(inner).value())) : std::move(inner);
    }));
    LARDER_RETURN_IF_ERROR(factory.add("forgetful", {}, [memory](const BackendOptions&, const BackendEnvironment& e) {
      Made inner = memory(e);
      return inner.is_ok() ? Made(std::make_unique<ForgetfulBackend>(std::move(inner).value())) : std::move(inner);
    }));
    LARDER_RETURN_IF_ERROR(
        factory.add("opening", {}, [this, memory](const BackendOptions&, const BackendEnvironment& e) {
          opens_.set_value();
          may_open_.get_future().wait();
          return memory(e);
        }));
    LARDER_RETURN_IF_ERROR(
        factory.add("queueing", {}, [this, memory](const BackendOptions&, const BackendEnvironment& e) {
          threads_ = e.executor;
          Made inner = memory(e);
          if (!inner.is_ok()) return inner;
          return Made(std::make_unique<QueueingBackend>(std::move(inner).value(), *e.executor));
        }));
    LARDER_RETURN_IF_ERROR(
        factory.add("throwing", {}, [this, memory](const BackendOptions&, const BackendEnvironment& e) {
          Made inner = memory(e);
          if (!inner.is_ok()) return inner;
          return Made(std::make_unique<ThrowingBackend>(std::move(inner).value(), throws_once_));
        }));
    return factory.add("hanging", {}, [this, memory](const BackendOptions&, const BackendEnvironment& e) {
      Result<std::unique_ptr<StorageBackend>> inner = memory(e);
      if (!inner.is_ok()) return inner;
      auto faulty = std::make_unique<sim::FaultyBackend>(std::move(inner).value(), 7);
      hanging_ = faulty.get();
      return Result<std::unique_ptr<StorageBackend>>(std::move(faulty));
    });
  }
  Scheduler& add() {
    metrics_.push_back(std::make_unique<MetricsRegistry>());
    Result<std::unique_ptr<Scheduler>> made =
        Scheduler::create(support::tiny_options(), files_, real_clock(), *metrics_.back(),
                          [this](BackendFactory& factory) { return more_backends(factory); });
    if (!made.is_ok()) throw std::runtime_error(made.status().to_string());
    schedulers_.push_back(std::move(made).value());
    return *schedulers_.back();
  }
  std::vector<Scheduler*> all() {
    std::vector<Scheduler*> out;
    for (const auto& one : schedulers_) out.push_back(one.get());
    return out;
  }
  std::vector<std::string> attached() {
    std::vector<std::string> out;
    for (const auto& one : schedulers_) out.push_back(one->storage().backend);
    return out;
  }
  static AttachRequest file_in(const std::string& directory) {
    AttachRequest request;
    request.backend = "file";
    request.extra_config = R"({"directory": ")" + directory + R"("})";
    return request;
  }
  bool generate(Scheduler& scheduler, std::uint64_t seed) {
    const GenerateRequest request = support::request_of(support::random_prompt(seed, 300), 4);
    return support::generate(scheduler, request).last.status.is_ok();
  }

  // Attaches a backend and detaches it, when its threads wait for a disk, and its writes behind them.
  void detach_hanging(Scheduler& scheduler, const std::shared_future<void>& comes_back) {
    AttachRequest request;
    request.backend = "queueing";
    request.probe = false;
    ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
    for (int i = 0; i < 16; ++i) ASSERT_TRUE(threads_->post([comes_back] { comes_back.wait(); }).is_ok());
    ASSERT_TRUE(generate(scheduler, 1));
    ASSERT_TRUE(scheduler.detach_storage(std::chrono::milliseconds(20)).is_ok());
    ASSERT_EQ(scheduler.storage().retired, 1u);
  }

  sim::SimFileSystem files_{1};
  BackendFactory plain_;
  sim::FaultyBackend* hanging_ = nullptr;  // the last one made; its scheduler's
  Executor* threads_ = nullptr;            // of the last queueing backend
  std::atomic<bool> throws_once_ = false;  // of throwing backends
  std::promise<void> opens_, may_open_;    // of an opening backend: one a test
  std::vector<std::unique_ptr<MetricsRegistry>> metrics_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
};

TEST_F(StorageSwitchTest, AllOrNone) {
  for (int i = 0; i < 3; ++i) add();
  const std::vector<std::string> none(3), file(3, "file"), memory(3, "memory");
  // Two replicas in one directory: the second cannot open it, so the first does not get it either.
  const std::vector<AttachRequest> clash = {file_in("/a"), file_in("/b"), file_in("/b")};
  const Status refused = attach_all(all(), clash, kSwitchLimit);
  EXPECT_EQ(refused.code(), StatusCode::kConflict) << refused.to_string();
  EXPECT_EQ(refused.message().rfind("scheduler 2: ", 0), 0u) << refused.message();
  EXPECT_EQ(attached(), none);
  const std::vector<AttachRequest> good = {file_in("/a"), file_in("/b"), file_in("/c")};
  const Status taken = attach_all(all(), good, kSwitchLimit);
  ASSERT_TRUE(taken.is_ok()) << taken.to_string();
  EXPECT_EQ(attached(), file);
  // The last one does not say `replace`: those that had switched switch back.
  std::vector<AttachRequest> other(3);
  for (AttachRequest& request : other) request.backend = "memory";
  other[0].replace = other[1].replace = true;
  other[0].prefetch_policy = "best_effort";
  EXPECT_EQ(attach_all(all(), other, kSwitchLimit).code(), StatusCode::kConflict);
  EXPECT_EQ(attached(), file);
  EXPECT_EQ(schedulers_[0]->storage().prefetch_policy, "timeout") << "the policies, too";
  EXPECT_TRUE(generate(*schedulers_[0], 1));
  EXPECT_TRUE(schedulers_[0]->quiesce(kSwitchLimit).is_ok());
  EXPECT_GT(schedulers_[0]->stats().storage->pages, 0u) << "the old one works on";
  other[2].replace = true;
  ASSERT_TRUE(attach_all(all(), other, kSwitchLimit).is_ok());
  EXPECT_EQ(attached(), memory);
  EXPECT_EQ(attach_all(all(), std::vector<AttachRequest>(2), kSwitchLimit).code(), StatusCode::kInvalidArgument);
}

TEST_F(StorageSwitchTest, ABackendThatReturnsOtherBytesIsNotAttached) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "lying";
  request.write_policy = "write_back";
  const Status status = scheduler.attach_storage(request, kSwitchLimit);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.to_string();
  EXPECT_NE(status.message().find("Failed to attach storage backend 'lying'"), std::string::npos) << status.message();
  EXPECT_EQ(scheduler.storage().backend, "");
  EXPECT_EQ(scheduler.storage().write_policy, "write_through") << "a failed attach changes nothing";
}

TEST_F(StorageSwitchTest, ABackendThatHangsIsDetachedAndReplaced) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "hanging";
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  sim::FaultyBackend* const hanging = hanging_;
  sim::FaultPlan plan;
  plan.hang_percent = 100;
  hanging->set_plan(plan);
  EXPECT_TRUE(generate(scheduler, 1));
  ASSERT_TRUE(scheduler.detach_storage(std::chrono::milliseconds(50)).is_ok());
  EXPECT_EQ(scheduler.storage().backend, "");
  EXPECT_EQ(scheduler.storage().retired, 1u);
  request.backend = "memory";
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok()) << "at once";
  EXPECT_TRUE(generate(scheduler, 2));
  EXPECT_GT(hanging->release_hung(), 0u);
  hanging->set_plan({});
  (void)hanging->release_all();
  ASSERT_TRUE(scheduler.quiesce(kSwitchLimit).is_ok());
  const TimePoint give_up = real_clock().now() + kSwitchLimit;
  while (scheduler.storage().retired > 0 && real_clock().now() < give_up) EXPECT_TRUE(generate(scheduler, 3));
  EXPECT_EQ(scheduler.storage().retired, 0u) << "it dies when its operations have ended";
}

// Who has waited longest for a detach that another caller ended must not take what was attached since.
TEST_F(StorageSwitchTest, OverlappingDetachesLeaveTheNextBackendAttached) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "hanging";
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  sim::FaultPlan plan;
  plan.hang_percent = 100;
  hanging_->set_plan(plan);
  ASSERT_TRUE(generate(scheduler, 1));
  request.backend = "memory";
  Result<PreparedStorage> next = scheduler.prepare_storage(request, kSwitchLimit);
  ASSERT_TRUE(next.is_ok()) << next.status().to_string();
  std::promise<Status> ended;
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([&] { ended.set_value(scheduler.detach_storage(kSwitchLimit)); }).is_ok());
  const TimePoint give_up = real_clock().now() + kSwitchLimit;
  while (!scheduler.storage().is_detaching) ASSERT_LT(real_clock().now(), give_up);
  ASSERT_TRUE(scheduler.detach_storage(std::chrono::milliseconds(50)).is_ok());
  // It wakes the loop, which looks at the first detach only after it.
  ASSERT_TRUE(scheduler.switch_storage(std::move(next).value(), kSwitchLimit).is_ok());
  EXPECT_TRUE(ended.get_future().get().is_ok());
  EXPECT_EQ(scheduler.storage().backend, "memory");
  EXPECT_TRUE(generate(scheduler, 2));
  ASSERT_TRUE(scheduler.quiesce(kSwitchLimit).is_ok());
  EXPECT_GT(scheduler.stats().storage->pages, 0u);
}

// A command that only looks has changed nothing: an exception out of it costs an answer, not the server.
TEST_F(StorageSwitchTest, AQuestionThatThrowsHarmsNobodyElse) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "throwing";
  request.probe = false;
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  EXPECT_EQ(scheduler.storage().backend, "memory");
  throws_once_ = true;
  EXPECT_EQ(scheduler.storage().backend, "memory") << "no answer: the last that is known";
  EXPECT_FALSE(throws_once_.load());
  EXPECT_TRUE(scheduler.health().is_ok());
  EXPECT_EQ(scheduler.storage().backend, "memory");
  EXPECT_TRUE(generate(scheduler, 1));
}

// A clear that fails may have emptied the store: what it had is written there again.
TEST_F(StorageSwitchTest, AStoreThatWasClearedWithAnErrorIsFilledAgain) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "forgetful";
  request.probe = false;  // which clears
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  ASSERT_TRUE(generate(scheduler, 1));
  ASSERT_TRUE(scheduler.quiesce(kSwitchLimit).is_ok());
  const std::uint64_t pages = scheduler.stats().storage->pages;
  ASSERT_GT(pages, 0u);
  EXPECT_EQ(scheduler.clear_storage(kSwitchLimit).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(scheduler.quiesce(kSwitchLimit).is_ok());
  EXPECT_EQ(scheduler.stats().storage->pages, pages);
}

// The last operations of a detached backend wait behind a disk that hangs when the process ends: the memory that they
// use is there until they have ended.
TEST_F(StorageSwitchTest, RetiredBackendsEndBeforeTheHostPools) {
  Scheduler& scheduler = add();
  std::promise<void> disk;
  const std::shared_future<void> comes_back = disk.get_future().share();
  ASSERT_NO_FATAL_FAILURE(detach_hanging(scheduler, comes_back));
  std::promise<void> began;
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other
                  .post([&] {
                    began.set_value();
                    (void)comes_back.wait_for(std::chrono::milliseconds(100));
                    disk.set_value();
                  })
                  .is_ok());
  began.get_future().wait();
  schedulers_.clear();  // under AddressSanitizer, what is read of freed memory is seen
}

// What hangs holds its own threads.
TEST_F(StorageSwitchTest, ABackendWhoseThreadsHangHoldsUpNoOther) {
  Scheduler& scheduler = add();
  std::promise<void> disk;
  ASSERT_NO_FATAL_FAILURE(detach_hanging(scheduler, disk.get_future().share()));
  const Status attached = scheduler.attach_storage(file_in("/other"), kSwitchLimit);
  EXPECT_TRUE(attached.is_ok()) << attached.to_string();
  EXPECT_TRUE(generate(scheduler, 2));
  disk.set_value();
  EXPECT_EQ(scheduler.storage().backend, "file");
}

// A store that hangs in its opening, and a server that stops: what comes of it in the end is not put to use.
TEST_F(StorageSwitchTest, AnAttachThatNobodyWaitsForChangesNothing) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "memory";
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  request.backend = "opening";
  request.replace = true;
  request.write_policy = "write_back";
  std::promise<Status> attached;
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([&] { attached.set_value(scheduler.attach_storage(request, kSwitchLimit)); }).is_ok());
  opens_.get_future().wait();
  EXPECT_TRUE(generate(scheduler, 1)) << "nobody else waits for it";
  scheduler.end_waits();
  may_open_.set_value();
  const Status status = attached.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
  EXPECT_EQ(scheduler.storage().backend, "memory");
  EXPECT_EQ(scheduler.storage().write_policy, "write_through");
}

// Who detaches a store for a while names it alone to have it back.
TEST_F(StorageSwitchTest, AfterADetachABackendComesBackAsItWas) {
  Scheduler& scheduler = add();
  const AttachRequest configured = file_in("/a");
  AttachRequest named;
  named.backend = "file";
  EXPECT_EQ(scheduler.attach_storage(named, kSwitchLimit).code(), StatusCode::kInvalidArgument) << "it was never there";
  ASSERT_TRUE(scheduler.attach_storage(configured, kSwitchLimit).is_ok());
  ASSERT_TRUE(generate(scheduler, 1));
  ASSERT_TRUE(scheduler.quiesce(kSwitchLimit).is_ok());
  const std::uint64_t pages = scheduler.stats().storage->pages;
  ASSERT_GT(pages, 0u);
  ASSERT_TRUE(scheduler.detach_storage(kSwitchLimit).is_ok());
  EXPECT_EQ(scheduler.storage().extra_config, "") << "none is attached";
  const Status back = scheduler.attach_storage(named, kSwitchLimit);
  ASSERT_TRUE(back.is_ok()) << back.to_string();
  EXPECT_EQ(scheduler.storage().extra_config, configured.extra_config);
  EXPECT_GE(scheduler.stats().storage->pages, pages) << "the same store";
  ASSERT_TRUE(scheduler.detach_storage(kSwitchLimit).is_ok());
  AttachRequest empty = named;
  empty.extra_config = "{}";
  EXPECT_EQ(scheduler.attach_storage(empty, kSwitchLimit).code(), StatusCode::kInvalidArgument) << "none was asked for";
  AttachRequest memory;
  memory.backend = "memory";
  ASSERT_TRUE(scheduler.attach_storage(memory, kSwitchLimit).is_ok());
  EXPECT_EQ(scheduler.storage().extra_config, "") << "another one's is not taken";
  ASSERT_TRUE(scheduler.detach_storage(kSwitchLimit).is_ok());
  EXPECT_EQ(scheduler.attach_storage(named, kSwitchLimit).code(), StatusCode::kInvalidArgument) << "not the last one";
}

TEST_F(StorageSwitchTest, ASwitchThatIsUndoneLeavesWhatWasDetachedBefore) {
  for (int i = 0; i < 2; ++i) add();
  AttachRequest memory, named;
  memory.backend = "memory";
  named.backend = "file";
  ASSERT_TRUE(schedulers_[0]->attach_storage(file_in("/a"), kSwitchLimit).is_ok());
  ASSERT_TRUE(schedulers_[0]->detach_storage(kSwitchLimit).is_ok());
  ASSERT_TRUE(schedulers_[1]->attach_storage(memory, kSwitchLimit).is_ok());
  // The second does not say `replace`.
  const std::vector<AttachRequest> both = {memory, file_in("/b")};
  EXPECT_EQ(attach_all(all(), both, kSwitchLimit).code(), StatusCode::kConflict);
  EXPECT_EQ(attached(), (std::vector<std::string>{"", "memory"}));
  const Status back = schedulers_[0]->attach_storage(named, kSwitchLimit);
  ASSERT_TRUE(back.is_ok()) << back.to_string();
  EXPECT_EQ(schedulers_[0]->storage().extra_config, file_in("/a").extra_config);
}

// A caller that was told "not carried out" must be able to count on it.
TEST_F(StorageSwitchTest, ASwitchWhoseCallerHasGivenUpDoesNotHappen) {
  Scheduler& scheduler = add();
  AttachRequest request;
  request.backend = "memory";
  ASSERT_TRUE(scheduler.attach_storage(request, kSwitchLimit).is_ok());
  request.backend = "forgetful";
  request.replace = true;
  request.probe = false;
  Result<PreparedStorage> prepared = scheduler.prepare_storage(request, kSwitchLimit);
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  std::promise<void> hold, held;
  const std::shared_future<void> go_on = hold.get_future().share();
  GenerateRequest prompt;
  prompt.tokens = {1, 2, 3};
  prompt.max_new_tokens = 1;
  auto is_first = std::make_shared<std::atomic<bool>>(true);
  const auto ticket = scheduler.submit(prompt, [&held, go_on, is_first](const GenerateUpdate&) {
    if (!is_first->exchange(false)) return;
    held.set_value();
    go_on.wait();  // on the loop's thread, against its rules
  });
  ASSERT_TRUE(ticket.is_ok());
  held.get_future().wait();
  const Result<PreparedStorage> switched = scheduler.switch_storage(std::move(prepared).value(), Nanos(0));
  EXPECT_EQ(switched.status().code(), StatusCode::kDeadlineExceeded) << switched.status().to_string();
  hold.set_value();
  EXPECT_TRUE(generate(scheduler, 1));
  EXPECT_EQ(scheduler.storage().backend, "memory");
}

}  // namespace
}  // namespace larder
