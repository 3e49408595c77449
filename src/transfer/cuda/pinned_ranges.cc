// SPDX-License-Identifier: Apache-2.0
#include "transfer/cuda/pinned_ranges.h"

#include <algorithm>
#include <string>
#include <utility>

namespace larder {

PinnedRanges::PinnedRanges(std::shared_ptr<CudaDriver> driver, std::size_t piece_bytes)
    : driver_(std::move(driver)), piece_bytes_(piece_bytes) {}

Status PinnedRanges::add(std::byte* memory, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; done += piece_bytes_) {
    const std::size_t size = std::min(piece_bytes_, bytes - done);
    if (Status pinned = driver_->register_host(memory + done, size); !pinned.is_ok()) {
      unregister(memory, done);
      return {pinned.code(), "pinning " + std::to_string(bytes >> 20) + " MiB of host memory ended after " +
                                 std::to_string(done >> 20) + " MiB: " + pinned.message()};
    }
  }
  const LockGuard guard(mutex_);
  regions_[memory] = bytes;
  return Status::ok();
}

void PinnedRanges::remove(std::byte* memory) {
  std::size_t bytes = 0;
  {
    const LockGuard guard(mutex_);
    const auto region = regions_.find(memory);
    if (region == regions_.end()) return;
    bytes = region->second;
    regions_.erase(region);
  }
  unregister(memory, bytes);
}

void PinnedRanges::unregister(std::byte* memory, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; done += piece_bytes_) {
    (void)driver_->unregister_host(memory + done);  // it fails only when the device is lost, which ends the pinning
  }
}

std::span<const std::byte> PinnedRanges::around(const std::byte* at) const {
  const LockGuard guard(mutex_);
  auto region = regions_.upper_bound(at);
  if (region == regions_.begin()) return {};
  --region;
  if (at >= region->first + region->second) return {};
  return {region->first, region->second};
}

std::size_t PinnedRanges::in_one_piece(std::span<const std::byte> region, const std::byte* at, std::size_t want) const {
  const auto offset = static_cast<std::size_t>(at - region.data());
  return std::min({want, piece_bytes_ - offset % piece_bytes_, region.size() - offset});
}

}  // namespace larder
