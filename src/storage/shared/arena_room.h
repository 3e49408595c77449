// SPDX-License-Identifier: Apache-2.0
// Who has which bytes of an arena: the memory that a client and its host share for payloads, or that is registered with
// a storage system for them.
//
// Room is given in one piece each, in whole pages of 4096 bytes; the lowest that fits, so that the same memory is used
// again while it is warm. What is taken stays taken until it is given back, whatever becomes of the operation.
//
//   0        4096                  20480
//   | taken  | free                | taken | free ...
//
// Threads: confined. Limits: as many pieces as there are pages. Cost: take() looks at the free pieces from the front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "storage/shared/share_wire.h"

namespace larder::share {

inline constexpr std::uint64_t kArenaPageBytes = 4096;
// What a piece of so many bytes takes.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kArenaPageBytes - 1) / kArenaPageBytes * kArenaPageBytes;
}

class ArenaRoom {
 public:
  // Rounded down to whole pages.
  explicit ArenaRoom(std::uint64_t bytes);
  // Where the piece begins; none: there is no such piece now. No bytes take no room, and are at 0.
  // from: it begins there or behind; whole pages.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t from = 0);
  // A piece as it was taken. False: nobody has it, and nothing has changed.
  bool give_back(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t free_bytes() const { return free_bytes_; }

 private:
  const std::uint64_t size_;
  std::uint64_t free_bytes_;
  std::map<std::uint64_t, std::uint64_t> free_;   // begin -> bytes; no two touch
  std::map<std::uint64_t, std::uint64_t> taken_;  // likewise, but they may touch
};

// Where an item of `bytes` may begin, at or after `offset`: large ones on a page, so that a disk can be read straight
// into them.
[[nodiscard]] constexpr std::uint64_t align_in_arena(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t alignment = bytes >= kArenaPageBytes ? kArenaPageBytes : 64;
  return (offset + alignment - 1) / alignment * alignment;
}
// Does the place lie within so many bytes? No number overflows this.
[[nodiscard]] constexpr bool lies_within(const Place& place, std::uint64_t arena_bytes) {
  return place.bytes <= arena_bytes && place.offset <= arena_bytes - place.bytes;
}

}  // namespace larder::share
