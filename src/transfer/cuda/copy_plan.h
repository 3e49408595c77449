// From the copies of a step to launches: who copies what.
//
//   contiguous and large        ──► the copy engines, cut at the ends of registrations
//   everything else             ──► the kernel, pieces of one shape together
//
// Measured on an H200 (docs/results/cuda.md): the copy engines take 0.8 us for each copy beside its bytes, so they
// reach 98 % of a contiguous copy with 2 MiB pieces and 60 % with 64 KiB ones; the kernel has 92 to 95 % with any size
// from 4 KiB on.
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
  // engine_bytes: the least that a copy engine copies, for host <-> device.
  CopyPlan(const PinnedRanges& pinned, std::size_t engine_bytes) : pinned_(pinned), engine_bytes_(engine_bytes) {}

  // Replaces what was there. `ops` is reordered. kInvalidArgument: the host side of a copy is not registered with the
  // device, which would be the end of its context.
  [[nodiscard]] Status make(CopyDirection direction, std::vector<CopyOp>& ops);

  // For the copy engines.
  [[nodiscard]] std::span<const CudaCopy> engine_copies() const { return engine_copies_; }

  [[nodiscard]] std::size_t pieces_left() const { return pieces_.size() - next_; }
  // Takes the next pieces for the kernel: as many as fit `room` and one launch. Their pairs are written to `room`,
  // which is what the device reads, and `launch` is filled in but for `blocks`. Returns how many pairs were written; 0:
  // none are left.
  [[nodiscard]] std::size_t next_launch(std::span<CopyPair> room, CopyLaunch& launch);

 private:
  [[nodiscard]] Status add(CopyDirection direction, const CopyOp& op);
  void add_engine_copies(CopyDirection direction, const CopyOp& op);

  const PinnedRanges& pinned_;
  const std::size_t engine_bytes_;
  std::vector<CudaCopy> engine_copies_;
  std::vector<CopyOp> pieces_;  // for the kernel, equal shapes together
  std::size_t next_ = 0;        // of pieces_
};

}  // namespace larder
