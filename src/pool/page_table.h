// Where one request's pages are on the device.
#pragma once

#include <vector>

#include "base/strong.h"

namespace larder {

// Entry i of `full` and `swa` covers tokens [i*page_size, (i+1)*page_size). `swa` entries that left the window, or a
// component that the model lacks, are DeviceSlot{} (invalid). `state` is the request's own working state: read and
// written in place by the engine, never shared.
// Ownership: the controller writes it between engine steps; the engine only reads it during a step.
struct PageTable {
  std::vector<DeviceSlot> full;
  std::vector<DeviceSlot> swa;
  DeviceSlot state;
};

}  // namespace larder
