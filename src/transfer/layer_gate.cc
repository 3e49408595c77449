// SPDX-License-Identifier: Apache-2.0
#include "transfer/layer_gate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"

namespace larder {

void LayerGate::arrive(std::uint32_t layer) {
  {
    const std::lock_guard lock(mutex_);
    arrived_ = std::max(arrived_, layer >= layers_ || defect(Defect::kGateOpenEarly) ? layers_ : layer + 1);
  }
  changed_.notify_all();
}

void LayerGate::launch(std::uint32_t layer, std::shared_ptr<DeviceEvent> event) {
  {
    const std::lock_guard lock(mutex_);
    launches_.push_back({std::min(layer, layers_ - 1) + 1, std::move(event)});
  }
  changed_.notify_all();
}

void LayerGate::fail(Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = status.is_ok() ? internal_error("a layer gate was failed with an ok status") : std::move(status);
  }
  changed_.notify_all();
}

Status LayerGate::check(std::uint32_t layer) const {
  if (layer < layers_) return Status::ok();
  return invalid_argument("layer " + std::to_string(layer) + " of a gate of " + std::to_string(layers_) + " layers");
}

Status LayerGate::wait(std::uint32_t layer, std::chrono::nanoseconds limit) const {
  LARDER_RETURN_IF_ERROR(check(layer));
  // now + limit must not overflow inside wait_for.
  const auto bounded = std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365));
  std::unique_lock lock(mutex_);
  const auto settled = [&] { return !failure_.is_ok() || arrived_ > layer; };
  if (!changed_.wait_for(lock, bounded, settled)) {
    return deadline_exceeded("layer " + std::to_string(layer) + " has not arrived: " + std::to_string(arrived_) +
                             " of " + std::to_string(layers_) + " layers have");
  }
  return failure_;
}

Result<LayerGate::Launch> LayerGate::launch_of(std::uint32_t layer, std::chrono::nanoseconds limit) const {
  LARDER_RETURN_IF_ERROR(check(layer));
  const auto bounded = std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365));
  std::unique_lock lock(mutex_);
  const auto settled = [&] {
    return !failure_.is_ok() || arrived_ > layer || (!launches_.empty() && launches_.back().end > layer);
  };
  // Asked first: an engine asks for each layer, and wait_for() reads the clock.
  if (!settled() && !changed_.wait_for(lock, bounded, settled)) {
    return deadline_exceeded("the copies of layer " + std::to_string(layer) + " have not been launched");
  }
  if (!failure_.is_ok()) return failure_;
  if (arrived_ > layer) return Launch{arrived_, nullptr};
  const auto at = std::partition_point(launches_.begin(), launches_.end(),
                                       [&](const Launch& launch) { return launch.end <= layer; });
  return *at;
}

bool LayerGate::ready(std::uint32_t layer) const {
  const std::lock_guard lock(mutex_);
  return failure_.is_ok() && layer < layers_ && arrived_ > layer;
}

bool LayerGate::finished() const {
  const std::lock_guard lock(mutex_);
  return !failure_.is_ok() || arrived_ >= layers_;
}

}  // namespace larder
