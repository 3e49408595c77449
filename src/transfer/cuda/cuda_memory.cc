// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/cuda_memory.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>
#include <utility>

namespace larder {
namespace {

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(std::shared_ptr<CudaDriver> driver, std::byte* data, std::size_t size)
      : driver_(std::move(driver)), data_(data), size_(size) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() override {
    (void)driver_->free(data_);
  }  // fails only when the device is lost, and its memory with it
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  const std::shared_ptr<CudaDriver> driver_;
  std::byte* const data_;
  const std::size_t size_;
};

class PinnedMemory final : public Memory {
 public:
  PinnedMemory(std::shared_ptr<PinnedRanges> ranges, std::unique_ptr<Memory> memory)
      : ranges_(std::move(ranges)), memory_(std::move(memory)) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() override { ranges_->remove(memory_->data()); }
  std::byte* data() const override { return memory_->data(); }
  std::size_t size() const override { return memory_->size(); }

 private:
  const std::shared_ptr<PinnedRanges> ranges_;
  const std::unique_ptr<Memory> memory_;
};

// While it lives, this thread's new pages come from one NUMA node, or from another when that one is full.
class OnNode {
 public:
  explicit OnNode(int node) : is_set_(node >= 0 && node < kMostNodes) {
    is_set_ = is_set_ && ::syscall(SYS_get_mempolicy, &old_mode_, &old_nodes_, kMostNodes, nullptr, 0) == 0;
    if (!is_set_) return;
    unsigned long mask = 1UL << static_cast<unsigned>(node);
    is_set_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, kMostNodes) == 0;  // a hint: slower is not wrong
  }
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;
  ~OnNode() {
    if (is_set_) (void)::syscall(SYS_set_mempolicy, old_mode_, &old_nodes_, kMostNodes);
  }

 private:
  static constexpr int kMostNodes = 64;
  int old_mode_ = MPOL_DEFAULT;
  unsigned long old_nodes_ = 0;
  bool is_set_;
};

}  // namespace

Result<std::unique_ptr<Memory>> CudaMemorySource::allocate(std::size_t bytes) {
  if (bytes == 0) return invalid_argument("a device memory region of 0 bytes was asked for");
  Result<std::byte*> data = driver_->allocate(bytes);
  if (!data.is_ok()) {
    return Status(data.status().code(), "asked for " + std::to_string(bytes >> 20) + " MiB of " +
                                            driver_->facts().name + ", " + std::to_string(driver_->free_bytes() >> 20) +
                                            " MiB are free: " + data.status().message());
  }
  return std::unique_ptr<Memory>(std::make_unique<DeviceMemory>(driver_, *data, bytes));
}

Result<std::unique_ptr<Memory>> PinnedMemorySource::allocate(std::size_t bytes) {
  const OnNode near_device(numa_node_);
  Result<std::unique_ptr<Memory>> memory = host_memory_source().allocate(bytes);
  if (!memory.is_ok()) return memory;
  LARDER_RETURN_IF_ERROR(ranges_->add((*memory)->data(), bytes));
  return std::unique_ptr<Memory>(std::make_unique<PinnedMemory>(ranges_, std::move(memory).value()));
}

int numa_node_of(const std::string& pci_address) {
  std::string address = pci_address;
  std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

}  // namespace larder
