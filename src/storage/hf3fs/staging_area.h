// SPDX-License-Identifier: Apache-2.0
// Where the staged pages lie in a piece of registered memory: first fit, neighbours joined.
//
// Threads: confined. Cost: O(free pieces), which are few: a ring has some dozens of pages in flight.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace larder::hf3fs {

class StagingArea {
 public:
  explicit StagingArea(std::size_t bytes) { free_.emplace(0, bytes); }
  // Offset of `bytes`; nullopt: no room now.
  [[nodiscard]] std::optional<std::size_t> take(std::size_t bytes) {
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      if (piece->second < bytes) continue;
      const auto [offset, size] = *piece;
      free_.erase(piece);
      if (size > bytes) free_.emplace(offset + bytes, size - bytes);
      return offset;
    }
    return std::nullopt;
  }
  // What take(bytes) gave.
  void give_back(std::size_t offset, std::size_t bytes) {
    auto next = free_.upper_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_.emplace(offset, bytes);
  }

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes
};

}  // namespace larder::hf3fs
