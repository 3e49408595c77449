// SPDX-License-Identifier: Apache-2.0
#include "model/restorable_lengths.h"

#include <algorithm>

namespace larder {
namespace {

void fill_bits(std::span<std::uint64_t> words, std::size_t from, std::size_t to, bool value) {
  for (; from < to; from = (from / 64 + 1) * 64) {
    std::uint64_t mask = ~std::uint64_t{0} << (from % 64);
    if (to / 64 == from / 64) mask &= (std::uint64_t{1} << (to % 64)) - 1;
    value ? words[from / 64] |= mask : words[from / 64] &= ~mask;
  }
}

}  // namespace

void RestorableScan::add(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable) {
  runs_.resize(needs.size(), at_);
  fill_bits(restorable, at_, at_ + pages, !is_over_);
  for (std::size_t n = 0; n < needs.size() && !is_over_; ++n) {
    const JointNeed& need = needs[n];
    const Presence& present = *need.present;
    const std::size_t known = std::min(pages, present.size());
    std::uint64_t run = runs_[n];
    std::size_t i = 0;
    for (; i < known; ++i) {
      run = present[i] ? run + 1 : 0;
      if (need.policy == HitPolicy::kAllPages) {
        if (run == 0) break;
      } else if (run < std::min<std::uint64_t>(need.trailing_pages, at_ + i + 1)) {
        restorable[(at_ + i) / 64] &= ~(std::uint64_t{1} << ((at_ + i) % 64));
      }
    }
    fill_bits(restorable, at_ + i, at_ + pages, false);
    if (i < pages) run = 0;
    runs_[n] = run;
  }
  for (std::size_t n = 0; n < needs.size(); ++n) {
    is_over_ = is_over_ || (needs[n].policy == HitPolicy::kAllPages && runs_[n] == 0 && pages > 0);
  }
  at_ += pages;
}

void restorable_lengths(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable) {
  std::fill(restorable.begin(), restorable.end(), 0);
  RestorableScan().add(needs, pages, restorable);
}

}  // namespace larder
