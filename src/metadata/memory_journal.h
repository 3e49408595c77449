// SPDX-License-Identifier: Apache-2.0
// A journal in memory that can be told to fail and to lose what was not synced: for tests.
//
// Threads: all, any. The disk outlives the journals on it, like a real one the processes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "metadata/journal.h"

namespace larder::metadata {

class MemoryDisk {
 public:
  // What it does when a write comes.
  enum class Mood : std::uint8_t {
    kWell,
    kRefusing,     // writes fail and change nothing
    kPartAnswers,  // writes are done, but fail all the same
  };
  void set_mood(Mood mood) LARDER_EXCLUDES(mutex_);
  // A power cut: of the writes that were not synced only the first `kept` are there.
  void cut_power(std::size_t kept) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t unsynced_writes() const LARDER_EXCLUDES(mutex_);
  // Puts a record there by hand, synced.
  void plant(std::string_view key, std::string_view value) LARDER_EXCLUDES(mutex_);

  [[nodiscard]] Status replay(const Journal::Visitor& each) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status write(const JournalBatch& batch, bool synced) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] Status sync() LARDER_EXCLUDES(mutex_);

 private:
  using Records = std::map<std::string, std::string, std::less<>>;
  static void apply(const JournalBatch& batch, Records& records);
  void sync_all() LARDER_REQUIRES(mutex_);

  mutable RankedMutex mutex_{LockRank::kFileSystem};
  Mood mood_ LARDER_GUARDED_BY(mutex_) = Mood::kWell;
  Records written_ LARDER_GUARDED_BY(mutex_);
  Records synced_ LARDER_GUARDED_BY(mutex_);
  std::vector<JournalBatch> unsynced_ LARDER_GUARDED_BY(mutex_);
};

[[nodiscard]] std::unique_ptr<Journal> open_memory_journal(std::shared_ptr<MemoryDisk> disk);

}  // namespace larder::metadata
