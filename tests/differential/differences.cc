#include "tests/differential/differences.h"

#include <cstdlib>

namespace larder::differential {
namespace {

constexpr DifferencePart kRestore = DifferencePart::kRestorePoint;

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
