// SPDX-License-Identifier: Apache-2.0
// append_layer_copies(): against a device and a host of random bytes, for each layout, with chunk_offset() as oracle.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "transfer/transfer_test_util.h"

namespace larder {
namespace {

using transfer_test::Fixture;

void run(const std::vector<CopyOp>& ops) {
  for (const CopyOp& op : ops) {
    for (std::size_t row = 0; row < op.rows; ++row) {
      std::memcpy(op.dst + row * op.dst_pitch, op.src + row * op.src_pitch, op.width);
    }
  }
}

std::size_t bytes_of(const std::vector<CopyOp>& ops) {
  std::size_t bytes = 0;
  for (const CopyOp& op : ops) bytes += op.width * op.rows;
  return bytes;
}

std::vector<CopyOp> all_copies(const Fixture& f, const transfer_test::Pairs& pairs, CopyDirection direction) {
  std::vector<CopyOp> ops;
  for (std::uint32_t layer = 0; layer < f.device->model().layer_count(); ++layer) {
    for (const ComponentKind c : kAllComponents) {
      append_layer_copies(*f.device, f.host.get(), c, pairs[index_of(c)], direction, layer, ops);
    }
  }
  return ops;
}

std::size_t bytes_of(const ModelSpec& model, const transfer_test::Pairs& pairs) {
  std::size_t bytes = 0;
  for (const ComponentKind c : kAllComponents) bytes += model.slot_bytes(c) * pairs[index_of(c)].size();
  return bytes;
}

// Down, up into other slots, and device to device, each copying every byte exactly once.
void round_trip(const ModelSpec& model, HostLayout layout, Rng& rng, std::optional<pool_test::Lending> lending = {}) {
  Fixture f(model, layout, 3, rng, lending);
  const std::size_t bytes = bytes_of(model, f.pairs);
  f.fill_device(rng, &SlotPair::device);
  f.fill_device(rng, &SlotPair::source);
  f.fill_host(rng);

  const auto down = all_copies(f, f.pairs, CopyDirection::kDeviceToHost);
  EXPECT_EQ(bytes_of(down), bytes);
  run(down);
  EXPECT_EQ(f.difference_to_host(&SlotPair::device), "");

  EXPECT_FALSE(f.device_sets_are_equal());
  const auto up = all_copies(f, f.swapped(), CopyDirection::kHostToDevice);
  EXPECT_EQ(bytes_of(up), bytes);
  run(up);
  EXPECT_TRUE(f.device_sets_are_equal());
  EXPECT_EQ(f.difference_to_host(&SlotPair::source), "");

  f.fill_device(rng, &SlotPair::source);
  EXPECT_FALSE(f.device_sets_are_equal());
  const auto across = all_copies(f, f.pairs, CopyDirection::kDeviceToDevice);
  EXPECT_EQ(bytes_of(across), bytes);
  run(across);
  EXPECT_TRUE(f.device_sets_are_equal());
  if (lending) {
    EXPECT_EQ(f.own_bytes_written(), 0u);
  }
}

TEST(LayerCopies, RoundTripOfEveryTinyPresetInEveryLayout) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    for (const HostLayout layout : kAllHostLayouts) {
      SCOPED_TRACE(name + " " + std::string(host_layout_name(layout)));
      Rng rng(42);
      round_trip(pool_test::preset(name), layout, rng);
    }
  }
}

TEST(LayerCopies, RoundTripOfRandomGeometries) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const HostLayout layout : kAllHostLayouts) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(host_layout_name(layout)));
      Rng rng(seed);
      const ModelSpec model = pool_test::random_model(rng);
      round_trip(model, layout, rng);
    }
  }
}

TEST(LayerCopies, RoundTripInMemoryThatTheEngineLends) {
  for (const pool_test::Lending lending : pool_test::kAllLendings) {
    for (const HostLayout layout : kAllHostLayouts) {
      const std::string where =
          std::string(host_layout_name(layout)) + ", lending " + std::to_string(static_cast<int>(lending));
      for (const std::string& name : pool_test::tiny_preset_names()) {
        SCOPED_TRACE(name + " " + where);
        Rng rng(43);
        round_trip(pool_test::preset(name), layout, rng, lending);
      }
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + where);
        Rng rng(seed);
        const ModelSpec model = pool_test::random_model(rng);
        round_trip(model, layout, rng, lending);
      }
    }
  }
}

TEST(LayerCopies, ALayerTouchesOnlyItself) {
  const ModelSpec model = pool_test::preset("gdn-tiny");
  Rng rng(1);
  Fixture f(model, HostLayout::kPageFirst, 1, rng);
  for (std::uint32_t layer = 0; layer < model.layer_count(); ++layer) {
    for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kMamba}) {
      std::vector<CopyOp> ops;
      append_layer_copies(*f.device, f.host.get(), c, f.pairs[index_of(c)], CopyDirection::kDeviceToHost, layer, ops);
      std::size_t expected = 0;
      for (const PoolSpec* pool : model.pools_of(c)) {
        if (std::find(pool->layers.begin(), pool->layers.end(), layer) != pool->layers.end())
          expected += pool->layer_bytes();
      }
      EXPECT_EQ(bytes_of(ops), expected) << "layer " << layer;
    }
  }
}

TEST(LayerCopies, ContiguousNeighboursMergeAndTheCallersOpsStay) {
  const ModelSpec model = pool_test::preset("gqa-tiny");
  auto device = pool_test::take(DevicePools::create(model, {8, 0, 0}, host_memory_source()));
  std::vector<SlotPair> pairs;
  for (std::uint32_t i = 0; i < 4; ++i) pairs.push_back({DeviceSlot(4 + i), HostSlot(), DeviceSlot(i)});
  std::vector<CopyOp> ops;
  append_layer_copies(*device, nullptr, ComponentKind::kFull, pairs, CopyDirection::kDeviceToDevice, 0, ops);
  ASSERT_EQ(ops.size(), 2u);  // k and v, four slots each
  EXPECT_EQ(ops[0].width, 4 * model.pools[0].planes[0].layer_bytes());
  // What the caller had is not extended, even where it would fit.
  std::vector<CopyOp> given = {{ops[0].dst - 64, ops[0].src - 64, 64, 1, 64, 64}};
  append_layer_copies(*device, nullptr, ComponentKind::kFull, pairs, CopyDirection::kDeviceToDevice, 0, given);
  EXPECT_EQ(given.size(), 3u);
}

TEST(LayerCopies, UncutPagesNeedOneOpPerGroupOfPieces) {
  const ModelSpec model = pool_test::preset("gqa-tiny");  // one component: a slot is a block
  const std::size_t heads = model.pools[0].planes[0].heads;
  const std::array<std::size_t, 4> expected = {2, 2, 2,
                                               2 * heads};  // layer_first, page_first, page_first_direct, page_head
  for (std::size_t i = 0; i < kAllHostLayouts.size(); ++i) {
    Rng rng(3);
    Fixture f(model, kAllHostLayouts[i], 1, rng);
    std::vector<CopyOp> ops;
    append_layer_copies(*f.device, f.host.get(), ComponentKind::kFull, f.pairs[0], CopyDirection::kHostToDevice, 0,
                        ops);
    EXPECT_EQ(ops.size(), expected[i]) << host_layout_name(kAllHostLayouts[i]);
  }
}

}  // namespace
}  // namespace larder
