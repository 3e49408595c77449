#include "bench/bench_transfer_cuda.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "sim/sim_cuda_driver.h"
#include "transfer/transfer.h"

namespace larder {
namespace {

constexpr int kCudaRuns = 5;
constexpr auto kLimit = std::chrono::seconds(30);
using Pairs = std::array<std::vector<SlotPair>, kComponentCount>;

double elapsed_seconds(TimePoint begin) { return std::chrono::duration<double>(real_clock().now() - begin).count(); }

void spin(Nanos duration) {
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
ModelSpec model_with_pieces(std::size_t piece, std::uint32_t layers) {
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

  Speeds measure() {
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    Speeds speeds;
    speeds.store = gigabytes / median_seconds([&] { return run({store_}); });
    speeds.load = gigabytes / median_seconds([&] { return run({load_}); });
    speeds.both = 2 * gigabytes / median_seconds([&] { return run({load_, store_}); });
    return speeds;
  }

  // What was stored from the first set and loaded into the second is the same.
  [[nodiscard]] bool is_right() {
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
  GatedLoad load_gated(CudaStream stream, std::size_t pages, std::chrono::milliseconds pause, Compute&& compute) {
    GatedLoad out;
    Step step = load_;
    step.pairs[0].resize(std::min(pages, step.pairs[0].size()));
    const auto gate = std::make_shared<LayerGate>(model_.layer_count());
    const TimePoint begin = real_clock().now();
    is_ok_ = is_ok_ && engine_->submit({OpId(1), step.direction, std::move(step.pairs), gate}, ends_.done()).is_ok();
    out.submit = elapsed_seconds(begin);
    spin(pause);
    LayerWaits waits(*gate, stream, kLimit);
    const TimePoint asked = real_clock().now();
    for (std::uint32_t layer = 0; layer < model_.layer_count(); ++layer) {
      is_ok_ = is_ok_ && waits.before(layer).is_ok();
      if (layer == 0) out.first_wait = elapsed_seconds(asked);
      compute(layer);
    }
    out.waits = elapsed_seconds(asked);  // where the engine computes nothing
    is_ok_ = is_ok_ && driver_.synchronize(stream).is_ok();
    out.total = elapsed_seconds(begin);
    settle(ends_.wait(1));
    return out;
  }
  [[nodiscard]] bool is_ok() const { return is_ok_; }

 private:
  struct Step {
    CopyDirection direction = CopyDirection::kHostToDevice;
    Pairs pairs;
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
      if (step.direction != CopyDirection::kDeviceToHost) {
        requests.back().gate = std::make_shared<LayerGate>(model_.layer_count());  // layer by layer, as in production
      }
    }
    const TimePoint begin = real_clock().now();
    for (TransferRequest& request : requests) {
      is_ok_ = is_ok_ && engine_->submit(std::move(request), ends_.done()).is_ok();
    }
    const std::vector<TransferDone> results = ends_.wait(steps.size());
    const double seconds = elapsed_seconds(begin);
    settle(results);
    return seconds;
  }
  void settle(const std::vector<TransferDone>& results) {
    for (const TransferDone& result : results) {
      if (!result.status.is_ok() && is_ok_) std::fprintf(stderr, "%s\n", result.status.to_string().c_str());
      is_ok_ = is_ok_ && result.status.is_ok();
      for (const LeasedSlot& l : result.device_leases) {
        is_ok_ = is_ok_ && pools_->drop_lease(l.component, DeviceSlot(l.slot), l.generation).is_ok();
      }
      for (const LeasedSlot& l : result.host_leases) {
        is_ok_ = is_ok_ && host_->drop_lease(l.component, HostSlot(l.slot), l.generation).is_ok();
      }
    }
  }

  const std::unique_ptr<CudaDevice> device_;
  CudaDriver& driver_;
  const ModelSpec model_;
  std::size_t bytes_ = 0;
  std::unique_ptr<DevicePools> pools_;
  std::unique_ptr<HostPools> host_;
  std::unique_ptr<TransferEngine> engine_;
  Step load_, store_;
  Ends ends_;
  bool is_ok_ = true;
};

// What a gated load costs an engine. Launches that copy within the device stand for the engine's compute.
class GateBench {
 public:
  GateBench(PagesBench& bench, CudaDriver& driver, CudaDevice& device, CudaStream stream)
      : bench_(bench), driver_(driver), device_(device), stream_(stream), layers_(bench.model().layer_count()) {}

  Status run(std::size_t kib, bool is_simulated) {
    auto scratch = device_.memory().allocate(bench_.bytes());
    auto list = device_.host_memory().allocate(sizeof(CopyPair));
    if (!scratch || !list) return !scratch ? scratch.status() : list.status();
    scratch_ = std::move(scratch).value();
    list_ = std::move(list).value();
    LARDER_RETURN_IF_ERROR(driver_.bind_thread());
    const std::vector<PagesBench::GatedLoad> at_once = load_some(std::chrono::milliseconds(0));
    const std::vector<PagesBench::GatedLoad> later = load_some(std::chrono::milliseconds(10));
    const auto waits = [](const auto& l) { return l.waits; };
    const double load = median(at_once, [](const auto& l) { return l.total; });
    std::printf("%6u %4zu KiB | %7.1f %7.1f %8.1f %7.1f | %7.2f |", layers_, kib,
                median(later, [](const auto& l) { return l.submit; }) * 1e6, median(later, waits) * 1e6,
                median(at_once, waits) * 1e6, median(at_once, [](const auto& l) { return l.first_wait; }) * 1e6,
                load * 1e3);
    for (const bool is_whole_device : {true, false}) {
      is_whole_device_ = is_whole_device;
      const double alone = make_compute_as_long_as(load, is_simulated ? 0 : 3);
      const double together = median_seconds([&] {
        return bench_
            .load_gated(stream_, kAllPages, std::chrono::milliseconds(0), [&](std::uint32_t) { compute_layer(); })
            .total;
      });
      std::printf(" %8.2f %8.2f %5.1f%% %s", alone * 1e3, together * 1e3, (together / std::max(load, alone) - 1) * 100,
                  is_whole_device ? "|" : "\n");
    }
    if (failed_.is_ok() && !bench_.is_ok()) failed_ = internal_error("a gated load failed");
    return failed_;
  }

 private:
  static constexpr std::size_t kAllPages = std::size_t{1} << 40;

  std::vector<PagesBench::GatedLoad> load_some(std::chrono::milliseconds pause) {
    constexpr int kLoads = 9;
    std::vector<PagesBench::GatedLoad> loads;
    for (int run = 0; run <= kLoads; ++run) {
      spin(std::chrono::milliseconds(2));  // the threads of the device go to sleep, as before a load
      loads.push_back(bench_.load_gated(stream_, kAllPages, pause, [](std::uint32_t) {}));
    }
    loads.erase(loads.begin());
    return loads;
  }
  template <class Field>
  static double median(const std::vector<PagesBench::GatedLoad>& loads, Field&& field) {
    std::vector<double> values;
    for (const auto& load : loads) values.push_back(field(load));
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  // Seconds that it takes then.
  double make_compute_as_long_as(double seconds, int rounds) {
    const auto alone = [&] {
      return median_seconds([&] {
        const TimePoint begin = real_clock().now();
        for (std::uint32_t layer = 0; layer < layers_; ++layer) compute_layer();
        if (Status synced = driver_.synchronize(stream_); !synced.is_ok()) failed_ = synced;
        return elapsed_seconds(begin);
      });
    };
    layer_bytes_ = static_cast<double>(bench_.bytes()) / layers_;
    double now = alone();
    for (int i = 0; i < rounds; ++i) {
      layer_bytes_ *= seconds / now;
      now = alone();
    }
    return now;
  }
  void compute_layer() {
    const auto most = static_cast<double>(scratch_->size() / 2);
    for (double left = layer_bytes_; left > 0; left -= most) compute(static_cast<std::size_t>(std::min(left, most)));
  }
  void compute(std::size_t bytes) {
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
    // The whole device: blocks come and go, as those of most kernels do, and others find a place between them.
    const std::uint32_t blocks = is_whole_device_ ? launch.tile_count / 32 : driver_.facts().processors;
    if (Status launched = driver_.launch(launch, std::max(blocks, 1U), stream_); !launched.is_ok()) failed_ = launched;
  }

  PagesBench& bench_;
  CudaDriver& driver_;
  CudaDevice& device_;
  const CudaStream stream_;
  const std::uint32_t layers_;
  std::unique_ptr<Memory> scratch_, list_;
  double layer_bytes_ = 0;
  bool is_whole_device_ = true;
  Status failed_;
};

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
    std::printf("transfer: %s, %zu MiB at a time, slots in random order, median of %d runs\n",
                driver_.facts().name.c_str(), options_.mebibytes, kCudaRuns);
    Status ended = run_contiguous();
    if (ended.is_ok()) ended = run_layouts();
    if (ended.is_ok() && options_.with_gates) ended = run_gates();
    (void)driver_.destroy_stream(stream_);
    (void)driver_.destroy_stream(second_);
    return ended;
  }

 private:
  Status run_contiguous() {
    const std::size_t bytes = options_.mebibytes << 20;
    auto host = device_.host_memory().allocate(2 * bytes);
    if (!host) return host.status();
    auto device = device_.memory().allocate(2 * bytes);
    if (!device) return device.status();
    Status failed;
    // Cut where the registrations end, as everything that copies from them must be.
    const auto copy = [&](CopyDirection direction, CudaStream stream) {
      const std::size_t piece = options_.device.pinned_piece_bytes;
      const std::size_t half = direction == CopyDirection::kDeviceToHost ? bytes : 0;
      for (std::size_t at = half; at < half + bytes;) {
        const std::size_t size = std::min(half + bytes - at, piece - at % piece);
        CudaCopy c{(*device)->data() + at, (*host)->data() + at, size};
        if (half != 0) c = {(*host)->data() + at, (*device)->data() + at, size};
        if (Status s = driver_.copy({&c, 1}, stream); !s.is_ok()) failed = s;
        at += size;
      }
    };
    const auto time = [&](bool is_load, bool is_store) {
      return median_seconds([&] {
        const TimePoint begin = real_clock().now();
        if (is_load) copy(CopyDirection::kHostToDevice, stream_);
        if (is_store) copy(CopyDirection::kDeviceToHost, second_);
        for (const CudaStream s : {stream_, second_}) {
          if (Status synced = driver_.synchronize(s); !synced.is_ok()) failed = synced;
        }
        return elapsed_seconds(begin);
      });
    };
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    best_ = {gigabytes / time(true, false), gigabytes / time(false, true), 2 * gigabytes / time(true, true)};
    std::printf("%-18s %8s | %7s %5s | %7s %5s | %7s %5s | %s\n", "layout", "piece", "load", "", "store", "", "both",
                "", "load, one copy a piece");
    std::printf("%-18s %8s | %7.2f %5s | %7.2f %5s | %7.2f %5s | GB/s, parts of contiguous\n", "contiguous, pinned",
                "-", best_.load, "1.00", best_.store, "1.00", best_.both, "1.00");
    return failed;
  }

  Status run_layouts() {
    for (const HostLayout layout : options_.layouts) {
      for (const std::size_t kib : options_.kibibytes) {
        auto bench = PagesBench::create(shared_driver_, options_.device, model_with_pieces(kib << 10, 32), layout,
                                        options_.mebibytes << 20);
        if (!bench) return bench.status();
        const Speeds speeds = (*bench)->measure();
        std::string alone;
        if (layout == HostLayout::kPageFirstDirect) {
          const double seconds = median_seconds([&] { return (*bench)->copy_piece_by_piece(stream_); }, 1);
          char text[32];
          std::snprintf(text, sizeof text, "%.2f", static_cast<double>((*bench)->bytes()) / 1e9 / seconds);
          alone = text;
        }
        std::printf("%-18s %4zu KiB | %7.2f %5.2f | %7.2f %5.2f | %7.2f %5.2f | %s\n",
                    std::string(host_layout_name(layout)).c_str(), kib, speeds.load, speeds.load / best_.load,
                    speeds.store, speeds.store / best_.store, speeds.both, speeds.both / best_.both, alone.c_str());
        if (!(*bench)->is_right()) return internal_error("a copy failed or is wrong");
      }
    }
    return Status::ok();
  }

  Status run_gates() {
    std::printf(
        "\ngated load: host time of the engine's thread in us: submit; all waits, 10 ms later; all waits, at once "
        "(until the copies are launched), and the first of them. Times in ms, alone and beside compute of equal "
        "length that takes all of the device's memory bandwidth, or one block of each multiprocessor\n");
    std::printf("%6s %8s | %7s %7s %8s %7s | %7s | %8s %8s %6s | %8s %8s %6s\n", "layers", "piece", "submit", "waits",
                "at once", "first", "load", "compute", "both", "adds", "compute", "both", "adds");
    for (const std::size_t kib : {16, 128}) {
      for (const std::uint32_t layers : {16U, 32U, 64U, 128U}) {
        auto bench = PagesBench::create(shared_driver_, options_.device, model_with_pieces(kib << 10, layers),
                                        HostLayout::kPageFirstDirect, options_.mebibytes << 20);
        if (!bench) return bench.status();
        LARDER_RETURN_IF_ERROR(GateBench(**bench, driver_, device_, stream_).run(kib, options_.is_simulated));
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
