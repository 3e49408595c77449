// SPDX-License-Identifier: Apache-2.0
// A pipeline in front of backends that fail at random, or break their contract.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/executor.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "sim/faulty_backend.h"
#include "storage/memory/memory_backend.h"
#include "storage/pipeline/pipeline_test_util.h"
#include "storage/pipeline/storage_pipeline.h"
#include "tests/support/passing_backend.h"

namespace larder {
namespace {

using namespace pipeline_test;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::uint64_t base_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20'250'301 : std::strtoull(text, nullptr, 10);
}

std::unique_ptr<StorageBackend> memory_backend(Executor& executor) {
  BackendFactory factory;
  EXPECT_TRUE(register_memory_backend(factory).is_ok());
  auto made = factory.create("memory", {}, {nullptr, nullptr, &executor});
  return std::move(made).value();
}

// Random operations with random ends. Everything a test wants to know is counted per operation.
class Storm {
 public:
  Storm(std::uint64_t seed, const PipelineOptions& options) : rng_(seed), options_(options) {
    auto faulty = std::make_unique<sim::FaultyBackend>(memory_backend(executor_), seed, plan());
    faulty_ = faulty.get();
    pipeline_ = make_pipeline(std::move(faulty), options, clock_, nullptr, seed);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (rng_.below(10)) {
        case 0: clock_.advance(milliseconds(rng_.below(3000))); break;
        case 1: pipeline_->tick(); break;
        case 2: faulty_->set_plan(plan()); break;
        case 3: (void)faulty_->release_hung(); break;
        case 4: cancel_one(); break;
        case 5:
        case 6: (void)faulty_->release_one(); break;
        default: submit();
      }
      check_bounds();
    }
  }

  void finish() {
    faulty_->set_plan({});
    for (int round = 0; round < 1000 && pipeline_->stats().queued + faulty_->held() + faulty_->hung() > 0; ++round) {
      (void)faulty_->release_hung();
      (void)faulty_->release_all();
      pipeline_->tick();
    }
    EXPECT_TRUE(pipeline_->close(seconds(1)).is_ok());
    check_ends();
  }

  // Ends with operations everywhere.
  void drop() {
    pipeline_.reset();
    check_ends();
  }

 private:
  struct Op {
    bool is_taken = false;
    int times = 0;
    std::vector<Status> items;
    std::size_t expected_items = 0;
    std::vector<std::byte> buffer;  // stays alive and, for reads, must be right when the status says so
    std::shared_ptr<std::atomic<bool>> cancel;
  };

  sim::FaultPlan plan() {
    sim::FaultPlan out;
    out.is_holding = rng_.chance(9, 10);
    if (rng_.chance(1, 2)) out.hang_percent = static_cast<unsigned>(rng_.below(20));
    if (rng_.chance(1, 2)) out.fail_percent = static_cast<unsigned>(rng_.below(60));
    if (rng_.chance(1, 2)) out.partial_percent = static_cast<unsigned>(rng_.below(30));
    if (rng_.chance(1, 4)) out.refuse_percent = static_cast<unsigned>(rng_.below(30));
    return out;
  }
  OperationTerms random_terms(Op& op) {
    op.cancel = std::make_shared<std::atomic<bool>>(false);
    OperationTerms terms{static_cast<Urgency>(rng_.below(kUrgencyCount)), TimePoint::max(), op.cancel};
    if (rng_.chance(1, 2)) terms.deadline = clock_.now() + milliseconds(rng_.below(5000));
    return terms;
  }
  void cancel_one() {
    if (!ops_.empty()) ops_[rng_.below(ops_.size())]->cancel->store(true);
  }
  static void note(const std::shared_ptr<Op>& op, std::vector<Status> items) {
    ++op->times;
    op->items = std::move(items);
  }

  void submit() {
    const auto op = std::make_shared<Op>();
    const auto tag = static_cast<std::uint8_t>(rng_.below(20));
    op->expected_items = 1;
    op->buffer.assign(64, std::byte{tag});
    const OperationTerms terms = random_terms(*op);
    const Segment whole{op->buffer.data(), op->buffer.size()};
    Status status;
    switch (rng_.below(8)) {
      case 0: {
        ExistsRequest request = exists_of(tag);
        request.terms = terms;
        status = pipeline_->submit_exists(std::move(request), [op](const ExistsResult& r) { note(op, {r.status}); });
        break;
      }
      case 1: status = pipeline_->submit_clear(make_scope(), [op](const Status& s) { note(op, {s}); }); break;
      case 2:
      case 3:
      case 4: {
        WriteRequest request = write_of(tag, terms.urgency, {whole});
        request.terms = terms;
        status = pipeline_->submit_write(std::move(request), [op](const WriteResult& r) { note(op, r.groups); });
        break;
      }
      default: {
        ReadRequest request = read_of(tag, terms, {whole});
        status = pipeline_->submit_read(std::move(request), [op, tag](const ReadResult& r) {
          note(op, r.items);
          if (!r.items.at(0).is_ok()) return;
          for (const std::byte b : op->buffer) EXPECT_EQ(b, std::byte{tag}) << "wrong bytes";
        });
      }
    }
    op->is_taken = status.is_ok();
    ops_.push_back(op);
  }

