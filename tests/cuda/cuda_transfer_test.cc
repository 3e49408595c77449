// SPDX-License-Identifier: Apache-2.0
// Copies of real transfers, on the simulated driver (several orders) and on a GPU where there is one.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/cuda/cuda_rig.h"

namespace larder::cuda_test {
namespace {

constexpr auto kLimit = std::chrono::seconds(30);

class CudaTransfers : public OnDriver {};

TEST_P(CudaTransfers, RoundTripEveryPresetAndLayout) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    for (const HostLayout layout : kAllHostLayouts) {
      Rig rig(GetParam());
      SCOPED_TRACE(name + " " + std::string(host_layout_name(layout)));
      Pools pools(rig, pool_test::preset(name), layout, 3, rng);
      round_trip(rig, pools);
    }
  }
}

TEST_P(CudaTransfers, RoundTripInMemoryThatTheEngineLends) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    for (const pool_test::Lending lending : pool_test::kAllLendings) {
      const HostLayout layout = kAllHostLayouts[rng.below(kAllHostLayouts.size())];
      Rig rig(GetParam());
      SCOPED_TRACE(name + " " + std::string(host_layout_name(layout)) + " lent " +
                   std::to_string(static_cast<int>(lending)));
      Pools pools(rig, pool_test::preset(name), layout, 2, rng, lending);
      round_trip(rig, pools);
    }
  }
}

TEST_P(CudaTransfers, RoundTripRandomModels) {
  for (int round = 0; round < 20; ++round) {
    Rig rig(GetParam());
    SCOPED_TRACE("round " + std::to_string(round));
    const HostLayout layout = kAllHostLayouts[rng.below(kAllHostLayouts.size())];
    Pools pools(rig, pool_test::random_model(rng), layout, 4, rng);
    round_trip(rig, pools);
  }
}

