// SPDX-License-Identifier: Apache-2.0
// Launches an engine's steps on one of its streams, from a thread of its own, so that the thread that schedules
// requests never waits for a load.
//
//   engine    post(step) ─► goes on at once                                  Cache::complete_step(token, tokens, over)
//   launcher            └─► for each layer: LayerWaits::before(), launch() ─► launched(status, over)  ▲
//
// Without it LayerWaits holds the engine's thread until the copies of a layer are on their stream: some milliseconds
// for a load of a GiB (docs/cuda.md). Steps run on the stream in the order in which they were posted, so everything
// that needs this order goes through post(), also a step that loads nothing. Behind a step whose load is not launched
// yet all others wait, as they would on the stream itself.
//
// Threads: post() from any; launch() and launched() on the launcher's thread, for which the device's primary context is
// current; neither may call the launcher. One thread per launcher, asleep unless there is work.
// Lifetime: the device and the stream outlive it. Limits: queue_limit steps wait. Cost of post(): 2 to 5 us, whatever
// the number of layers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "base/thread_pool.h"
#include "transfer/cuda/cuda_device.h"

namespace larder {

// What its functions read stays as it is until launched(): a copy of StepGrant::pages, not the pages themselves.
struct EngineStep {
  std::shared_ptr<const LayerGate> gate;  // StepGrant::gate; null: nothing that the step reads is being loaded
  std::uint32_t layers = 1;               // those of the model, at least 1
  // Puts the work of a layer on the stream; called for 0, 1, ... once the stream waits for what the layer reads.
  std::function<Status(std::uint32_t layer)> launch;
  // Once for each step that was posted, in order. ok: all layers are on the stream, and `over` fires when they have
  // ended (null: they have): for complete_step(). Else the error of the load or of launch(), or kCancelled; no further
  // layer is launched, and `over` is for cancel_step(): it fires when those before have ended (null: none runs).
  // kInvalidArgument: the stream is being captured, or was destroyed: nobody waits for what it still runs.
  std::function<void(Status, std::shared_ptr<DeviceEvent> over)> launched;
};

class StepLauncher {
 public:
  // stream: of the device's primary context, not being captured. limit: how long a layer waits for the launch of its
  // copies. Errors: of the driver; kInvalidArgument: queue_limit 0.
  [[nodiscard]] static Result<std::unique_ptr<StepLauncher>> create(CudaDevice& device, CudaStream stream,
                                                                    std::size_t queue_limit,
                                                                    std::chrono::nanoseconds limit);
  StepLauncher(const StepLauncher&) = delete;
  StepLauncher& operator=(const StepLauncher&) = delete;
  // stop(), then waits for the step under way: `limit` at most for a layer that does not come. Each step has had its
  // launched() then.
  ~StepLauncher();

  // kOverloaded: queue_limit steps wait. kInvalidArgument: a function or all layers are missing. kCancelled: after
  // stop(). On error nothing of the step is called.
  [[nodiscard]] Status post(EngineStep step);
  // Cancels the steps that have not begun. On any thread.
  void stop() { is_stopped_.store(true, std::memory_order_relaxed); }

 private:
  StepLauncher(CudaDevice& device, CudaStream stream, std::size_t queue_limit, std::chrono::nanoseconds limit);
  void run(const EngineStep& step);
  // How many layers are on the stream, or may be in part.
  [[nodiscard]] Status launch_layers(const EngineStep& step, std::uint32_t& begun);
  // What fires when the stream is past what it has been given. Null: it is.
  [[nodiscard]] Result<std::shared_ptr<DeviceEvent>> end_of_stream();

  CudaDevice& device_;
  const CudaStream stream_;
  const std::chrono::nanoseconds limit_;
  std::atomic<bool> is_stopped_{false};  // relaxed: nothing is read by it
  ThreadPoolExecutor thread_;            // last: it ends before what it uses
};

}  // namespace larder
