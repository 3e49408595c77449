// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/step_launcher.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace larder {

Result<std::unique_ptr<StepLauncher>> StepLauncher::create(CudaDevice& device, CudaStream stream,
                                                           std::size_t queue_limit, std::chrono::nanoseconds limit) {
  if (queue_limit == 0) return invalid_argument("a step launcher needs room for at least one step");
  std::unique_ptr<StepLauncher> launcher(new StepLauncher(device, stream, queue_limit, limit));
  Status bound;
  LARDER_RETURN_IF_ERROR(launcher->thread_.post([&] { bound = device.driver().bind_thread(); }));
  launcher->thread_.wait_idle();
  LARDER_RETURN_IF_ERROR(bound);
  return launcher;
}

StepLauncher::StepLauncher(CudaDevice& device, CudaStream stream, std::size_t queue_limit,
                           std::chrono::nanoseconds limit)
    : device_(device), stream_(stream), limit_(limit), thread_("cuda-steps", 1, queue_limit) {}

StepLauncher::~StepLauncher() { stop(); }

Status StepLauncher::post(EngineStep step) {
  if (step.layers == 0 || !step.launch || !step.launched) {
    return invalid_argument("a step to launch has at least one layer, launch() and launched()");
  }
  if (is_stopped_.load(std::memory_order_relaxed)) return cancelled("the step launcher was stopped");
  return thread_.post([this, step = std::move(step)] { run(step); });
}

void StepLauncher::run(const EngineStep& step) {
  std::uint32_t begun = 0;
  Status status;
  try {
    status = launch_layers(step, begun);
  } catch (const std::exception& thrown) {
    status = internal_error("the engine's launch() threw: " + std::string(thrown.what()));
  } catch (...) {
    status = internal_error("the engine's launch() threw");
  }
  std::shared_ptr<DeviceEvent> over;
  if (begun > 0) {
    Result<std::shared_ptr<DeviceEvent>> end = end_of_stream();
    if (end.is_ok()) {
      over = std::move(end).value();
    } else if (status.is_ok()) {
      status = end.status();
    }
  }
  step.launched(std::move(status), std::move(over));
}

Status StepLauncher::launch_layers(const EngineStep& step, std::uint32_t& begun) {
  if (is_stopped_.load(std::memory_order_relaxed)) {
    return cancelled("the step launcher was stopped before it launched the step");
  }
  std::optional<LayerWaits> waits;
  if (step.gate) waits.emplace(*step.gate, stream_, limit_);
  for (std::uint32_t layer = 0; layer < step.layers; ++layer) {
    if (waits) LARDER_RETURN_IF_ERROR(waits->before(layer));
    begun = layer + 1;
    LARDER_RETURN_IF_ERROR(step.launch(layer));
  }
  return Status::ok();
}

Result<std::shared_ptr<DeviceEvent>> StepLauncher::end_of_stream() {
  Result<std::shared_ptr<DeviceEvent>> event = device_.record(stream_);
  // Of a stream that is being captured nothing runs, and waiting for it would end the capture; one that was destroyed
  // is no handle to wait for.
  if (event.is_ok() || event.status().code() == StatusCode::kInvalidArgument) return event;
  // There is no event to be had: the thread waits itself. A lost device says so here, and runs nothing.
  LARDER_RETURN_IF_ERROR(device_.driver().synchronize(stream_));
  return std::shared_ptr<DeviceEvent>();
}

}  // namespace larder
