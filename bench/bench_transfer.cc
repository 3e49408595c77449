// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_transfer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "model/presets.h"
#include "transfer/transfer.h"

namespace larder {
namespace {

constexpr int kRuns = 7;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Speed {
  double best = 0;  // GiB/s
  double median = 0;
};

template <class F>
Speed measure(std::size_t bytes, F&& work) {
  std::vector<double> speeds;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = real_clock().now();
    work();
    const std::chrono::duration<double> seconds = real_clock().now() - begin;
    speeds.push_back(static_cast<double>(bytes) / kGiB / std::max(seconds.count(), 1e-9));
  }
  std::sort(speeds.begin(), speeds.end());
  return {speeds.back(), speeds[speeds.size() / 2]};
}

void print(const char* layout, const char* direction, const Speed& speed, const Speed& memcpy_speed, double submit_us) {
  std::printf("%-18s %-16s %8.2f %8.2f %8.2f %10.1f\n", layout, direction, speed.best, speed.median,
              speed.median / memcpy_speed.median, submit_us);
}

// The transfers of one layout. False: a copy failed or is wrong.
class LayoutBench {
 public:
  LayoutBench(const ModelSpec& model, DevicePools& device, HostPools& host, std::uint32_t pages)
      : model_(model), pools_(device), host_(host), device_(make_cpu_device(executor_)) {
    auto& full = pairs_[index_of(ComponentKind::kFull)];
    for (std::uint32_t i = 0; i < pages; ++i) {
      if (const auto slot = host.allocate(ComponentKind::kFull))
        full.push_back({DeviceSlot(i), *slot, DeviceSlot(pages + i)});
    }
    back_ = pairs_;
    for (SlotPair& pair : back_[0]) std::swap(pair.device, pair.source);
  }

  bool run(const Speed& memcpy_speed) {
    auto engine = TransferEngine::create(*device_, pools_, &host_, 4);
    if (!engine) return false;
    const std::string layout(host_layout_name(host_.layout()));
    const std::size_t bytes = model_.slot_bytes(ComponentKind::kFull) * pairs_[0].size();
    const auto one = [&](const char* name, CopyDirection direction, const auto& pairs) {
      double submit_us = 1e9;
      const Speed speed = measure(bytes, [&] {
        const auto begin = real_clock().now();
        copy(**engine, direction, pairs);
        submit_us = std::min(submit_us, std::chrono::duration<double, std::micro>(real_clock().now() - begin).count());
        device_->synchronize();
        settle();
      });
      print(layout.c_str(), name, speed, memcpy_speed, submit_us);
    };
    one("device_to_host", CopyDirection::kDeviceToHost, pairs_);
    one("host_to_device", CopyDirection::kHostToDevice, back_);
    const bool is_same = sets_are_equal();
    if (host_.layout() == HostLayout::kLayerFirst) one("device_to_device", CopyDirection::kDeviceToDevice, pairs_);
    return is_ok_ && is_same;
  }

 private:
  using Pairs = std::array<std::vector<SlotPair>, kComponentCount>;

  void copy(TransferEngine& engine, CopyDirection direction, const Pairs& pairs) {
    const auto gate = std::make_shared<LayerGate>(model_.layer_count());  // layer by layer, as in production
    const Status status =
        engine.submit({OpId(1), direction, pairs, direction == CopyDirection::kDeviceToHost ? nullptr : gate},
                      [this](TransferDone done) { done_ = std::move(done); });
    is_ok_ = is_ok_ && status.is_ok();
  }
  void settle() {  // after synchronize(): done_ was written
    is_ok_ = is_ok_ && done_.status.is_ok() && !done_.device_leases.empty();
    for (const LeasedSlot& l : done_.device_leases) {
      is_ok_ = is_ok_ && pools_.drop_lease(l.component, DeviceSlot(l.slot), l.generation).is_ok();
    }
    for (const LeasedSlot& l : done_.host_leases) {
      is_ok_ = is_ok_ && host_.drop_lease(l.component, HostSlot(l.slot), l.generation).is_ok();
    }
    done_ = {};
  }
  [[nodiscard]] bool sets_are_equal() const {
    for (const PoolSpec& pool : model_.pools) {
      for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
        for (std::size_t plane = 0; plane < pool.planes.size(); ++plane) {
          for (const SlotPair& pair : pairs_[0]) {
            if (std::memcmp(pools_.page(pool.name, layer, plane, pair.device),
                            pools_.page(pool.name, layer, plane, pair.source), pool.planes[plane].layer_bytes()) != 0) {
              return false;
            }
          }
        }
      }
    }
    return true;
  }

  const ModelSpec& model_;
  DevicePools& pools_;
  HostPools& host_;
  ThreadPoolExecutor executor_{"bench-copy", 1, 64};
  std::unique_ptr<Device> device_;
  Pairs pairs_, back_;
  TransferDone done_;
  bool is_ok_ = true;
};

}  // namespace

int run_transfer_bench(std::size_t mebibytes) {
  auto model = preset_model("gqa-real");
  if (!model) return 1;
  const std::size_t page_bytes = model->slot_bytes(ComponentKind::kFull);
  const auto pages = static_cast<std::uint32_t>(std::max<std::size_t>((mebibytes << 20) / page_bytes, 1));
  auto device = DevicePools::create(*model, {2 * pages, 0, 0}, host_memory_source());
  auto buffer = host_memory_source().allocate(pages * page_bytes);
  if (!device || !buffer) {
    std::fprintf(stderr, "bench transfer: %s\n", (!device ? device.status() : buffer.status()).to_string().c_str());
    return 1;
  }
  while ((*device)->allocate(ComponentKind::kFull)) {}
  const std::span words(reinterpret_cast<std::uint64_t*>((*device)->page(PoolName::kKv, 0, 0, DeviceSlot(0))),
                        (*device)->bytes() / sizeof(std::uint64_t));
  Rng rng(1);
  for (std::uint64_t& word : words) word = rng.next_u64();

  const Speed copy_speed =
      measure(pages * page_bytes, [&] { std::memcpy((*buffer)->data(), words.data(), pages * page_bytes); });
  std::printf("transfer: gqa-real, %u pages of %zu KiB, %d runs, one copy thread per stream\n", pages, page_bytes >> 10,
              kRuns);
  std::printf("%-18s %-16s %8s %8s %8s %10s\n", "layout", "direction", "best", "median", "/memcpy", "submit_us");
  print("-", "memcpy", copy_speed, copy_speed, 0);
  buffer->reset();
  for (const HostLayout layout : kAllHostLayouts) {
    auto host = HostPools::create(*model, layout, pages * page_bytes, host_memory_source());
    if (!host) {
      std::fprintf(stderr, "bench transfer: %s\n", host.status().to_string().c_str());
      return 1;
    }
    LayoutBench bench(*model, **device, **host, pages);
    if (!bench.run(copy_speed)) {
      std::fprintf(stderr, "bench transfer: a copy failed or is wrong\n");
      return 1;
    }
  }
  return 0;
}

}  // namespace larder
