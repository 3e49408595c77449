// SPDX-License-Identifier: Apache-2.0
// What a CUDA device does when calls fail, the device is lost, or there is no room: on the simulated driver.
#include <array>
#include <chrono>
#include <future>
#include <string>

#include "bench/bench_cuda_pages.h"
#include "tests/cuda/cuda_rig.h"
#include "transfer/cuda/step_launcher.h"

namespace larder::cuda_test {
namespace {

// Every call that can fail, and every operation that can lose the device, fails once: each transfer ends once, slots
// come back, the gate says it, and what is said to be right is right.
class CudaFaults : public testing::TestWithParam<std::string> {};

TEST_P(CudaFaults, EndTransfersOnceAndNeverWithWrongBytes) {
  const std::string& what = GetParam();
  const bool is_loss = what == "operation" || what.ends_with(":lost");
  const std::string call = what.substr(0, what.find(':'));
  int failures = 0;
  std::array<bool, 2> has_come_through{};
  for (std::uint64_t i = 2; i < 400; ++i) {
    const std::uint64_t n = i / 2;
    const bool is_staged = i % 2 == 1;
    SCOPED_TRACE(what + " " + std::to_string(n) + (is_staged ? " staged" : ""));
    Rng rng(n);
    CudaOptions options = Rig::small_options();
    options.staging_bytes = 26'000;
    Rig rig({false, n}, options);
    Pools pools(rig, is_staged ? staged_model() : pool_test::preset("gdn-tiny+draft"),
                is_staged ? HostLayout::kLayerFirst : HostLayout::kPageFirst, is_staged ? 5 : 2, rng);
    const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    if (call == "operation") {
      rig.sim->lose_at(n);
    } else {
      rig.sim->fail_call(call, n, is_loss ? unavailable("CUDA_ERROR_ECC_UNCORRECTABLE") : internal_error("refused"));
    }
    bool has_failed = false;
    for (std::uint64_t id = 1; id <= 3; ++id) {
      const bool is_down = id == 1;
      const auto gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
      TransferRequest copies = is_down ? request(id, CopyDirection::kDeviceToHost, pools.pairs)
                                       : request(id, CopyDirection::kHostToDevice, pools.swapped(), gate);
      copies.has_layer_order = id == 2;
      ASSERT_TRUE(transfer->submit(std::move(copies), inbox.done()).is_ok());
      const auto results = inbox.wait(1);
      ASSERT_EQ(results.size(), 1U);
      pools.drop(results[0]);
      EXPECT_EQ(pools.leases(), 0U);
      const Status& status = results[0].status;
      if (status.is_ok() && !rig.device->health().is_ok()) break;  // lost behind the copy: nothing can be compared
      if (!status.is_ok()) {
        has_failed = true;
        EXPECT_EQ(status.code(), is_loss ? StatusCode::kUnavailable : StatusCode::kInternal) << status.to_string();
        if (!is_down) {
          EXPECT_EQ(gate->wait(0, std::chrono::seconds(1)).code(), status.code());
        }
        if (is_down) break;  // there is nothing to load
        continue;
      }
      if (is_down) {
        EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
        pools.copy_shadow(&SlotPair::source, &SlotPair::device);
      } else {
        EXPECT_TRUE(gate->finished());
        rig.sim->let_faults_sleep(true);
        EXPECT_EQ(pools.memory.difference(), 0U);
        rig.sim->let_faults_sleep(false);
      }
    }
    has_failed = has_failed || !rig.device->health().is_ok();
    EXPECT_EQ(rig.device->health().is_ok(), !(has_failed && is_loss));
    has_come_through[is_staged ? 1 : 0] = !has_failed;
    if (has_come_through[0] && has_come_through[1]) break;
    failures += has_failed ? 1 : 0;
  }
  EXPECT_GT(failures, 4);
  EXPECT_TRUE(has_come_through[0] && has_come_through[1]) << "there are more calls to fail";
}

// The second step cannot be launched and the third can, while the first still runs, so that nobody has seen the failure
// yet: an engine that asks for the second step's layer is not sent to wait for the third step's event.
TEST(CudaGate, ALaunchBehindAFailedOneIsNoAnswer) {
  Rng rng(1);
  CudaOptions by_kernel = Rig::small_options();
  by_kernel.load_engines_from = std::size_t{1} << 40;
  Rig rig({false, 1}, by_kernel);
  const ModelSpec model = pool_test::preset("gqa-tiny");
  Pools pools(rig, model, HostLayout::kPageFirst, 2, rng);
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  const CudaStream engine = take(rig.driver->create_stream());
  const auto gate = std::make_shared<LayerGate>(model.layer_count());
  Inbox inbox;
  rig.sim->hold();
  rig.sim->fail_call("launch", 2, internal_error("refused"));
  ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kHostToDevice, pools.pairs, gate), inbox.done()).is_ok());
  LayerWaits waits(*gate, engine, std::chrono::milliseconds(200));
  EXPECT_EQ(waits.before(0).to_string(), "ok");
  EXPECT_EQ(waits.before(1).code(), StatusCode::kDeadlineExceeded);
  rig.sim->go_on();
  const auto results = inbox.wait(1);
  EXPECT_EQ(results[0].status.code(), StatusCode::kInternal);
  pools.drop(results[0]);
  EXPECT_EQ(waits.before(1).code(), StatusCode::kInternal);
  EXPECT_TRUE(rig.driver->synchronize(engine).is_ok());
  EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

