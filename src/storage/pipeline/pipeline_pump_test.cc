// SPDX-License-Identifier: Apache-2.0
// Several threads at one pipeline whose backend works inside submit: who does whose work, and under which lock.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "base/log.h"
#include "base/thread_pool.h"
#include "storage/pipeline/pipeline_test_util.h"
#include "storage/pipeline/storage_pipeline.h"
#include "tests/support/passing_backend.h"

namespace larder {
namespace {

using namespace pipeline_test;

// Answers inside submit, after `work` has returned.
class InlineBackend final : public support::StubBackend {
 public:
  std::function<void(std::uint8_t tag)> work = [](std::uint8_t) {};

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    work(request.keys.front().bytes[0]);
    done(ExistsResult{Status::ok(), {{PoolName::kKv, Presence(request.keys.size(), true)}}});
    return Status::ok();
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    done({std::vector<Status>(request.items.size(), unavailable("the disk is gone"))});
    return Status::ok();
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    done({std::vector<Status>(request.groups.size())});
    return Status::ok();
  }
};

class PipelinePumpTest : public testing::Test {
 protected:
  void make(std::size_t exists_at_once) {
    PipelineOptions options;
    options.max_exists_in_flight = exists_at_once;
    auto inner = std::make_unique<InlineBackend>();
    inner_ = inner.get();
    pipeline_ = make_pipeline(std::move(inner), options, clock_, nullptr, 7);
  }
  void exists(std::uint8_t tag) {
    const Status submitted = pipeline_->submit_exists(exists_of(tag), [this](const ExistsResult&) { ++ended_; });
    EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  }

  ManualClock clock_;
  InlineBackend* inner_ = nullptr;
  std::unique_ptr<StoragePipeline> pipeline_;
  std::atomic<std::size_t> ended_{0};
};

TEST_F(PipelinePumpTest, ACallDoesItsOwnWorkAndAtMostOneMore) {
  make(2);
  constexpr std::uint8_t kOther = 1, kMine = 2, kLastWaiting = 9;
  std::promise<void> other_began, gate;
  std::map<std::uint8_t, std::thread::id> done_by;  // of `kMine` and later ones
  const std::thread::id me = std::this_thread::get_id();
  inner_->work = [&](std::uint8_t tag) {
    if (tag == kOther) {
      other_began.set_value();
      gate.get_future().wait();
      return;
    }
    done_by[tag] = std::this_thread::get_id();  // one thread at a time: `kOther` is at the gate
    // While mine is at work, others come: each finds all places taken.
    for (std::uint8_t n = kMine + 1; tag == kMine && n <= kLastWaiting; ++n) exists(n);
  };
  ThreadPoolExecutor other("other", 1, 1);
  ASSERT_TRUE(other.post([&] { exists(kOther); }).is_ok());
  other_began.get_future().wait();

  exists(kMine);
  EXPECT_EQ(done_by.size(), 2u) << "it was kept by the work of others, or left its own";
  EXPECT_EQ(done_by.count(kMine), 1u);
  for (const auto& [tag, thread] : done_by) EXPECT_EQ(thread, me) << int{tag};

  gate.set_value();
  other.wait_idle();
  EXPECT_EQ(ended_, std::size_t{kLastWaiting}) << "the last pump stays until nothing waits";
  EXPECT_EQ(pipeline_->stats().queued, 0u);
}

// Nobody ticks, and nobody comes when all have submitted.
TEST_F(PipelinePumpTest, NothingIsLeftLying) {
  for (const std::size_t places : {1, 2, 16}) {
    make(places);
    ended_ = 0;
    ThreadPoolExecutor threads("submitter", 4, 4);
    const auto submit_many = [this] {
      for (std::uint8_t n = 0; n < 150; ++n) exists(n);
    };
    for (int t = 0; t < 4; ++t) ASSERT_TRUE(threads.post(submit_many).is_ok());
    threads.wait_idle();
    EXPECT_EQ(ended_, 600u) << places;
    EXPECT_EQ(pipeline_->stats().queued, 0u) << places;
    EXPECT_TRUE(pipeline_->close(std::chrono::seconds(60)).is_ok());
  }
}

// An engine's sink may block. It blocks nobody but the thread that had something to say.
TEST_F(PipelinePumpTest, TheLogIsWrittenWithoutTheLock) {
  make(1);
  std::future<PipelineHealth> asked;
  bool was_answered = false;
  set_log_level(LogLevel::kInfo);
  set_log_sink([&](LogLevel, std::string_view, std::string_view) {
    if (asked.valid()) return;
    asked = std::async(std::launch::async, [this] { return pipeline_->health(); });
    was_answered = asked.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  });
  for (std::uint8_t n = 0; n < 6; ++n) {
    (void)pipeline_->submit_read(read_of(n), [](const ReadResult&) {});
  }
  set_log_sink({});
  ASSERT_TRUE(asked.valid()) << "the breaker opened, and nobody said so";
  EXPECT_TRUE(was_answered);
  EXPECT_EQ(asked.get().breakers[index_of(Direction::kRead)].state, CircuitBreaker::State::kOpen);
}

}  // namespace
}  // namespace larder
