// SPDX-License-Identifier: Apache-2.0
// From the copies of a step to launches: who copies what.
//
//   contiguous and large   ──► the copy engines, cut at the ends of registrations
//   everything else        ──► the kernel, pieces of one shape together
//
// The kernel moves 128 bytes in each packet of the link and so ends at 92 % (loads) and 95 % (stores) of what the copy
// engines reach with 256, with pieces of any size from 4 KiB on. The engines take half a microsecond for each copy
// beside its bytes, and no multiprocessor. docs/cuda.md has the measurements behind the defaults.
//
// Threads: none of its own. Not thread-safe: each stream has one. Memory is kept from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "transfer/cuda/copy_launch.h"
#include "transfer/cuda/driver.h"
#include "transfer/cuda/pinned_ranges.h"
#include "transfer/device.h"

namespace larder {

class CopyPlan {
 public:
  // The least bytes that the copy engines copy to the device, and from it.
  CopyPlan(const PinnedRanges& pinned, std::size_t load_engines_from, std::size_t store_engines_from)
      : pinned_(pinned), load_engines_from_(load_engines_from), store_engines_from_(store_engines_from) {}

  // Replaces what was there. `ops` is changed, and kept until the last next_launch(). kInvalidArgument: the host side
  // of a copy is not registered with the device, which would be the end of its context.
  [[nodiscard]] Status make(CopyDirection direction, std::vector<CopyOp>& ops);

  // For the copy engines.
  [[nodiscard]] std::span<const CudaCopy> engine_copies() const { return engine_copies_; }

  [[nodiscard]] std::size_t pieces_left() const { return pieces_.size() - next_; }
  // Takes the next pieces for the kernel: as many as fit `room` and one launch. Their pairs are written to `room`,
  // which is what the device reads, and `launch` is filled in but for `blocks`. Returns how many pairs were written; 0:
  // none are left.
  [[nodiscard]] std::size_t next_launch(std::span<CopyPair> room, CopyLaunch& launch);

 private:
  [[nodiscard]] Status check(const std::byte* host, std::size_t bytes);
  // Precondition: check() of its host side was ok.
  void add_engine_copies(const std::byte* host, const CopyOp& op);

  const PinnedRanges& pinned_;
  const std::size_t load_engines_from_, store_engines_from_;
  std::vector<CudaCopy> engine_copies_;
  std::span<const std::byte> reachable_;  // where the last host side was
  std::span<CopyOp> pieces_;              // for the kernel, equal shapes together
  std::size_t next_ = 0;                  // of pieces_
};

}  // namespace larder