// The same of a load by way of the device: the second step, layers 2 and 3, does not come into its buffer. The scatter
// behind it is launched all the same, and waits here, so that the load has not ended: an engine that asks for layer 2
// is neither sent to wait for the scatter's event nor told that the layer has arrived.
TEST(CudaGate, AScatterOfWhatNeverCameIsNoAnswer) {
  Rng rng(1);
  CudaOptions options = Rig::small_options();
  options.staging_bytes = 500'000;  // a step to a buffer
  Rig rig({false, 1}, options);
  Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 4, rng);
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  const CudaStream before = take(rig.driver->create_stream()), engine = take(rig.driver->create_stream());
  Pairs full;
  full[index_of(ComponentKind::kFull)] = pools.pairs[index_of(ComponentKind::kFull)];
  const auto gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
  TransferRequest load = request(1, CopyDirection::kHostToDevice, full, gate);
  rig.sim->hold();
  load.after = take(rig.device->record(before));  // which the scatters wait for
  rig.sim->fail_call("copy", 2, internal_error("refused"));
  Inbox inbox;
  ASSERT_TRUE(transfer->submit(std::move(load), inbox.done()).is_ok());
  LayerWaits waits(*gate, engine, std::chrono::milliseconds(200));
  EXPECT_EQ(waits.before(0).to_string(), "ok");
  rig.sim->hold(before);
  EXPECT_EQ(waits.before(2).code(), StatusCode::kDeadlineExceeded);
  // The scatter has run, and the load has not ended: the layer has not arrived either.
  rig.sim->hold(rig.sim->last_copied_on());
  EXPECT_EQ(gate->wait(2, std::chrono::milliseconds(200)).code(), StatusCode::kDeadlineExceeded);
  rig.sim->go_on();
  const auto results = inbox.wait(1);
  EXPECT_EQ(results[0].status.code(), StatusCode::kInternal);
  pools.drop(results[0]);
  EXPECT_EQ(waits.before(2).code(), StatusCode::kInternal);
  for (const CudaStream stream : {before, engine}) {
    EXPECT_TRUE(rig.driver->synchronize(stream).is_ok());
    EXPECT_TRUE(rig.driver->destroy_stream(stream).is_ok());
  }
}

// A load of a few bytes has few steps: each costs a launch.
TEST(CudaGate, AStepHasBytesThatAreWorthIt) {
  for (const auto& [step_bytes, end] : {std::pair<std::size_t, std::uint32_t>{1, 1}, {1 << 20, 4}}) {
    Rng rng(1);
    CudaOptions options = Rig::small_options();
    options.gated_step_bytes = step_bytes;
    Rig rig({false, 1}, options);
    const ModelSpec model = pool_test::preset("gqa-tiny");
    ASSERT_EQ(model.layer_count(), 4U);
    Pools pools(rig, model, HostLayout::kPageFirst, 2, rng);
    const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    Inbox inbox;
    rig.sim->hold();
    ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kHostToDevice, pools.pairs, gate), inbox.done()).is_ok());
    EXPECT_EQ(take(gate->launch_of(0, std::chrono::seconds(10))).end, end);
    rig.sim->go_on();
    pools.drop(inbox.wait(1)[0]);
  }
}

