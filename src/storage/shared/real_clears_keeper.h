// SPDX-License-Identifier: Apache-2.0
// The file of clears_file.h in the directory of a share: read when a process becomes the host, replaced before each
// clear.
//
// Threads: as ClearKeeper. Cost: a file of up to 41 KiB each time, not synced: a power cut ends all who kept anything.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "storage/clear_order.h"

namespace larder::share {

struct KeptClears {
  ClearHistory history;
  std::unique_ptr<ClearKeeper> keeper;
};

// With the lock of the share only. A file that is missing, broken or another store's begins the history anew, and says
// so in the log unless it is missing. If it cannot be written, the log says so, and each clear fails with that.
[[nodiscard]] KeptClears open_clears(const std::string& directory, const Digest256& store, const Clock& clock);

}  // namespace larder::share
