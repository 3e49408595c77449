// SPDX-License-Identifier: Apache-2.0
// The file of clears_file.h in the directory of a share: read when a process becomes the host, replaced before each
// clear, and made again where somebody has deleted it.
//
// A full disk has no room for a second one: then it is overwritten where it is. A crash meanwhile costs the history, as
// a file that is lost does.
//
// Threads: as ClearKeeper; keep() from one thread, beside it; one at a time, with the file's lock. Cost: a file of up
// to 41 KiB each time, not synced: a power cut ends all who kept anything.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/clear_order.h"

namespace larder::share {

class ClearsFile {
 public:
  ClearsFile(std::string directory, const Digest256& store) : directory_(std::move(directory)), store_(store) {}

  // By its path, here and below: the directory may have been deleted, and the host makes it again.
  [[nodiscard]] Result<ClearHistory> read() const;
  [[nodiscard]] Status write(const ClearHistory& history) LARDER_EXCLUDES(mutex_);
  // What is known is kept for keep(), though it was not written.
  void remember(const ClearHistory& history) LARDER_EXCLUDES(mutex_);
  // Nothing lies there: writes what was written last. What has begun meanwhile counts more. Cost: a look.
  [[nodiscard]] Status keep() const LARDER_EXCLUDES(mutex_);

 private:
  const std::string directory_;
  const Digest256 store_;
  mutable RankedMutex mutex_{LockRank::kStorage};
  std::string bytes_ LARDER_GUARDED_BY(mutex_);  // empty: nothing yet
};

struct KeptClears {
  ClearHistory history;
  std::unique_ptr<ClearKeeper> keeper;
  std::shared_ptr<ClearsFile> file;  // the keeper's
};

// With the lock of the share only. A file that is missing, broken or another store's begins the history anew, and says
// so in the log unless it is missing. If it cannot be written, the log says so, and each clear fails with that.
[[nodiscard]] KeptClears open_clears(const std::string& directory, const Digest256& store, const Clock& clock);

}  // namespace larder::share
