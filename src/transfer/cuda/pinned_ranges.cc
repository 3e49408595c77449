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
      remove(memory, done);
      return {pinned.code(), "pinning " + std::to_string(bytes >> 20) + " MiB of host memory ended after " +
                                 std::to_string(done >> 20) + " MiB: " + pinned.message()};
    }
    const LockGuard guard(mutex_);
    pieces_[memory + done] = size;
  }
  return Status::ok();
}

void PinnedRanges::remove(std::byte* memory, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; done += piece_bytes_) {
    {
      const LockGuard guard(mutex_);
      if (pieces_.erase(memory + done) == 0) continue;
    }
    (void)driver_->unregister_host(memory + done);  // it fails only when the device is lost, which ends the pinning
  }
}

std::size_t PinnedRanges::in_one_piece(const std::byte* at, std::size_t want) const {
  const LockGuard guard(mutex_);
  auto next = pieces_.upper_bound(at);
  if (next == pieces_.begin()) return 0;
  const auto& [begin, size] = *--next;
  return at < begin + size ? std::min(want, static_cast<std::size_t>(begin + size - at)) : 0;
}

std::span<const std::byte> PinnedRanges::around(const std::byte* at) const {
  const LockGuard guard(mutex_);
  auto first = pieces_.upper_bound(at);
  if (first == pieces_.begin()) return {};
  --first;
  if (at >= first->first + first->second) return {};
  auto last = first;
  while (first != pieces_.begin()) {
    const auto before = std::prev(first);
    if (before->first + before->second != first->first) break;
    first = before;
  }
  for (auto next = std::next(last); next != pieces_.end() && next->first == last->first + last->second; ++next) {
    last = next;
  }
  return {first->first, last->first + last->second};
}

}  // namespace larder
