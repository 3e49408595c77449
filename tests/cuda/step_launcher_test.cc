// SPDX-License-Identifier: Apache-2.0
// Steps that a thread of Larder's launches: the engine's thread never waits, and nothing is read before it is there.
#include "transfer/cuda/step_launcher.h"

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda/cuda_rig.h"

namespace larder::cuda_test {
namespace {

constexpr std::chrono::seconds kLaunchLimit{20};

// What became of the steps, in order.
class Launched {
 public:
  struct One {
    Status status;
    std::shared_ptr<DeviceEvent> over;
  };
  std::function<void(Status, std::shared_ptr<DeviceEvent>)> note() {
    return [this](Status status, std::shared_ptr<DeviceEvent> over) {
      const std::lock_guard lock(mutex_);
      all_.push_back({std::move(status), std::move(over)});
      changed_.notify_all();
    };
  }
  std::vector<One> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLaunchLimit, [&] { return all_.size() >= count; })) {
      ADD_FAILURE() << all_.size() << " of " << count << " steps were launched";
    }
    return all_;
  }
  [[nodiscard]] std::size_t count() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<One> all_;
};

class StepLaunchers : public OnDriver {};

// An engine's stream, and a launcher for it.
struct Engine {
  explicit Engine(Rig& of_rig, std::size_t queue_limit = 8) : rig(of_rig), stream(take(rig.driver->create_stream())) {
    launcher = take(StepLauncher::create(*rig.device, stream, queue_limit, kLaunchLimit));
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    launcher.reset();
    (void)rig.driver->synchronize(stream);
    (void)rig.driver->destroy_stream(stream);  // fails when the device is lost
  }
  [[nodiscard]] Status post(std::uint32_t layers, std::function<Status(std::uint32_t)> launch,
                            std::shared_ptr<const LayerGate> gate = nullptr) {
    return launcher->post({std::move(gate), layers, std::move(launch), launched.note()});
  }

  Rig& rig;
  const CudaStream stream;
  Launched launched;
  std::unique_ptr<StepLauncher> launcher;
};

// The load may begin only when the engine's thread says so, after it has posted the step that reads it: a thread that
// waited for the launch of the load would wait for ever.
TEST_P(StepLaunchers, ThePostingThreadWaitsForNothingAndEachLayerReadsWhatWasLoaded) {
  Rig rig(GetParam());
  Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 6, rng);
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  Inbox inbox;
  pools.fill_device(rng, &SlotPair::device);
  ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
  expect_ok(inbox.wait(1), pools);
  pools.copy_shadow(&SlotPair::source, &SlotPair::device);

  const std::uint32_t layers = pools.device->model().layer_count();
  const auto gate = std::make_shared<LayerGate>(layers);
  const auto may_load = std::make_shared<DeviceEvent>();
  TransferRequest load = request(2, CopyDirection::kHostToDevice, pools.swapped(), gate);
  load.after = may_load;
  ASSERT_TRUE(transfer->submit(std::move(load), inbox.done()).is_ok());

  const auto seen = take(rig.device->memory().allocate(pools.device->bytes()));
  std::vector<std::byte> expected;
  std::vector<std::uint32_t> order;
  Engine engine(rig);
  const auto read_layer = [&](std::uint32_t layer) {
    order.push_back(layer);
    Status status;
    pools.for_each_plane([&](const PoolSpec& pool, std::size_t index, std::size_t plane, const SlotPair& pair) {
      const std::size_t bytes = pool.planes[plane].layer_bytes();
      if (pool.layers[index] != layer || bytes == 0 || !status.is_ok()) return;
      const std::byte* const page = pools.device->page(pool.name, index, plane, pair.source);
      const CudaCopy read{seen->data() + expected.size(), page, bytes};
      status = rig.driver->copy({&read, 1}, engine.stream);
      const std::byte* const shadow = pools.memory.shadow(page);
      expected.insert(expected.end(), shadow, shadow + bytes);
    });
    return status;
  };
  ASSERT_EQ(engine.post(layers, read_layer, gate).to_string(), "ok");
  ASSERT_EQ(engine
                .post(1,
                      [&](std::uint32_t) {
                        order.push_back(99);
                        return Status::ok();
                      })
                .to_string(),
            "ok");
  EXPECT_EQ(engine.launched.count(), 0U);
  may_load->fire();
  const auto launched = engine.launched.wait(2);
  ASSERT_EQ(launched.size(), 2U);
  for (const auto& one : launched) EXPECT_EQ(one.status.to_string(), "ok");
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 99}));
  expect_ok(inbox.wait(1), pools);
  ASSERT_TRUE(rig.driver->synchronize(engine.stream).is_ok());
  ASSERT_NE(launched[0].over, nullptr);
  EXPECT_TRUE(launched[0].over->has_fired());
  std::vector<std::byte> got(expected.size());
  ASSERT_TRUE(rig.device->copy_now(got.data(), seen->data(), got.size()).is_ok());
  EXPECT_TRUE(got == expected);
}

