// SPDX-License-Identifier: Apache-2.0
// Pages in files of 3FS, moved by its rings (page_store.h has the contract).
//
//   session   everything that hangs on one life of the mount's daemon: rings with their staging memory (ring_worker.h),
//             and registered files. Tested by a page written and read through every ring before it is used, because a
//             registration of memory can fail unseen.
//
// When the mount dies the session ends, and open_files() makes a new one when the mount is back, at most every
// `retry_after`. The old one is given back, if it has nothing in flight that a daemon may still serve; otherwise its
// memory stays, never to be used again, until that daemon is known to be gone. Of such sessions, and of those that hang
// in the mount while they are opened, there are only so many: then the mount is given up until its daemon is started
// anew, and the log says so.
//
// Threads: any. Locks: one for the session, one for the table of files; the mount is talked to under none, and on no
// caller's thread: only by the session's watch (mount_watch.h), for which a caller waits 2 * client_timeout at most.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "storage/hf3fs/page_store.h"
#include "storage/hf3fs/ring_worker.h"
#include "storage/hf3fs/usrbio_library.h"

namespace larder::hf3fs {

struct UsrbioStoreOptions {
  LibraryOptions library;
  std::string directory;     // that all files lie in: tells the mount
  unsigned rings = 2;        // of each direction
  RingWorkerOptions ring{};  // mount point and direction are filled in
  Nanos retry_after = std::chrono::seconds(2);
};

class UsrbioPageStore final : public PageStore {
 public:
  // Loads the library, finds the mount and tests it. kUnavailable: the directory is not on a 3FS mount, or
  // not yet, or that does not answer; others as the library says.
  [[nodiscard]] static Result<std::unique_ptr<UsrbioPageStore>> create(const UsrbioStoreOptions& options, Clock& clock);
  ~UsrbioPageStore() override;

  [[nodiscard]] bool has_open(const std::string& base, PageTransfer::Kind purpose) const override
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Result<std::shared_ptr<PageFiles>> open_files(const std::string& base, std::uint32_t count,
                                                              PageTransfer::Kind purpose) override
      LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status submit(PageTransfer transfer) override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] PageStoreStats stats() const override LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override LARDER_EXCLUDES(mutex_);

 private:
  class Files;
  class Session;
  UsrbioPageStore(const UsrbioStoreOptions& options, std::shared_ptr<UsrbioLibrary> library, Clock& clock);
  // The living session; a new one if the last has died and it is time to try again.
  [[nodiscard]] Result<std::shared_ptr<Session>> session() LARDER_EXCLUDES(mutex_);
  // Parts dead_: those that can be given back are taken out; `stuck`: the others.
  void part_dead(std::vector<std::shared_ptr<Session>>& ended, std::vector<std::shared_ptr<Session>>& stuck)
      LARDER_REQUIRES(mutex_);
  // May one more session come to life? Says once that none may.
  [[nodiscard]] bool has_room() LARDER_REQUIRES(mutex_);

  // constant after construction
  const UsrbioStoreOptions options_;
  const std::shared_ptr<UsrbioLibrary> library_;
  Clock& clock_;

  mutable RankedMutex mutex_{LockRank::kStorage};
  std::shared_ptr<Session> session_ LARDER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Session>> dead_ LARDER_GUARDED_BY(mutex_);  // not yet given back
  std::uint64_t deaths_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t late_ LARDER_GUARDED_BY(mutex_) = 0;  // pages, of sessions that were given back
  bool is_given_up_ LARDER_GUARDED_BY(mutex_) = false;
  TimePoint next_try_ LARDER_GUARDED_BY(mutex_){};
  bool is_opening_ LARDER_GUARDED_BY(mutex_) = false;
  bool is_closed_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::hf3fs
