// SPDX-License-Identifier: Apache-2.0
// Which of the engine's events a copy waits for, because the engine ended a step whose kernels still run.
//
//   ended(event 1)  freed(slot 7)  ended(event 2)  freed(slot 9)
//   a copy that reads pages            waits for event 2: the last one that was given
//   a copy that writes into slot 7     waits for event 1: no step after it could have touched the slot
//   a copy into slots 7 and 9          waits for event 2
//
// Events fire in the order in which they are given, so the last of those that a copy needs is enough. What was freed
// while a step was open is not free before the step is ended (step_ledger.h), so its event is known by then.
//
// Threads: the cache thread. Ranks: decides nothing but when bytes move, so events may fire at any time on each rank.
// Limits: kMostEvents are kept; of more, a copy waits for a later one than it needs. Cost: O(1) for each slot that is
// freed, O(kMostEvents) for each event, and nothing for an engine that gives no events.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/strong.h"
#include "pool/device_pools.h"
#include "transfer/device_event.h"
#include "transfer/transfer.h"

namespace larder {

class StepEvents {
 public:
  static constexpr std::size_t kMostEvents = 64;
  // device outlives this.
  explicit StepEvents(const DevicePools& device) : device_(device) {}

  // A step was ended; its kernels have when this has fired. Null: they have.
  void ended(std::shared_ptr<DeviceEvent> over);
  // The slot is free now, or will be when copies that lease it have ended.
  void freed(ComponentKind c, DeviceSlot slot);

  // What a copy from device slots waits for. Null: nothing.
  [[nodiscard]] std::shared_ptr<DeviceEvent> before_reading();
  // ... and one into the device slots of these pairs, which were free until now.
  [[nodiscard]] std::shared_ptr<DeviceEvent> before_writing(
      const std::array<std::vector<SlotPair>, kComponentCount>& pairs);

 private:
  struct Given {
    std::uint64_t number = 0;  // they count up from 1
    std::shared_ptr<DeviceEvent> event;
  };
  void forget_fired();
  [[nodiscard]] std::shared_ptr<DeviceEvent> event_of(std::uint64_t number);

  const DevicePools& device_;
  std::uint64_t last_ = 0;   // number of the last event
  std::uint64_t fired_ = 0;  // all up to this number have fired
  std::deque<Given> given_;  // ascending; the first has not fired, or nobody has looked since
  // The last event when the slot was freed. Empty until there is one.
  std::array<std::vector<std::uint64_t>, kComponentCount> freed_at_;
};

}  // namespace larder
