// SPDX-License-Identifier: Apache-2.0
#include "controller/device_copies.h"

#include <memory>
#include <utility>
#include <variant>

#include "base/clock.h"

namespace larder {

namespace {
constexpr Nanos kShutdownLook = std::chrono::milliseconds(20);
constexpr Nanos kShutdownLimit = std::chrono::seconds(10);
}  // namespace

DeviceCopies::DeviceCopies(const Parts& parts)
    : transfer_(parts.transfer),
      device_(parts.device),
      host_room_(parts.host_room),
      ops_(parts.ops),
      events_(parts.events) {}

void DeviceCopies::submit(const Op& op, TransferRequest request) {
  const OpId id = op.id;
  request.id = id;
  request.after = request.direction == CopyDirection::kHostToDevice ? events_.before_writing(request.pairs)
                                                                    : events_.before_reading();
  const std::shared_ptr<LayerGate> gate = request.gate;
  auto complete = ops_.completion_for(id);
  Status submitted =
      transfer_ != nullptr
          ? transfer_->submit(std::move(request), [complete](TransferDone done) { complete(std::move(done)); })
          : unsupported("this cache was made without a transfer engine");
  if (submitted.is_ok()) return;
  if (gate) gate->fail(submitted);
  complete(TransferDone{id, std::move(submitted), {}, {}});
}

void DeviceCopies::drop_leases(const TransferDone& done) {
  device_.drop_leases(done.device_leases);
  host_room_.drop_leases(done.host_leases);
}

void DeviceCopies::finish() {
  const TimePoint begun = real_clock().now();
  while (transfer_ != nullptr && transfer_->in_flight() > 0 && real_clock().now() - begun < kShutdownLimit) {
    ops_.drain(kShutdownLook, [this](Completion& completion) {
      if (const auto* done = std::get_if<TransferDone>(&completion)) drop_leases(*done);
    });
  }
}

}  // namespace larder
