// SPDX-License-Identifier: Apache-2.0
// A CUDA device on the simulated driver or on a GPU, and a model's pools on it.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "pool/pool_test_util.h"
#include "sim/sim_cuda_driver.h"
#include "transfer/cuda/cuda_device.h"
#include "transfer/transfer_test_util.h"

namespace larder::cuda_test {

using pool_test::take;
using transfer_test::Pairs;

// "gpu", or the seed of a simulated driver.
struct DriverKind {
  bool is_gpu = false;
  std::uint64_t seed = 0;
};
inline void PrintTo(const DriverKind& kind, std::ostream* out) {
  *out << (kind.is_gpu ? "gpu" : "sim_" + std::to_string(kind.seed));
}

struct Rig {
  // Small pieces of pinned memory and a low limit for the copy engines: every way is taken.
  explicit Rig(const DriverKind& kind, CudaOptions options = small_options()) {
    if (kind.is_gpu) {
      static const std::shared_ptr<CudaDriver> gpu = take(open_cuda_driver(0));  // making its context takes long
      driver = gpu;
    } else {
      auto made = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{.seed = kind.seed});
      sim = made.get();
      driver = std::move(made);
    }
    device = take(CudaDevice::create(driver, options));
  }
  ~Rig() {
    device.reset();
    if (sim != nullptr) {
      EXPECT_EQ(sim->violations(), std::vector<std::string>());
      EXPECT_EQ(sim->allocated_bytes(), 0U);
      EXPECT_EQ(sim->registered_bytes(), 0U);
      EXPECT_EQ(sim->streams(), 0U);
      EXPECT_EQ(sim->events(), 0U);
    }
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  static CudaOptions small_options() {
    CudaOptions options;
    options.load_engines_from = options.store_engines_from = 3000;
    options.pinned_piece_bytes = 8192;
    options.staging_bytes = 150'000;
    options.staging_buffers = 2;
    options.least_load_steps = 2;
    options.least_staged_bytes = options.least_staged_layerwise_bytes = options.gated_step_bytes = 0;
    return options;
  }

  std::shared_ptr<CudaDriver> driver;
  sim::SimCudaDriver* sim = nullptr;  // null: a GPU
  std::unique_ptr<CudaDevice> device;
};

// What the controller's inbox would be, with a wait.
class Inbox {
 public:
  TransferEngine::Done done() {
    return [this](TransferDone result) {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notify_all();
    };
  }
  std::vector<TransferDone> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return results_.size() >= count; })) {
      ADD_FAILURE() << results_.size() << " of " << count << " transfers have ended";
    }
    return std::exchange(results_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TransferDone> results_;
};

// Device memory and what it should hold, byte for byte.
class ShadowedMemory final : public MemorySource {
 public:
  explicit ShadowedMemory(CudaDevice& device) : device_(device) {}

  Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override {
    Result<std::unique_ptr<Memory>> memory = device_.memory().allocate(bytes);
    if (memory.is_ok()) add((*memory)->data(), std::vector<std::byte>(bytes, std::byte{0xE7}));
    return memory;
  }
  // The device's copy of memory that a test has laid out on the host.
  [[nodiscard]] std::byte* copy_of(const std::vector<std::byte>& bytes) {
    kept_.push_back(take(device_.memory().allocate(bytes.size())));
    add(kept_.back()->data(), bytes);
    return kept_.back()->data();
  }

  // Where the expected bytes of a device address are.
  [[nodiscard]] std::byte* shadow(const std::byte* at) {
    auto region = std::prev(regions_.upper_bound(at));
    return region->second.data() + (at - region->first);
  }
  // Writes to the shadow and to the device.
  void write(std::byte* at, const std::vector<std::byte>& bytes) {
    std::memcpy(shadow(at), bytes.data(), bytes.size());
    EXPECT_EQ(device_.copy_now(at, bytes.data(), bytes.size()).to_string(), "ok");
  }
  // Bytes of the device that are not what they should be.
  [[nodiscard]] std::size_t difference() const {
    std::size_t count = 0;
    for (const auto& [begin, expected] : regions_) {
      std::vector<std::byte> bytes(expected.size());
      EXPECT_EQ(device_.copy_now(bytes.data(), begin, bytes.size()).to_string(), "ok");
      if (std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) continue;
      for (std::size_t i = 0; i < bytes.size(); ++i) count += bytes[i] != expected[i] ? 1 : 0;
    }
    return count;
  }