// The same with several staged transfers at once, which hand buffers to each other.
TEST_P(CudaFaults, EndTransfersThatShareBuffers) {
  const std::string& what = GetParam();
  const bool is_loss = what == "operation" || what.ends_with(":lost");
  const std::string call = what.substr(0, what.find(':'));
  for (std::uint64_t n = 1; n < 90; n += 2) {
    const CopyDirection direction = n % 4 == 1 ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice;
    SCOPED_TRACE(what + " " + std::to_string(n));
    Rng rng(n);
    CudaOptions options = Rig::small_options();
    options.staging_bytes = 26'000;
    Rig rig({false, n}, options);
    Pools pools(rig, staged_model(), n % 3 == 0 ? HostLayout::kPageHead : HostLayout::kLayerFirst, 12, rng);
    const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 16));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    const auto submit_all = [&](CopyDirection way, const Pairs& from) {
      for (std::uint64_t id = 0; id < 6; ++id) {  // each two pages of both components
        Pairs pairs;
        for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
          const auto& all = from[index_of(c)];
          pairs[index_of(c)] = {all[2 * id], all[2 * id + 1]};
        }
        TransferRequest copies = request(id + 1, way, pairs);
        if (way == CopyDirection::kHostToDevice) {
          copies.gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
          copies.has_layer_order = id % 2 == 0;
        }
        ASSERT_TRUE(engine->submit(std::move(copies), inbox.done()).is_ok());
      }
    };
    const auto are_all_ok = [&] {
      bool are_ok = true;
      for (const TransferDone& result : inbox.wait(6)) {
        pools.drop(result);
        are_ok = are_ok && result.status.is_ok();
        EXPECT_TRUE(result.status.is_ok() ||
                    result.status.code() == (is_loss ? StatusCode::kUnavailable : StatusCode::kInternal))
            << result.status.to_string();
      }
      EXPECT_EQ(pools.leases(), 0U);
      return are_ok;
    };
    if (direction == CopyDirection::kHostToDevice) {
      submit_all(CopyDirection::kDeviceToHost, pools.pairs);
      ASSERT_TRUE(are_all_ok());
      pools.copy_shadow(&SlotPair::source, &SlotPair::device);
    }
    if (call == "operation") {
      rig.sim->lose_at(n);
    } else {
      rig.sim->fail_call(call, n, is_loss ? unavailable("CUDA_ERROR_ECC_UNCORRECTABLE") : internal_error("refused"));
    }
    submit_all(direction, direction == CopyDirection::kHostToDevice ? pools.swapped() : pools.pairs);
    if (!are_all_ok()) continue;
    if (direction == CopyDirection::kDeviceToHost) {
      EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
      continue;
    }
    rig.sim->let_faults_sleep(true);
    if (rig.device->health().is_ok()) {
      EXPECT_EQ(pools.memory.difference(), 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CudaFaults,
                         testing::Values("launch", "launch:lost", "record", "record:lost", "wait", "wait:lost", "copy",
                                         "copy:lost", "create_event", "operation"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST(CudaDevice, SaysWhatIsWrongWithItsOptions) {
  const auto driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{});
  CudaOptions options;
  options.store_blocks = 0;
  EXPECT_EQ(CudaDevice::create(driver, options).status().code(), StatusCode::kInvalidArgument);
  options = {};
  options.pinned_piece_bytes = 1000;
  EXPECT_EQ(CudaDevice::create(driver, options).status().code(), StatusCode::kInvalidArgument);
  driver->fail_call("create_stream", 1, overloaded("no"));
  EXPECT_EQ(CudaDevice::create(driver, {}).status().code(), StatusCode::kOverloaded);
}

TEST(CudaDevice, SaysHowMuchMemoryThereIs) {
  Rig rig({false, 1});
  const auto much = rig.device->memory().allocate(std::size_t{1} << 40);
  EXPECT_EQ(much.status().code(), StatusCode::kOverloaded);
  EXPECT_NE(much.status().message().find("1024 MiB are free"), std::string::npos) << much.status().to_string();
  rig.sim->fail_call("register_host", 2, overloaded("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(rig.device->host_memory().allocate(64 << 10).status().code(), StatusCode::kOverloaded);
  EXPECT_EQ(rig.sim->registered_bytes(), 0U);
}

TEST(CudaDevice, AFullStreamTakesNothing) {
  Rig rig({false, 1});
  const StreamId stream = rig.device->create_stream(2).value();
  const auto event = std::make_shared<DeviceEvent>();
  int done = 0;
  const auto work = [&] {
    StreamWork w;
    w.after = event;
    w.done = [&](std::uint32_t, Status) { ++done; };
    return w;
  };
  int taken = 0;
  while (rig.device->enqueue(stream, CopyDirection::kDeviceToHost, work()).is_ok()) ASSERT_LT(++taken, 4);
  EXPECT_GE(taken, 2);
  event->fire();
  rig.device->synchronize();
  EXPECT_EQ(done, taken);
  StreamWork none;
  none.steps = 0;
  EXPECT_EQ(rig.device->enqueue(stream, CopyDirection::kDeviceToHost, std::move(none)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.device->enqueue(9, CopyDirection::kDeviceToHost, work()).code(), StatusCode::kInvalidArgument);
}

// CUDA calls no host function of a lost device, so what one of them would fire never fires.
TEST(CudaDevice, ALossEndsWhatWaitsForAnEventOfTheHost) {
  Rig rig({false, 1});
  const StreamId waiting = rig.device->create_stream(2).value(), other = rig.device->create_stream(2).value();
  const auto memory = take(rig.device->memory().allocate(64));
  std::promise<Status> first, second;
  const auto enqueue = [&](StreamId stream, const std::shared_ptr<DeviceEvent>& after, std::promise<Status>* done) {
    StreamWork work;
    work.after = after;
    work.make_ops = [at = memory->data()](std::uint32_t, std::vector<CopyOp>& out) {
      out.push_back({.dst = at, .src = at + 32, .width = 32});
    };
    work.done = [done](std::uint32_t, Status status) {
      if (done != nullptr) done->set_value(std::move(status));
    };
    ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kDeviceToDevice, std::move(work)).is_ok());
  };
  const auto never = std::make_shared<DeviceEvent>();
  enqueue(waiting, never, &first);
  enqueue(waiting, nullptr, &second);
  rig.sim->lose_at(1);
  enqueue(other, nullptr, nullptr);
  for (std::promise<Status>* ended : {&first, &second}) {
    std::future<Status> status = ended->get_future();
    ASSERT_EQ(status.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    EXPECT_EQ(status.get().code(), StatusCode::kUnavailable);
  }
}

// What has yet to be given to the device ends with it, also if a step of the engine never does.
TEST(CudaDevice, TheEndCancelsWhatWaitsForAStepOfTheEngine) {
  Rig rig({false, 1});
  const CudaStream engine = take(rig.driver->create_stream());
  const StreamId stream = rig.device->create_stream(2).value();
  rig.sim->hold(engine);
  std::vector<StatusCode> ended;
  for (const std::shared_ptr<DeviceEvent>& after :
       {std::make_shared<DeviceEvent>(), take(rig.device->record(engine))}) {
    StreamWork work;
    work.after = after;
    work.done = [&](std::uint32_t, Status status) { ended.push_back(status.code()); };
    ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kDeviceToHost, std::move(work)).is_ok());
  }
  std::future<void> end = std::async(std::launch::async, [&] { rig.device->synchronize(); });
  const bool has_ended = end.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  rig.sim->go_on();
  end.get();
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(ended, std::vector<StatusCode>(2, StatusCode::kCancelled));
  EXPECT_TRUE(rig.driver->synchronize(engine).is_ok());
  EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

// Slots come back when nothing touches them any more, also where no event says when a step is over.
TEST(CudaDevice, AStepThatHasNoEventIsOverWithItsStream) {
  for (const auto& [call, expected] : {std::pair{"synchronize_event", "ok"}, {"record", "internal: refused"}}) {
    SCOPED_TRACE(call);
    Rig rig({false, 1});
    const StreamId stream = rig.device->create_stream(2).value();
    const auto memory = take(rig.device->memory().allocate(64));
    std::promise<Status> promise;
    std::future<Status> ended = promise.get_future();
    StreamWork work;
    work.make_ops = [at = memory->data()](std::uint32_t, std::vector<CopyOp>& out) {
      out.push_back({.dst = at, .src = at + 32, .width = 32});
    };
    work.done = [&](std::uint32_t, Status status) { promise.set_value(std::move(status)); };
    rig.sim->hold();
    rig.sim->fail_call(call, 1, internal_error("refused"));
    ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kDeviceToDevice, std::move(work)).is_ok());
    EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout) << "its copy has not run";
    rig.sim->go_on();
    EXPECT_EQ(ended.get().to_string(), expected);
  }
}

