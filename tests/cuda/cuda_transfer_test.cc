// Copies of real transfers, on the simulated driver (several orders) and on a GPU where there is one.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/cuda/cuda_rig.h"

namespace larder::cuda_test {
namespace {

constexpr auto kLimit = std::chrono::seconds(30);

TransferRequest request(std::uint64_t id, CopyDirection direction, const Pairs& pairs,
                        std::shared_ptr<LayerGate> gate = nullptr) {
  return {OpId(id), direction, pairs, std::move(gate)};
}

class CudaTransfers : public testing::TestWithParam<DriverKind> {
 protected:
  void SetUp() override {
    if (!GetParam().is_gpu) return;
    const auto driver = open_cuda_driver(0);
    if (!driver.is_ok()) GTEST_SKIP() << driver.status().to_string();
  }
  void expect_ok(std::vector<TransferDone> results, Pools& pools) {
    for (const TransferDone& result : results) {
      EXPECT_EQ(result.status.to_string(), "ok");
      pools.drop(result);
    }
    EXPECT_EQ(pools.leases(), 0U);
  }
  // Down, up to the other slots, and within the device; all bytes of the device are compared after each.
  void round_trip(Rig& rig, Pools& pools) {
    const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    ASSERT_TRUE(engine->submit(request(1, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
    ASSERT_TRUE(engine->submit(request(2, CopyDirection::kHostToDevice, pools.swapped()), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    pools.copy_shadow(&SlotPair::source, &SlotPair::device);
    EXPECT_EQ(pools.memory.difference(), 0U);
    pools.fill_device(rng, &SlotPair::source);
    ASSERT_TRUE(engine->submit(request(3, CopyDirection::kDeviceToDevice, pools.pairs), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    pools.copy_shadow(&SlotPair::device, &SlotPair::source);
    EXPECT_EQ(pools.memory.difference(), 0U);
  }

  Rng rng{7};
};

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

// Small parts of layers in large host slots: stores go by way of the device.
ModelSpec staged_model() {
  std::vector<PlaneSpec> planes(2);
  for (PlaneSpec& plane : planes) plane = {.name = "p", .dtype = Dtype::kBf16, .rows = 4, .heads = 2, .head_dim = 64};
  std::vector<std::uint32_t> layers(6);
  for (std::uint32_t i = 0; i < 6; ++i) layers[i] = i;
  std::vector<PlaneSpec> wide = planes;
  wide[1].head_dim = 33;  // pages whose parts have odd places
  return pool_test::model_of(6, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, layers, planes),
                                 pool_test::pool_of(PoolName::kSwa, ComponentKind::kSwa, true, layers, wide)});
}

TEST_P(CudaTransfers, StoresOfSmallPartsGoByWayOfTheDevice) {
  for (const HostLayout layout : kAllHostLayouts) {
    for (const std::size_t chunk_bytes : {13'000, 40'000, 500'000}) {
      SCOPED_TRACE(std::string(host_layout_name(layout)) + " " + std::to_string(chunk_bytes));
      CudaOptions options = Rig::small_options();
      options.staging_bytes = chunk_bytes;
      Rig rig(GetParam(), options);
      Pools pools(rig, staged_model(), layout, 10, rng);
      if (rig.sim != nullptr) {
        const std::size_t before = rig.sim->allocated_bytes();
        const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
        EXPECT_EQ(rig.sim->allocated_bytes(), before + options.staging_buffers * chunk_bytes) << "it is not staged";
      }
      Rig fresh(GetParam(), options);
      Pools again(fresh, staged_model(), layout, 10, rng);
      round_trip(fresh, again);
    }
  }
}

// Several stores at once: buffers go from chunk to chunk, and each store ends with its
// bytes.
TEST_P(CudaTransfers, StagedStoresFollowEachOther) {
  CudaOptions options = Rig::small_options();
  options.staging_bytes = 26'000;
  Rig rig(GetParam(), options);
  Pools pools(rig, staged_model(), HostLayout::kPageFirst, 12, rng);
  const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 16));
  Inbox inbox;
  pools.fill_device(rng, &SlotPair::device);
  for (std::uint64_t id = 0; id < 12; ++id) {  // each a page of both components
    Pairs pairs;
    for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
      pairs[index_of(c)] = {pools.pairs[index_of(c)][id]};
    }
    ASSERT_TRUE(engine->submit(request(id + 1, CopyDirection::kDeviceToHost, pairs), inbox.done()).is_ok());
  }
  expect_ok(inbox.wait(12), pools);
  EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
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
  for (const char* name : {"gdn-tiny+draft", "gemma3-tiny", "dsv4-tiny+draft"}) {
    SCOPED_TRACE(name);
    Rig rig(GetParam());
    const ModelSpec model = pool_test::preset(name);
    Pools pools(rig, model, HostLayout::kPageFirst, 3, rng);
    const auto transfer = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    ASSERT_TRUE(transfer->submit(request(1, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    pools.copy_shadow(&SlotPair::source, &SlotPair::device);

    const CudaStream engine = take(rig.driver->create_stream());
    const auto seen = take(rig.device->memory().allocate(pools.device->bytes()));
    std::vector<std::byte> expected;
    const auto gate = std::make_shared<LayerGate>(model.layer_count());
    ASSERT_TRUE(
        transfer->submit(request(2, CopyDirection::kHostToDevice, pools.swapped(), gate), inbox.done()).is_ok());
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
    ASSERT_TRUE(rig.driver->synchronize(engine).is_ok());
    std::vector<std::byte> got(expected.size());
    ASSERT_TRUE(rig.device->copy_now(got.data(), seen->data(), got.size()).is_ok());
    EXPECT_TRUE(got == expected);
    expect_ok(inbox.wait(1), pools);
    EXPECT_TRUE(rig.driver->destroy_stream(engine).is_ok());
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

// The end cancels what waits for an event that has not fired, on whichever of the streams it waits.
TEST_P(CudaTransfers, TheEndCancelsStoresThatWait) {
  for (const bool is_first_straight : {false, true}) {
    CudaOptions options = Rig::small_options();
    options.staging_bytes = 26'000;
    Rig rig(GetParam(), options);
    Pools pools(rig, staged_model(), HostLayout::kPageFirst, 10, rng);
    pools.fill_device(rng, &SlotPair::device);
    Inbox inbox;
    {
      const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
      if (is_first_straight) {  // a store with a gate is not staged
        TransferRequest first = request(1, CopyDirection::kDeviceToHost, pools.pairs,
                                        std::make_shared<LayerGate>(pools.device->model().layer_count()));
        first.after = std::make_shared<DeviceEvent>();
        ASSERT_TRUE(engine->submit(std::move(first), inbox.done()).is_ok());
      }
      TransferRequest never = request(2, CopyDirection::kDeviceToHost, pools.pairs);
      if (!is_first_straight) never.after = std::make_shared<DeviceEvent>();
      ASSERT_TRUE(engine->submit(std::move(never), inbox.done()).is_ok());
    }
    const auto results = inbox.wait(is_first_straight ? 2 : 1);
    for (const TransferDone& result : results) {
      EXPECT_EQ(result.status.code(), StatusCode::kCancelled) << result.status.to_string();
      pools.drop(result);
    }
    EXPECT_EQ(pools.leases(), 0U);
  }
}

// A store that is submitted behind one that waits for an event waits, too, also where it goes another way.
TEST_P(CudaTransfers, AStoreBehindOneThatWaitsWaits) {
  CudaOptions options = Rig::small_options();
  options.staging_bytes = 26'000;
  Rig rig(GetParam(), options);
  Pools pools(rig, staged_model(), HostLayout::kPageFirst, 6, rng);
  const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  Inbox inbox;
  pools.fill_device(rng, &SlotPair::device);
  const auto event = std::make_shared<DeviceEvent>();
  TransferRequest first = request(1, CopyDirection::kDeviceToHost, pools.pairs,
                                  std::make_shared<LayerGate>(pools.device->model().layer_count()));
  first.after = event;
  ASSERT_TRUE(engine->submit(std::move(first), inbox.done()).is_ok());
  ASSERT_TRUE(engine->submit(request(2, CopyDirection::kDeviceToHost, pools.pairs), inbox.done()).is_ok());
  pools.fill_device(rng, &SlotPair::device);  // the step that the event stands for
  event->fire();
  expect_ok(inbox.wait(2), pools);
  EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
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

INSTANTIATE_TEST_SUITE_P(On, CudaTransfers,
                         testing::Values(DriverKind{false, 1}, DriverKind{false, 2}, DriverKind{false, 3},
                                         DriverKind{true, 0}),
                         testing::PrintToStringParamName());

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
    Pools pools(rig, is_staged ? staged_model() : pool_test::preset("gdn-tiny+draft"), HostLayout::kPageFirst,
                is_staged ? 5 : 2, rng);
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
      ASSERT_TRUE(transfer
                      ->submit(is_down ? request(id, CopyDirection::kDeviceToHost, pools.pairs)
                                       : request(id, CopyDirection::kHostToDevice, pools.swapped(), gate),
                               inbox.done())
                      .is_ok());
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

// The same with several staged stores at once, which hand buffers to each other.
TEST_P(CudaFaults, EndStoresThatShareBuffers) {
  const std::string& what = GetParam();
  const bool is_loss = what == "operation" || what.ends_with(":lost");
  const std::string call = what.substr(0, what.find(':'));
  for (std::uint64_t n = 1; n < 60; n += 3) {
    SCOPED_TRACE(what + " " + std::to_string(n));
    Rng rng(n);
    CudaOptions options = Rig::small_options();
    options.staging_bytes = 13'000;
    Rig rig({false, n}, options);
    Pools pools(rig, staged_model(), HostLayout::kPageHead, 12, rng);
    const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 16));
    pools.fill_device(rng, &SlotPair::device);
    if (call == "operation") {
      rig.sim->lose_at(n);
    } else {
      rig.sim->fail_call(call, n, is_loss ? unavailable("CUDA_ERROR_ECC_UNCORRECTABLE") : internal_error("refused"));
    }
    Inbox inbox;
    for (std::uint64_t id = 0; id < 6; ++id) {  // each two pages of both components
      Pairs pairs;
      for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
        const auto& all = pools.pairs[index_of(c)];
        pairs[index_of(c)] = {all[2 * id], all[2 * id + 1]};
      }
      ASSERT_TRUE(engine->submit(request(id + 1, CopyDirection::kDeviceToHost, pairs), inbox.done()).is_ok());
    }
    bool are_all_ok = true;
    for (const TransferDone& result : inbox.wait(6)) {
      pools.drop(result);
      are_all_ok = are_all_ok && result.status.is_ok();
      EXPECT_TRUE(result.status.is_ok() ||
                  result.status.code() == (is_loss ? StatusCode::kUnavailable : StatusCode::kInternal))
          << result.status.to_string();
    }
    EXPECT_EQ(pools.leases(), 0U);
    if (are_all_ok) {
      EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
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