TEST_P(StepLaunchers, AStepEndsAtTheLayerThatFailedAndThoseBehindItGoOn) {
  Rig rig(GetParam());
  const auto memory = take(rig.device->memory().allocate(64));
  Engine engine(rig);
  std::vector<std::uint32_t> called;
  const auto layer = [&](std::uint32_t failing, bool throws) {
    return [&, failing, throws](std::uint32_t at) -> Status {
      called.push_back(at);
      if (at == failing && throws) throw std::runtime_error("no memory for a tensor");
      if (at == failing) return internal_error("no kernel for this shape");
      const CudaCopy copy{memory->data(), memory->data() + 32, 32};
      return rig.driver->copy({&copy, 1}, engine.stream);
    };
  };
  const auto broken = std::make_shared<LayerGate>(3);
  broken->fail(unavailable("the disk is gone"));
  ASSERT_TRUE(engine.post(3, layer(1, false)).is_ok());
  ASSERT_TRUE(engine.post(3, layer(9, false), broken).is_ok());
  ASSERT_TRUE(engine.post(3, layer(2, true)).is_ok());
  ASSERT_TRUE(engine.post(2, layer(9, false)).is_ok());
  const auto short_gate = std::make_shared<LayerGate>(1);
  short_gate->arrive(0);
  ASSERT_TRUE(engine.post(2, layer(9, false), short_gate).is_ok());
  const auto launched = engine.launched.wait(5);
  ASSERT_EQ(launched.size(), 5U);
  const std::vector<std::pair<std::string, bool>> expected = {{"internal: no kernel for this shape", true},
                                                              {"unavailable: the disk is gone", false},
                                                              {"launch() threw: no memory for a tensor", true},
                                                              {"ok", true},
                                                              {"layer 1 of a gate of 1 layers", true}};
  for (std::size_t i = 0; i < launched.size(); ++i) {
    const std::string said = launched[i].status.to_string();
    EXPECT_NE(said.find(expected[i].first), std::string::npos) << said;
    EXPECT_EQ(launched[i].over != nullptr, expected[i].second) << said;
  }
  EXPECT_EQ(called, (std::vector<std::uint32_t>{0, 1, 0, 1, 2, 0, 1, 0}));
}

TEST_P(StepLaunchers, WhatAFailedStepHasLaunchedIsWaitedFor) {
  Rig rig(GetParam());
  const auto memory = take(rig.device->memory().allocate(64));
  Engine engine(rig);
  if (rig.sim != nullptr) rig.sim->hold(engine.stream);
  ASSERT_TRUE(engine
                  .post(2,
                        [&](std::uint32_t layer) {
                          if (layer == 1) return internal_error("no");
                          const CudaCopy copy{memory->data(), memory->data() + 32, 32};
                          return rig.driver->copy({&copy, 1}, engine.stream);
                        })
                  .is_ok());
  const auto launched = engine.launched.wait(1);
  ASSERT_EQ(launched.size(), 1U);
  EXPECT_EQ(launched[0].status.code(), StatusCode::kInternal);
  ASSERT_NE(launched[0].over, nullptr);
  if (rig.sim != nullptr) {
    EXPECT_FALSE(launched[0].over->has_fired());
    rig.sim->go_on();
  }
  ASSERT_TRUE(rig.driver->synchronize(engine.stream).is_ok());
  EXPECT_TRUE(launched[0].over->has_fired());
}

