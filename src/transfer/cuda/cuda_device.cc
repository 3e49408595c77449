// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace larder {
namespace {

// An event of a capture would draw the copies that wait for it into the graph, and a wait for a load would end the
// capture.
Status check_not_captured(CudaDriver& driver, CudaStream stream) {
  LARDER_ASSIGN_OR_RETURN(const bool is_capturing, driver.is_capturing(stream));
  if (!is_capturing) return Status::ok();
  return invalid_argument(
      "the stream is being captured into a CUDA graph: wait for loads before the launch of the graph, and record the "
      "end of the step behind it");
}

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<CudaDriver> driver, const CudaOptions& options)
    : name_("cuda:" + std::to_string(options.ordinal)),
      staging_{options.staging_buffers,
               options.staging_bytes,
               options.store_engines_from,
               options.load_engines_from,
               options.least_load_steps,
               options.least_staged_bytes,
               options.least_staged_layerwise_bytes},
      gated_step_bytes_(options.gated_step_bytes),
      parts_{.driver = driver,
             .health = std::make_shared<CudaHealth>(),
             .events = std::make_shared<CudaEventPool>(driver),
             .pinned = std::make_shared<PinnedRanges>(driver, options.pinned_piece_bytes),
             .ring_memory = nullptr,
             .load_engines_from = options.load_engines_from,
             .store_engines_from = options.store_engines_from,
             .blocks = {options.store_blocks, options.load_blocks, options.device_blocks}},
      memory_(driver),
      host_memory_(parts_.pinned, numa_node_of(driver->facts().pci_address)) {
  parts_.ring_memory = &host_memory_;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(std::shared_ptr<CudaDriver> driver, const CudaOptions& options) {
  constexpr std::uint32_t kMostBlocks = 65'535;
  for (const std::uint32_t blocks : {options.load_blocks, options.store_blocks, options.device_blocks}) {
    if (blocks == 0 || blocks > kMostBlocks) return invalid_argument("a CUDA device copies with 1 to 65535 blocks");
  }
  if (options.pinned_piece_bytes == 0 || options.pinned_piece_bytes % 4096 != 0) {
    return invalid_argument("host memory is pinned in pieces of a multiple of 4096 bytes");
  }
  LARDER_ASSIGN_OR_RETURN(CudaStream stream, driver->create_stream());
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(driver), options));
  device->now_stream_ = stream;
  return device;
}

CudaDevice::~CudaDevice() {
  CudaDevice::synchronize();
  for (auto& stream : streams_) stream.reset();
  (void)parts_.driver->destroy_stream(now_stream_);  // fails only when the device is lost, and its streams with it
}

Result<StreamId> CudaDevice::create_stream(std::size_t queue_limit) {
  if (queue_limit == 0) return invalid_argument("a stream needs room for at least one entry");
  const auto free = std::find(streams_.begin(), streams_.end(), nullptr);
  if (free == streams_.end()) return overloaded("a device has at most " + std::to_string(kMaxStreams) + " streams");
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> stream, CopyStream::create(parts_, queue_limit));
  *free = std::move(stream);
  return static_cast<StreamId>(free - streams_.begin());
}

void CudaDevice::destroy_streams(std::span<const StreamId> streams) {
  drain(streams);
  for (const StreamId stream : streams) {
    if (has(stream)) streams_[stream].reset();
  }
}

Status CudaDevice::enqueue(StreamId stream, CopyDirection direction, StreamWork work) {
  if (!has(stream)) return invalid_argument("no stream " + std::to_string(stream));
  return streams_[stream]->enqueue(direction, std::move(work));
}

void CudaDevice::synchronize() {
  std::array<StreamId, kMaxStreams> all{};
  std::iota(all.begin(), all.end(), StreamId{0});
  drain(all);
}

void CudaDevice::drain(std::span<const StreamId> streams) {
  const auto each = [&](void (CopyStream::*call)()) {
    for (const StreamId stream : streams) {
      if (has(stream)) (*streams_[stream].*call)();
    }
  };
  each(&CopyStream::begin_draining);
  each(&CopyStream::wait_until_idle);
  each(&CopyStream::end_draining);
}

Status CudaDevice::copy_now(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes == 0) return Status::ok();
  Status ended;
  for (std::size_t done = 0; done < bytes && ended.is_ok();) {
    CudaCopy copy{dst + done, src + done, bytes - done};
    for (const std::byte* side : {static_cast<const std::byte*>(copy.dst), copy.src}) {
      const std::span<const std::byte> region = parts_.pinned->around(side);
      if (!region.empty()) copy.bytes = parts_.pinned->in_one_piece(region, side, copy.bytes);
    }
    ended = parts_.driver->copy({&copy, 1}, now_stream_);
    done += copy.bytes;
  }
  // Also after an error: nothing may run on when this returns.
  Status idle = parts_.driver->synchronize(now_stream_);
  if (ended.is_ok()) ended = std::move(idle);
  parts_.health->saw(ended);
  return ended;
}

Result<std::shared_ptr<DeviceEvent>> CudaDevice::record(CudaStream stream) {
  const Status asked = check_not_captured(*parts_.driver, stream);
  if (is_of_stream_alone(asked)) {
    return invalid_argument("the stream is not of this device, or was destroyed: " + asked.message());
  }
  LARDER_RETURN_IF_ERROR(asked);
  Result<std::shared_ptr<CudaEvent>> event = CudaEvent::record(parts_.events, stream);
  if (event.is_ok()) return std::shared_ptr<DeviceEvent>(std::move(event).value());
  // The stream answered, so its work may run: not kInvalidArgument, after which nobody would wait for it.
  if (is_of_stream_alone(event.status())) return internal_error(event.status().message());
  return event.status();
}

bool CudaDevice::is_of_stream_alone(const Status& failed) {
  if (failed.code() != StatusCode::kUnavailable) return false;
  if (parts_.driver->synchronize(now_stream_).is_ok()) return true;
  parts_.health->saw(failed);
  return false;
}

Result<std::unique_ptr<CudaDevice>> open_cuda_device(const CudaOptions& options) {
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<CudaDriver> driver, open_cuda_driver(options.ordinal));
  return CudaDevice::create(std::move(driver), options);
}

Status LayerWaits::before(std::uint32_t layer) {
  if (layer < covered_) return Status::ok();
  LARDER_ASSIGN_OR_RETURN(const LayerGate::Launch launch, gate_.launch_of(layer, limit_));
  if (launch.event != nullptr) {
    const auto* const event = dynamic_cast<const CudaEvent*>(launch.event.get());
    if (event == nullptr) return invalid_argument("the load is not one of a CUDA device");
    // Each time: an engine may capture some layers and not others.
    LARDER_RETURN_IF_ERROR(check_not_captured(event->driver(), stream_));
    LARDER_RETURN_IF_ERROR(event->make_wait(stream_));
  }
  covered_ = launch.end;
  return Status::ok();
}

}  // namespace larder
