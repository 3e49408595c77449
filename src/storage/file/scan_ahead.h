// SPDX-License-Identifier: Apache-2.0
// Scans segments one after the other for one consumer, on other threads ahead of it where there are any. Payloads of
// unsynced segments are checked.
//
// The consumer scans a segment itself if nobody has begun with it: so it depends on no task, and works with an executor
// that is full, runs nothing meanwhile, or runs everything inside post(). It waits only for a scan that is running.
//
//   paths:   0 1 2 3 | 4 5 6 7 8 | 9 ...
//            taken   | begun by tasks, or done | nobody's
//
// Threads: confined to the consumer; its tasks run on the executor's threads. Memory: what is scanned and not taken is
// bounded by kAhead segments, and no scan begins while more than kMaxPagesAhead pages wait.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/file_system.h"
#include "base/status.h"
#include "storage/file/segment_scan.h"

namespace larder::file_store {

class ScanAhead {
 public:
  static constexpr std::size_t kAhead = 8;
  static constexpr std::size_t kMaxPagesAhead = std::size_t{1} << 20;
  static constexpr std::size_t kHelpers = 3;  // tasks at once
  // Fewer segments are not worth a task.
  static constexpr std::size_t kLeastSegments = 4;

  struct Wanted {
    SegmentId segment = 0;
    std::string path;
  };
  struct Found {
    Status opened;  // of the file; not ok: `scan` is not set
    Result<ScanResult> scan;
  };

  // `executor` null: nobody helps. `files` outlives this object; tasks that come later touch nothing.
  ScanAhead(FileSystem& files, const StoreId& store, std::vector<Wanted> wanted, Executor* executor);
  // Waits for scans that are running.
  ~ScanAhead();
  ScanAhead(const ScanAhead&) = delete;
  ScanAhead& operator=(const ScanAhead&) = delete;

  // The next one, in the order of `wanted`. Precondition: there is one.
  [[nodiscard]] Found take();

 private:
  struct State;
  void call_helpers();

  const std::shared_ptr<State> state_;
  Executor* const executor_;
};

}  // namespace larder::file_store
