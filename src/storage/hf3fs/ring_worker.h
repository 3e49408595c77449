// SPDX-License-Identifier: Apache-2.0
// One ring of 3FS, one direction, one thread, and the memory that its I/O goes through.
//
//   submit() ──► queue ──► [ copy into staging, prepare, send ]──► file system ──► [ reap, verify, copy out, done ]
//                                        the worker's thread: nobody else touches the ring
//
// Neighbours in a file that wait together go as one I/O (waiting_line.h); if that fails, each is tried once more,
// alone, unless what failed may still land.
//
// Payloads are copied into and out of registered memory here, so a payload is never touched by the file system: `done`
// may come before the file system has finished. What it may still read or write, stays quarantined until its completion
// arrives (the real one comes up to a minute late), and is never used for anything else. Completions are matched by
// their userdata (slot and generation), never by order; results are compared with the length that was asked for.
//
// The mount is dead when its watch (mount_watch.h) says so, which is asked while completions are missing, or when none
// came for `dead_after`. The thread itself never asks the mount anything: it would wait for a daemon that is stopped.
// Then every transfer ends kUnavailable, and the thread ends. A worker that is destroyed with I/O abandoned leaves ring
// and staging as they are, as a daemon may still use them; unless that daemon is gone (MountWatch::is_gone()).
//
// Threads: submit() and stats from any; the rest from the owner's. Cost per page: one copy, one pass of XXH3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "storage/hf3fs/mount_watch.h"
#include "storage/hf3fs/page_store.h"
#include "storage/hf3fs/usrbio_library.h"

namespace larder::hf3fs {

struct RingWorkerOptions {
  std::string mount_point;
  PageTransfer::Kind direction = PageTransfer::Kind::kRead;
  unsigned entries = 64;                  // of the ring: I/O at once
  std::size_t staging_bytes = 32u << 20;  // of registered memory; no page may be larger
  Nanos client_timeout = std::chrono::seconds(5);
  Nanos dead_after = std::chrono::seconds(90);  // longer than the file system's own retries (60 s)
};

// Open descriptors that the library has registered: what a transfer's PageFiles must be.
class UsrbioFiles : public PageFiles {
 public:
  // -1: not open for that.
  [[nodiscard]] virtual int descriptor(PageTransfer::Kind direction, std::uint32_t file) const = 0;
};

class RingWorker {
 public:
  // Creates ring and staging, and starts the thread. The library outlives the worker. `watch`: of all workers of one
  // mount; the first that finds it dead says so to all.
  [[nodiscard]] static Result<std::unique_ptr<RingWorker>> create(std::shared_ptr<UsrbioLibrary> library,
                                                                  const RingWorkerOptions& options,
                                                                  std::shared_ptr<MountWatch> watch);
  // join(); then destroys ring and staging, which talks to the mount.
  ~RingWorker();
  RingWorker(const RingWorker&) = delete;
  RingWorker& operator=(const RingWorker&) = delete;

  // As PageStore::submit(). kInvalidArgument: larger than the staging memory.
  [[nodiscard]] Status submit(PageTransfer transfer);
  // No new transfers. Those taken end as they end, at the latest by their deadlines.
  void stop();
  // stop(), and returns when its thread has ended: by the last deadline.
  void join();
  [[nodiscard]] std::uint64_t in_flight() const;
  [[nodiscard]] std::uint64_t abandoned() const;
  [[nodiscard]] std::uint64_t late() const;

 private:
  class Loop;
  explicit RingWorker(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace larder::hf3fs
