// SPDX-License-Identifier: Apache-2.0
#include "pool/device_pools.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
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

// ---- lent memory

TEST(DevicePools, PagesOfLentMemoryAreWhereTheEngineSays) {
  for (const std::string& name : pool_test::tiny_preset_names()) {
    for (const pool_test::Lending lending : pool_test::kAllLendings) {
      SCOPED_TRACE(name + ", lending " + std::to_string(static_cast<int>(lending)));
      const ModelSpec model = preset(name);
      pool_test::LentBytes lent(model, counts_for(model, 3), lending);
      auto pools = pool_test::take(DevicePools::create(model, counts_for(model, 3), lent.planes));
      std::size_t bytes = 0;
      for (const LentPlane& plane : lent.planes) {
        for (std::uint32_t slot = 0; slot < 3; ++slot) {
          EXPECT_EQ(pools->page(plane.pool, plane.layer_index, plane.plane, DeviceSlot(slot)),
                    plane.base + slot * plane.slot_stride);
          bytes += model.find_pool(plane.pool)->planes[plane.plane].layer_bytes();
        }
      }
      EXPECT_EQ(pools->bytes(), bytes);
    }
  }
}

// What is wrong with `planes`; each is refused, and the plane is named.
struct WrongLoan {
  const char* words;
  std::function<void(std::vector<LentPlane>&)> spoil;
};

TEST(DevicePools, AWrongLoanIsRefusedByName) {
  const ModelSpec model = preset("gqa-tiny");
  const std::size_t page = model.pools[0].planes[0].layer_bytes();
  const auto create = [&](const std::vector<LentPlane>& planes) {
    return DevicePools::create(model, {3, 0, 0}, planes).status();
  };
  const std::vector<WrongLoan> wrong = {
      {"layer 1 of the pool, plane 1 is missing", [](auto& p) { p.erase(p.begin() + 3); }},
      {"layer 1 of the pool, plane 1 is there twice", [](auto& p) { p.push_back(p[3]); }},
      {"layer 1 of the pool, plane 1 has no address", [](auto& p) { p[3].base = nullptr; }},
      {"layer 99 of the pool, plane 1: the pool has", [](auto& p) { p[3].layer_index = 99; }},
      {"layer 1 of the pool, plane 2: the pool has", [](auto& p) { p[3].plane = 2; }},
      {"pool swa, layer 1 of the pool, plane 1: the model has no such pool",
       [](auto& p) { p[3].pool = PoolName::kSwa; }},
      {"layer 1 of the pool, plane 1: slots are 64 bytes apart", [](auto& p) { p[3].slot_stride = 64; }},
      {"layer 1 of the pool, plane 1: its address and its stride must be multiples", [](auto& p) { ++p[3].base; }},
      {"layer 1 of the pool, plane 1: its address and its stride must be multiples",
       [](auto& p) { p[3].slot_stride += 2; }},
      {"layer 1 of the pool, plane 1 does not fit in an address space",
       [](auto& p) { p[3].slot_stride = std::size_t{1} << 63; }},
      {"plane 1 overlaps pool kv, layer 1, plane 0", [](auto& p) { p[3].base = p[2].base; }},
      // The last page of one is the first of the other.
      {"overlaps pool kv, layer 1, plane 0", [&](auto& p) { p[3].base = p[2].base + 2 * p[2].slot_stride + page - 4; }},
      {"interleaves with pool kv, layer 1, plane 0, which has another stride",
       [&](auto& p) {
         p[3].base = p[2].base + 2 * p[2].slot_stride;
         p[3].slot_stride += 4;
       }},
  };
  for (const WrongLoan& loan : wrong) {
    pool_test::LentBytes lent(model, {3, 0, 0}, pool_test::Lending::kLayerTensors);
    EXPECT_EQ(create(lent.planes).to_string(), "ok");
    loan.spoil(lent.planes);
    const Status status = create(lent.planes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << loan.words;
    EXPECT_NE(status.message().find(loan.words), std::string::npos) << status.message();
  }
}

// By brute force: two arrays of one stride anywhere near each other share a byte, or do not.
TEST(DevicePools, PlanesThatInterleaveMustNotOverlap) {
  PlaneSpec a{.name = "a", .dtype = Dtype::kU8, .rows = 1, .heads = 1, .head_dim = 5};
  PlaneSpec b{.name = "b", .dtype = Dtype::kU8, .rows = 1, .heads = 1, .head_dim = 3};
  const ModelSpec model =
      pool_test::model_of(1, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, {0}, {a, b})});
  std::vector<std::byte> memory(200);
  int refused = 0, taken = 0;
  for (const std::size_t stride : {5u, 6u, 8u, 11u}) {
    for (std::size_t offset = 0; offset < 100; ++offset) {
      constexpr std::size_t kFirst = 50;
      std::vector<int> users(memory.size(), 0);
      bool overlaps = false;
      for (std::size_t slot = 0; slot < 4; ++slot) {
        for (std::size_t i = 0; i < 5; ++i) ++users[kFirst + slot * stride + i];
        for (std::size_t i = 0; i < 3; ++i) overlaps = overlaps || ++users[offset + slot * stride + i] > 1;
      }
      for (const int count : users) overlaps = overlaps || count > 1;
      const std::vector<LentPlane> planes = {{PoolName::kKv, 0, 0, memory.data() + kFirst, stride},
                                             {PoolName::kKv, 0, 1, memory.data() + offset, stride}};
      EXPECT_EQ(DevicePools::create(model, {4, 0, 0}, planes).is_ok(), !overlaps) << stride << " " << offset;
      ++(overlaps ? refused : taken);
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(taken, 200);
}

TEST(DevicePools, ReservedSlotsAreNeverHandedOut) {
  const ModelSpec model = preset("gdn-tiny");
  ReservedSlots reserved;
  reserved[index_of(ComponentKind::kFull)] = {DeviceSlot(0), DeviceSlot(2)};
  reserved[index_of(ComponentKind::kMamba)] = {DeviceSlot(0)};
  auto pools =
      pool_test::take(DevicePools::create(model, {4, 0, 2}, host_memory_source(), host_memory_source(), reserved));
  EXPECT_EQ(pools->slots(ComponentKind::kFull).capacity(), 2u);
  EXPECT_EQ(pools->allocate(ComponentKind::kFull), DeviceSlot(1));
  EXPECT_EQ(pools->allocate(ComponentKind::kFull), DeviceSlot(3));
  EXPECT_EQ(pools->allocate(ComponentKind::kFull), std::nullopt);
  EXPECT_EQ(pools->allocate(ComponentKind::kMamba), DeviceSlot(1));
  EXPECT_EQ(pools->allocate(ComponentKind::kMamba), std::nullopt);
  reserved[index_of(ComponentKind::kMamba)] = {DeviceSlot(2)};
  const Status status =
      DevicePools::create(model, {4, 0, 2}, host_memory_source(), host_memory_source(), reserved).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("reserved slot 2 of mamba"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace larder
