// SPDX-License-Identifier: Apache-2.0
// Copies that go by way of buffers on the device.
#include <string>

#include "tests/cuda/cuda_rig.h"

namespace larder::cuda_test {
namespace {

class CudaStaged : public OnDriver {
 protected:
  static CudaOptions options_of(std::size_t buffer_bytes) {
    CudaOptions options = Rig::small_options();
    options.staging_bytes = buffer_bytes;
    return options;
  }
  static constexpr std::size_t kOneSlot = 26'000;  // a buffer of staged_model()
};

TEST_P(CudaStaged, SmallPartsGoByWayOfTheDevice) {
  for (const HostLayout layout : kAllHostLayouts) {
    for (const std::size_t buffer_bytes : {kOneSlot, std::size_t{45'000}, std::size_t{500'000}}) {
      SCOPED_TRACE(std::string(host_layout_name(layout)) + " " + std::to_string(buffer_bytes));
      Rig rig(GetParam(), options_of(buffer_bytes));
      Pools pools(rig, staged_model(), layout, 10, rng);
      round_trip(rig, pools);
    }
  }
}

// What goes straight is not moved within the device.
TEST_P(CudaStaged, OnlyLayerwiseLoadsOfRowsGoStraight) {
  if (GetParam().is_gpu) GTEST_SKIP() << "a GPU does not count";
  for (const HostLayout layout : kAllHostLayouts) {
    SCOPED_TRACE(host_layout_name(layout));
    Rig rig(GetParam(), options_of(kOneSlot));
    Pools pools(rig, staged_model(), layout, 4, rng);
    const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
    Inbox inbox;
    const auto moved = [&](TransferRequest copies) {
      const std::uint64_t before = rig.sim->kernel_device_bytes();
      EXPECT_TRUE(engine->submit(std::move(copies), inbox.done()).is_ok());
      expect_ok(inbox.wait(1), pools);
      return rig.sim->kernel_device_bytes() - before;
    };
    EXPECT_GT(moved(request(1, CopyDirection::kDeviceToHost, pools.pairs)), 0U);
    EXPECT_GT(moved(request(2, CopyDirection::kHostToDevice, pools.swapped())), 0U);
    TransferRequest load = request(3, CopyDirection::kHostToDevice, pools.swapped(),
                                   std::make_shared<LayerGate>(pools.device->model().layer_count()));
    load.has_layer_order = false;
    EXPECT_GT(moved(std::move(load)), 0U);
    load = request(4, CopyDirection::kHostToDevice, pools.swapped(),
                   std::make_shared<LayerGate>(pools.device->model().layer_count()));
    const bool has_rows = layout == HostLayout::kPageFirst || layout == HostLayout::kPageHead;
    EXPECT_EQ(moved(std::move(load)) == 0, has_rows);
  }
}

TEST_P(CudaStaged, TransfersOfFewBytesGoStraight) {
  if (GetParam().is_gpu) GTEST_SKIP() << "a GPU does not count";
  CudaOptions options = options_of(kOneSlot);
  options.least_staged_bytes = 50'000;
  options.least_staged_layerwise_bytes = 70'000;
  Rig rig(GetParam(), options);
  Pools pools(rig, staged_model(), HostLayout::kLayerFirst, 4, rng);
  const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
  Inbox inbox;
  struct Case {
    std::size_t pages;  // of 18,432 bytes
    bool is_layerwise;
    bool is_staged;
  };
  for (const Case& c : {Case{2, false, false}, Case{3, false, true}, Case{3, true, false}, Case{4, true, true}}) {
    const std::uint64_t before = rig.sim->kernel_device_bytes();
    Pairs pairs;
    const auto& all = pools.pairs[index_of(ComponentKind::kFull)];
    pairs[index_of(ComponentKind::kFull)].assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(c.pages));
    TransferRequest load = request(1, CopyDirection::kHostToDevice, pairs,
                                   std::make_shared<LayerGate>(pools.device->model().layer_count()));
    load.has_layer_order = c.is_layerwise;
    ASSERT_TRUE(engine->submit(std::move(load), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    EXPECT_EQ(rig.sim->kernel_device_bytes() > before, c.is_staged) << c.pages << " pages";
  }
}

// Steps of three layers suit full, whose slots are small, and steps of one suit the windows, which three layers of
// would not fit a buffer: there is no number of layers for both.
TEST_P(CudaStaged, ComponentsThatNoStepSuitsGoStraight) {
  std::vector<PlaneSpec> small(1), large(1);
  small[0] = {.name = "p", .dtype = Dtype::kBf16, .rows = 4, .heads = 2, .head_dim = 64};
  large[0] = {.name = "p", .dtype = Dtype::kBf16, .rows = 4, .heads = 2, .head_dim = 500};
  const std::vector<std::uint32_t> layers = {0, 1, 2, 3, 4, 5};
  const ModelSpec model =
      pool_test::model_of(6, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, layers, small),
                              pool_test::pool_of(PoolName::kSwa, ComponentKind::kSwa, true, layers, large)});
  Rig rig(GetParam(), options_of(20'000));
  Pools pools(rig, model, HostLayout::kLayerFirst, 12, rng);
  pools.pairs[index_of(ComponentKind::kSwa)].resize(1);  // most bytes are in small parts
  round_trip(rig, pools);
}

// Several stores at once: buffers go from chunk to chunk, and each store ends with its bytes. Then loads of all kinds.
TEST_P(CudaStaged, TransfersFollowEachOther) {
  for (const HostLayout layout : {HostLayout::kPageFirst, HostLayout::kLayerFirst}) {
    Rig rig(GetParam(), options_of(kOneSlot));
    Pools pools(rig, staged_model(), layout, 12, rng);
    const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 16));
    Inbox inbox;
    pools.fill_device(rng, &SlotPair::device);
    const auto submit_each = [&](CopyDirection direction, const Pairs& all) {
      for (std::uint64_t id = 0; id < 12; ++id) {  // each a page of both components
        Pairs pairs;
        for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa}) {
          pairs[index_of(c)] = {all[index_of(c)][id]};
        }
        TransferRequest copies = request(id + 1, direction, pairs);
        if (direction == CopyDirection::kHostToDevice && id % 3 != 0) {
          copies.gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
          copies.has_layer_order = id % 3 == 1;
        }
        ASSERT_TRUE(engine->submit(std::move(copies), inbox.done()).is_ok());
      }
      expect_ok(inbox.wait(12), pools);
    };
    submit_each(CopyDirection::kDeviceToHost, pools.pairs);
    EXPECT_EQ(pools.host_differences(&SlotPair::device), 0U);
    submit_each(CopyDirection::kHostToDevice, pools.swapped());
    pools.copy_shadow(&SlotPair::source, &SlotPair::device);
    EXPECT_EQ(pools.memory.difference(), 0U);
  }
}

// The end cancels what waits for an event that has not fired, on whichever of the streams it waits.
TEST_P(CudaStaged, TheEndCancelsWhatWaits) {
  for (const CopyDirection direction : {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
    for (const bool is_staged : {false, true}) {
      Rig rig(GetParam(), options_of(kOneSlot));
      Pools pools(rig, staged_model(), HostLayout::kPageFirst, 10, rng);
      pools.fill_device(rng, &SlotPair::device);
      Inbox inbox;
      {
        const auto engine = take(TransferEngine::create(*rig.device, *pools.device, pools.host.get(), 8));
        TransferRequest never = request(1, direction, pools.pairs);
        if (!is_staged) never.gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
        never.after = std::make_shared<DeviceEvent>();
        ASSERT_TRUE(engine->submit(std::move(never), inbox.done()).is_ok());
      }
      const auto results = inbox.wait(1);
      EXPECT_EQ(results[0].status.code(), StatusCode::kCancelled) << results[0].status.to_string();
      pools.drop(results[0]);
      EXPECT_EQ(pools.leases(), 0U);
      EXPECT_EQ(pools.memory.difference(), 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, CudaStaged, every_driver(), testing::PrintToStringParamName());

}  // namespace
}  // namespace larder::cuda_test