TEST_P(StepLaunchers, TakeSoManyStepsAndCancelWhatTheyHaveNotBegun) {
  Rig rig(GetParam());
  Engine engine(rig, 2);
  std::promise<void> begun, go_on;
  ASSERT_TRUE(engine
                  .post(1,
                        [&](std::uint32_t) {
                          begun.set_value();
                          go_on.get_future().wait();
                          return Status::ok();
                        })
                  .is_ok());
  begun.get_future().wait();
  const auto never = [](std::uint32_t) {
    ADD_FAILURE() << "launched";
    return Status::ok();
  };
  ASSERT_TRUE(engine.post(1, never).is_ok());
  ASSERT_TRUE(engine.post(1, never).is_ok());
  EXPECT_EQ(engine.post(1, never).code(), StatusCode::kOverloaded);
  EXPECT_EQ(engine.post(0, never).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.post(1, nullptr).code(), StatusCode::kInvalidArgument);
  engine.launcher->stop();
  EXPECT_EQ(engine.post(1, never).code(), StatusCode::kCancelled);
  go_on.set_value();
  engine.launcher.reset();
  const auto launched = engine.launched.wait(3);
  ASSERT_EQ(launched.size(), 3U);
  EXPECT_EQ(launched[0].status.to_string(), "ok");
  EXPECT_EQ(launched[1].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(launched[2].status.code(), StatusCode::kCancelled);
}

// No event is to be had: the launcher's thread waits for the stream itself.
TEST(StepLauncher, WithoutAnEventTheStepIsOverWhenItIsSaidToBeLaunched) {
  Rig rig({false, 1});
  const auto memory = take(rig.device->memory().allocate(64));
  Engine engine(rig);
  rig.sim->fail_call("record", 1, overloaded("no memory for an event"));
  ASSERT_TRUE(engine
                  .post(1,
                        [&](std::uint32_t) {
                          const CudaCopy copy{memory->data(), memory->data() + 32, 32};
                          return rig.driver->copy({&copy, 1}, engine.stream);
                        })
                  .is_ok());
  const auto launched = engine.launched.wait(1);
  ASSERT_EQ(launched.size(), 1U);
  EXPECT_EQ(launched[0].status.to_string(), "ok");
  EXPECT_EQ(launched[0].over, nullptr);
  EXPECT_EQ(rig.sim->operations(), 1U);
}

TEST(StepLauncher, ALostDeviceIsSaidOfEveryStep) {
  Rig rig({false, 1});
  Engine engine(rig);
  rig.sim->fail_call("record", 1, unavailable("lost"));
  const auto nothing = [](std::uint32_t) { return Status::ok(); };
  ASSERT_TRUE(engine.post(1, nothing).is_ok());
  ASSERT_TRUE(engine.post(1, nothing).is_ok());
  for (const auto& one : engine.launched.wait(2)) {
    EXPECT_EQ(one.status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(one.over, nullptr);
  }
  EXPECT_EQ(rig.device->health().code(), StatusCode::kUnavailable);
}

TEST(StepLauncher, WhateverIsThrownEndsTheStepAndNotTheLauncher) {
  Rig rig({false, 1});
  Engine engine(rig);
  ASSERT_TRUE(engine.post(1, [](std::uint32_t) -> Status { throw 7; }).is_ok());
  ASSERT_TRUE(engine.post(1, [](std::uint32_t) { return Status::ok(); }).is_ok());
  const auto launched = engine.launched.wait(2);
  ASSERT_EQ(launched.size(), 2U);
  EXPECT_EQ(launched[0].status.code(), StatusCode::kInternal);
  EXPECT_EQ(launched[1].status.to_string(), "ok");
}

// Against the contract: it is said, and the launcher does not wait for a stream on which nothing runs.
TEST(StepLauncher, AStepOnAStreamThatIsBeingCapturedIsRefused) {
  Rig rig({false, 1});
  Engine engine(rig);
  rig.sim->begin_capture(engine.stream);
  ASSERT_TRUE(engine.post(1, [](std::uint32_t) { return Status::ok(); }).is_ok());
  const auto launched = engine.launched.wait(1);
  ASSERT_EQ(launched.size(), 1U);
  EXPECT_EQ(launched[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(launched[0].over, nullptr);
  rig.sim->end_capture(engine.stream);
}

// Against the contract, too: the launcher does not go on to wait for the dead handle, and the device is not said to be
// lost.
TEST(StepLauncher, AStepOnAStreamThatWasDestroyedIsRefused) {
  Rig rig({false, 1});
  const CudaStream gone = take(rig.driver->create_stream());
  Launched launched;
  std::vector<decltype(launched.wait(1))> answers;
  {
    const auto launcher = take(StepLauncher::create(*rig.device, gone, 1, kLaunchLimit));
    ASSERT_TRUE(rig.driver->destroy_stream(gone).is_ok());
    rig.sim->expect_violations();
    ASSERT_TRUE(launcher->post({nullptr, 1, [](std::uint32_t) { return Status::ok(); }, launched.note()}).is_ok());
    answers.push_back(launched.wait(1));  // before the end, which cancels what has not begun
  }
  const auto& all = answers[0];
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(all[0].over, nullptr);
  EXPECT_EQ(rig.device->health().to_string(), "ok");
  Engine engine(rig);
  ASSERT_TRUE(engine.post(1, [](std::uint32_t) { return Status::ok(); }).is_ok());
  EXPECT_EQ(engine.launched.wait(1)[0].status.to_string(), "ok");
}

TEST(StepLauncher, NeedsRoomForAStep) {
  Rig rig({false, 1});
  EXPECT_EQ(StepLauncher::create(*rig.device, nullptr, 0, kLaunchLimit).status().code(), StatusCode::kInvalidArgument);
}

// A graph is being captured on the engine's stream: nothing of Larder's gets into it, and the capture is not broken.
TEST(StepLauncher, NothingIsGivenToAStreamThatIsBeingCaptured) {
  Rig rig({false, 1});
  Rng rng(1);
  Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 4, rng);
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  Inbox inbox;
  const CudaStream engine = take(rig.driver->create_stream());
  rig.sim->begin_capture(engine);
  EXPECT_EQ(rig.device->record(engine).status().code(), StatusCode::kInvalidArgument);
  rig.sim->hold();
  const auto gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
  ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kHostToDevice, pools.pairs, gate), inbox.done()).is_ok());
  LayerWaits waits(*gate, engine, kLaunchLimit);
  const Status refused = waits.before(0);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.to_string().find("captured into a CUDA graph"), std::string::npos) << refused.to_string();
  rig.sim->end_capture(engine);
  EXPECT_EQ(waits.before(0).to_string(), "ok");
  // An engine that captures its layers one by one.
  const std::uint32_t last = pools.device->model().layer_count() - 1;
  rig.sim->begin_capture(engine);
  EXPECT_EQ(waits.before(0).to_string(), "ok");
  EXPECT_EQ(waits.before(last).code(), StatusCode::kInvalidArgument);
  rig.sim->end_capture(engine);
  EXPECT_EQ(waits.before(last).to_string(), "ok");
  rig.sim->go_on();
  for (const TransferDone& done : inbox.wait(1)) pools.drop(done);
  ASSERT_TRUE(rig.driver->synchronize(engine).is_ok());
  ASSERT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

INSTANTIATE_TEST_SUITE_P(On, StepLaunchers, every_driver(), testing::PrintToStringParamName());

}  // namespace
}  // namespace larder::cuda_test
