// From the copies of a step to launches: who copies what.
//
//   contiguous, at least `engines_from` bytes   ──► the copy engines, cut at the ends of registrations
//   contiguous, at least `shared_from` bytes    ──► in turn the copy engines and the kernel, which run side by side
//   everything else                             ──► the kernel, pieces of one shape together
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

// See above; bytes. Never shared: shared_from = engines_from.
struct CopyRoute {
  std::size_t shared_from = 0;
  std::size_t engines_from = 0;
};

class CopyPlan {
 public:
  CopyPlan(const PinnedRanges& pinned, const CopyRoute& load, const CopyRoute& store)
      : pinned_(pinned), load_(load), store_(store) {}

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
  const CopyRoute load_, store_;  // host to device, device to host
  bool is_engines_turn_ = false;
  std::vector<CudaCopy> engine_copies_;
  std::vector<CopyOp> pieces_;  // for the kernel, equal shapes together
  std::size_t next_ = 0;        // of pieces_
};

}  // namespace larder
