// SPDX-License-Identifier: Apache-2.0
// Copies of pages between device and host (and device to device), layer by layer.
//
// Purpose: turns slot pairs into strided copies for any host layout, keeps the slots leased while they are in flight,
// and reports completion. One transfer = one OpId = one completion, whatever happens.
//
// Threads: submit() from the cache thread. Completions are handed to `done` on a device thread: the controller's `done`
// only pushes into its inbox. Leases are taken at submit and dropped by the controller when it drains the completion
// (TransferDone carries slots and generations), so that all bookkeeping stays on the cache thread.
// Limits: `max_in_flight` transfers, for which every stream has room; more: kOverloaded, nothing taken.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "pool/device_pools.h"
#include "pool/host_pools.h"
#include "transfer/device.h"
#include "transfer/layer_gate.h"

namespace larder {

struct SlotPair {
  DeviceSlot device;  // D->H: source; H->D: destination; D->D: destination
  HostSlot host;      // unused for D->D
  DeviceSlot source;  // D->D only
};

struct TransferRequest {
  OpId id;
  CopyDirection direction = CopyDirection::kDeviceToHost;
  std::array<std::vector<SlotPair>, kComponentCount> pairs;  // by component; all pools of the component are copied
  std::shared_ptr<LayerGate> gate;  // H->D (and D->D): arrives layer by layer, but see below; may be null
  // The copies touch device pages once this has fired (StreamWork::after). It says nothing of other transfers: two that
  // are submitted one after the other may run in any order.
  std::shared_ptr<DeviceEvent> after{};
  // False: who waits at the gate waits for all layers, so they may come in any order, which is faster where a page's
  // parts of a layer are small.
  bool has_layer_order = true;

  [[nodiscard]] bool is_layerwise() const { return gate != nullptr && has_layer_order; }
};

struct TransferDone {
  OpId id;
  Status status;
  std::vector<LeasedSlot> device_leases;  // to be dropped by the cache thread
  std::vector<LeasedSlot> host_leases;
};

class TransferEngine {
 public:
  using Done = std::function<void(TransferDone)>;

  // device, pools, host outlive the engine. A stream per direction, and one more for each whose copies go by way of the
  // device. host may be null: device to device only. Errors: kInvalidArgument (max_in_flight 0), kConflict (host and
  // device pools of different models), kOverloaded (no stream left).
  [[nodiscard]] static Result<std::unique_ptr<TransferEngine>> create(Device& device, DevicePools& pools,
                                                                      HostPools* host, std::size_t max_in_flight);
  // Waits until every transfer's `done` has returned. Not from a `done`.
  virtual ~TransferEngine() = default;

  // On ok: leases are held and `done` will be called exactly once, possibly before submit() returns. A device that
  // refuses is a copy that failed, leases and all: devices of other ranks may take the same copy, and what a slot does
  // must not depend on that. On error nothing was taken, the gate is as it was and `done` is dropped. kInvalidArgument:
  // a component the model lacks, no host pools, a D->D destination that is also a source; kInternal: a slot that is not
  // live; kOverloaded: max_in_flight.
  [[nodiscard]] virtual Status submit(TransferRequest request, Done done) = 0;
  [[nodiscard]] virtual std::size_t in_flight() const = 0;
  // Whether it copies between these pools; host null: only on the device. Constant. One that moves no bytes: any.
  [[nodiscard]] virtual bool serves(const DevicePools& /*device*/, const HostPools* /*host*/) const { return true; }
  // How many submit() takes at a time. Constant. Most of all: as many as there are.
  [[nodiscard]] virtual std::size_t max_in_flight() const { return std::numeric_limits<std::size_t>::max(); }
};

// Pure: the copies of one component's pairs in one model layer (all its pools and planes), merged where both sides are
// contiguous. Exposed for tests and for a CUDA gather kernel. model_layer < ModelSpec::layer_count(); slots are leased
// or otherwise kept by the caller. Any thread. Cost O(pages * planes), times heads for page_head, plus blocks touched.
void append_layer_copies(const DevicePools& device, const HostPools* host, ComponentKind component,
                         std::span<const SlotPair> pairs, CopyDirection direction, std::uint32_t model_layer,
                         std::vector<CopyOp>& out);

struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

// What of a host slot lies on the device, and how. A part is consecutive bytes of the slot that are consecutive in the
// image, too; what a plane has of one layer lies in one part.
struct SlotImage {
  struct Part {
    std::size_t slot_offset = 0;  // bytes, as HostPools::page_offset() counts them
    std::size_t size = 0;
    std::size_t image_offset = 0;
  };
  std::vector<Part> parts;
  std::size_t bytes = 0;  // from one slot's image to the next
};

// As append_layer_copies(), between device pages and images of their host slots that lie one behind the other on the
// device, at `images`, in the order of `pairs`. direction: kDeviceToHost writes the images, kHostToDevice the pages.
// Precondition: the image has these layers of all pools of the component. All copies are within the device.
void append_image_copies(const DevicePools& device, const HostPools& host, ComponentKind component,
                         std::span<const SlotPair> pairs, CopyDirection direction, LayerRange layers,
                         const SlotImage& image, std::byte* images, std::vector<CopyOp>& out);

}  // namespace larder
