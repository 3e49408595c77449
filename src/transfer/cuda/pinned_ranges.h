// SPDX-License-Identifier: Apache-2.0
// Which host memory the device can reach: the regions that were registered, in address order.
//
// A large region is registered in pieces, so that no single call pins it all: what the driver refuses is one piece, and
// the error says how far it came. The copy engines refuse a copy that leaves its piece; a kernel does not mind.
//
// Threads: any. Limits: one entry per region.
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
  // What was added. Precondition: no copy touches it.
  void remove(std::byte* memory) LARDER_EXCLUDES(mutex_);

  // The region that `at` lies in; empty: not registered. Cost: a lock, O(log(regions)), however many pieces it has.
  [[nodiscard]] std::span<const std::byte> around(const std::byte* at) const LARDER_EXCLUDES(mutex_);
  // Bytes from `at` that one copy of the engines may touch, at most `want`. Precondition: `at` lies in `region`, which
  // around() gave. Cost: a division.
  [[nodiscard]] std::size_t in_one_piece(std::span<const std::byte> region, const std::byte* at,
                                         std::size_t want) const;

 private:
  void unregister(std::byte* memory, std::size_t bytes);

  const std::shared_ptr<CudaDriver> driver_;
  const std::size_t piece_bytes_;
  mutable RankedMutex mutex_{LockRank::kTransfer};
  std::map<const std::byte*, std::size_t> regions_ LARDER_GUARDED_BY(mutex_);  // begin -> bytes
};

}  // namespace larder