// Loads and backups at once, of different slots, while another stream works.
TEST_P(CudaTransfers, BothDirectionsWhileAnotherStreamComputes) {
  Rig rig(GetParam());
  Pools up(rig, pool_test::preset("gqa-real"), HostLayout::kPageFirst, 4, rng);
  Pools down(rig, pool_test::preset("gdn-tiny"), HostLayout::kPageHead, 4, rng);
  const auto loads = take(TransferEngine::create(*rig.device, *up.device, up.host.get(), 8));
  const auto backups = take(TransferEngine::create(*rig.device, *down.device, down.host.get(), 8));
  Inbox inbox;
  up.fill_device(rng, &SlotPair::device);
  ASSERT_TRUE(loads->submit(request(1, CopyDirection::kDeviceToHost, up.pairs), inbox.done()).is_ok());
  expect_ok(inbox.wait(1), up);
  down.fill_device(rng, &SlotPair::device);
  const CudaStream engine = take(rig.driver->create_stream());
  const auto scratch = take(rig.device->memory().allocate(1 << 20));
  for (std::uint64_t i = 0; i < 4; ++i) {
    const CudaCopy work{scratch->data() + (i % 2) * (1 << 19), scratch->data() + (1 - i % 2) * (1 << 19), 1 << 19};
    ASSERT_TRUE(rig.driver->copy({&work, 1}, engine).is_ok());
    ASSERT_TRUE(loads->submit(request(10 + i, CopyDirection::kHostToDevice, up.swapped()), inbox.done()).is_ok());
    ASSERT_TRUE(backups->submit(request(20 + i, CopyDirection::kDeviceToHost, down.pairs), inbox.done()).is_ok());
  }
  for (const TransferDone& result : inbox.wait(8)) {
    EXPECT_EQ(result.status.to_string(), "ok");
    (result.id.v < 20 ? up : down).drop(result);
  }
  up.copy_shadow(&SlotPair::source, &SlotPair::device);
  EXPECT_EQ(up.memory.difference(), 0U);
  EXPECT_EQ(down.memory.difference(), 0U);
  EXPECT_EQ(down.host_differences(&SlotPair::device), 0U);
  EXPECT_TRUE(rig.driver->synchronize(engine).is_ok());
  EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

// The engine reads each layer behind LayerWaits, on its own stream, without waiting for anything itself.
TEST_P(CudaTransfers, AnEnginesStreamFindsEachLayerLoaded) {
  struct Case {
    std::string preset;  // empty: staged_model()
    HostLayout layout;
    bool has_layer_order;
    bool is_on_default_stream = false;
  };
  for (const Case& c :
       {Case{"gdn-tiny+draft", HostLayout::kPageFirst, true}, Case{"gemma3-tiny", HostLayout::kPageFirst, true, true},
        Case{"dsv4-tiny+draft", HostLayout::kPageFirst, true}, Case{"dsv4-tiny+draft", HostLayout::kLayerFirst, true},
        Case{"", HostLayout::kLayerFirst, true}, Case{"", HostLayout::kPageFirstDirect, true},
        Case{"", HostLayout::kPageHead, false}}) {
    SCOPED_TRACE(c.preset + " " + std::string(host_layout_name(c.layout)));
    CudaOptions options = Rig::small_options();
    options.staging_bytes = 26'000;  // several buffers to a step
    Rig rig(GetParam(), options);
    const ModelSpec model = c.preset.empty() ? staged_model() : pool_test::preset(c.preset);
    Pools pools(rig, model, c.layout, 10, rng);
    const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    pools.copy_shadow(&SlotPair::source, &SlotPair::device);

    const CudaStream engine = c.is_on_default_stream ? nullptr : take(rig.driver->create_stream());
    const auto seen = take(rig.device->memory().allocate(pools.device->bytes()));
    std::vector<std::byte> expected;
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    TransferRequest load = request(2, CopyDirection::kHostToDevice, pools.swapped(), gate);
    load.has_layer_order = c.has_layer_order;
    ASSERT_TRUE(transfer->submit(std::move(load), inbox.done()).is_ok());
    LayerWaits waits(*gate, engine, kLimit);
    for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
      ASSERT_EQ(waits.before(layer).to_string(), "ok");
      pools.for_each_plane([&](const PoolSpec& pool, std::size_t index, std::size_t plane, const SlotPair& pair) {
        const std::size_t bytes = pool.planes[plane].layer_bytes();
        if (pool.layers[index] != layer || bytes == 0) return;
        const std::byte* const page = pools.device->page(pool.name, index, plane, pair.source);
        const CudaCopy read{seen->data() + expected.size(), page, bytes};
        ASSERT_TRUE(rig.driver->copy({&read, 1}, engine).is_ok());
        const std::byte* const shadow = pools.memory.shadow(page);
        expected.insert(expected.end(), shadow, shadow + bytes);
      });
    }
    const auto over = take(rig.device->record(engine));
    ASSERT_TRUE(rig.driver->synchronize(engine).is_ok());
    EXPECT_TRUE(over->has_fired());
    std::vector<std::byte> got(expected.size());
    ASSERT_TRUE(rig.device->copy_now(got.data(), seen->data(), got.size()).is_ok());
    EXPECT_TRUE(got == expected);
    expect_ok(inbox.wait(1), pools);
    EXPECT_TRUE(engine == nullptr || rig.driver->destroy_stream(engine).is_ok());
  }
}

// A backup of pages that a step has yet to write waits for the step on the device.
TEST_P(CudaTransfers, ABackupWaitsForTheStepThatWritesItsPages) {
  Rig rig(GetParam());
  Pools pools(rig, pool_test::preset("gdn-tiny"), HostLayout::kPageFirst, 3, rng);
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  Inbox inbox;
  pools.fill_device(rng, &SlotPair::device);
  pools.fill_device(rng, &SlotPair::source);
  const CudaStream engine = take(rig.driver->create_stream());
  if (rig.sim != nullptr) rig.sim->hold();
  pools.for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
    const std::size_t bytes = pool.planes[plane].layer_bytes();
    if (bytes == 0) return;
    const CudaCopy step{pools.device->page(pool.name, layer, plane, pair.device),
                        pools.device->page(pool.name, layer, plane, pair.source), bytes};
    ASSERT_TRUE(rig.driver->copy({&step, 1}, engine).is_ok());
  });
  TransferRequest backup = request(1, CopyDirection::kDeviceToHost, pools.pairs);
  backup.after = take(rig.device->record(engine));
  EXPECT_TRUE(rig.sim == nullptr || !backup.after->has_fired());
  ASSERT_TRUE(transfer->submit(std::move(backup), inbox.done()).is_ok());
  if (rig.sim != nullptr) rig.sim->go_on();
  expect_ok(inbox.wait(1), pools);
  pools.copy_shadow(&SlotPair::device, &SlotPair::source);
  EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
  EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
}

