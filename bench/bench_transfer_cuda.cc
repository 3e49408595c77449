// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_transfer_cuda.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "bench/bench_cuda_gates.h"
#include "bench/bench_cuda_pages.h"
#include "sim/sim_cuda_driver.h"

namespace larder {
namespace {

using namespace cuda_bench;

constexpr std::uint32_t kLayers = 32;

// The bench copies whole pages, one at least.
std::size_t largest_page(const CudaBenchOptions& options) {
  std::size_t bytes = options.with_gates ? largest_gated_page() : 0;
  for (const std::size_t kib : options.kibibytes) {
    bytes = std::max(bytes, model_with_pieces(kib << 10, kLayers).pools[0].page_bytes());
  }
  return bytes;
}

class CudaBench {
 public:
  CudaBench(const CudaBenchOptions& options, const std::shared_ptr<CudaDriver>& driver, CudaDevice& device)
      : options_(options), shared_driver_(driver), driver_(*driver), device_(device) {}

  Status run() {
    auto stream = driver_.create_stream();
    if (!stream) return stream.status();
    stream_ = *stream;
    auto second = driver_.create_stream();
    if (!second) return second.status();
    second_ = *second;
    std::printf(
        "transfer: %s, %zu MiB at a time, slots in random order, median of %d runs; load: layer by layer; whole: in "
        "any "
        "order; both: with a store\n",
        driver_.facts().name.c_str(), options_.mebibytes, kCudaRuns);
    Status ended = run_contiguous();
    if (ended.is_ok()) ended = run_layouts();
    if (ended.is_ok() && options_.with_gates) {
      ended = run_gated_loads({options_.device, options_.is_simulated, options_.mebibytes << 20}, shared_driver_,
                              device_, stream_);
    }
    (void)driver_.destroy_stream(stream_);
    (void)driver_.destroy_stream(second_);
    return ended;
  }

 private:
  Status run_contiguous() {
    const std::size_t bytes = options_.mebibytes << 20;
    auto made = ContiguousCopies::create(driver_, device_, bytes, options_.device.pinned_piece_bytes);
    if (!made) return made.status();
    Status failed;
    const auto time = [&](bool is_load, bool is_store) {
      return median_seconds([&] {
        const TimePoint begin = real_clock().now();
        if (is_load) failed = made->load(0, bytes, stream_);
        if (is_store && failed.is_ok()) failed = made->store(second_);
        for (const CudaStream s : {stream_, second_}) {
          if (Status synced = driver_.synchronize(s); !synced.is_ok()) failed = synced;
        }
        return elapsed_seconds(begin);
      });
    };
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    best_ = {gigabytes / time(true, false), gigabytes / time(false, true), 2 * gigabytes / time(true, true)};
    std::printf("%-18s %8s | %7s %5s | %7s %5s | %7s %5s | %7s %5s | %7s %5s | %s\n", "layout", "piece", "store", "",
                "load", "", "both", "", "whole", "", "both", "", "load, one copy a piece");
    std::printf("%-18s %8s | %7.2f %5s | %7.2f %5s | %7.2f %5s | %7s %5s | %7s %5s | GB/s, parts of contiguous\n",
                "contiguous, pinned", "-", best_.store, "1.00", best_.load, "1.00", best_.both, "1.00", "", "", "", "");
    return failed;
  }

  Status run_layouts() {
    for (const HostLayout layout : options_.layouts) {
      for (const std::size_t kib : options_.kibibytes) {
        auto bench = PagesBench::create(shared_driver_, options_.device, model_with_pieces(kib << 10, kLayers), layout,
                                        options_.mebibytes << 20);
        if (!bench) return bench.status();
        const Speeds layers = (*bench)->measure(true), whole = (*bench)->measure(false);
        std::string alone;
        if (layout == HostLayout::kPageFirstDirect) {
          const double seconds = median_seconds([&] { return (*bench)->copy_piece_by_piece(stream_); }, 1);
          char text[32];
          std::snprintf(text, sizeof text, "%.2f", static_cast<double>((*bench)->bytes()) / 1e9 / seconds);
          alone = text;
        }
        std::printf("%-18s %4zu KiB |", std::string(host_layout_name(layout)).c_str(), kib);
        for (const auto& [speed, best] : {std::pair{layers.store, best_.store}, std::pair{layers.load, best_.load},
                                          std::pair{layers.both, best_.both}, std::pair{whole.load, best_.load},
                                          std::pair{whole.both, best_.both}}) {
          std::printf(" %7.2f %5.2f |", speed, speed / best);
        }
        std::printf(" %s\n", alone.c_str());
        if (!(*bench)->is_right(true) || !(*bench)->is_right(false)) return internal_error("a copy failed or is wrong");
      }
    }
    return Status::ok();
  }

  const CudaBenchOptions& options_;
  const std::shared_ptr<CudaDriver> shared_driver_;
  CudaDriver& driver_;
  CudaDevice& device_;
  CudaStream stream_ = nullptr, second_ = nullptr;
  Speeds best_;
};

}  // namespace

int run_cuda_transfer_bench(const CudaBenchOptions& options) {
  // The simulated driver measures nothing, so that there a page more than was asked for is no wrong figure.
  const std::size_t least = (largest_page(options) + (std::size_t{1} << 20) - 1) >> 20;
  if (!options.is_simulated && options.mebibytes < least) {
    std::fprintf(
        stderr,
        "larder bench transfer: MEBIBYTES: %zu is less than %zu, the largest page that is copied (smaller with "
        "--piece and --no-gates)\n",
        options.mebibytes, least);
    return 2;
  }
  std::shared_ptr<CudaDriver> driver;
  if (options.is_simulated) {
    driver = std::make_shared<sim::SimCudaDriver>(sim::SimCudaOptions{.seed = 1, .memory_bytes = std::size_t{8} << 30});
  } else if (auto opened = open_cuda_driver(options.device.ordinal); opened.is_ok()) {
    driver = std::move(opened).value();
  } else {
    std::fprintf(stderr, "larder bench transfer: %s\n", opened.status().to_string().c_str());
    return 1;
  }
  auto device = CudaDevice::create(driver, options.device);
  Status ended = device.status();
  if (device.is_ok()) ended = CudaBench(options, driver, **device).run();
  if (ended.is_ok()) return 0;
  std::fprintf(stderr, "larder bench transfer: %s\n", ended.to_string().c_str());
  return 1;
}

}  // namespace larder