  void check_bounds() {
    const PipelineHealth health = pipeline_->health();
    std::size_t waiting = 0;
    for (const Lane lane : kLanes) {
      const PipelineHealth::LaneState& state = health.lanes[index_of(lane)];
      for (const std::size_t queued : state.queued) waiting += queued;
      const std::size_t limit = lane == Lane::kExists ? options_.max_exists_in_flight
                                : lane == Lane::kRead ? options_.max_reads_in_flight
                                                      : options_.max_writes_in_flight;
      EXPECT_LE(state.in_flight, limit + 2);
    }
    EXPECT_LE(waiting, options_.queue_limit);
    EXPECT_LE(health.negative_entries, options_.negative_entries);
  }
  void check_ends() {
    for (const auto& op : ops_) {
      ASSERT_EQ(op->times, op->is_taken ? 1 : 0);
      ASSERT_EQ(op->items.size(), op->is_taken ? op->expected_items : 0u);
    }
  }

  Rng rng_;
  const PipelineOptions options_;
  InlineExecutor executor_;
  ManualClock clock_{seconds(100)};
  sim::FaultyBackend* faulty_ = nullptr;
  std::vector<std::shared_ptr<Op>> ops_;
  std::unique_ptr<StoragePipeline> pipeline_;
};

TEST(PipelineFaultTest, EveryOperationEndsOnceWhateverTheBackendDoes) {
  for (std::uint64_t seed = base_seed(); seed < base_seed() + 150; ++seed) {
    SCOPED_TRACE("replay with LARDER_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    PipelineOptions options;
    options.max_reads_in_flight = rng.between(1, 5);
    options.max_writes_in_flight = rng.between(1, 3);
    options.max_exists_in_flight = rng.between(1, 2);
    options.queue_limit = rng.between(1, 40);
    options.negative_entries = rng.between(0, 6);
    options.max_read_bytes_in_flight = rng.between(0, 200);
    options.breaker.failures = static_cast<std::uint32_t>(rng.between(2, 8));
    Storm storm(seed, options);
    storm.run(400);
    if (rng.chance(1, 2)) {
      storm.finish();
    } else {
      storm.drop();
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Threads that submit, a backend with threads of its own, narrow limits, callbacks that submit again.
TEST(PipelineFaultTest, ManyThreads) {
  constexpr int kThreads = 4, kRounds = 300;
  const std::uint64_t seed = base_seed();
  ManualClock clock{seconds(100)};
  ThreadPoolExecutor workers("storage", 2, 10'000);
  PipelineOptions options;
  options.max_reads_in_flight = 2;
  options.max_writes_in_flight = options.max_exists_in_flight = 1;
  options.queue_limit = 20'000;
  auto faulty = std::make_unique<sim::FaultyBackend>(
      memory_backend(workers), seed, sim::FaultPlan{.refuse_percent = 5, .fail_percent = 5, .partial_percent = 5});
  auto pipeline = make_pipeline(std::move(faulty), options, clock, nullptr, seed);
  std::atomic<int> taken{0}, ended{0}, wrong{0};
  const auto work = [&](std::uint64_t thread_seed) {
    Rng rng(thread_seed);
    for (int round = 0; round < kRounds; ++round) {
      const auto tag = static_cast<std::uint8_t>(rng.below(10));
      auto buffer = std::make_shared<std::vector<std::byte>>(100, std::byte{tag});
      const Segment whole{buffer->data(), buffer->size()};
      Status status;
      if (rng.chance(1, 3)) {
        status = pipeline->submit_write(write_of(tag, Urgency::kWaiting, {whole}),
                                        [&ended, buffer](const WriteResult&) { ++ended; });
      } else {
        status = pipeline->submit_read(read_of(tag, {}, {whole}), [&, buffer, tag](const ReadResult& r) {
          if (r.items.at(0).is_ok() && buffer->at(7) != std::byte{tag}) ++wrong;
          if (pipeline->submit_exists(exists_of(tag), [&ended](const ExistsResult&) { ++ended; }).is_ok()) ++taken;
          ++ended;
        });
      }
      if (status.is_ok()) ++taken;
      if (rng.chance(1, 20)) pipeline->tick();
      if (rng.chance(1, 20)) clock.advance(milliseconds(300));
      if (rng.chance(1, 20)) (void)pipeline->health();
    }
  };
  {
    ThreadPoolExecutor callers("callers", kThreads, kThreads);
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      ASSERT_TRUE(callers.post([&work, seed, t] { work(seed + t); }).is_ok());
    }
  }
  EXPECT_TRUE(pipeline->close(seconds(60)).is_ok());
  EXPECT_EQ(ended.load(), taken.load()) << "seed " << seed;
  EXPECT_GT(taken.load(), 0);
  EXPECT_EQ(wrong.load(), 0) << "seed " << seed;
}

// Breaks the contract in one way.
class DefectiveBackend final : public support::StubBackend {
 public:
  enum class Defect : std::uint8_t { kDoneTwice, kDropsAtOnce, kDropsLater, kTooFew, kTooMany, kRefusesAndRuns };
  explicit DefectiveBackend(Defect defect) : defect_(defect) {}

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return act(std::move(done), [count = request.pools.size()](std::size_t) {
      return ExistsResult{{}, std::vector<PoolPresence>(count + 1, PoolPresence{PoolName::kKv, {true}})};
    });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return act(std::move(done), [count = request.items.size()](std::size_t change) {
      return ReadResult{std::vector<Status>(count + change)};
    });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return act(std::move(done), [count = request.groups.size()](std::size_t change) {
      return WriteResult{std::vector<Status>(count + change)};
    });
  }
  void drop_held() { held_.clear(); }

 private:
  template <class Done, class Make>
  Status act(Done done, const Make& make) {
    switch (defect_) {
      case Defect::kDoneTwice:
        done(make(0));
        done(make(0));
        break;
      case Defect::kDropsAtOnce: break;
      case Defect::kDropsLater: held_.emplace_back([done = std::move(done)] {}); break;
      case Defect::kTooFew: done(make(static_cast<std::size_t>(-1))); break;
      case Defect::kTooMany: done(make(1)); break;
      case Defect::kRefusesAndRuns: done(make(0)); return unavailable("after it ran");
    }
    return Status::ok();
  }
  const Defect defect_;
  std::vector<std::function<void()>> held_;
};

TEST(PipelineFaultTest, ContractBreakersAreContained) {
  using Defect = DefectiveBackend::Defect;
  for (const Defect defect : {Defect::kDoneTwice, Defect::kDropsAtOnce, Defect::kDropsLater, Defect::kTooFew,
                              Defect::kTooMany, Defect::kRefusesAndRuns}) {
    SCOPED_TRACE(static_cast<int>(defect));
    ManualClock clock;
    auto inner = std::make_unique<DefectiveBackend>(defect);
    DefectiveBackend& backend = *inner;
    PipelineOptions options;
    options.max_reads_in_flight = options.max_writes_in_flight = 1;
    auto pipeline = make_pipeline(std::move(inner), options, clock, nullptr, 1);
    const bool is_well = defect == Defect::kDoneTwice || defect == Defect::kRefusesAndRuns;
    const StatusCode wanted = is_well ? StatusCode::kOk : StatusCode::kInternal;
    int reads = 0, writes = 0, lookups = 0;
    ReadRequest two = read_of(1);
    two.items.push_back(two.items.front());
    ASSERT_TRUE(pipeline
                    ->submit_read(two,
                                  [&](const ReadResult& r) {
                                    ++reads;
                                    ASSERT_EQ(r.items.size(), 2u);
                                    for (const Status& s : r.items) EXPECT_EQ(s.code(), wanted) << s.to_string();
                                  })
                    .is_ok());
    ASSERT_TRUE(pipeline
                    ->submit_write(write_of(1),
                                   [&](const WriteResult& r) {
                                     ++writes;
                                     ASSERT_EQ(r.groups.size(), 1u);
                                     EXPECT_EQ(r.groups[0].code(), wanted);
                                   })
                    .is_ok());
    ASSERT_TRUE(pipeline
                    ->submit_exists(exists_of(1),
                                    [&](const ExistsResult& r) {
                                      ++lookups;
                                      EXPECT_EQ(r.status.code(), StatusCode::kInternal) << "one pool too many, or none";
                                      EXPECT_TRUE(r.presence.empty());
                                    })
                    .is_ok());
    backend.drop_held();
    EXPECT_EQ(reads, 1);
    EXPECT_EQ(writes, 1);
    EXPECT_EQ(lookups, 1);
    EXPECT_TRUE(pipeline->close(Nanos(0)).is_ok());
  }
}

TEST(PipelineFaultTest, CallbacksThatThrowHarmNobody) {
  ManualClock clock;
  InlineExecutor executor;
  auto pipeline = make_pipeline(memory_backend(executor), {}, clock, nullptr, 1);
  EXPECT_TRUE(pipeline->submit_exists(exists_of(1), [](const ExistsResult&) { throw 1; }).is_ok());
  int ended = 0;
  EXPECT_TRUE(pipeline->submit_exists(exists_of(1), [&](const ExistsResult&) { ++ended; }).is_ok());
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(pipeline->close(Nanos(0)).is_ok());
}

}  // namespace
}  // namespace larder
