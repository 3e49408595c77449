// SPDX-License-Identifier: Apache-2.0
#include "transfer/transfer.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include "base/thread_pool.h"
#include "transfer/transfer_test_util.h"

namespace larder {
namespace {

using transfer_test::Fixture;
using transfer_test::Pairs;

// What the controller's inbox would be.
class Inbox {
 public:
  TransferEngine::Done done() {
    return [this](TransferDone result) {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    };
  }
  std::vector<TransferDone> drain() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<TransferDone> results_;
};

TransferRequest request(std::uint64_t id, CopyDirection direction, const Pairs& pairs,
                        std::shared_ptr<LayerGate> gate = nullptr) {
  return {OpId(id), direction, pairs, std::move(gate)};
}

// Fails one post, the n-th (from 1).
class FailingExecutor final : public Executor {
 public:
  FailingExecutor(Executor& inner, std::uint64_t n) : inner_(inner), n_(n) {}
  Status post(Task task) override {
    if (++posts_ == n_) {
      has_failed_ = true;
      return overloaded("injected");
    }
    return inner_.post(std::move(task));
  }
  [[nodiscard]] bool has_failed() const { return has_failed_; }

 private:
  Executor& inner_;
  const std::uint64_t n_;
  std::uint64_t posts_ = 0;
  bool has_failed_ = false;
};

class TransferTest : public testing::Test {
 protected:
  void make(const ModelSpec& model, std::uint32_t pages = 2, std::size_t max_in_flight = 8) {
    fixture = std::make_unique<Fixture>(model, HostLayout::kPageFirst, pages, rng);
    device = make_cpu_device(executor);
    engine = pool_test::take(TransferEngine::create(*device, *fixture->device, fixture->host.get(), max_in_flight));
  }

  Rng rng{5};
  ManualExecutor executor;
  std::unique_ptr<Fixture> fixture;
  std::unique_ptr<Device> device;
  Inbox inbox;
  std::unique_ptr<TransferEngine> engine;
};

TEST_F(TransferTest, RoundTripThroughStreams) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    SCOPED_TRACE(name);
    make(pool_test::preset(name));
    Fixture& f = *fixture;
    f.fill_device(rng, &SlotPair::device);
    ASSERT_TRUE(engine->submit(request(1, CopyDirection::kDeviceToHost, f.pairs), inbox.done()).is_ok());
    EXPECT_EQ(engine->in_flight(), 1u);
    EXPECT_GT(f.leases(), 0u);
    executor.run_all();
    ASSERT_TRUE(engine->submit(request(2, CopyDirection::kHostToDevice, f.swapped()), inbox.done()).is_ok());
    executor.run_all();
    EXPECT_TRUE(f.device_sets_are_equal());
    EXPECT_EQ(f.difference_to_host(&SlotPair::source), "");
    f.fill_device(rng, &SlotPair::source);
    ASSERT_TRUE(engine->submit(request(3, CopyDirection::kDeviceToDevice, f.pairs), inbox.done()).is_ok());
    executor.run_all();
    EXPECT_TRUE(f.device_sets_are_equal());
    const auto results = inbox.drain();
    ASSERT_EQ(results.size(), 3u);
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].id, OpId(i + 1));
      EXPECT_EQ(results[i].status.to_string(), "ok");
      f.drop(results[i]);
    }
    EXPECT_EQ(results[2].host_leases.size(), 0u);
    EXPECT_EQ(f.leases(), 0u);
    EXPECT_EQ(engine->in_flight(), 0u);
    engine.reset();
  }
}

