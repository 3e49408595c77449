#include "pool/device_pools.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "pool/pool_test_util.h"

namespace larder {
namespace {

using pool_test::preset;

ComponentCounts counts_for(const ModelSpec& model, std::uint32_t n) {
  ComponentCounts counts{};
  for (const ComponentKind c : kAllComponents) counts[index_of(c)] = model.has(c) ? n : 0;
  return counts;
}

TEST(DevicePools, ArraysAreAlignedAndNoTwoPagesShareABytes) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec model = preset(name);
    auto pools = pool_test::take(DevicePools::create(model, counts_for(model, 3), host_memory_source()));
    std::map<std::uintptr_t, std::uintptr_t> ranges;  // begin -> end
    for (const PoolSpec& pool : model.pools) {
      for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
        for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
          const auto base = reinterpret_cast<std::uintptr_t>(pools->page(pool.name, layer, plane, DeviceSlot(0)));
          EXPECT_EQ(base % 64, 0u);
          for (std::uint32_t slot = 0; slot < 3; ++slot) {
            const auto begin = reinterpret_cast<std::uintptr_t>(pools->page(pool.name, layer, plane, DeviceSlot(slot)));
            EXPECT_EQ(begin, base + slot * pool.planes[plane].layer_bytes());
            EXPECT_TRUE(ranges.emplace(begin, begin + pool.planes[plane].layer_bytes()).second);
          }
        }
      }
    }
    std::uintptr_t end = 0;
    for (const auto& [begin, stop] : ranges) {
      EXPECT_GE(begin, end);
      end = stop;
    }
    EXPECT_LE(end - ranges.begin()->first, pools->bytes());
  }
}

TEST(DevicePools, BadCountsAndNoMemoryAreErrors) {
  const ModelSpec model = preset("gqa-tiny");
  EXPECT_EQ(DevicePools::create(model, {4, 0, 1}, host_memory_source()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DevicePools::create(model, {0xffffffffu, 0, 0}, host_memory_source()).status().code(),
            StatusCode::kInvalidArgument);
  pool_test::RefusingMemory refusing;
  EXPECT_EQ(DevicePools::create(model, {4, 0, 0}, refusing).status().code(), StatusCode::kOverloaded);
  PlaneSpec huge{.name = "k", .dtype = Dtype::kF32, .rows = 1u << 31, .heads = 1, .head_dim = 1u << 29};
  const ModelSpec monster =
      pool_test::model_of(1, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, {0}, {huge})});
  EXPECT_EQ(DevicePools::create(monster, {4096, 0, 0}, host_memory_source()).status().code(),
            StatusCode::kInvalidArgument);
}

// Notes what it is asked for.
class NotingMemory final : public MemorySource {
 public:
  std::vector<std::size_t> asked;
  Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    asked.push_back(bytes);
    return host_memory_source().allocate(bytes);
  }
};

TEST(DevicePools, SlotTablesAreMadeLastAndOnlyIfTheHostHasRoom) {
  const ModelSpec model = preset("gdn-tiny");
  constexpr std::uint32_t kHuge = 1'000'000'000;  // tables of 12 GB
  pool_test::RefusingMemory refusing;
  NotingMemory host;
  EXPECT_EQ(DevicePools::create(model, {4, 0, kHuge}, refusing, host).status().code(), StatusCode::kOverloaded);
  EXPECT_TRUE(host.asked.empty());
  const ModelSpec logical =
      pool_test::model_of(1, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, {}, {})});
  const Status refused = DevicePools::create(logical, {kHuge, 0, 0}, host_memory_source(), refusing).status();
  EXPECT_EQ(refused.code(), StatusCode::kOverloaded);
  EXPECT_NE(refused.message().find("tables of device slots"), std::string::npos) << refused.message();
  auto pools = pool_test::take(DevicePools::create(model, {4, 0, 2}, host_memory_source(), host));
  EXPECT_EQ(host.asked, std::vector<std::size_t>{6 * 12});
  EXPECT_EQ(pools->free_slots(ComponentKind::kFull), 4u);
  EXPECT_EQ(pools->free_slots(ComponentKind::kMamba), 2u);
}

TEST(DevicePools, ReserveIsAllOrNothingOverComponents) {
  const ModelSpec model = preset("gdn-tiny");
  auto pools = pool_test::take(DevicePools::create(model, {4, 0, 2}, host_memory_source()));
  std::array<std::vector<DeviceSlot>, kComponentCount> out;
  EXPECT_FALSE(pools->reserve({2, 0, 3}, out));
  EXPECT_FALSE(pools->reserve({5, 0, 1}, out));
  EXPECT_FALSE(pools->reserve({1, 1, 1}, out));  // no such component
  EXPECT_EQ(pools->free_slots(ComponentKind::kFull), 4u);
  EXPECT_EQ(pools->free_slots(ComponentKind::kMamba), 2u);
  for (const auto& slots : out) EXPECT_TRUE(slots.empty());
  EXPECT_TRUE(pools->reserve({4, 0, 2}, out));
  EXPECT_EQ(out[0].size(), 4u);
  EXPECT_EQ(out[2].size(), 2u);
  EXPECT_FALSE(pools->allocate(ComponentKind::kFull));
  EXPECT_FALSE(pools->allocate(ComponentKind::kSwa));
}

TEST(DevicePools, AFreedButLeasedSlotWaitsForItsOperation) {
  const ModelSpec model = preset("gqa-tiny");
  auto pools = pool_test::take(DevicePools::create(model, {1, 0, 0}, host_memory_source()));
  const DeviceSlot slot = *pools->allocate(ComponentKind::kFull);
  const Generation generation = pools->generation(ComponentKind::kFull, slot);
  ASSERT_TRUE(pools->add_lease(ComponentKind::kFull, slot).is_ok());
  ASSERT_TRUE(pools->free(ComponentKind::kFull, slot).is_ok());
  EXPECT_FALSE(pools->allocate(ComponentKind::kFull));
  EXPECT_EQ(pools->slots(ComponentKind::kFull).counts().quarantined, 1u);
  EXPECT_EQ(pools->drop_lease(ComponentKind::kFull, slot, generation + 1).code(), StatusCode::kConflict);
  EXPECT_TRUE(pools->drop_lease(ComponentKind::kFull, slot, generation).is_ok());
  EXPECT_EQ(pools->allocate(ComponentKind::kFull), slot);
}

TEST(DevicePools, AComponentWithoutBytesHasSlots) {
  const ModelSpec model =
      pool_test::model_of(1, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, {}, {})});
  auto pools = pool_test::take(DevicePools::create(model, {2, 0, 0}, host_memory_source()));
  EXPECT_EQ(pools->bytes(), 0u);
  EXPECT_TRUE(pools->allocate(ComponentKind::kFull));
}

}  // namespace
}  // namespace larder
