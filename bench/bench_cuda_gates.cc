// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_cuda_gates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "bench/bench_compute.h"
#include "bench/bench_cuda_pages.h"

namespace larder {
namespace {

using namespace cuda_bench;

constexpr std::size_t kAllPages = std::size_t{1} << 40;
constexpr std::uint32_t kAhead = 4;
constexpr std::array<std::size_t, 3> kKibibytes{16, 64, 128};  // of a piece
constexpr std::array<std::uint32_t, 4> kGatedLayers{16, 32, 64, 128};

// An engine's compute of one layer, of a length that can be set.
class LayerCompute {
 public:
  enum class Kind : unsigned char { kArithmetic, kLargeBlocks, kBandwidth };
  static constexpr std::array kKinds{Kind::kArithmetic, Kind::kLargeBlocks, Kind::kBandwidth};

  [[nodiscard]] static Result<std::unique_ptr<LayerCompute>> create(CudaDriver& driver, CudaDevice& device,
                                                                    CudaStream stream, bool is_simulated) {
    constexpr std::size_t kScratch = std::size_t{1} << 30;
    auto compute = std::unique_ptr<LayerCompute>(new LayerCompute(driver, stream));
    auto scratch = device.memory().allocate(is_simulated ? std::size_t{1} << 20 : kScratch);
    if (!scratch) return scratch.status();
    auto list = device.host_memory().allocate(sizeof(CopyPair));
    if (!list) return list.status();
    compute->scratch_ = std::move(scratch).value();
    compute->list_ = std::move(list).value();
    if (is_simulated) return compute;
    auto kernel = ComputeKernel::load();
    if (!kernel) return kernel.status();
    compute->kernel_ = *kernel;
    return compute;
  }

  // A layer's length becomes an amount that makes `layers` of them take so long. Returns how long they do take.
  Result<double> make_last(Kind kind, std::uint32_t layers, double seconds) {
    kind_ = kind;
    amount_ = 1e6;
    double now = 0;
    constexpr int kRounds = 4;
    for (int i = 0; i <= kRounds; ++i) {
      if (i > 0) amount_ *= seconds / now;
      Status failed;
      now = median_seconds([&] {
        const TimePoint begin = real_clock().now();
        for (std::uint32_t layer = 0; layer < layers && failed.is_ok(); ++layer) failed = run();
        if (failed.is_ok()) failed = driver_.synchronize(stream_);
        return elapsed_seconds(begin);
      });
      LARDER_RETURN_IF_ERROR(failed);
    }
    return now;
  }
  // Launches a layer.
  [[nodiscard]] Status run() {
    const std::uint32_t processors = driver_.facts().processors;
    if (kernel_ && kind_ == Kind::kArithmetic) {
      constexpr std::uint32_t kBlocks = 128;  // for each processor, which holds eight of them: blocks come and go
      return kernel_->launch(stream_, processors * kBlocks, rounds(kBlocks));
    }
    if (kernel_ && kind_ == Kind::kLargeBlocks) return kernel_->launch_large(stream_, processors, rounds(1));
    const std::size_t most = scratch_->size() / 2;
    for (double left = amount_; left > 0; left -= static_cast<double>(most)) {
      LARDER_RETURN_IF_ERROR(copy(std::min(most, static_cast<std::size_t>(left) + 1)));
    }
    return Status::ok();
  }

 private:
  LayerCompute(CudaDriver& driver, CudaStream stream) : driver_(driver), stream_(stream) {}
  [[nodiscard]] std::uint32_t rounds(std::uint32_t blocks) const {
    return static_cast<std::uint32_t>(std::max(amount_ / 1e3 / blocks, 1.0));
  }
  // Within the device, with blocks that come and go, as fast as its memory allows.
  [[nodiscard]] Status copy(std::size_t bytes) {
    auto* const pair = reinterpret_cast<CopyPair*>(list_->data());
    *pair = {scratch_->data(), scratch_->data() + scratch_->size() / 2};
    CopyLaunch launch{};
    launch.pairs = pair;
    launch.group_count = 1;
    CopyGroup& g = launch.groups[0];
    g.pair_count = 1;
    g.width = static_cast<std::uint32_t>(std::max<std::size_t>(bytes / kTileBytes * kTileBytes, kTileBytes));
    g.rows = 1;
    g.vector = 16;
    cut_into_tiles(g);
    launch.tile_count = g.tiles_per_pair;
    return driver_.launch(launch, std::max(launch.tile_count / 32, 1U), stream_);
  }