// A handle that is dead says what a lost device says. It takes nobody's pages.
TEST(CudaDevice, ADestroyedStreamOfTheEngineIsNoLoss) {
  Rig rig({false, 1});
  const CudaStream gone = take(rig.driver->create_stream()), engine = take(rig.driver->create_stream());
  ASSERT_TRUE(rig.driver->destroy_stream(gone).is_ok());
  rig.sim->expect_violations();
  const Status refused = rig.device->record(gone).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("not of this device, or was destroyed"), std::string::npos) << refused.to_string();
  EXPECT_EQ(rig.device->health().to_string(), "ok");
  const auto memory = take(rig.device->memory().allocate(64));
  const StreamId stream = rig.device->create_stream(2).value();
  Status ended = internal_error("not called");
  StreamWork work;
  work.after = take(rig.device->record(engine));
  work.make_ops = [at = memory->data()](std::uint32_t, std::vector<CopyOp>& out) {
    out.push_back({.dst = at, .src = at + 32, .width = 32});
  };
  work.done = [&](std::uint32_t, Status status) { ended = std::move(status); };
  ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kDeviceToDevice, std::move(work)).is_ok());
  ASSERT_TRUE(rig.driver->synchronize(engine).is_ok());
  rig.device->synchronize();
  EXPECT_EQ(ended.to_string(), "ok");
  EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

