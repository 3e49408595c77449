// SPDX-License-Identifier: Apache-2.0
// Compute that stands for an engine's in benchmarks of a CUDA device: multiply-adds in registers.
//
// Threads: those that CudaDriver::bind_thread() has bound to the device. Lifetime: the process; its code is never
// unloaded.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transfer/cuda/driver.h"

namespace larder {

class ComputeKernel {
 public:
  // kUnavailable: no driver, or it cannot compile the kernel (it is PTX).
  [[nodiscard]] static Result<ComputeKernel> load();

  // Blocks of 256 threads, each with `rounds` times 64 multiply-adds.
  [[nodiscard]] Status launch(CudaStream stream, std::uint32_t blocks, std::uint32_t rounds) const {
    return launch(stream, blocks, rounds, 0);
  }
  // The same by blocks of which one fits on a multiprocessor, for its shared memory, as those of large matrix products.
  [[nodiscard]] Status launch_large(CudaStream stream, std::uint32_t blocks, std::uint32_t rounds) const {
    return launch(stream, blocks, rounds, kMostShared);
  }

 private:
  static constexpr unsigned kMostShared = 160U << 10;  // of the 163 KiB of an A100 and the 227 KiB of an H100
  [[nodiscard]] Status launch(CudaStream stream, std::uint32_t blocks, std::uint32_t rounds, unsigned shared) const;

  // Of libcuda.so.1, whose functions all return 0 or an error.
  int (*launch_)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                 void* stream, void** parameters, void** extra) = nullptr;
  void* function_ = nullptr;
};

}  // namespace larder
