// SPDX-License-Identifier: Apache-2.0
// Pages on a GPU: the Device port on CUDA.
//
// An engine that keeps Larder's books on its own stream needs three things of this file:
//
//   open_cuda_device()      before the pools: DevicePools from memory() or on lent planes, HostPools from host_memory()
//   CudaDevice::record()    after the launch of a step, for Cache::complete_step(..., over)
//   LayerWaits              before each layer of a step whose pages are still being loaded
//
//   const auto device = open_cuda_device({}).value();
//   ...
//   std::optional<LayerWaits> waits;
//   if (step.gate != nullptr) waits.emplace(*step.gate, stream, limit);  // null: nothing is being loaded
//   for (layer = 0; ...) { if (waits) LARDER_RETURN_IF_ERROR(waits->before(layer)); launch(layer, stream); }
//
// Threads: two for each stream that a TransferEngine makes. They sleep unless there is work.
// Lifetime: outlives the pools, the transfer engine and everything made from its memory sources.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "transfer/cuda/copy_stream.h"
#include "transfer/cuda/cuda_event.h"
#include "transfer/cuda/cuda_memory.h"
#include "transfer/cuda/driver.h"
#include "transfer/device.h"
#include "transfer/layer_gate.h"

namespace larder {

// The defaults were measured on an H200 (docs/cuda.md).
struct CudaOptions {
  int ordinal = 0;
  // Blocks of 256 threads that a copy by the kernel takes from the engine's multiprocessors: as few as fill the link.
  // More of them to the host would slow loads down.
  std::uint32_t load_blocks = 32;
  std::uint32_t store_blocks = 8;
  std::uint32_t device_blocks = 256;
  // The least bytes of a contiguous piece that the copy engines copy (CopyPlan).
  std::size_t load_engines_from = std::size_t{64} << 10;
  std::size_t store_engines_from = std::size_t{256} << 10;
  // Smaller pieces go by way of buffers on the device (StagedCopies), where as much is contiguous in a host slot. So
  // many for each direction; 0: straight.
  std::uint32_t staging_buffers = 2;
  std::size_t staging_bytes = std::size_t{64} << 20;                 // of each
  std::uint32_t least_load_steps = 16;                               // of a layerwise load that goes this way
  std::size_t least_staged_bytes = std::size_t{8} << 20;             // of a transfer that goes this way
  std::size_t least_staged_layerwise_bytes = std::size_t{32} << 20;  // ... layer by layer
  std::size_t gated_step_bytes = std::size_t{1}
                                 << 20;  // of a step of a layerwise load: a launch takes as long as 0.7 MiB
  // Host memory is pinned in pieces of this size.
  std::size_t pinned_piece_bytes = std::size_t{1} << 30;
};

class CudaDevice final : public Device {
 public:
  // kInvalidArgument: options; else as the driver says.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> create(std::shared_ptr<CudaDriver> driver,
                                                                  const CudaOptions& options);
  ~CudaDevice() override;

  [[nodiscard]] std::string_view name() const override { return name_; }  // "cuda:0"
  [[nodiscard]] MemorySource& memory() override { return memory_; }
  [[nodiscard]] MemorySource& host_memory() override { return host_memory_; }
  // Few launches: the link idles some 6 us between two, as long as copying 300 KiB.
  [[nodiscard]] std::size_t step_bytes() const override { return std::size_t{64} << 20; }
  // The wait for a step costs the engine's thread 0.3 to 0.6 us, and a step some 12 us where there is little to copy.
  [[nodiscard]] std::uint32_t most_gated_steps() const override { return 40; }
  [[nodiscard]] std::size_t gated_step_bytes() const override { return gated_step_bytes_; }
  [[nodiscard]] Staging staging() const override { return staging_; }
  [[nodiscard]] Result<StreamId> create_stream(std::size_t queue_limit) override;
  void destroy_streams(std::span<const StreamId> streams) override;
  [[nodiscard]] Status enqueue(StreamId stream, CopyDirection direction, StreamWork work) override;
  void synchronize() override;
  // By the copy engines; host memory need not be pinned.
  [[nodiscard]] Status copy_now(std::byte* dst, const std::byte* src, std::size_t bytes) override;
  [[nodiscard]] bool is_host_memory() const override { return false; }

  // An event at the end of what `stream` (of this device's primary context) has been given so far. On any thread. Cost:
  // 0.3 us. kInvalidArgument: the stream is being captured into a graph, was destroyed, or is of another device;
  // kUnavailable: the device is lost; else there is no event to be had, and what the stream has been given runs.
  [[nodiscard]] Result<std::shared_ptr<DeviceEvent>> record(CudaStream stream);
  // ok, or why the device is lost. Once lost it stays so: every copy ends with kUnavailable, and the cache misses.
  [[nodiscard]] Status health() const { return parts_.health->status(); }
  [[nodiscard]] const CudaFacts& facts() const { return parts_.driver->facts(); }
  [[nodiscard]] CudaDriver& driver() const { return *parts_.driver; }

 private:
  CudaDevice(std::shared_ptr<CudaDriver> driver, const CudaOptions& options);
  [[nodiscard]] bool has(StreamId stream) const { return stream < kMaxStreams && streams_[stream] != nullptr; }
  void drain(std::span<const StreamId> streams);
  // Of an error of a call with a stream of the engine's: it says that the device is lost, and Larder's own stream
  // lives. Where that is dead, too, the device is noted as lost.
  [[nodiscard]] bool is_of_stream_alone(const Status& failed);

  const std::string name_;
  const Staging staging_;
  const std::size_t gated_step_bytes_;
  CopyStreamParts parts_;
  CudaMemorySource memory_;
  PinnedMemorySource host_memory_;
  std::array<std::unique_ptr<CopyStream>, kMaxStreams> streams_;  // owned by the cache thread; null: a free place
  CudaStream now_stream_ = nullptr;                               // of copy_now(); says whether the device lives
};

// Opens the driver and makes the device. Errors: as open_cuda_driver() and CudaDevice::create().
[[nodiscard]] Result<std::unique_ptr<CudaDevice>> open_cuda_device(const CudaOptions& options);

// Makes one stream of an engine wait, layer by layer, for a load that is under way. The host waits only until the
// copies of a layer have been launched, never for the copies themselves. Launching is faster than the link
// (docs/cuda.md).
//
// A step in a CUDA graph: call before(last layer) before the launch of the graph, or cut the graph at layers. On a
// stream that is being captured before() is kInvalidArgument, and the capture goes on.
// Threads: one. Lifetime: of one step. Cost: 0.3 us per step of the load (at most 40), whatever the number of layers.
class LayerWaits {
 public:
  // limit: how long the host waits for a launch.
  LayerWaits(const LayerGate& gate, CudaStream stream, std::chrono::nanoseconds limit)
      : gate_(gate), stream_(stream), limit_(limit) {}
  // What is launched on the stream from now on finds layers 0..layer on the device. kDeadlineExceeded: not launched
  // within the limit; else the error of the load: the layer must not be computed from its pages.
  [[nodiscard]] Status before(std::uint32_t layer);

 private:
  const LayerGate& gate_;
  const CudaStream stream_;
  const std::chrono::nanoseconds limit_;
  std::uint32_t covered_ = 0;  // layers that the stream already waits for
};

}  // namespace larder
