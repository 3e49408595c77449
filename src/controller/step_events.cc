// SPDX-License-Identifier: Apache-2.0
#include "controller/step_events.h"

#include <algorithm>
#include <utility>

namespace larder {

// Requests of one batch share an event; a call that was refused is made again with its event, perhaps after others.
void StepEvents::ended(std::shared_ptr<DeviceEvent> over) {
  forget_fired();
  if (!over || over->has_fired()) return;
  if (std::any_of(given_.begin(), given_.end(), [&](const Given& given) { return given.event == over; })) return;
  if (last_ == 0) {
    for (const ComponentKind c : kAllComponents) freed_at_[index_of(c)].resize(device_.slots(c).size(), 0);
  }
  // The second: whoever needs it waits for the one after it, and the first one goes as soon as it has fired.
  if (given_.size() == kMostEvents) given_.erase(given_.begin() + 1);
  given_.push_back({++last_, std::move(over)});
}

void StepEvents::freed(ComponentKind c, DeviceSlot slot) {
  if (last_ > 0) freed_at_[index_of(c)][slot.v] = last_;
}

std::shared_ptr<DeviceEvent> StepEvents::before_reading() { return event_of(last_); }

std::shared_ptr<DeviceEvent> StepEvents::before_writing(
    const std::array<std::vector<SlotPair>, kComponentCount>& pairs) {
  if (last_ == 0) return nullptr;
  std::uint64_t number = 0;
  for (std::size_t c = 0; c < kComponentCount; ++c) {
    for (const SlotPair& pair : pairs[c]) number = std::max(number, freed_at_[c][pair.device.v]);
  }
  return event_of(number);
}

void StepEvents::forget_fired() {
  while (!given_.empty() && given_.front().event->has_fired()) {
    fired_ = given_.front().number;
    given_.pop_front();
  }
}

std::shared_ptr<DeviceEvent> StepEvents::event_of(std::uint64_t number) {
  forget_fired();
  if (given_.empty() || number <= fired_) return nullptr;
  auto at = std::lower_bound(given_.begin(), given_.end(), number,
                             [](const Given& given, std::uint64_t wanted) { return given.number < wanted; });
  if (at == given_.end()) return nullptr;
  // One that fired before its turn says nothing of those before it. The first may have fired since it was looked at:
  // fire() is any thread's.
  while (at->event->has_fired()) {
    if (at == given_.begin()) return nullptr;
    --at;
  }
  return at->event;
}

}  // namespace larder
