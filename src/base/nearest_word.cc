// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace larder {
namespace {

// Letters inserted, dropped, replaced or exchanged with their neighbour (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  constexpr std::size_t kLongest = 128, kLeastToContain = 4;
  if (word.size() > kLongest) return {};
  std::string_view nearest;
  std::size_t best = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  if (!nearest.empty() || word.size() < kLeastToContain) return nearest;
  for (const std::string_view candidate : known) {
    if (candidate.find(word) == std::string_view::npos) continue;
    if (!nearest.empty()) return {};
    nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known, std::string_view before,
                         std::string_view after) {
  const std::string_view nearest = nearest_word(word, known);
  if (nearest.empty()) return {};
  std::string text = "; did you mean ";
  return text.append(before).append(nearest).append(after).append("?");
}

}  // namespace larder