// The event of an engine that fires it from the host.
TEST_P(CudaTransfers, ACopyWaitsForAnEventOfTheHost) {
  Rig rig(GetParam());
  Pools pools(rig, pool_test::preset("gdn-tiny"), HostLayout::kPageFirst, 2, rng);
  Inbox inbox;
  const auto late = std::make_shared<DeviceEvent>();
  {
    const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    pools.fill_device(rng, &SlotPair::device);
    const auto event = std::make_shared<DeviceEvent>();
    TransferRequest backup = request(1, CopyDirection::kDeviceToHost, pools.pairs);
    backup.after = event;
    ASSERT_TRUE(transfer->submit(std::move(backup), inbox.done()).is_ok());
    pools.fill_device(rng, &SlotPair::device);
    event->fire();
    expect_ok(inbox.wait(1), pools);
    EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
    // One that never fires: the end of the engine ends the copy, and copies nothing.
    TransferRequest never = request(2, CopyDirection::kHostToDevice, pools.swapped());
    never.after = late;
    ASSERT_TRUE(transfer->submit(std::move(never), inbox.done()).is_ok());
  }
  const auto results = inbox.wait(1);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status.code(), StatusCode::kCancelled);
  pools.drop(results[0]);
  EXPECT_EQ(pools.memory.difference(), 0U);
  late->fire();  // nobody is there any more
}

