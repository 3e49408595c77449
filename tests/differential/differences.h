// SPDX-License-Identifier: Apache-2.0
// Where Larder differs from the reference system (SGLang HiCache) on purpose: the one table, and how often each entry
// was met.
//
// The differential tests drive production code and a plain implementation of the reference's published rules side by
// side. A disagreement is legal only if an entry here says so, under that entry's condition; an entry that no history
// meets any more is dead and fails the test. docs/testing.md shows the same table, and a test compares the two.
// Threads: confined; DifferenceCounts belongs to one test.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace larder::differential {

enum class Difference : std::uint8_t {
  // restore points
  kJointPoint,
  kRanksIntersect,
  kShortWindow,
  kSidecarReadCounts,
  kDraftCounts,
  kForkBesideHost,
  kForkAtPage,
  // the tree
  kLookupChangesNothing,
  kCopyUnderWay,
  kInsertWaits,
  kRecoveryKeepsFull,
  kUseExactWindow,
  kLockExactWindow,
  kClaimPages,
  kHostLockSplits,
  kEvictPages,
  kWindowHeadFirst,
  kLeafKeepsFull,
  kStateWithWindowCopy,
  kHostCopyEvictable,
  kAdoptBeneathDevice,
  kBackedFirst,
  kInnerBackedUp,
  kLeafWholeBackedUp,
  kKeysKnowTenant,
};
inline constexpr std::size_t kDifferenceCount = 25;

// Which differential test meets an entry.
enum class DifferencePart : std::uint8_t { kRestorePoint, kTree };

struct DifferenceEntry {
  Difference id;
  DifferencePart part;
  std::string_view name;
  std::string_view reference;  // the rule of the reference system
  std::string_view ours;
  std::string_view why;
};

// In the order of the enum.
[[nodiscard]] std::span<const DifferenceEntry> all_differences();
[[nodiscard]] const DifferenceEntry& entry_of(Difference d);
// The entry as a row of the table in docs/testing.md, without the line's end.
[[nodiscard]] std::string table_row(const DifferenceEntry& entry);

class DifferenceCounts {
 public:
  void meet(Difference d) { ++counts_[static_cast<std::size_t>(d)]; }
  [[nodiscard]] std::uint64_t of(Difference d) const { return counts_[static_cast<std::size_t>(d)]; }
  void add(const DifferenceCounts& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }
  // A line for each entry of the part; for a person who reads a test's output.
  [[nodiscard]] std::string to_string(DifferencePart part) const;
  // Names of the entries of the part that were never met.
  [[nodiscard]] std::string dead_entries(DifferencePart part) const;

 private:
  std::array<std::uint64_t, kDifferenceCount> counts_{};
};

// The first seed of a randomised test: LARDER_TEST_SEED, or `otherwise`.
[[nodiscard]] std::uint64_t first_seed(std::uint64_t otherwise);

}  // namespace larder::differential
