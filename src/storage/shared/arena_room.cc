// SPDX-License-Identifier: Apache-2.0
#include "storage/shared/arena_room.h"

#include <algorithm>
#include <iterator>

namespace larder::share {

ArenaRoom::ArenaRoom(std::uint64_t bytes) : size_(bytes / kArenaPageBytes * kArenaPageBytes), free_bytes_(size_) {
  if (size_ > 0) free_.emplace(0, size_);
}

std::optional<std::uint64_t> ArenaRoom::take(std::uint64_t bytes, std::uint64_t from) {
  if (bytes == 0) return 0;
  if (bytes > free_bytes_) return std::nullopt;
  const std::uint64_t wanted = whole_pages(bytes);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const std::uint64_t offset = at->first, end = offset + at->second, begin = std::max(offset, from);
    if (begin > end || end - begin < wanted) continue;
    free_.erase(at);
    if (begin > offset) free_.emplace(offset, begin - offset);
    if (begin + wanted < end) free_.emplace(begin + wanted, end - begin - wanted);
    taken_.emplace(begin, wanted);
    free_bytes_ -= wanted;
    return begin;
  }
  return std::nullopt;
}

bool ArenaRoom::give_back(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return true;
  const auto taken = taken_.find(offset);
  if (taken == taken_.end() || taken->second != whole_pages(bytes)) return false;
  std::uint64_t begin = offset, size = taken->second;
  taken_.erase(taken);
  free_bytes_ += size;
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (after != free_.end() && after->first == begin + size) {
    size += after->second;
    free_.erase(after);
  }
  free_.emplace(begin, size);
  return true;
}

}  // namespace larder::share
