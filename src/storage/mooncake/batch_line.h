// SPDX-License-Identifier: Apache-2.0
// Which batches of pages may begin: staging memory is bounded, a page is written by one batch at a time, and a clear
// has the writes before it behind it, and those after it before it.
//
//   push() ─► waiting, in order ─► take_ready(): its memory and its names are its own ─► end()
//                               └► take_refused()
//
// Batches begin in their order, but for those whose names another batch writes, and for writes and clears that wait for
// each other: these are passed by. Where one does not find room, all behind it wait: no large one is starved.
// A batch that is late (set_late) keeps its memory and its names, perhaps for minutes. What would wait for it is
// refused, as is what finds no room where all that run are late. Threads: confined. Limits: the caller bounds what is
// pushed. Cost: take_ready() looks at all that wait.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "storage/shared/arena_room.h"

namespace larder::mooncake {

struct Batch {
  enum class Kind : std::uint8_t { kRead, kWrite, kClear };
  Kind kind = Kind::kRead;
  std::uint64_t bytes = 0;         // of staging memory, one piece
  std::vector<std::string> names;  // kWrite: what it writes
  std::optional<Digest256> space;  // digest of the namespace that it reads or clears; a clear without: all
  // Runs once, where take_ready()'s caller runs it.
  std::function<void(std::uint64_t batch, std::uint64_t offset)> begin;
  std::function<void(const Status&)> refuse;  // instead of it
};

class BatchLine {
 public:
  struct Ready {
    std::uint64_t batch = 0, offset = 0;
    std::function<void(std::uint64_t batch, std::uint64_t offset)> begin;
  };

  explicit BatchLine(std::uint64_t staging_bytes) : room_(staging_bytes) {}
  // Precondition: bytes <= most_bytes().
  void push(Batch batch);
  // Those that may begin now, in order. They have begun when this returns.
  [[nodiscard]] std::vector<Ready> take_ready();
  // Those that take_ready() has refused.
  [[nodiscard]] std::vector<Batch> take_refused() { return std::exchange(refused_, {}); }
  // Of one that has begun.
  void set_late(std::uint64_t batch);
  // Of a read that has begun: has a clear of its namespace run since then, or does one run now?
  [[nodiscard]] bool has_met_clear(std::uint64_t batch) const;
  // Of one that has begun. Its memory and its names are free.
  void end(std::uint64_t batch);
  [[nodiscard]] std::uint64_t most_bytes() const { return room_.size(); }
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Entry {
    std::uint64_t number = 0, offset = 0;
    Batch batch;
    bool has_met_clear = false, is_late = false;
  };
  [[nodiscard]] bool has_free_names(const Batch& batch) const;
  // Two that are under way at once, in any order: is one a clear of what the other reads?
  static void meet(Entry& one, Entry& other);
  // Must one be over before the other begins?
  [[nodiscard]] static bool is_before(const Batch& one, const Batch& other);
  [[nodiscard]] bool waits_for_late(const Batch& batch) const;
  [[nodiscard]] bool are_all_late() const;

  share::ArenaRoom room_;
  std::uint64_t next_ = 1;
  std::list<Entry> waiting_, running_;
  std::vector<Batch> refused_;
  std::set<std::string> written_;  // by those that run
  std::size_t writes_ = 0;         // that run
  bool is_clearing_ = false;
};

}  // namespace larder::mooncake
