#include "controller/fetch.h"

#include <algorithm>

namespace larder {

std::vector<std::uint64_t> choose_stops(const OutcomeBits& candidates, std::uint64_t from, std::uint64_t target,
                                        std::uint64_t gap) {
  gap = std::max<std::uint64_t>(1, gap);
  std::vector<std::uint64_t> stops;
  for (std::uint64_t p = from + gap; p + gap <= target; ++p) {
    const std::size_t word = (p - 1) / 64;
    if (word >= candidates.size() || ((candidates[word] >> ((p - 1) % 64)) & 1) == 0) continue;
    stops.push_back(p);
    p += gap - 1;
  }
  stops.push_back(target);
  return stops;
}

std::vector<FetchBatch> cut_batches(std::uint64_t from, const std::vector<std::uint64_t>& stops, std::uint64_t most) {
  std::vector<FetchBatch> batches;
  for (const std::uint64_t stop : stops) {
    do {
      FetchBatch batch;
      batch.begin = std::min(from, stop);
      batch.end = std::min(stop, batch.begin + std::max<std::uint64_t>(1, most));
      batch.window_begin = batch.window_from = batch.end;
      from = std::max(from, batch.end);
      batches.push_back(std::move(batch));
    } while (from < stop);
    batches.back().is_stop = true;
  }
  return batches;
}

}  // namespace larder
