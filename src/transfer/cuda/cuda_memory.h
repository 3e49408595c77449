// SPDX-License-Identifier: Apache-2.0
// The two kinds of memory of a CUDA device's tiers.
//
//   device   plain allocations of device memory; the host must not touch them
//   pinned   host memory that is pre-faulted, on the device's NUMA node where there is one, pinned and mapped
//
// Threads: any. Lifetime: both sources outlive what they gave out.
#pragma once

#include <memory>

#include "pool/memory.h"
#include "transfer/cuda/driver.h"
#include "transfer/cuda/pinned_ranges.h"

namespace larder {

class CudaMemorySource final : public MemorySource {
 public:
  explicit CudaMemorySource(std::shared_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override;

 private:
  const std::shared_ptr<CudaDriver> driver_;
};

class PinnedMemorySource final : public MemorySource {
 public:
  // numa_node: -1 for none.
  PinnedMemorySource(std::shared_ptr<PinnedRanges> ranges, int numa_node)
      : ranges_(std::move(ranges)), numa_node_(numa_node) {}
  [[nodiscard]] Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) override;

 private:
  const std::shared_ptr<PinnedRanges> ranges_;
  const int numa_node_;
};

// The NUMA node of the device at this PCI address, as Linux says it; -1: one node, or not known.
[[nodiscard]] int numa_node_of(const std::string& pci_address);

}  // namespace larder
