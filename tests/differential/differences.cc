// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/differences.h"

#include <cstdlib>

namespace larder::differential {
namespace {

constexpr DifferencePart kRestore = DifferencePart::kRestorePoint, kTree = DifferencePart::kTree;

constexpr std::array<DifferenceEntry, kDifferenceCount> kTable = {{
    {Difference::kJointPoint, kRestore, "joint_point",
     "each pool has a best boundary of its own; the hit is the smallest of them",
     "the hit is the largest boundary at which all pools are satisfied at once",
     "the smallest need not satisfy anybody: what was fetched for it is thrown away, and a shorter hit that was there "
     "is lost"},
    {Difference::kRanksIntersect, kRestore, "ranks_intersect", "ranks agree on the smallest of their hits",
     "ranks agree on the largest boundary that is a restore point on each of them",
     "on a rank whose own hit was longer, the smallest may lie between two of its checkpoints"},
    {Difference::kShortWindow, kRestore, "short_window",
     "no window is fetched for a prefix that is shorter than a window, and a part of a window is dropped on arrival",
     "a window is clipped at position 0, so the pages from 0 are a whole one",
     "prompts that are shorter than the window are common, and nothing before position 0 was ever attended to"},
    {Difference::kSidecarReadCounts, kRestore, "sidecar_read_counts",
     "whether the pages of sidecars could be read decides nothing: KV is published over whatever the slots held",
     "a page counts when all of its pools arrived", "never wrong bytes"},
    {Difference::kDraftCounts, kRestore, "draft_counts",
     "draft pages are fetched by chance: nobody asks whether they exist",
     "the draft pool is a sidecar of full like any other",
     "a draft model that reads pages that never came guesses badly, for as long as the prefix lives"},
    {Difference::kForkBesideHost, kRestore, "fork_beside_host",
     "with a host tier, no checkpoint is planned where a request leaves the cached path of another",
     "one is planned there, with or without a host tier", "two requests have shared the place, so a third may"},
    {Difference::kForkAtPage, kRestore, "fork_at_page",
     "the checkpoint of a fork stands at a multiple of the kernel's chunk, at or below the fork",
     "it stands at the fork's page, and a chunk is cut there", "what lies between is not computed again"},
    {Difference::kLookupChangesNothing, kTree, "lookup_changes_nothing",
     "a lookup cuts the node in which it ends, and the piece before the cut is as new as one that was used",
     "a lookup changes nothing; only using what it found does", "what nobody could use need not be kept"},
    {Difference::kCopyUnderWay, kTree, "copy_under_way",
     "data is found as soon as its copy was submitted; kernels wait for it, layer by layer",
     "data is found when its copy is done and was right", "a copy may fail, and nobody else must have built on it"},
    {Difference::kInsertWaits, kTree, "insert_waits",
     "pages are inserted over others whose copy to the device is under way, and go back as duplicates of them",
     "such an insertion is refused until the copy has ended",
     "were the copy to fail, the request would be left without pages"},
    {Difference::kRecoveryKeepsFull, kTree, "recovery_keeps_full",
     "a window is filled again by taking the new pages of full as well, for its slots hang on theirs",
     "window and full have slots of their own: the new pages of full are duplicates",
     "pages that others read from do not move"},
    {Difference::kUseExactWindow, kTree, "use_exact_window",
     "using a restore point makes the nodes new that reach into its window and the page before that",
     "it makes the pages of the window new", "what was not used goes first"},
    {Difference::kLockExactWindow, kTree, "lock_exact_window",
     "a lock holds the nodes that reach into the window; a new leaf is cut, so that this is not much more",
     "a lock holds the pages of the window", "an unused page of a locked node is room for another request"},
    {Difference::kClaimPages, kTree, "claim_pages", "a lock holds what is there, and lists what it skipped",
     "a lock is a claim on pages: what arrives later comes under it, and the node stays",
     "a request whose pages come back from the host needs them as much as those that were there"},
    {Difference::kHostLockSplits, kTree, "host_lock_splits",
     "when a node is cut, a lock of its window on the host stays with the end alone", "both pieces stay locked",
     "storage may be reading from the other one"},
    {Difference::kEvictPages, kTree, "evict_pages", "leaves are evicted whole, so more may go than was asked for",
     "a leaf gives as many pages as are needed, from its end", "a long leaf is not lost for a page"},
    {Difference::kWindowHeadFirst, kTree, "window_head_first", "a node's window is evicted whole",
     "of a stretch longer than a window its head goes first, while a window remains",
     "the restore point at its end survives"},
    {Difference::kLeafKeepsFull, kTree, "leaf_keeps_full", "a leaf whose window or state is evicted goes altogether",
     "if the other tier has a copy of that, only that goes", "the copy makes it a restore point as before"},
    {Difference::kStateWithWindowCopy, kTree, "state_with_window_copy",
     "inside the tree a window takes the state of its node along", "not if the other tier has the window",
     "the restore point is still there"},
    {Difference::kHostCopyEvictable, kTree, "host_copy_evictable",
     "the host evicts what is only there, in the order in which it came to be so",
     "host copies of what is also on the device may go, too, in the order of their last use",
     "host memory is one budget for all pools: what the device has as well is the first to spare"},
    {Difference::kAdoptBeneathDevice, kTree, "adopt_beneath_device",
     "storage is asked only beneath what is on the host, or at the root",
     "also beneath what only the device has; where that is dropped, what hangs on it goes along",
     "a prefix that has yet to be backed up is the likeliest to be continued"},
    {Difference::kBackedFirst, kTree, "backed_first",
     "write_back: an eviction backs up what it meets, and waits for that",
     "it ends at the first that has no copy, and names what has to be backed up for the rest",
     "the order is the same, and other requests go on while the copies are made"},
    {Difference::kInnerBackedUp, kTree, "inner_backed_up",
     "write_back: window and state inside the tree are dropped without a copy; a leaf is backed up as a whole",
     "they are named to be backed up first, like any other", "that is what write_back promises"},
    {Difference::kLeafWholeBackedUp, kTree, "leaf_whole_backed_up",
     "write_back: a leaf whose pages have a copy goes at once, with a window or a state that came later and has none",
     "these are backed up first", "without them the pages on the host serve nobody"},
    {Difference::kKeysKnowTenant, kTree, "keys_know_tenant",
     "page keys know tokens only: what salts and adapters keep apart in the tree meets in storage",
     "the chain of keys begins with a digest of model, adapter and tenant", "nobody gets another tenant's pages"},
}};

}  // namespace

std::span<const DifferenceEntry> all_differences() { return kTable; }

const DifferenceEntry& entry_of(Difference d) { return kTable[static_cast<std::size_t>(d)]; }

std::string table_row(const DifferenceEntry& entry) {
  std::string row = "| `" + std::string(entry.name) + "` | ";
  row += std::string(entry.reference) + " | " + std::string(entry.ours) + " | " + std::string(entry.why) + " |";
  return row;
}

std::string DifferenceCounts::to_string(DifferencePart part) const {
  std::string text;
  for (const DifferenceEntry& entry : kTable) {
    if (entry.part == part) text += "  " + std::string(entry.name) + ": " + std::to_string(of(entry.id)) + "\n";
  }
  return text;
}

std::string DifferenceCounts::dead_entries(DifferencePart part) const {
  std::string names;
  for (const DifferenceEntry& entry : kTable) {
    if (entry.part == part && of(entry.id) == 0)
      names += std::string(names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names;
}

std::uint64_t first_seed(std::uint64_t otherwise) {
  const char* text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace larder::differential