  CudaDriver& driver_;
  const CudaStream stream_;
  std::unique_ptr<Memory> scratch_, list_;
  std::optional<ComputeKernel> kernel_;  // none: simulated
  Kind kind_ = Kind::kArithmetic;
  double amount_ = 0;
};

class GateBench {
 public:
  GateBench(const GateBenchOptions& options, const std::shared_ptr<CudaDriver>& driver, CudaDevice& device,
            CudaStream stream)
      : options_(options), shared_driver_(driver), driver_(*driver), device_(device), stream_(stream) {}

  Status run() {
    LARDER_RETURN_IF_ERROR(driver_.bind_thread());
    auto compute = LayerCompute::create(driver_, device_, stream_, options_.is_simulated);
    if (!compute) return compute.status();
    compute_ = std::move(compute).value();
    std::printf(
        "\ngated load of %zu MiB\n"
        "host time of the engine's thread in us: submit; all waits, 10 ms later; all waits, at once (until the copies "
        "are launched), and the first of them; instead of the waits: the post of the step to a launcher\n"
        "then the load alone in ms, and what both take and what that adds for each kind of compute of equal length: "
        "arithmetic; the same in one large block a multiprocessor; the device's memory bandwidth\n",
        options_.bytes >> 20);
    std::printf("%6s %11s | %7s %7s %8s %7s %5s | %6s | %6s %6s | %6s %6s | %6s %6s\n", "layers", "piece", "submit",
                "waits", "at once", "first", "post", "load", "arith.", "adds", "large", "adds", "memory", "adds");
    for (const std::uint32_t steps : {16U, 32U, 64U}) LARDER_RETURN_IF_ERROR(run_contiguous(steps));
    for (const std::size_t kib : kKibibytes) {
      for (const std::uint32_t layers : kGatedLayers) {
        auto bench = PagesBench::create(shared_driver_, options_.device, model_with_pieces(kib << 10, layers),
                                        HostLayout::kLayerFirst, options_.bytes);
        if (!bench) return bench.status();
        LARDER_RETURN_IF_ERROR(run_pages(**bench, kib));
      }
    }
    return Status::ok();
  }

 private:
  // What a machine gives: one copy and one event a step, and no lists.
  Status run_contiguous(std::uint32_t steps) {
    auto copies = ContiguousCopies::create(driver_, device_, options_.bytes, options_.device.pinned_piece_bytes);
    if (!copies) return copies.status();
    auto stream = driver_.create_stream();
    if (!stream) return stream.status();
    std::vector<CudaEventHandle> events;
    for (std::uint32_t step = 0; step < steps; ++step) {
      auto event = driver_.create_event();
      if (!event) return event.status();
      events.push_back(*event);
    }
    Status failed;
    const auto load = [&](const std::function<Status()>& layer) {
      const auto tried = [&](Status status) {
        if (failed.is_ok()) failed = std::move(status);
      };
      const TimePoint begin = real_clock().now();
      const std::size_t bytes = options_.bytes / steps;
      // Copies are given some steps ahead: a thread that gives many at once waits for the driver.
      for (std::uint32_t step = 0; step < steps + kAhead; ++step) {
        if (step < steps) {
          tried(copies->load(step * bytes, bytes, *stream));
          tried(driver_.record(events[step], *stream));
        }
        if (step < kAhead) continue;
        tried(driver_.wait(stream_, events[step - kAhead]));
        tried(layer());
      }
      tried(driver_.synchronize(stream_));
      return elapsed_seconds(begin);
    };
    std::printf("%6u %11s | %7s %7s %8s %7s %5s |", steps, "contiguous", "", "", "", "", "");
    Status ended = run_computes(steps, load);
    for (const CudaEventHandle event : events) (void)driver_.destroy_event(event);
    (void)driver_.destroy_stream(*stream);
    return ended.is_ok() ? failed : ended;
  }

