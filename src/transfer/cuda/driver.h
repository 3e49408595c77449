// SPDX-License-Identifier: Apache-2.0
// What Larder uses of a CUDA device: the driver API's memory, streams, events and copies, and one kernel of its own.
//
// Two implementations pass the same tests: NVIDIA's libcuda.so.1, found when the program runs (real_cuda_driver.cc),
// and one without a GPU (sim/sim_cuda_driver.h) that is stricter: it refuses what the real one lets pass in silence.
//
// Handles are those of the driver API, which the runtime API shares: a CudaStream is a CUstream and a cudaStream_t.
// The device's primary context is used, as the runtime API does, so that an engine's streams and memory fit.
//
// Threads: all methods from any thread; a thread of Larder's calls bind_thread() first.
// Errors: kOverloaded (no memory left), kInternal (the call was refused: names it), kUnavailable (the device or its
// context is lost: nothing will work again in this process; of a call with a stream that was destroyed: that stream).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "transfer/cuda/copy_launch.h"

namespace larder {

using CudaStream = void*;  // CUstream; null is the default stream
using CudaEventHandle = void*;

struct CudaFacts {
  std::string name;         // "NVIDIA H200"
  std::string pci_address;  // "0000:00:06.0"
  std::uint32_t processors = 0;
  std::size_t bytes = 0;  // of its memory
};

// One contiguous copy.
struct CudaCopy {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t bytes = 0;
};

class CudaDriver {
 public:
  virtual ~CudaDriver() = default;
  [[nodiscard]] virtual const CudaFacts& facts() const = 0;

  // Makes the device's context current for this thread, for good, and lets its calls run beside stream captures of
  // others (an engine that captures a CUDA graph).
  [[nodiscard]] virtual Status bind_thread() = 0;

  // Device memory, 256-byte aligned. Its bytes are undefined.
  [[nodiscard]] virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  [[nodiscard]] virtual Status free(std::byte* memory) = 0;
  [[nodiscard]] virtual std::size_t free_bytes() = 0;
  // Pins host memory and maps it for the device, which sees it at the same address. Cost: about 30 ms per GiB.
  [[nodiscard]] virtual Status register_host(std::byte* memory, std::size_t bytes) = 0;
  [[nodiscard]] virtual Status unregister_host(std::byte* memory) = 0;

  // Does not wait for the default stream; its kernels go before those of ordinary streams.
  [[nodiscard]] virtual Result<CudaStream> create_stream() = 0;
  [[nodiscard]] virtual Status destroy_stream(CudaStream stream) = 0;
  [[nodiscard]] virtual Status synchronize(CudaStream stream) = 0;
  // Whether its work would go into a CUDA graph now, instead of to the device; or, of the default stream, end a
  // capture.
  [[nodiscard]] virtual Result<bool> is_capturing(CudaStream stream) = 0;

  [[nodiscard]] virtual Result<CudaEventHandle> create_event() = 0;
  [[nodiscard]] virtual Status destroy_event(CudaEventHandle event) = 0;
  [[nodiscard]] virtual Status record(CudaEventHandle event, CudaStream stream) = 0;
  // What is launched on `stream` from now on runs after what the event recorded last. Holds no thread.
  [[nodiscard]] virtual Status wait(CudaStream stream, CudaEventHandle event) = 0;
  [[nodiscard]] virtual Result<bool> has_completed(CudaEventHandle event) = 0;
  // Blocks the thread, without burning a processor.
  [[nodiscard]] virtual Status synchronize_event(CudaEventHandle event) = 0;

  // Copies by the copy engines, in no order among each other. A host range lies in one registration.
  [[nodiscard]] virtual Status copy(std::span<const CudaCopy> copies, CudaStream stream) = 0;
  // Copies by the kernel, with `blocks` blocks. Addresses: of device memory or registered host memory.
  [[nodiscard]] virtual Status launch(const CopyLaunch& launch, std::uint32_t blocks, CudaStream stream) = 0;
};

// Device `ordinal` of this machine. kUnsupported: this build has no CUDA, says how to get one that has; kUnavailable:
// no driver or no such device: says what was looked for and what there is.
[[nodiscard]] Result<std::shared_ptr<CudaDriver>> open_cuda_driver(int ordinal);

}  // namespace larder