 private:
  void add(std::byte* begin, std::vector<std::byte> bytes) {
    EXPECT_EQ(device_.copy_now(begin, bytes.data(), bytes.size()).to_string(), "ok");
    regions_[begin] = std::move(bytes);
  }

  CudaDevice& device_;
  std::map<const std::byte*, std::vector<std::byte>> regions_;
  std::vector<std::unique_ptr<Memory>> kept_;
};

// On a CUDA device.
class Pools : public transfer_test::PagePairs {
 public:
  Pools(Rig& rig, const ModelSpec& model, HostLayout layout, std::uint32_t pages, Rng& rng,
        std::optional<pool_test::Lending> lending = {})
      : memory(*rig.device) {
    ComponentCounts slots{}, want{};
    ReservedSlots reserved;
    for (const ComponentKind c : kAllComponents) {
      if (!model.has(c)) continue;
      slots[index_of(c)] = 2 * pages + 1;
      want[index_of(c)] = pages;
      reserved[index_of(c)] = {DeviceSlot(0)};
    }
    if (lending) {
      pool_test::LentBytes lent(model, slots, *lending);
      std::vector<std::byte*> moved;
      for (const auto& region : lent.regions) moved.push_back(memory.copy_of(region));
      for (LentPlane& plane : lent.planes) {
        for (std::size_t i = 0; i < moved.size(); ++i) {
          const std::byte* const begin = lent.regions[i].data();
          if (plane.base < begin || plane.base >= begin + lent.regions[i].size()) continue;
          plane.base = moved[i] + (plane.base - begin);
          break;
        }
      }
      device = take(DevicePools::create(model, slots, lent.planes, reserved));
    } else {
      device = take(DevicePools::create(model, slots, memory, host_memory_source(), reserved));
    }
    host = take(HostPools::create(model, layout, (kComponentCount * pages + 1) * pool_test::smallest_budget(model),
                                  rig.device->host_memory()));
    reserve_pairs(want, rng);
  }

  // Every page of the set gets other bytes, on the device and in the shadow.
  void fill_device(Rng& rng, DeviceSlot SlotPair::*which) {
    for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
      memory.write(device->page(pool.name, layer, plane, pair.*which), random_bytes(rng, pool, plane));
    });
  }
  // What a copy within the device should do: the shadow's page of `to` becomes that of `from`.
  void copy_shadow(DeviceSlot SlotPair::*to, DeviceSlot SlotPair::*from) {
    for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
      std::memcpy(memory.shadow(device->page(pool.name, layer, plane, pair.*to)),
                  memory.shadow(device->page(pool.name, layer, plane, pair.*from)), pool.planes[plane].layer_bytes());
    });
  }
  // Chunks of host pages that differ from the shadow of the set, by the oracle chunk_offset().
  [[nodiscard]] std::size_t host_differences(DeviceSlot SlotPair::*which) {
    std::size_t count = 0;
    for_each_plane([&](const PoolSpec& pool, std::size_t layer, std::size_t plane, const SlotPair& pair) {
      const PlaneSpec& shape = pool.planes[plane];
      const std::byte* const page = memory.shadow(device->page(pool.name, layer, plane, pair.*which));
      std::vector<std::byte> chunk;
      for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t head = 0; head < shape.heads; ++head) {
          chunk.clear();
          std::vector<Segment> segments;
          host->append_segments(pool.name, pair.host, chunk_offset(pool, host->layout(), plane, layer, row, head),
                                shape.head_bytes(), segments);
          for (const Segment& s : segments) chunk.insert(chunk.end(), s.data, s.data + s.size);
          const std::byte* const expected = page + row * shape.row_bytes() + head * shape.head_bytes();
          count += std::memcmp(chunk.data(), expected, chunk.size()) != 0 ? 1 : 0;
        }
      }
    });
    return count;
  }
  static std::vector<std::byte> random_bytes(Rng& rng, const PoolSpec& pool, std::size_t plane) {
    std::vector<std::byte> bytes(pool.planes[plane].layer_bytes());
    transfer_test::fill_random(rng, bytes.data(), bytes.size());
    return bytes;
  }

  ShadowedMemory memory;
};