TEST_P(CudaTransfers, HostPoolsThatAreNotPinnedAreRefusedAndTheDeviceLives) {
  Rig rig(GetParam());
  const ModelSpec model = pool_test::preset("gdn-tiny");
  Pools pools(rig, model, HostLayout::kPageFirst, 2, rng);
  const auto pageable = take(
      HostPools::create(model, HostLayout::kPageFirst, 8 * pool_test::smallest_budget(model), host_memory_source()));
  const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pageable.get(), 8));
  Pairs pairs;
  pairs[index_of(ComponentKind::kFull)] = {
      {pools.pairs[0][0].device, *pageable->allocate(ComponentKind::kFull), DeviceSlot()}};
  const auto gate = std::make_shared<LayerGate>(model.layer_count());
  Inbox inbox;
  ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kHostToDevice, pairs, gate), inbox.done()).is_ok());
  const auto results = inbox.wait(1);
  EXPECT_EQ(results[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(LayerWaits(*gate, nullptr, kLimit).before(0).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(rig.device->health().is_ok());
  for (const LeasedSlot& l : results[0].device_leases) {
    EXPECT_TRUE(pools.device->drop_lease(l.component, DeviceSlot(l.slot), l.generation).is_ok());
  }
  round_trip(rig, pools);
}

TEST_P(CudaTransfers, TooMuchMemoryIsAnErrorAndTheDeviceLives) {
  Rig rig(GetParam());
  const auto much = rig.device->memory().allocate(std::size_t{1} << 44);
  EXPECT_EQ(much.status().code(), StatusCode::kOverloaded) << much.status().to_string();
  EXPECT_NE(much.status().message().find("MiB are free"), std::string::npos) << much.status().to_string();
  EXPECT_EQ(rig.device->host_memory().allocate(std::size_t{1} << 44).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(rig.device->health().is_ok());
  Pools pools(rig, pool_test::preset("gdn-tiny"), HostLayout::kPageFirst, 2, rng);
  round_trip(rig, pools);
}

// The engine lends memory that is none: a kernel touches it, and the device's context is lost. In a process of its own,
// since nothing works in it afterwards. Exits with 0 if every transfer ended once, with the error, and so did its gate.
void lose_the_device(const DriverKind& kind) {
  int wrong = 0;
  const auto expect = [&](bool is_so, const char* what) {
    if (is_so) return;
    std::fprintf(stderr, "not so: %s\n", what);
    ++wrong;
  };
  {
    Rng rng(1);
    CudaOptions by_kernel;  // the copy engines would refuse the address
    by_kernel.load_engines_from = by_kernel.store_engines_from = std::size_t{1} << 40;
    Rig rig(kind, by_kernel);
    if (rig.sim != nullptr) rig.sim->expect_violations();
    const ModelSpec model = pool_test::preset("gdn-tiny");
    Pools pools(rig, model, HostLayout::kPageFirst, 2, rng);
    ComponentCounts slots{};
    for (const ComponentKind c : kAllComponents) slots[index_of(c)] = model.has(c) ? 4 : 0;
    pool_test::LentBytes lent(model, slots, pool_test::Lending::kLayerTensors);  // of the host, and not pinned
    std::uintptr_t nowhere = std::uintptr_t{1} << 44;
    for (LentPlane& plane : lent.planes) {
      plane.base = reinterpret_cast<std::byte*>(nowhere);
      nowhere += std::uintptr_t{1} << 24;
    }
    const auto lost_pools = take(DevicePools::create(model, slots, lent.planes));
    const auto bad = take(TransferEngine::create(*rig.device, *lost_pools, pools.host.get(), 8));
    const auto good = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Pairs pairs;
    pairs[index_of(ComponentKind::kFull)] = {
        {*lost_pools->allocate(ComponentKind::kFull), pools.pairs[0][0].host, DeviceSlot()}};
    Inbox inbox;
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    expect(bad->submit(request(1, CopyDirection::kHostToDevice, pairs, gate), inbox.done()).is_ok(), "a load begins");
    auto results = inbox.wait(1);
    expect(results.size() == 1 && results[0].status.code() == StatusCode::kUnavailable, "the load ends, unavailable");
    std::fprintf(stderr, "%s\n", results[0].status.to_string().c_str());
    expect(gate->wait(0, kLimit).code() == StatusCode::kUnavailable, "its gate says so");
    expect(LayerWaits(*gate, nullptr, kLimit).before(0).code() == StatusCode::kUnavailable, "the engine is told");
    expect(!rig.device->health().is_ok(), "the device says so");
    // What comes later ends at once.
    for (std::uint64_t id = 2; id < 6; ++id) {
      const CopyDirection direction = id % 2 == 0 ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice;
      expect(good->submit(request(id, direction, pools.pairs), inbox.done()).is_ok(), "a transfer is taken");
      results = inbox.wait(1);
      expect(results.size() == 1 && results[0].status.code() == StatusCode::kUnavailable, "it ends, unavailable");
      if (!results.empty()) pools.drop(results[0]);
    }
    expect(good->in_flight() == 0, "nothing is in flight");
  }
  std::exit(wrong == 0 ? 0 : 1);
}

TEST_P(CudaTransfers, ALostDeviceEndsTransfersAndNotTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_the_device(GetParam()), testing::ExitedWithCode(0), "the CUDA device is lost|ILLEGAL_ADDRESS");
}

TEST_P(CudaTransfers, AnEngineGivesItsStreamsBackAndLeavesThoseOfOthersAlone) {
  Rig rig(GetParam());
  Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 4, rng);
  const auto first = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 2));
  Inbox inbox;
  pools.fill_device(rng, &SlotPair::device);
  const auto step_is_over = std::make_shared<DeviceEvent>();
  TransferRequest waiting = request(1, CopyDirection::kDeviceToHost, pools.pairs);
  waiting.after = step_is_over;
  ASSERT_TRUE(first->submit(std::move(waiting), inbox.done()).is_ok());
  for (std::size_t i = 0; i < kMaxStreams; ++i) {
    const auto other = TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 2);
    ASSERT_EQ(other.status().to_string(), "ok") << i;
  }
  step_is_over->fire();
  expect_ok(inbox.wait(1), pools);
  EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
}

INSTANTIATE_TEST_SUITE_P(On, CudaTransfers, every_driver(), testing::PrintToStringParamName());

}  // namespace
}  // namespace larder::cuda_test
