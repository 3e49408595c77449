// SPDX-License-Identifier: Apache-2.0
#include "controller/joint.h"

#include <algorithm>

#include "base/defect.h"

namespace larder {

namespace {

JointNeed need_of(const ModelSpec& model, const PoolSpec& pool, std::span<const PoolPresence> presence) {
  static const Presence kAbsent;
  const auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& p) { return p.pool == pool.name; });
  const Presence* const present = it == presence.end() ? &kAbsent : &it->present;
  switch (pool.component) {
    case ComponentKind::kFull: break;
    case ComponentKind::kSwa: {
      const std::uint32_t window = model.window_pages();
      return {present, HitPolicy::kTrailingPages, window - (defect(Defect::kWindowOffByOne) ? 1 : 0)};
    }
    case ComponentKind::kMamba: return {present, HitPolicy::kTrailingPages, 1};
  }
  if (defect(Defect::kPresenceHoleIgnored)) return {present, HitPolicy::kTrailingPages, 1};
  return {present, HitPolicy::kAllPages, 0};
}

}  // namespace

void JointScan::add(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t pages,
                    OutcomeBits& bits) {
  std::vector<JointNeed> needs;
  for (const PoolSpec& pool : model.pools) {
    if (defect(Defect::kSidecarHoleIgnored) && !pool.is_anchor) continue;
    if (defect(Defect::kStateHoleIgnored) && pool.component == ComponentKind::kMamba) continue;
    needs.push_back(need_of(model, pool, presence));
  }
  bits.resize(words_for(at() + pages));
  scan_.add(needs, pages, bits);
}

void ReachScan::add(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t pages) {
  const auto look = [&](RestorableScan& scan, bool with_window, std::uint64_t& reach) {
    std::vector<JointNeed> needs;
    for (const PoolSpec& pool : model.pools) {
      const bool counts =
          pool.component == ComponentKind::kFull || (pool.component == ComponentKind::kSwa && with_window);
      if (counts) needs.push_back(need_of(model, pool, presence));
    }
    const std::uint64_t from = scan.at();
    bits_.resize(words_for(from + pages));  // kept from piece to piece: each writes its own bits, and no others
    scan.add(needs, pages, bits_);
    const std::uint64_t to = largest_candidate(bits_, from, scan.at());
    if (to > from) reach = to;
  };
  look(of_full_, false, reach_.full);
  if (!model.has(ComponentKind::kSwa)) {
    reach_.window = reach_.full;
    return;
  }
  look(of_window_, true, reach_.window);
}

OutcomeBits restore_candidates(const ModelSpec& model, std::span<const PoolPresence> presence, std::uint64_t from,
                               std::uint64_t to) {
  OutcomeBits bits;
  JointScan().add(model, presence, to, bits);
  std::fill_n(bits.begin(), std::min(from, to) / 64, 0);
  if (from < to && from % 64 != 0) bits[from / 64] &= ~((std::uint64_t{1} << (from % 64)) - 1);
  return bits;
}

std::uint64_t largest_candidate(const OutcomeBits& bits, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t p = to; p > from; --p) {
    const std::size_t word = (p - 1) / 64;
    if (has_bit(bits, p - 1)) return p;
    if (defect(Defect::kAllOrNothingHit)) break;
    if (word >= bits.size() || bits[word] == 0) p = std::max(from + 1, word * 64 + 1);  // none in this word
  }
  return from;
}

}  // namespace larder
