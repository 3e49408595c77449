// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch.h"

#include <algorithm>
#include <bit>

namespace larder {

std::uint64_t FetchBatch::run() const {
  const std::uint64_t pages = end - begin;
  for (std::uint64_t page = 0; page < pages; page += 64) {
    const std::uint64_t word = page / 64 < arrived.size() ? arrived[page / 64] : 0;
    const auto ones = static_cast<std::uint64_t>(std::countr_one(word));
    if (ones < 64) return std::min(pages, page + ones);
  }
  return pages;
}

namespace {
// The first candidate at or behind p; `end`: there is none before it.
std::uint64_t next_candidate(const OutcomeBits& bits, std::uint64_t p, std::uint64_t end) {
  for (std::uint64_t bit = p - 1; bit / 64 < bits.size() && bit < end; bit = (bit / 64 + 1) * 64) {
    const std::uint64_t rest = bits[bit / 64] >> (bit % 64);
    if (rest != 0) return std::min(end, bit + static_cast<std::uint64_t>(std::countr_zero(rest)) + 1);
  }
  return end;
}
}  // namespace

std::vector<std::uint64_t> choose_stops(const OutcomeBits& candidates, std::uint64_t from, std::uint64_t target,
                                        std::uint64_t gap) {
  gap = std::max<std::uint64_t>(1, gap);
  std::vector<std::uint64_t> stops;
  for (std::uint64_t p = from + gap; p + gap <= target; p += gap) {
    p = next_candidate(candidates, p, target);
    if (p + gap <= target) stops.push_back(p);
  }
  stops.push_back(target);
  return stops;
}

FetchBatch FetchCut::cut() {
  const std::uint64_t stop = stops[next];
  FetchBatch batch;
  batch.begin = std::min(from, stop);
  batch.end = std::min(stop, batch.begin + std::max<std::uint64_t>(1, most));
  batch.window_begin = batch.window_from = batch.end;
  from = std::max(from, batch.end);
  batch.is_stop = from >= stop;
  next += batch.is_stop ? 1 : 0;
  return batch;
}

}  // namespace larder
