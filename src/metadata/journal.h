// SPDX-License-Identifier: Apache-2.0
// What the page-index service writes down: a port, and the batch that goes through it.
//
// Purpose: an ordered map of short keys to short values that survives the process. A write is atomic. Written is not
// synced: what was written survives kill -9, what was synced (then or later) survives a power cut; after a power cut
// what is left is a beginning of what was written. Who writes what: metadata/journal_records.h.
// Threads: write() and sync() from any thread, not at the same time (metadata/commit_log.h sees to it); they block on
// the disk, so never under a lock.
// Errors: kUnavailable: the disk is full or refuses; whether that batch was written is unknown, writing it again is
// safe. After a failure a journal may refuse at once for a while, without asking the disk. kCorrupt: what is stored
// cannot be read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace larder::metadata {

// Changes in order, in one piece of memory. Each takes kFrameBytes, its key and its value.
class JournalBatch {
 public:
  static constexpr std::size_t kFrameBytes = 1 + 2 * sizeof(std::uint32_t);

  JournalBatch() = default;
  explicit JournalBatch(std::size_t bytes) { bytes_.reserve(bytes); }  // room for so many
  void put(std::string_view key, std::string_view value) { add(kPut, key, value); }
  void erase(std::string_view key) { add(kErase, key, {}); }
  void append(const JournalBatch& other) { bytes_ += other.bytes_; }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_.size(); }
  // put(key, value) and erase(key), in order.
  template <class Put, class Erase>
  void for_each(Put put, Erase erase) const {
    for (std::string_view left = bytes_; !left.empty();) {
      const char kind = left[0];
      const std::string_view key = take(left, 1), value = take(left, 0);
      kind == kPut ? put(key, value) : erase(key);
    }
  }

 private:
  static constexpr char kPut = 'p', kErase = 'e';
  void add(char kind, std::string_view key, std::string_view value);
  static std::string_view take(std::string_view& left, std::size_t skip);

  std::string bytes_;
};

class Journal {
 public:
  virtual ~Journal() = default;
  // Everything that is there, in the order of the keys' bytes; the views live during the call. Ends with what `each`
  // returns if that is an error. Only before the first write.
  using Visitor = std::function<Status(std::string_view key, std::string_view value)>;
  [[nodiscard]] virtual Status replay(const Visitor& each) = 0;
  [[nodiscard]] virtual Status write(const JournalBatch& batch, bool synced) = 0;
  // Everything written so far.
  [[nodiscard]] virtual Status sync() = 0;
};

}  // namespace larder::metadata