  Status run_pages(PagesBench& bench, std::size_t kib) {
    const std::uint32_t layers = bench.model().layer_count();
    const auto load = [&](std::chrono::milliseconds pause) {
      return bench.load_gated(stream_, kAllPages, pause, [] { return Status::ok(); });
    };
    const auto checked = [&] { return bench.is_ok() ? Status::ok() : internal_error("a gated load failed"); };
    const auto at_once = repeat([&] { return load(std::chrono::milliseconds(0)); });
    LARDER_RETURN_IF_ERROR(checked());
    const auto later = repeat([&] { return load(std::chrono::milliseconds(10)); });
    LARDER_RETURN_IF_ERROR(checked());
    auto launcher = StepLauncher::create(bench.device(), stream_, 1, kLimit);
    if (!launcher) return launcher.status();
    const auto posts = repeat([&] { return bench.post_gated(**launcher, stream_); });
    LARDER_RETURN_IF_ERROR(checked());
    const auto waits = [](const auto& l) { return l.waits; };
    std::printf("%6u %7zu KiB | %7.1f %7.1f %8.1f %7.1f %5.1f |", layers, kib,
                median(later, [](const auto& l) { return l.submit; }) * 1e6, median(later, waits) * 1e6,
                median(at_once, waits) * 1e6, median(at_once, [](const auto& l) { return l.first_wait; }) * 1e6,
                median(posts, [](double post) { return post; }) * 1e6);
    LARDER_RETURN_IF_ERROR(run_computes(layers, [&](const std::function<Status()>& layer) {
      return bench.load_gated(stream_, kAllPages, std::chrono::milliseconds(0), layer).total;
    }));
    return checked();
  }

  // load(layer): seconds of a load with layer() behind each of its layers.
  template <class Load>
  Status run_computes(std::uint32_t layers, Load&& load) {
    const double alone = median_seconds([&] { return load([] { return Status::ok(); }); });
    std::printf(" %6.2f |", alone * 1e3);
    for (const LayerCompute::Kind kind : LayerCompute::kKinds) {
      Result<double> compute = options_.is_simulated ? Result<double>(alone) : compute_->make_last(kind, layers, alone);
      if (!compute) return compute.status();
      const double both = median_seconds([&] { return load([&] { return compute_->run(); }); });
      std::printf(" %6.2f %5.1f%% %s", both * 1e3, (both / std::max(alone, *compute) - 1) * 100,
                  kind == LayerCompute::kKinds.back() ? "\n" : "|");
    }
    return Status::ok();
  }

  // What nine loads took; one before them warms up.
  template <class Load>
  static std::vector<std::invoke_result_t<Load>> repeat(Load&& load) {
    constexpr int kLoads = 9;
    std::vector<std::invoke_result_t<Load>> loads;
    for (int run = 0; run <= kLoads; ++run) {
      spin(std::chrono::milliseconds(2));  // the threads of the device go to sleep, as before a load
      loads.push_back(load());
    }
    loads.erase(loads.begin());
    return loads;
  }
  template <class Load, class Field>
  static double median(const std::vector<Load>& loads, Field&& field) {
    std::vector<double> values;
    for (const Load& load : loads) values.push_back(field(load));
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  const GateBenchOptions& options_;
  const std::shared_ptr<CudaDriver> shared_driver_;
  CudaDriver& driver_;
  CudaDevice& device_;
  const CudaStream stream_;
  std::unique_ptr<LayerCompute> compute_;
};

}  // namespace

std::size_t largest_gated_page() {
  return model_with_pieces(kKibibytes.back() << 10, kGatedLayers.back()).pools[0].page_bytes();
}

Status run_gated_loads(const GateBenchOptions& options, const std::shared_ptr<CudaDriver>& driver, CudaDevice& device,
                       CudaStream stream) {
  return GateBench(options, driver, device, stream).run();
}

}  // namespace larder
