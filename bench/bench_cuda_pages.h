// SPDX-License-Identifier: Apache-2.0
// Pages of one model on a CUDA device and in pinned host memory, and the time that their copies take.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transfer/cuda/cuda_device.h"
#include "transfer/cuda/step_launcher.h"
#include "transfer/transfer.h"

namespace larder::cuda_bench {

inline constexpr int kCudaRuns = 5;
inline constexpr auto kLimit = std::chrono::seconds(30);
using Pairs = std::array<std::vector<SlotPair>, kComponentCount>;

inline double elapsed_seconds(TimePoint begin) {
  return std::chrono::duration<double>(real_clock().now() - begin).count();
}

inline void spin(Nanos duration) {
  for (const TimePoint begin = real_clock().now(); real_clock().now() - begin < duration;) {}
}

template <class F>
double median_seconds(F&& work, int runs = kCudaRuns) {
  std::vector<double> times;
  for (int run = 0; run <= runs; ++run) {
    const double seconds = work();
    if (run > 0) times.push_back(seconds);  // the first warms up
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// One pool of two planes, 16 tokens a page, whose page of one plane in one layer has `piece` bytes.
inline ModelSpec model_with_pieces(std::size_t piece, std::uint32_t layers) {
  ModelSpec model;
  model.id = "bench";
  model.page_size = 16;
  model.layers.assign(layers, LayerKind::kAttention);
  PoolSpec pool;
  pool.is_anchor = true;
  for (std::uint32_t layer = 0; layer < layers; ++layer) pool.layers.push_back(layer);
  for (const char* name : {"k", "v"}) {
    pool.planes.push_back({.name = name,
                           .dtype = Dtype::kBf16,
                           .rows = 16,
                           .heads = 8,
                           .head_dim = static_cast<std::uint32_t>(piece / (16 * 8 * 2))});
  }
  model.pools.push_back(std::move(pool));
  return model;
}

struct Speeds {
  double load = 0, store = 0, both = 0;  // GB/s; both: the sum
};

// Contiguous pinned copies: what the machine gives.
class ContiguousCopies {
 public:
  // pinned_piece: of CudaOptions.
  [[nodiscard]] static Result<ContiguousCopies> create(CudaDriver& driver, CudaDevice& device, std::size_t bytes,
                                                       std::size_t pinned_piece) {
    ContiguousCopies copies(driver, bytes, pinned_piece);
    auto host = device.host_memory().allocate(2 * bytes);
    if (!host) return host.status();
    auto on_device = device.memory().allocate(2 * bytes);
    if (!on_device) return on_device.status();
    copies.host_ = std::move(host).value();
    copies.device_ = std::move(on_device).value();
    return copies;
  }
  [[nodiscard]] Status load(std::size_t offset, std::size_t bytes, CudaStream stream) const {
    return copy(device_->data() + offset, host_->data() + offset, offset, bytes, stream);
  }
  // All, from and to the second half.
  [[nodiscard]] Status store(CudaStream stream) const {
    return copy(host_->data() + bytes_, device_->data() + bytes_, bytes_, bytes_, stream);
  }

 private:
  ContiguousCopies(CudaDriver& driver, std::size_t bytes, std::size_t piece)
      : driver_(&driver), bytes_(bytes), piece_(piece) {}
  // Cut where the registrations end, as everything that copies from them must be.
  [[nodiscard]] Status copy(std::byte* dst, const std::byte* src, std::size_t at, std::size_t bytes,
                            CudaStream stream) const {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t size = std::min(bytes - done, piece_ - (at + done) % piece_);
      const CudaCopy piece{dst + done, src + done, size};
      LARDER_RETURN_IF_ERROR(driver_->copy({&piece, 1}, stream));
      done += size;
    }
    return Status::ok();
  }

  CudaDriver* driver_;
  std::size_t bytes_, piece_;
  std::unique_ptr<Memory> host_, device_;
};

// Counts transfers that have ended.
class Ends {
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
    changed_.wait(lock, [&] { return results_.size() >= count; });
    return std::exchange(results_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TransferDone> results_;
};

// The pools of one model in one layout, with pages in two sets of device slots and two of host slots.
class PagesBench {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PagesBench>> create(const std::shared_ptr<CudaDriver>& driver,
                                                                  const CudaOptions& options, const ModelSpec& model,
                                                                  HostLayout layout, std::size_t bytes) {
    auto made = CudaDevice::create(driver, options);
    if (!made) return made.status();
    auto bench = std::unique_ptr<PagesBench>(new PagesBench(std::move(made).value(), *driver, model));
    CudaDevice& device = *bench->device_;
    const auto pages = static_cast<std::uint32_t>(std::max<std::size_t>(bytes / model.pools[0].page_bytes(), 1));
    bench->bytes_ = model.pools[0].page_bytes() * pages;
    auto pools = DevicePools::create(model, {2 * pages, 0, 0}, device.memory());
    if (!pools) return pools.status();
    auto host = HostPools::create(model, layout, 2 * bench->bytes_ + (2 << 20), device.host_memory());
    if (!host) return host.status();
    bench->pools_ = std::move(pools).value();
    bench->host_ = std::move(host).value();
    auto engine = TransferEngine::create(device, *bench->pools_, bench->host_.get(), 8);
    if (!engine) return engine.status();
    bench->engine_ = std::move(engine).value();
    LARDER_RETURN_IF_ERROR(bench->take_slots(pages));
    return bench;
  }

  // Bytes that one transfer moves.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const ModelSpec& model() const { return model_; }

  // Loads layer by layer, as for an engine that waits so, or in any order.
  Speeds measure(bool has_layer_order) {
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    load_.has_layer_order = has_layer_order;
    Speeds speeds;
    speeds.store = gigabytes / median_seconds([&] { return run({store_}); });
    speeds.load = gigabytes / median_seconds([&] { return run({load_}); });
    speeds.both = 2 * gigabytes / median_seconds([&] { return run({load_, store_}); });
    load_.has_layer_order = true;
    return speeds;
  }

  // What was stored from the first set and loaded into the second is the same.
  [[nodiscard]] bool is_right(bool has_layer_order) {
    const std::size_t region = bytes_;
    std::vector<std::byte> random(std::min<std::size_t>(region, 8 << 20));
    Rng rng(3);
    for (std::size_t i = 0; i + 8 <= random.size(); i += 8) {
      const std::uint64_t word = rng.next_u64();
      std::memcpy(random.data() + i, &word, 8);
    }
    std::byte* const base = pools_->page(PoolName::kKv, 0, 0, DeviceSlot(0));
    for (std::size_t done = 0; done < pools_->bytes(); done += random.size()) {
      is_ok_ = is_ok_ &&
               device_->copy_now(base + done, random.data(), std::min(random.size(), pools_->bytes() - done)).is_ok();
      random[done / random.size() % random.size()] ^= std::byte{0x5A};  // no two pages are alike
    }
    (void)run({store_});
    Step again = load_;
    again.has_layer_order = has_layer_order;
    again.pairs = store_.pairs;  // the host slots of the store, into the second set
    for (std::size_t i = 0; i < again.pairs[0].size(); ++i) again.pairs[0][i].device = store_.pairs[0][i].source;
    (void)run({again});
    // Some thousand of them: the tests compare every byte.
    constexpr std::uint64_t kCompared = 2'000;
    const PoolSpec& pool = model_.pools[0];
    std::vector<std::byte> from(pool.planes[0].layer_bytes()), to(from.size());
    for (std::uint64_t i = 0; i < kCompared && i * from.size() < pools_->bytes(); ++i) {
      const SlotPair& pair = store_.pairs[0][rng.below(store_.pairs[0].size())];
      const std::size_t layer = rng.below(pool.layers.size()), plane = rng.below(2);
      const auto read = [&](DeviceSlot slot, std::vector<std::byte>& bytes) {
        return device_->copy_now(bytes.data(), pools_->page(pool.name, layer, plane, slot), bytes.size()).is_ok();
      };
      is_ok_ = is_ok_ && read(pair.device, from) && read(pair.source, to) && from == to;
    }
    return is_ok_;
  }

  // Seconds of one cuMemcpyAsync for each piece of a load.
  double copy_piece_by_piece(CudaStream stream) {
    std::vector<CopyOp> ops;
    for (std::uint32_t layer = 0; layer < model_.layer_count(); ++layer) {
      append_layer_copies(*pools_, host_.get(), ComponentKind::kFull, load_.pairs[0], CopyDirection::kHostToDevice,
                          layer, ops);
    }
    const TimePoint begin = real_clock().now();
    for (const CopyOp& op : ops) {
      for (std::size_t row = 0; row < op.rows; ++row) {
        const CudaCopy copy{op.dst + row * op.dst_pitch, op.src + row * op.src_pitch, op.width};
        is_ok_ = is_ok_ && driver_.copy({&copy, 1}, stream).is_ok();
      }
    }
    is_ok_ = is_ok_ && driver_.synchronize(stream).is_ok();
    return elapsed_seconds(begin);
  }

  // A load of `pages` pages for an engine: what its thread does, layer by layer, on `stream`.
  struct GatedLoad {
    double submit = 0, first_wait = 0, waits = 0, total = 0;  // seconds; waits: with the first
  };
  // pause: between the submit and the first layer, as long as an engine takes to make its batch.
  template <class Compute>
  GatedLoad load_gated(CudaStream stream, std::size_t pages, std::chrono::milliseconds pause, Compute&& layer_compute) {
    GatedLoad out;
    Step step = load_;
    step.pairs[0].resize(std::min(pages, step.pairs[0].size()));
    const auto gate = std::make_shared<LayerGate>(model_.layer_count());
    const TimePoint begin = real_clock().now();
    (void)submit({OpId(1), step.direction, std::move(step.pairs), gate});  // says its error itself
    out.submit = elapsed_seconds(begin);
    spin(pause);
    LayerWaits waits(*gate, stream, kLimit);
    const TimePoint asked = real_clock().now();
    for (std::uint32_t layer = 0; layer < model_.layer_count(); ++layer) {
      is_ok_ = is_ok_ && waits.before(layer).is_ok();
      if (layer == 0) out.first_wait = elapsed_seconds(asked);
      is_ok_ = is_ok_ && layer_compute().is_ok();
    }
    out.waits = elapsed_seconds(asked);  // where the engine computes nothing
    is_ok_ = is_ok_ && driver_.synchronize(stream).is_ok();
    out.total = elapsed_seconds(begin);
    settle();
    return out;
  }
  // The same for an engine whose steps a launcher of `stream` launches; seconds of the engine's thread after the
  // submit.
  double post_gated(StepLauncher& launcher, CudaStream stream) {
    const auto gate = std::make_shared<LayerGate>(model_.layer_count());
    if (!submit({OpId(1), load_.direction, load_.pairs, gate})) return 0;  // nobody would open the gate
    std::promise<Status> launched;
    const TimePoint begin = real_clock().now();
    EngineStep step{.gate = gate, .layers = model_.layer_count(), .launch = {}, .launched = {}};
    step.launch = [](std::uint32_t) { return Status::ok(); };
    step.launched = [&](Status status, const std::shared_ptr<DeviceEvent>&) { launched.set_value(std::move(status)); };
    const Status taken = launcher.post(std::move(step));
    const double posted = elapsed_seconds(begin);
    note(taken);
    if (taken.is_ok()) note(launched.get_future().get());  // also after an error: the step writes to this frame
    is_ok_ = is_ok_ && driver_.synchronize(stream).is_ok();
    settle();
    return posted;
  }
  [[nodiscard]] bool is_ok() const { return is_ok_; }
  [[nodiscard]] CudaDevice& device() { return *device_; }

 private:
  struct Step {
    CopyDirection direction = CopyDirection::kHostToDevice;
    Pairs pairs;
    bool has_layer_order = true;
  };

  PagesBench(std::unique_ptr<CudaDevice> device, CudaDriver& driver, const ModelSpec& model)
      : device_(std::move(device)), driver_(driver), model_(model) {}

  Status take_slots(std::uint32_t pages) {
    std::vector<DeviceSlot> device_slots;
    std::vector<HostSlot> host_slots;
    while (const auto slot = pools_->allocate(ComponentKind::kFull)) device_slots.push_back(*slot);
    for (std::uint32_t i = 0; i < 2 * pages; ++i) {
      const auto slot = host_->allocate(ComponentKind::kFull);
      if (!slot) return internal_error("bench transfer: the host pool is too small");
      host_slots.push_back(*slot);
    }
    Rng rng(1);
    rng.shuffle(std::span(device_slots));
    rng.shuffle(std::span(host_slots));
    store_.direction = CopyDirection::kDeviceToHost;
    for (std::uint32_t i = 0; i < pages; ++i) {
      store_.pairs[0].push_back({device_slots[i], host_slots[i], device_slots[pages + i]});
      load_.pairs[0].push_back({device_slots[pages + i], host_slots[pages + i], device_slots[i]});
    }
    return Status::ok();
  }
  // Seconds from the first submit to the last end.
  double run(const std::vector<Step>& steps) {
    std::vector<TransferRequest> requests;
    for (const Step& step : steps) {
      requests.push_back({OpId(1), step.direction, step.pairs, nullptr});
      if (step.direction == CopyDirection::kDeviceToHost) continue;
      requests.back().gate = std::make_shared<LayerGate>(model_.layer_count());
      requests.back().has_layer_order = step.has_layer_order;
    }
    const TimePoint begin = real_clock().now();
    for (TransferRequest& request : requests) (void)submit(std::move(request));
    const TimePoint ended = settle();
    return std::chrono::duration<double>(ended - begin).count();
  }
  bool submit(TransferRequest request) {
    const Status begun = engine_->submit(std::move(request), ends_.done());
    note(begun);
    if (begun.is_ok()) ++submitted_;
    return begun.is_ok();
  }
  // Waits for the ends of all that was submitted; when that was.
  TimePoint settle() {
    const std::vector<TransferDone> results = ends_.wait(std::exchange(submitted_, 0));
    const TimePoint ended = real_clock().now();
    for (const TransferDone& result : results) {
      note(result.status);
      for (const LeasedSlot& l : result.device_leases) {
        is_ok_ = is_ok_ && pools_->drop_lease(l.component, DeviceSlot(l.slot), l.generation).is_ok();
      }
      for (const LeasedSlot& l : result.host_leases) {
        is_ok_ = is_ok_ && host_->drop_lease(l.component, HostSlot(l.slot), l.generation).is_ok();
      }
    }
    return ended;
  }
  // Prints the first error.
  void note(const Status& status) {
    if (!status.is_ok() && is_ok_) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    is_ok_ = is_ok_ && status.is_ok();
  }

  const std::unique_ptr<CudaDevice> device_;
  CudaDriver& driver_;
  const ModelSpec model_;
  std::size_t bytes_ = 0;
  std::unique_ptr<DevicePools> pools_;
  std::unique_ptr<HostPools> host_;
  Ends ends_;
  std::size_t submitted_ = 0;               // whose ends nobody has waited for
  std::unique_ptr<TransferEngine> engine_;  // its end calls ends_
  Step load_, store_;
  bool is_ok_ = true;
};

}  // namespace larder::cuda_bench
