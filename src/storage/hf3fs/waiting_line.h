// SPDX-License-Identifier: Apache-2.0
// The transfers of a ring that wait for their turn, and which of them go together as one I/O.
//
//   waiting:  a0 b7 a2 c4 a1 ...          a window = kGatherBytes of one file, at a multiple of kGatherBytes
//   first():  [a0 a1 a2]                  neighbours in one window: the file without a gap, in the order of the file
//
// An I/O costs the file system the same trip whether it moves 64 KiB or 1 MiB, and a server replaces one version of a
// chunk after another: a second write into the same chunk would only wait there. So writes whose window has a write
// under way wait here, and go with their neighbours when it ends; others pass them. Nothing waits for neighbours that
// have not come.
//
// The line is in the order of deadlines, so what is over stands in front.
//
// Threads: confined. Cost: first() looks at kLookedThrough entries at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "base/clock.h"
#include "storage/hf3fs/page_store.h"

namespace larder::hf3fs {

inline constexpr std::uint64_t kGatherBytes = std::uint64_t{1} << 20;

struct WaitingTransfer {
  PageTransfer transfer;
  TimePoint deadline{};
  bool goes_alone = false;  // it went with others, which failed: which of them was it?
  [[nodiscard]] std::uint64_t bytes() const { return transfer_bytes(transfer.envelope.payload_bytes); }
  [[nodiscard]] std::uint64_t end() const { return transfer.address.offset + bytes(); }
};

// Compares files by identity: two openings of one file are two.
struct GatherWindow {
  const PageFiles* files = nullptr;
  std::uint32_t file = 0;
  std::uint64_t number = 0;
  bool operator==(const GatherWindow&) const = default;
};
[[nodiscard]] inline GatherWindow window_of(const PageTransfer& transfer) {
  return {transfer.files.get(), transfer.address.file, transfer.address.offset / kGatherBytes};
}

class WaitingLine {
 public:
  using Entry = std::list<WaitingTransfer>::iterator;
  using IsBusy = std::function<bool(const GatherWindow&)>;
  static constexpr std::size_t kLookedThrough = 256;

  // `close_deadlines`: transfers go together whose deadlines lie no further apart.
  explicit WaitingLine(Nanos close_deadlines) : close_deadlines_(close_deadlines) {}

  // Behind those with the same deadline. Cheap for the last deadline of all.
  void push(WaitingTransfer entry);
  // In front of those with the same deadline, in their order. Cheap for the first deadlines.
  void put_back(std::vector<WaitingTransfer> entries);
  [[nodiscard]] bool empty() const { return line_.empty(); }
  [[nodiscard]] std::size_t size() const { return line_.size(); }

  // The first transfer whose window is not busy, with the neighbours that can go with it, in the order of the file; at
  // most `limit` bytes unless the first alone has more. Empty: all that were looked at have to wait. They stay in the
  // line until taken.
  [[nodiscard]] std::vector<Entry> first(const IsBusy& is_busy, std::uint64_t limit = kGatherBytes);
  [[nodiscard]] WaitingTransfer take(Entry entry);
  // Takes the foremost if its deadline is over.
  [[nodiscard]] bool take_expired(TimePoint now, WaitingTransfer& out);

 private:
  const Nanos close_deadlines_;
  std::list<WaitingTransfer> line_;
};

}  // namespace larder::hf3fs