// Layers arrive in model order, the draft layer last, and when a layer is announced its bytes are on the device.
TEST_F(TransferTest, TheGateOpensLayerByLayer) {
  for (const char* name : {"gdn-tiny+draft", "gemma3-tiny", "dsv4-tiny+draft"}) {
    SCOPED_TRACE(name);
    const ModelSpec model = pool_test::preset(name);
    make(model);
    Fixture& f = *fixture;
    f.fill_host(rng);
    f.fill_device(rng, &SlotPair::device);
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    ASSERT_TRUE(engine->submit(request(1, CopyDirection::kHostToDevice, f.pairs, gate), inbox.done()).is_ok());
    for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
      EXPECT_FALSE(gate->ready(layer));
      ASSERT_TRUE(executor.run_one());
      EXPECT_TRUE(gate->ready(layer));
      EXPECT_EQ(gate->finished(), layer + 1 == model.layer_count());
      EXPECT_EQ(gate->finished(), f.difference_to_host(&SlotPair::device).empty());
    }
    ASSERT_EQ(inbox.drain().size(), 1u);
    executor.run_all();
    engine.reset();
  }
}

// Bytes that a step has yet to write are copied when it says so, and not what was there before.
TEST_F(TransferTest, CopiesWaitForTheEnginesEvent) {
  make(pool_test::preset("gdn-tiny"));
  Fixture& f = *fixture;
  f.fill_device(rng, &SlotPair::device);
  const auto event = std::make_shared<DeviceEvent>();
  TransferRequest copy = request(1, CopyDirection::kDeviceToHost, f.pairs);
  copy.after = event;
  ASSERT_TRUE(engine->submit(std::move(copy), inbox.done()).is_ok());
  executor.run_all();
  EXPECT_TRUE(inbox.drain().empty());
  EXPECT_GT(f.leases(), 0u);
  f.fill_device(rng, &SlotPair::device);  // the step
  event->fire();
  executor.run_all();
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status.to_string(), "ok");
  EXPECT_EQ(f.difference_to_host(&SlotPair::device), "");
  f.drop(results[0]);
  EXPECT_EQ(f.leases(), 0u);
}

TEST_F(TransferTest, AnEngineThatEndsWithoutItsEventLeavesNoLease) {
  make(pool_test::preset("gqa-tiny"));
  TransferRequest copy = request(1, CopyDirection::kDeviceToHost, fixture->pairs);
  copy.after = std::make_shared<DeviceEvent>();
  ASSERT_TRUE(engine->submit(std::move(copy), inbox.done()).is_ok());
  engine.reset();
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status.code(), StatusCode::kCancelled);
  fixture->drop(results[0]);
  EXPECT_EQ(fixture->leases(), 0u);
}

TEST_F(TransferTest, ALayerWithoutBytesArrivesWithTheNextAndTheTailWithTheLast) {
  const ModelSpec model = pool_test::preset("gdn-tiny");  // layers 0-2 delta net, 3 attention
  make(model);
  Pairs only_full{};
  only_full[0] = fixture->pairs[0];
  auto gate = std::make_shared<LayerGate>(model.layer_count());
  ASSERT_TRUE(engine->submit(request(1, CopyDirection::kHostToDevice, only_full, gate), inbox.done()).is_ok());
  EXPECT_FALSE(gate->ready(0));
  ASSERT_TRUE(executor.run_one());
  EXPECT_TRUE(gate->finished());
  Pairs only_state{};
  only_state[2] = fixture->pairs[2];
  gate = std::make_shared<LayerGate>(model.layer_count());
  ASSERT_TRUE(engine->submit(request(2, CopyDirection::kHostToDevice, only_state, gate), inbox.done()).is_ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(gate->ready(2));
    ASSERT_TRUE(executor.run_one());
  }
  EXPECT_TRUE(gate->finished());
  // No pairs at all: a completion all the same.
  gate = std::make_shared<LayerGate>(model.layer_count());
  ASSERT_TRUE(engine->submit(request(3, CopyDirection::kHostToDevice, {}, gate), inbox.done()).is_ok());
  executor.run_all();
  EXPECT_TRUE(gate->finished());
  EXPECT_EQ(inbox.drain().size(), 3u);
}

