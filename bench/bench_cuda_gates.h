// SPDX-License-Identifier: Apache-2.0
// What a load that an engine waits for layer by layer costs it, on the host and on the device.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transfer/cuda/cuda_device.h"

namespace larder {

struct GateBenchOptions {
  CudaOptions device;
  bool is_simulated = false;
  std::size_t bytes = 0;  // of a load
};

// Of the largest page that it copies: `bytes` is no smaller.
[[nodiscard]] std::size_t largest_gated_page();

// Prints two tables: host time of the engine's thread, and what the load adds to compute of equal length, beside what
// contiguous pinned copies of the same bytes in as many steps add to it. `stream` is the engine's.
[[nodiscard]] Status run_gated_loads(const GateBenchOptions& options, const std::shared_ptr<CudaDriver>& driver,
                                     CudaDevice& device, CudaStream stream);

}  // namespace larder
