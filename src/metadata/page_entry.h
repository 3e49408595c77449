// SPDX-License-Identifier: Apache-2.0
// What is known of one page of a namespace, and the array of them.
//
// Purpose: two cache lines a page: the first decides, the second holds the key (longer keys lie elsewhere). The array
// grows in chunks as pages are first used, so that a namespace of 2^31 pages costs what it holds.
// Threads: confined to the owner of the PageTable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace larder::metadata {

using PageNumber = std::uint32_t;
inline constexpr PageNumber kNoPage = 0xFFFF'FFFF;
inline constexpr std::int64_t kNoLease = std::numeric_limits<std::int64_t>::min();

// For one more: pushing it needs no memory.
template <class T>
void make_room_in(std::vector<T>& row) {
  if (row.size() == row.capacity()) row.reserve(std::max<std::size_t>(16, 2 * row.size()));
}

enum class PageState : std::uint8_t { kFree, kReserved, kStored, kQuarantined };
// What `previous` and `next` mean.
enum class PagePlace : std::uint8_t {
  kNowhere,  // free (then `next` is the next free page), or being confirmed
  kLinked,   // in one of the lists of stored pages
  kLate,     // in the heap of late leaves, at `previous`
  kTimed,    // in the heap of times, at `previous`
};

struct alignas(64) PageEntry {
  static constexpr std::size_t kShortKey = 64;

  std::uint64_t generation = 0;
  std::int64_t lease_until = kNoLease;  // nanoseconds of the service's clock
  std::uint64_t tick = 0;               // recency: larger is later
  std::uint64_t hash = 0;               // of the key
  std::uint64_t parent_hash = 0;        // of the key before it; 0: none
  PageNumber previous = kNoPage;
  PageNumber next = kNoPage;
  std::uint32_t count = 0;  // stored: its stored children. Reserved: the number of its reservation
  std::uint16_t key_bytes = 0;
  PageState state = PageState::kFree;
  PagePlace place = PagePlace::kNowhere;
  std::unique_ptr<char[]> long_key;
  char short_key[kShortKey];  // NOLINT: only the first key_bytes count

  [[nodiscard]] std::string_view key() const { return {long_key ? long_key.get() : short_key, key_bytes}; }
  using LongKey = std::unique_ptr<char[]>;
  // Where a key of that size goes if it is too long for the entry.
  [[nodiscard]] static LongKey room_for(std::string_view key) {
    return key.size() > kShortKey ? std::make_unique<char[]>(key.size()) : nullptr;
  }
  void set_key(std::string_view key, LongKey room) {
    key_bytes = static_cast<std::uint16_t>(key.size());
    long_key = std::move(room);
    std::memcpy(long_key ? long_key.get() : short_key, key.data(), key.size());
  }
  void drop_key() {
    key_bytes = 0;
    long_key.reset();
  }
};
static_assert(sizeof(PageEntry) == 128);

class PageEntries {
 public:
  [[nodiscard]] PageEntry& operator[](PageNumber page) { return chunks_[page / kChunk][page % kChunk]; }
  [[nodiscard]] const PageEntry& operator[](PageNumber page) const { return chunks_[page / kChunk][page % kChunk]; }
  // Makes room for pages below `count`; those that are there stay where they are.
  void grow(std::uint64_t count) {
    while (chunks_.size() * kChunk < count) chunks_.push_back(std::make_unique<PageEntry[]>(kChunk));
  }

 private:
  static constexpr std::size_t kChunk = 2048;  // 256 KiB
  std::vector<std::unique_ptr<PageEntry[]>> chunks_;
};

}  // namespace larder::metadata