TEST_F(TransferTest, MoreThanTheLimitIsRefusedWithNothingTaken) {
  make(pool_test::preset("swa-tiny"), 2, 2);
  for (const std::uint64_t id : {1u, 2u}) {
    ASSERT_TRUE(engine->submit(request(id, CopyDirection::kDeviceToHost, fixture->pairs), inbox.done()).is_ok());
  }
  const std::uint32_t leases = fixture->leases();
  EXPECT_EQ(engine->submit(request(3, CopyDirection::kDeviceToHost, fixture->pairs), inbox.done()).code(),
            StatusCode::kOverloaded);
  EXPECT_EQ(fixture->leases(), leases);
  executor.run_all();
  for (const TransferDone& done : inbox.drain()) fixture->drop(done);
  EXPECT_EQ(fixture->leases(), 0u);
  EXPECT_TRUE(engine->submit(request(3, CopyDirection::kDeviceToHost, fixture->pairs), inbox.done()).is_ok());
}

// The defect: a stream counted layers, so that of many loads in a row the last ones failed; their hits were thrown
// away.
TEST_F(TransferTest, AsManyLoadsAsMayBeInFlightFindRoom) {
  constexpr std::size_t kLoads = 1100;  // of four layers each
  make(pool_test::preset("gqa-tiny"), 2, kLoads);
  std::vector<std::shared_ptr<LayerGate>> gates;
  for (std::size_t i = 0; i < kLoads; ++i) {
    gates.push_back(std::make_shared<LayerGate>(4));
    ASSERT_TRUE(
        engine->submit(request(i, CopyDirection::kHostToDevice, fixture->pairs, gates.back()), inbox.done()).is_ok());
  }
  EXPECT_EQ(engine->in_flight(), kLoads);
  EXPECT_EQ(engine->submit(request(0, CopyDirection::kHostToDevice, fixture->pairs), inbox.done()).code(),
            StatusCode::kOverloaded);
  // A place that comes free is one in the stream, too.
  for (int layer = 0; layer < 4; ++layer) ASSERT_TRUE(executor.run_one());
  EXPECT_TRUE(gates.front()->finished());
  ASSERT_TRUE(engine->submit(request(kLoads, CopyDirection::kHostToDevice, fixture->pairs), inbox.done()).is_ok());
  executor.run_all();
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), kLoads + 1);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].id, OpId(i));
    EXPECT_EQ(results[i].status.to_string(), "ok");
    fixture->drop(results[i]);
  }
  for (const auto& gate : gates) EXPECT_TRUE(gate->ready(3));
  EXPECT_EQ(fixture->leases(), 0u);
}

// As on ranks whose devices take it: the slots are leased until the completion counts.
TEST_F(TransferTest, ATransferThatTheDeviceRefusesFailsWithItsLeases) {
  make(pool_test::preset("gqa-tiny"));
  FailingExecutor refusing(executor, 1);
  const auto refuses = make_cpu_device(refusing);
  auto refused = pool_test::take(TransferEngine::create(*refuses, *fixture->device, fixture->host.get(), 8));
  const auto gate = std::make_shared<LayerGate>(4);
  const auto second = std::make_shared<LayerGate>(4);
  ASSERT_TRUE(refused->submit(request(1, CopyDirection::kHostToDevice, fixture->pairs, gate), inbox.done()).is_ok());
  EXPECT_EQ(refused->in_flight(), 0u);
  EXPECT_EQ(gate->wait(0, std::chrono::nanoseconds(0)).code(), StatusCode::kOverloaded);
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status.code(), StatusCode::kOverloaded);
  EXPECT_GT(fixture->leases(), 0u);
  fixture->drop(results[0]);
  EXPECT_EQ(fixture->leases(), 0u);
  ASSERT_TRUE(refused->submit(request(2, CopyDirection::kHostToDevice, fixture->pairs, second), inbox.done()).is_ok());
  executor.run_all();
  EXPECT_TRUE(second->ready(3));
  EXPECT_EQ(inbox.drain().size(), 1u);
}

