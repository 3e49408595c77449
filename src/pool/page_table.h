// SPDX-License-Identifier: Apache-2.0
// Where one request's pages are on the device, and which entries changed since a copy of the table was made.
//
// An engine on a GPU keeps a copy of the table there. With each step it asks what changed since the version of its
// copy, and uploads that: a step of a long request costs an entry or two, not the table.
//
//   table.publish()          version 7 ──► the engine copies everything, notes 7
//   put() put() ... publish() version 8 ──► changed_since(7): [100, 101) of full, [36, 40) and [100, 101) of swa
//
// The record is short: when it is full, its two oldest ranges become one that covers both. So an engine that takes
// each grant is told of what changed and little else, one that comes late of more than that, and neither of less.
//
// Threads: the cache thread; the engine reads it during a step, or a copy of it. Cost: O(1) for each put, no allocation
// but that of the entries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/strong.h"
#include "model/pool_spec.h"

namespace larder {

struct PageRange {
  std::uint64_t from = 0, to = 0;  // entries [from, to)
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

// Which entries of a list changed, and in which version. A version that is not yet published is the one after it.
class PageChanges {
 public:
  static constexpr std::size_t kMostRanges = 8;

  // Entry `at` changes with `version`, which is never less than before.
  void note(std::uint64_t at, std::uint64_t version);
  // Appends the ranges that changed after `version`, clipped to `size` entries; they may touch, and overlap.
  void append_since(std::uint64_t version, std::uint64_t size, std::vector<PageRange>& out) const;

 private:
  struct Change {
    PageRange range;
    std::uint64_t version = 0;
  };
  std::array<Change, kMostRanges> changes_{};  // the first count_, ascending versions
  std::size_t count_ = 0;
};

// Entry i of `full` and `swa` covers tokens [i*page_size, (i+1)*page_size). `swa` entries that left the window, or a
// component that the model lacks, are DeviceSlot{} (invalid). `state` is the request's own working state: read and
// written in place by the engine, never shared.
// Ownership: the controller writes it between engine steps; the engine only reads it during a step.
struct PageTable {
  std::vector<DeviceSlot> full;
  std::vector<DeviceSlot> swa;
  DeviceSlot state;

  struct Changes {
    std::vector<PageRange> full, swa;
    bool state = false;
  };
  // Of the table as it was last published; counts up through all tables of a request. 0: nothing was published yet.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // A copy of the table at `version` becomes this one: its lists get the lengths of these, and these ranges are copied.
  // 0, or a version of an earlier table of the request: everything. Precondition: published.
  [[nodiscard]] Changes changed_since(std::uint64_t version) const;

  // ---- the controller's
  // A table that takes the place of one at `version`.
  void follow(std::uint64_t version) { version_ = first_ = version; }
  // Every entry counts as changed: after the lists were filled by hand.
  void note_all();
  // Sets entry `at` of the component, kFull or kSwa; at most one behind the last.
  void put(ComponentKind c, std::uint64_t at, DeviceSlot slot);
  // What has changed is a version now. Nothing, if nothing has.
  void publish();

 private:
  std::uint64_t version_ = 0;
  std::uint64_t first_ = 0;  // of the table before
  bool is_changed_ = false;  // since it was published
  PageChanges full_changes_, swa_changes_;
};

}  // namespace larder
