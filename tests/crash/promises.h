// SPDX-License-Identifier: Apache-2.0
// What a store has promised, seen from outside: every write and clear, when it began and how it ended.
//
// From that follows what a later process must find of each group:
//   kWhole   it was acknowledged, in a way that survives what happened, and not cleared since
//   kAbsent  it was never written, or a clear that was acknowledged came after all its writes
//   kEither  the end came before the acknowledgement; or an eviction is possible, which nobody announces
// In every case: all pages of the group or none, and right bytes.
//
// A write that overlaps a clear of its scope promises nothing: either may have been first. An acknowledged write
// survives a killed process; a power cut only if it was durable. What was found once after a restart is on disk.
// Eviction: a budget may take away any group, as a whole; it may come back at the next start, because its bytes lie in
// a segment until that goes.
// Threads: confined.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/crash/crash_pages.h"

namespace larder::crash {

enum class Expectation : std::uint8_t { kAbsent, kWhole, kEither };
enum class Ending : std::uint8_t { kKilled, kPowerCut };

class Promises {
 public:
  // `write` is unique between two endings.
  void write_begun(std::uint64_t write, const std::vector<GroupId>& groups, bool is_durable);
  void group_done(std::uint64_t write, std::size_t index, bool is_ok);
  // Scope 0: all of the store. No two clears of a scope at once.
  void clear_begun(std::uint64_t scope);
  void clear_done(std::uint64_t scope, bool is_ok);
  // What was under way ended there.
  void ended(Ending ending);
  // May anything have been evicted since the store was made?
  void allow_eviction() { may_evict_ = true; }
  [[nodiscard]] bool may_evict() const { return may_evict_; }

  [[nodiscard]] std::vector<GroupId> groups() const;  // all that were ever written
  [[nodiscard]] Expectation expected(const GroupId& group) const;
  // What a restarted store had.
  void found(const GroupId& group, bool is_there);
  [[nodiscard]] std::uint64_t acknowledged() const { return acknowledged_; }

 private:
  enum class Known : std::uint8_t { kAbsent, kMaybe, kThere, kDurable };
  struct Group {
    Known known = Known::kAbsent;
    unsigned in_flight = 0;
    bool is_touched = false;  // written since the clear under way began
  };
  struct Write {
    std::vector<GroupId> groups;
    bool is_durable = false;
    bool overlaps_clear = false;
  };
  [[nodiscard]] bool is_clearing(std::uint64_t scope) const { return clears_.contains(0) || clears_.contains(scope); }

  std::map<GroupId, Group> groups_;
  std::map<std::uint64_t, Write> writes_;  // under way
  std::set<std::uint64_t> clears_;         // under way
  bool may_evict_ = false;
  std::uint64_t acknowledged_ = 0;
};

}  // namespace larder::crash