TEST_F(TransferTest, BadRequestsAreRefusedWithNothingTaken) {
  make(pool_test::preset("gqa-tiny"));
  const auto expect = [&](const Pairs& pairs, CopyDirection direction, StatusCode code) {
    EXPECT_EQ(engine->submit(request(1, direction, pairs), inbox.done()).code(), code);
    EXPECT_EQ(fixture->leases(), 0u);
    EXPECT_EQ(engine->in_flight(), 0u);
  };
  Pairs pairs{};
  pairs[2].push_back({DeviceSlot(0), HostSlot(0), DeviceSlot()});
  expect(pairs, CopyDirection::kDeviceToHost, StatusCode::kInvalidArgument);  // no such component
  for (const auto& [device_slot, host_slot] :
       {std::pair(DeviceSlot(), HostSlot(0)), std::pair(DeviceSlot(0), HostSlot()),
        std::pair(DeviceSlot(999), HostSlot(0))}) {
    pairs = fixture->pairs;
    pairs[0].push_back({device_slot, host_slot, DeviceSlot()});
    expect(pairs, CopyDirection::kHostToDevice, StatusCode::kInternal);  // not live
  }
  pairs = fixture->pairs;
  pairs[0][1].source = pairs[0][0].device;
  expect(pairs, CopyDirection::kDeviceToDevice, StatusCode::kInvalidArgument);
  executor.run_all();
  EXPECT_TRUE(inbox.drain().empty());

  auto alone = pool_test::take(TransferEngine::create(*device, *fixture->device, nullptr, 1));
  EXPECT_EQ(alone->submit(request(1, CopyDirection::kDeviceToHost, fixture->pairs), inbox.done()).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(alone->submit(request(1, CopyDirection::kDeviceToDevice, fixture->pairs), inbox.done()).is_ok());
}

TEST_F(TransferTest, CreateChecksItsArguments) {
  make(pool_test::preset("gqa-tiny"));
  EXPECT_EQ(TransferEngine::create(*device, *fixture->device, nullptr, 0).status().code(),
            StatusCode::kInvalidArgument);
  const auto other = pool_test::take(
      HostPools::create(pool_test::preset("mla-tiny"), HostLayout::kPageFirst, 1 << 20, host_memory_source()));
  EXPECT_EQ(TransferEngine::create(*device, *fixture->device, other.get(), 1).status().code(), StatusCode::kConflict);
}

// Slots freed while their transfer runs come back with its completion, and not before.
TEST_F(TransferTest, FreedSlotsStayInQuarantineUntilTheLateCompletion) {
  const ModelSpec model = pool_test::preset("gqa-tiny");
  make(model, 1);
  Fixture& f = *fixture;
  f.fill_device(rng, &SlotPair::device);
  ASSERT_TRUE(engine->submit(request(1, CopyDirection::kDeviceToHost, f.pairs), inbox.done()).is_ok());
  const SlotPair pair = f.pairs[0][0];
  ASSERT_TRUE(f.device->free(ComponentKind::kFull, pair.device).is_ok());
  ASSERT_TRUE(f.host->free(ComponentKind::kFull, pair.host).is_ok());
  EXPECT_FALSE(f.device->allocate(ComponentKind::kFull));  // the only other device slot is in use
  executor.run_all();
  EXPECT_EQ(f.difference_to_host(&SlotPair::device), "");  // nobody got the buffers meanwhile
  const std::uint64_t free_before = f.host->free_blocks();
  for (const TransferDone& done : inbox.drain()) f.drop(done);
  EXPECT_GT(f.host->free_blocks(), free_before);
  EXPECT_EQ(f.device->allocate(ComponentKind::kFull), pair.device);
}

TEST_F(TransferTest, DestructionWithWorkInFlightCompletesIt) {
  make(pool_test::preset("dsa-tiny"));
  Fixture& f = *fixture;
  f.fill_device(rng, &SlotPair::device);
  const auto gate = std::make_shared<LayerGate>(4);
  ASSERT_TRUE(engine->submit(request(1, CopyDirection::kDeviceToHost, f.pairs), inbox.done()).is_ok());
  executor.run_one();
  ASSERT_TRUE(engine->submit(request(2, CopyDirection::kDeviceToDevice, f.swapped(), gate), inbox.done()).is_ok());
  engine.reset();
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 2u);
  for (const TransferDone& done : results) f.drop(done);
  EXPECT_EQ(f.leases(), 0u);
  EXPECT_TRUE(gate->finished());
  EXPECT_TRUE(f.device_sets_are_equal());
  EXPECT_EQ(f.difference_to_host(&SlotPair::device), "");
  device.reset();
  executor.run_all();  // stale tasks find an idle stream
}