// What is lost is said to be lost, whatever became of the engine's stream.
TEST(CudaDevice, ALossIsSeenWithADestroyedStreamToo) {
  Rig rig({false, 1});
  const CudaStream engine = take(rig.driver->create_stream());
  ASSERT_TRUE(rig.driver->destroy_stream(engine).is_ok());
  const auto memory = take(rig.device->memory().allocate(64));
  const CudaCopy copy{memory->data(), memory->data() + 32, 32};
  rig.sim->lose_at(1);
  EXPECT_TRUE(rig.driver->copy({&copy, 1}, nullptr).is_ok());
  EXPECT_EQ(rig.driver->synchronize(nullptr).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.device->record(engine).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(rig.device->health().code(), StatusCode::kUnavailable);
}

// Who made the work may go when synchronize() returns: also the last callback has returned then.
TEST(CudaDevice, TheEndWaitsForTheLastCallback) {
  Rig rig({false, 1});
  const StreamId stream = rig.device->create_stream(2).value();
  std::promise<void> is_called, may_return;
  StreamWork work;
  work.done = [&](std::uint32_t, const Status&) {
    is_called.set_value();
    may_return.get_future().wait();
  };
  ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kDeviceToHost, std::move(work)).is_ok());
  is_called.get_future().wait();
  const std::future<void> end = std::async(std::launch::async, [&] { rig.device->synchronize(); });
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  may_return.set_value();
  end.wait();
}

// A call fails while a transfer engine is made: it works with what it got, or says what is missing and leaves nothing.
TEST(CudaDevice, ATransferEngineIsMadeInWholeOrNotAtAll) {
  for (const std::string call : {"allocate", "register_host", "create_stream"}) {
    for (const Status& failure :
         {overloaded("CUDA_ERROR_OUT_OF_MEMORY"), internal_error("refused"), unavailable("lost")}) {
      int made = 0, refused = 0;
      for (std::uint64_t n = 1; n < 2'000; n += n < 8 ? 1 : 150) {  // rings are pinned in many pieces
        SCOPED_TRACE(call + " " + std::to_string(n) + " " + failure.to_string());
        Rng rng(n);
        Rig rig({false, n});
        Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 4, rng);
        pools.fill_device(rng, &SlotPair::device);
        rig.sim->fail_call(call, n, failure);
        const auto engine = TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8);
        rig.sim->let_faults_sleep(true);
        if (!engine.is_ok()) {
          EXPECT_EQ(engine.status().code(), failure.code());
          ++refused;
          continue;
        }
        ++made;
        Inbox inbox;
        ASSERT_TRUE((*engine)->submit(request(1, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
        const auto results = inbox.wait(1);
        pools.drop(results[0]);
        EXPECT_TRUE(results[0].status.is_ok() || failure.code() == StatusCode::kUnavailable);
        if (results[0].status.is_ok()) {
          EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
        }
      }
      EXPECT_GT(made, 0);
      EXPECT_TRUE(refused > 0 || call == "allocate") << call;
    }
  }
}

// `larder bench transfer --device cuda`: an error ends it, and not its machine's patience.
TEST(CudaBench, EndsWhenACopyFails) {
  const auto driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{});
  const ModelSpec model = cuda_bench::model_with_pieces(512, 2);
  const auto bench =
      take(cuda_bench::PagesBench::create(driver, Rig::small_options(), model, HostLayout::kPageFirst, 1 << 16));
  driver->fail_call("launch", 1, internal_error("refused"));
  (void)bench->measure(true);
  EXPECT_FALSE(bench->is_ok());
  EXPECT_EQ(driver->violations(), std::vector<std::string>());
}

