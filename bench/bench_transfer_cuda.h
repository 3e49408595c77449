// SPDX-License-Identifier: Apache-2.0
// Page copies of a CUDA device beside what the same machine does with one contiguous pinned copy of the same bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "model/pool_spec.h"
#include "transfer/cuda/cuda_device.h"

namespace larder {

struct CudaBenchOptions {
  CudaOptions device;
  bool is_simulated = false;  // the simulated driver: shows that the benchmark runs, and no speed
  std::vector<std::size_t> kibibytes = {4, 16, 64, 256, 2048};  // of a piece
  std::vector<HostLayout> layouts{kAllHostLayouts.begin(), kAllHostLayouts.end()};
  bool with_gates = true;        // the second and third table
  std::size_t mebibytes = 1024;  // to copy at a time; twice that on the device, as much pinned
};

// Prints three tables: speed by host layout and size of a piece (a plane of a page in a layer), what a gated load costs
// the engine's thread, and what it adds to compute of equal length. Slots are in random order on both sides. Returns 0,
// 1 if there is no device, no memory, or a copy was wrong, or 2 if `mebibytes` is less than the largest page (but
// not for the simulated device).
int run_cuda_transfer_bench(const CudaBenchOptions& options);

}  // namespace larder