TEST_F(TransferTest, AnEngineGivesItsStreamsBackAndLeavesThoseOfOthersAlone) {
  make(pool_test::preset("gqa-tiny"));
  const auto step_is_over = std::make_shared<DeviceEvent>();
  TransferRequest waiting = request(1, CopyDirection::kDeviceToHost, fixture->pairs);
  waiting.after = step_is_over;
  ASSERT_TRUE(engine->submit(std::move(waiting), inbox.done()).is_ok());
  for (std::size_t i = 0; i < 2 * kMaxStreams; ++i) {
    const auto other = TransferEngine::create(*device, *fixture->device, fixture->host.get(), 1);
    ASSERT_EQ(other.status().to_string(), "ok") << i;
  }
  step_is_over->fire();
  executor.run_all();
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status.to_string(), "ok");
  fixture->drop(results[0]);
}

// A device that loses a transfer: the promise of one completion is the engine's, not the device's.
class LossyDevice final : public Device {
 public:
  std::string_view name() const override { return "lossy"; }
  MemorySource& memory() override { return host_memory_source(); }
  Result<StreamId> create_stream(std::size_t) override { return StreamId{0}; }
  void destroy_streams(std::span<const StreamId>) override {}
  Status enqueue(StreamId, CopyDirection, StreamWork work) override {
    if (fail_step < work.steps) {  // copies of one step fail, the others succeed
      for (std::uint32_t i = 0; i < work.steps; ++i) work.done(i, i == fail_step ? unavailable("gone") : Status::ok());
    }
    return Status::ok();
  }
  void synchronize() override {}
  std::size_t fail_step = SIZE_MAX;
};

TEST_F(TransferTest, ALostTransferIsCancelledOnce) {
  make(pool_test::preset("gqa-tiny"));
  LossyDevice lossy;
  auto lost = pool_test::take(TransferEngine::create(lossy, *fixture->device, fixture->host.get(), 1));
  const auto gate = std::make_shared<LayerGate>(4);
  ASSERT_TRUE(lost->submit(request(1, CopyDirection::kHostToDevice, fixture->pairs, gate), inbox.done()).is_ok());
  const auto results = inbox.drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status.code(), StatusCode::kCancelled);
  fixture->drop(results[0]);
  EXPECT_EQ(fixture->leases(), 0u);
  EXPECT_EQ(lost->in_flight(), 0u);
  EXPECT_EQ(gate->wait(0, std::chrono::nanoseconds(0)).code(), StatusCode::kCancelled);
}

TEST_F(TransferTest, AFailedCopyFailsTheGateAndTheTransfer) {
  make(pool_test::preset("gqa-tiny"));
  LossyDevice lossy;
  auto failing = pool_test::take(TransferEngine::create(lossy, *fixture->device, fixture->host.get(), 1));
  for (std::size_t step = 0; step < 4; ++step) {
    lossy.fail_step = step;
    const auto gate = std::make_shared<LayerGate>(4);
    ASSERT_TRUE(
        failing->submit(request(step, CopyDirection::kHostToDevice, fixture->pairs, gate), inbox.done()).is_ok());
    const auto results = inbox.drain();
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(gate->wait(3, std::chrono::nanoseconds(0)).code(), StatusCode::kUnavailable);
    fixture->drop(results[0]);
  }
  EXPECT_EQ(fixture->leases(), 0u);
}