// After a load that failed the launcher still writes to the frame of the post, which therefore waits for it.
TEST(CudaBench, APostWaitsForItsStepAlsoAfterAnError) {
  const auto driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{});
  const auto bench = take(cuda_bench::PagesBench::create(driver, CudaOptions{}, cuda_bench::model_with_pieces(4096, 2),
                                                         HostLayout::kLayerFirst, 1 << 20));
  const CudaStream stream = take(driver->create_stream());
  driver->fail_call("copy", 1, internal_error("refused"));
  driver->fail_call("launch", 1, internal_error("refused"));
  (void)bench->load_gated(stream, 1'000'000, std::chrono::milliseconds(0), [] { return Status::ok(); });
  EXPECT_FALSE(bench->is_ok());
  auto launcher = take(StepLauncher::create(bench->device(), stream, 1, cuda_bench::kLimit));
  std::promise<void> is_running, may_end;
  ASSERT_TRUE(launcher
                  ->post({.gate = nullptr,
                          .layers = 1,
                          .launch =
                              [&](std::uint32_t) {
                                is_running.set_value();
                                may_end.get_future().wait();
                                return Status::ok();
                              },
                          .launched = [](const Status&, const std::shared_ptr<DeviceEvent>&) {}})
                  .is_ok());
  is_running.get_future().wait();
  std::future<double> post = std::async(std::launch::async, [&] { return bench->post_gated(*launcher, stream); });
  EXPECT_EQ(post.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout) << "its step has not run";
  may_end.set_value();
  (void)post.get();
  launcher.reset();
  EXPECT_TRUE(driver->synchronize(stream).is_ok());
  EXPECT_TRUE(driver->destroy_stream(stream).is_ok());
  EXPECT_EQ(driver->violations(), std::vector<std::string>());
}

// Twice the ring in one step: it is launched in parts, and each part is freed before the next needs its place.
TEST(CudaDevice, AStepOfMorePiecesThanTheRingHolds) {
  Rig rig({false, 5});
  constexpr std::size_t kPieces = 2 * CopyStream::kRingPairs + 77;
  const auto host = take(rig.device->host_memory().allocate(kPieces * 8));
  const auto device = take(rig.device->memory().allocate(kPieces * 8));
  for (std::size_t i = 0; i < kPieces; ++i) std::memcpy(host->data() + i * 8, &i, 8);
  const StreamId stream = rig.device->create_stream(2).value();
  Status seen = internal_error("not called");
  StreamWork work;
  work.make_ops = [&](std::uint32_t, std::vector<CopyOp>& out) {
    for (std::size_t i = 0; i < kPieces; ++i) {
      out.push_back({device->data() + (kPieces - 1 - i) * 8, host->data() + i * 8, 8, 1, 8, 8});
    }
  };
  work.done = [&](std::uint32_t, Status status) { seen = std::move(status); };
  ASSERT_TRUE(rig.device->enqueue(stream, CopyDirection::kHostToDevice, std::move(work)).is_ok());
  rig.device->synchronize();
  EXPECT_EQ(seen.to_string(), "ok");
  std::vector<std::size_t> got(kPieces);
  ASSERT_TRUE(rig.device->copy_now(reinterpret_cast<std::byte*>(got.data()), device->data(), kPieces * 8).is_ok());
  for (std::size_t i = 0; i < kPieces; ++i) ASSERT_EQ(got[kPieces - 1 - i], i);
}

}  // namespace
}  // namespace larder::cuda_test
