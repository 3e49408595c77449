#include "model/restorable_lengths.h"

#include <algorithm>

namespace larder {
namespace {

void clear_from(std::span<std::uint64_t> words, std::size_t bit) {
  const std::size_t word = bit / 64;
  if (word >= words.size()) return;
  words[word] &= (std::uint64_t{1} << (bit % 64)) - 1;
  std::fill(words.begin() + static_cast<std::ptrdiff_t>(word) + 1, words.end(), 0);
}

}  // namespace

void restorable_lengths(std::span<const JointNeed> needs, std::size_t pages, std::span<std::uint64_t> restorable) {
  std::fill(restorable.begin(), restorable.end(), ~std::uint64_t{0});
  clear_from(restorable, pages);
  for (const JointNeed& need : needs) {
    const Presence& present = *need.present;
    const std::size_t known = std::min(pages, present.size());
    std::uint64_t run = 0;  // pages present without a gap, up to and with page i
    std::size_t i = 0;
    for (; i < known; ++i) {
      run = present[i] ? run + 1 : 0;
      if (need.policy == HitPolicy::kAllPages) {
        if (run == 0) break;
      } else if (run < std::min<std::uint64_t>(need.trailing_pages, i + 1)) {
        restorable[i / 64] &= ~(std::uint64_t{1} << (i % 64));
      }
    }
    clear_from(restorable, i);
  }
}

}  // namespace larder
