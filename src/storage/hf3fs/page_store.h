// SPDX-License-Identifier: Apache-2.0
// The port to the shared files: moves one page between memory and its slot.
//
// Purpose: the backend (hf3fs_backend.h) decides what goes where; this moves bytes and verifies them, and knows neither
// keys nor groups. UsrbioPageStore does it with 3FS's rings; tests have one in memory.
//
// Contract
//  - open_files() may block (it opens files), for a limited time: not on a thread that must not wait. The files stay
//    good until the mount dies; afterwards transfers on them end kUnavailable, and open_files() gives new ones when the
//    mount is back.
//  - submit() does no I/O on the caller's thread. `done` of each transfer then runs exactly once, on any thread, under
//    no lock; it must be short. Payloads belong to the transfer until then, and are never touched after it (rule 3),
//    also when the transfer ended by its deadline and the file system finishes it later.
//  - A read that ends ok is verified: envelope, generation, checksum. kNotFound: a hole, the end of the file, or a page
//    of another generation. kCorrupt: anything else in the slot. kDeadlineExceeded, kUnavailable: no answer.
//  - A write that ends otherwise than ok says whether its bytes may still land later: it took too long, or the file
//    system cannot say what became of it. Such a slot must not be given to another page before the file system has
//    given up on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "storage/envelope.h"
#include "storage/hf3fs/page_slots.h"

namespace larder::hf3fs {

// The open files of one namespace. Threads: any; what an implementation keeps in it is its own.
class PageFiles {
 public:
  virtual ~PageFiles() = default;
};

struct TransferEnd {
  Status status;
  bool may_land_later = false;  // writes only
};

struct PageTransfer {
  enum class Kind : std::uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  std::shared_ptr<PageFiles> files;
  SlotAddress address;
  Envelope envelope;                 // write: all but the checksum. Read: what must be there (flags, group: any)
  std::span<const Segment> payload;  // envelope.payload_bytes in all
  std::function<void(TransferEnd)> done;
};

struct PageStoreStats {
  std::uint64_t in_flight = 0;  // transfers from submit to done
  std::uint64_t abandoned = 0;  // ended by their deadline and not yet given back by the file system
  std::uint64_t late = 0;       // of those, given back so far
  std::uint64_t remounts = 0;   // how often everything was opened anew after the mount died
  bool is_down = false;
};

class PageStore {
 public:
  virtual ~PageStore() = default;  // = close() without a limit
  // `base`: path in front of ".<i>.bin". For writing: makes files that are not there; never changes the length of one
  // that is. For reading only: kNotFound if one is not there, though the mount is.
  [[nodiscard]] virtual Result<std::shared_ptr<PageFiles>> open_files(const std::string& base, std::uint32_t count,
                                                                      PageTransfer::Kind purpose) = 0;
  // True: open_files() does not block now. A hint: the mount may die in between.
  [[nodiscard]] virtual bool has_open(const std::string& base, PageTransfer::Kind purpose) const = 0;
  // kOverloaded: the queue is full; kUnavailable: closed, or the mount is down. Then `done` does not run.
  [[nodiscard]] virtual Status submit(PageTransfer transfer) = 0;
  [[nodiscard]] virtual PageStoreStats stats() const = 0;
  // No new transfers; waits for those in flight. kDeadlineExceeded: some are not done yet. Idempotent.
  [[nodiscard]] virtual Status close(std::chrono::nanoseconds limit) = 0;
};

}  // namespace larder::hf3fs
