// SPDX-License-Identifier: Apache-2.0
// What a device must be able to do so that pages can be copied to and from it. Shaped after CUDA streams and events
// (transfer/cuda/: enqueue = a gather kernel or the copy engines, after = cuStreamWaitEvent); the CPU device runs each
// stream as a serial queue on an executor.
//
// Threads: all calls from one thread (the cache thread) except where noted. Errors: kUnavailable when the device is
// gone; an error of a copy surfaces at its event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/status.h"
#include "pool/memory.h"
#include "transfer/device_event.h"

namespace larder {

enum class CopyDirection : std::uint8_t { kDeviceToHost, kHostToDevice, kDeviceToDevice };

// `rows` pieces of `width` bytes; consecutive pieces are a pitch apart (pitch == width: one contiguous copy).
struct CopyOp {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t dst_pitch = 0;
  std::size_t src_pitch = 0;
};

// How copies between device and host go by way of buffers on the device (transfer/staged_copies.h).
struct Staging {
  std::uint32_t buffers = 0;     // for each direction; 0: they do not
  std::size_t buffer_bytes = 0;  // of each
  // Bytes that are contiguous on the host and worth a copy over the link; of a layerwise load on the average.
  std::size_t store_from = 0;
  std::size_t load_from = 0;
  // A layerwise load is cut into at least so many steps, where the model has as many layers: who needs a layer waits
  // for the whole step that it is in.
  std::uint32_t least_load_steps = 1;
  // Of a transfer, and of a layerwise one: smaller ones go straight.
  std::size_t least_bytes = 0;
  std::size_t least_layerwise_bytes = 0;
};

using StreamId = std::uint32_t;
inline constexpr std::size_t kMaxStreams = 16;

// One entry of a stream: rounds of copies, each followed by a callback. Its steps run one after the other and before
// anything that was enqueued later. Either function may be empty.
struct StreamWork {
  std::uint32_t steps = 1;  // at least 1
  // The entry, and all behind it in the stream, begin once this has fired. Null: at once. The event is of work that was
  // launched before the entry is enqueued, so that no two can wait for each other.
  std::shared_ptr<DeviceEvent> after{};
  // Where set: asked when a step's turn comes; the copies of the step wait for the event that it returns, if any. May
  // wait for other streams' threads. Only for devices that ask for staging (Device::staging).
  std::function<std::shared_ptr<DeviceEvent>(std::uint32_t step)> step_after{};
  // Appends the copies of a step. Called once for each, when its turn comes, on the thread that runs the stream: the
  // list of a large batch is made where it is used, in warm memory, and not on the cache thread. What it reads must
  // stay unchanged until `done` of the step (leased slots do).
  std::function<void(std::uint32_t step, std::vector<CopyOp>&)> make_ops;
  // Devices whose streams run without the host call this once the copies of a step are on the stream, and before `done`
  // of the step: who reads the bytes lets a stream of his wait for the event. Not called for a step that failed
  // by then, nor for those behind it. On any thread; must be short; must not call the device.
  std::function<void(std::uint32_t step, std::shared_ptr<DeviceEvent>)> launched{};
  // Called once the copies of this step, hence of all before it, have completed (or failed: its status). On any thread;
  // must be short; must not call the device.
  std::function<void(std::uint32_t step, Status)> done;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  [[nodiscard]] virtual MemorySource& memory() = 0;
  // Where host memory comes from that the device copies to and from: for a GPU, pinned.
  [[nodiscard]] virtual MemorySource& host_memory() { return host_memory_source(); }
  // Bytes that are worth a step where nobody waits for its end. CPU: a step costs 1-2 us, as long as copying 10 KiB.
  [[nodiscard]] virtual std::size_t step_bytes() const { return std::size_t{1} << 20; }
  // How many steps a layerwise transfer has at most, at least 1: each is a launch for the device and a wait for the
  // engine.
  [[nodiscard]] virtual std::uint32_t most_gated_steps() const { return std::numeric_limits<std::uint32_t>::max(); }
  // ... and bytes that are worth such a step. CPU: every layer is.
  [[nodiscard]] virtual std::size_t gated_step_bytes() const { return 1; }
  // Copies between memory() and any host memory, and waits for the end: for who looks at pages on the host. Not ordered
  // with the streams. Cost on a GPU: 10 us beside the bytes.
  [[nodiscard]] virtual Status copy_now(std::byte* dst, const std::byte* src, std::size_t bytes);
  // May the host touch memory()?
  [[nodiscard]] virtual bool is_host_memory() const { return true; }
  // The default: all copies go straight.
  [[nodiscard]] virtual Staging staging() const { return {}; }
  // Streams are ordered queues; work of different streams runs concurrently. At most kMaxStreams. queue_limit: entries
  // that may wait in it, at least 1. Who makes a stream knows how many it will have in flight; a stream of that many is
  // never full.
  [[nodiscard]] virtual Result<StreamId> create_stream(std::size_t queue_limit) = 0;
  // Ends these streams as synchronize() would, the others run on, and lets new ones take their places. Streams whose
  // work waits for each other go in one call. Not from a callback of this device.
  virtual void destroy_streams(std::span<const StreamId> streams) = 0;
  // kOverloaded: queue_limit entries wait, or the executor refused; no callback will run.
  [[nodiscard]] virtual Status enqueue(StreamId stream, CopyDirection direction, StreamWork work) = 0;
  // Blocks until all streams are idle. What waits for an event that has not fired is not copied: its steps end with
  // kCancelled. But work that a GPU itself already waits with, for an event of its own, it ends as ever: a stream of
  // the engine that hangs keeps this. For shutdown and tests; not from a callback of this device.
  virtual void synchronize() = 0;
};

// Copies with memcpy on `executor`, which outlives the device. A stream posts one task per step, so streams share the
// executor's threads fairly. synchronize() and the destructor run what no thread has begun themselves: they return also
// when the executor is a ManualExecutor that nobody runs, or has dropped its tasks.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(Executor& executor);

}  // namespace larder
