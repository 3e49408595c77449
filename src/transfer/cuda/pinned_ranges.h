// SPDX-License-Identifier: Apache-2.0
// Which host memory the device can reach: the registrations, in address order.
//
// A large region is registered in pieces, so that no single call pins it all: what the driver refuses is one piece, and
// the error says how far it came. The copy engines refuse a copy that leaves its piece; a kernel does not mind.
//
// Threads: any. Limits: one entry per piece.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "base/ranked_mutex.h"
#include "base/status.h"
#include "transfer/cuda/driver.h"

namespace larder {

class PinnedRanges {
 public:
  // piece_bytes: a multiple of 4096.
  PinnedRanges(std::shared_ptr<CudaDriver> driver, std::size_t piece_bytes);

  // All or nothing. Precondition: memory is page-aligned and not registered yet.
  [[nodiscard]] Status add(std::byte* memory, std::size_t bytes) LARDER_EXCLUDES(mutex_);
  void remove(std::byte* memory, std::size_t bytes) LARDER_EXCLUDES(mutex_);

  // Bytes from `at` that one copy of the engines may touch, at most `want`; 0: not registered.
  [[nodiscard]] std::size_t in_one_piece(const std::byte* at, std::size_t want) const LARDER_EXCLUDES(mutex_);
  // The registered memory around `at`, in however many pieces; empty: not registered.
  [[nodiscard]] std::span<const std::byte> around(const std::byte* at) const LARDER_EXCLUDES(mutex_);

 private:
  const std::shared_ptr<CudaDriver> driver_;
  const std::size_t piece_bytes_;
  mutable RankedMutex mutex_{LockRank::kTransfer};
  std::map<const std::byte*, std::size_t> pieces_ LARDER_GUARDED_BY(mutex_);  // begin -> bytes
};

}  // namespace larder