// The n-th post of the executor fails, for every n: each transfer completes once, and one that was refused
// gives back its leases only then.
TEST(TransferFailures, EveryPostMayFail) {
  const ModelSpec model = pool_test::preset("gdn-tiny+draft");
  std::uint64_t n = 1;
  for (bool has_failed = true; has_failed; ++n) {
    SCOPED_TRACE("post " + std::to_string(n) + " fails");
    Rng rng(n);
    Fixture f(model, HostLayout::kPageHead, 2, rng);
    f.fill_device(rng, &SlotPair::device);
    ManualExecutor manual(4096, n);
    FailingExecutor executor(manual, n);
    Inbox inbox;
    std::map<std::uint64_t, int> accepted;
    {
      const auto device = make_cpu_device(executor);
      auto engine = pool_test::take(TransferEngine::create(*device, *f.device, f.host.get(), 8));
      const std::array<CopyDirection, 3> directions = {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice,
                                                       CopyDirection::kDeviceToDevice};
      for (std::uint64_t id = 1; id <= 8; ++id) {
        const CopyDirection direction = directions[id % 3];
        const auto gate = std::make_shared<LayerGate>(model.layer_count());
        accepted[id] = 0;
        ASSERT_TRUE(engine->submit(request(id, direction, f.pairs, gate), inbox.done()).is_ok());
        for (std::uint64_t i = rng.below(8); i > 0; --i) manual.run_one();
      }
      if (n % 2 == 0) manual.run_all();  // else the destructors do the rest
    }
    has_failed = executor.has_failed();
    for (const TransferDone& done : inbox.drain()) {
      EXPECT_TRUE(done.status.is_ok() || done.status.code() == StatusCode::kOverloaded) << done.status.to_string();
      ++accepted.at(done.id.v);
      f.drop(done);
    }
    for (const auto& [id, count] : accepted) EXPECT_EQ(count, 1) << "transfer " << id;
    EXPECT_EQ(f.leases(), 0u);
    EXPECT_EQ(f.host->check_invariants().to_string(), "ok");
  }
  EXPECT_GT(n, 20u);
}

// Real threads: three streams at once, a waiting engine thread, slots freed in flight. For the thread sanitizer.
TEST(TransferThreads, ConcurrentDirectionsKeepTheirBytes) {
  const ModelSpec model = pool_test::preset("dsv4-tiny+draft");
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Fixture f(model, HostLayout::kPageFirst, 4, rng);
    ThreadPoolExecutor executor("copy", 2, 64);
    const auto device = make_cpu_device(executor);
    Inbox inbox;
    auto engine = pool_test::take(TransferEngine::create(*device, *f.device, f.host.get(), 8));
    f.fill_device(rng, &SlotPair::device);
    ASSERT_TRUE(engine->submit(request(1, CopyDirection::kDeviceToHost, f.pairs), inbox.done()).is_ok());
    device->synchronize();
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    Pairs through_host = f.swapped(), on_device = f.swapped();  // two pages each, so that they share no byte
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      if (through_host[c].empty()) continue;
      through_host[c].resize(2);
      on_device[c].erase(on_device[c].begin(), on_device[c].begin() + 2);
    }
    ASSERT_TRUE(engine->submit(request(2, CopyDirection::kHostToDevice, through_host, gate), inbox.done()).is_ok());
    ASSERT_TRUE(engine->submit(request(3, CopyDirection::kDeviceToDevice, on_device), inbox.done()).is_ok());
    for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
      ASSERT_EQ(gate->wait(layer, std::chrono::minutes(1)).to_string(), "ok");
    }
    engine.reset();
    EXPECT_TRUE(f.device_sets_are_equal());
    const auto results = inbox.drain();
    ASSERT_EQ(results.size(), 3u);
    for (const TransferDone& done : results) f.drop(done);
    EXPECT_EQ(f.leases(), 0u);
  }
}

}  // namespace
}  // namespace larder