inline TransferRequest request(std::uint64_t id, CopyDirection direction, const Pairs& pairs,
                               std::shared_ptr<LayerGate> gate = nullptr) {
  return {OpId(id), direction, pairs, std::move(gate)};
}

// Small parts of layers in large host slots: copies go by way of the device. In layer_first and page_first_direct loads
// do so layer by layer, too. full has a sidecar; the windows' parts have odd places.
inline ModelSpec staged_model() {
  std::vector<PlaneSpec> planes(2);
  for (PlaneSpec& plane : planes) plane = {.name = "p", .dtype = Dtype::kBf16, .rows = 4, .heads = 2, .head_dim = 64};
  std::vector<std::uint32_t> layers(6);
  for (std::uint32_t i = 0; i < 6; ++i) layers[i] = i;
  std::vector<PlaneSpec> wide = planes;
  wide[0].head_dim = 95;
  wide[1].head_dim = 65;
  std::vector<PlaneSpec> sidecar = {planes[0]};
  return pool_test::model_of(6, {pool_test::pool_of(PoolName::kKv, ComponentKind::kFull, true, layers, planes),
                                 pool_test::pool_of(PoolName::kIndexer, ComponentKind::kFull, false, layers, sidecar),
                                 pool_test::pool_of(PoolName::kSwa, ComponentKind::kSwa, true, layers, wide)});
}

enum class LoadKind : unsigned char { kNobodyWaits, kLayers, kWhole };

// Tests that run on both drivers.
class OnDriver : public testing::TestWithParam<DriverKind> {
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
    for (const LoadKind kind : {LoadKind::kNobodyWaits, LoadKind::kLayers, LoadKind::kWhole}) {
      SCOPED_TRACE("load " + std::to_string(static_cast<int>(kind)));
      pools.fill_device(rng, &SlotPair::source);
      TransferRequest load = request(2, CopyDirection::kHostToDevice, pools.swapped());
      if (kind != LoadKind::kNobodyWaits) {
        load.gate = std::make_shared<LayerGate>(pools.device->model().layer_count());
      }
      load.has_layer_order = kind != LoadKind::kWhole;
      const std::shared_ptr<LayerGate> gate = load.gate;
      ASSERT_TRUE(engine->submit(std::move(load), inbox.done()).is_ok());
      expect_ok(inbox.wait(1), pools);
      EXPECT_TRUE(gate == nullptr || gate->ready(pools.device->model().layer_count() - 1));
      pools.copy_shadow(&SlotPair::source, &SlotPair::device);
      EXPECT_EQ(pools.memory.difference(), 0U);
    }
    pools.fill_device(rng, &SlotPair::source);
    ASSERT_TRUE(engine->submit(request(3, CopyDirection::kDeviceToDevice, pools.pairs), inbox.done()).is_ok());
    expect_ok(inbox.wait(1), pools);
    pools.copy_shadow(&SlotPair::device, &SlotPair::source);
    EXPECT_EQ(pools.memory.difference(), 0U);
  }

  Rng rng{7};
};

// The simulated driver in three orders, and the GPU if there is one.
inline auto every_driver() {
  return testing::Values(DriverKind{false, 1}, DriverKind{false, 2}, DriverKind{false, 3}, DriverKind{true, 0});
}

}  // namespace larder::cuda_test
