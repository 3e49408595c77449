#include "controller/joint.h"

#include <algorithm>

#include "base/defect.h"

namespace larder {

namespace {

// One pool's view while the boundary moves right.
struct PoolScan {
  const Presence* present = nullptr;  // null: absent everywhere
  ComponentKind component = ComponentKind::kFull;
  std::uint64_t run = 0;  // pages present without a gap, ending at the boundary

  [[nodiscard]] bool has(std::uint64_t page) const { return present && page < present->size() && (*present)[page]; }
};

std::vector<PoolScan> make_scans(const ModelSpec& model, std::span<const PoolPresence> presence) {
  std::vector<PoolScan> scans;
  for (const PoolSpec& pool : model.pools) {
    if (defect(Defect::kSidecarHoleIgnored) && !pool.is_anchor) continue;
    PoolScan scan;
    scan.component = pool.component;
    const auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& p) { return p.pool == pool.name; });
    if (it != presence.end()) scan.present = &it->present;
    scans.push_back(scan);
  }
  return scans;
}

}  // namespace

OutcomeBits restore_candidates(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t from,
                               std::uint64_t to) {
  OutcomeBits bits((to + 63) / 64, 0);
  std::vector<PoolScan> scans = make_scans(model, presence);
  for (std::uint64_t p = 1; p <= to; ++p) {
    bool satisfied = true;
    for (PoolScan& scan : scans) {
      const bool here = scan.has(p - 1);
      scan.run = here ? scan.run + 1 : 0;
      switch (scan.component) {
        case ComponentKind::kFull:
          satisfied = satisfied && (scan.run == p || (defect(Defect::kPresenceHoleIgnored) && here));
          break;
        case ComponentKind::kSwa:
          satisfied = satisfied && scan.run + (defect(Defect::kWindowOffByOne) ? 1 : 0) >= model.window_pages_at(p);
          break;
        case ComponentKind::kMamba:
          satisfied = satisfied && (here || (defect(Defect::kStateHoleIgnored) && p > 1));
          break;
      }
    }
    if (satisfied && p > from) bits[(p - 1) / 64] |= std::uint64_t{1} << ((p - 1) % 64);
  }
  return bits;
}

std::uint64_t largest_candidate(const OutcomeBits& bits, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t p = to; p > from; --p) {
    const std::size_t word = (p - 1) / 64;
    if (word < bits.size() && ((bits[word] >> ((p - 1) % 64)) & 1)) return p;
    if (defect(Defect::kAllOrNothingHit)) break;
  }
  return from;
}

}  // namespace larder
