// SPDX-License-Identifier: Apache-2.0
// Which page a key's hash leads to: an open-addressing table of 8-byte slots, a cache line holds eight.
//
// Purpose: a lookup touches one line here and then the page's entry, which has the key. A slot keeps 32 bits of the
// hash: they say where its home is, so that growing and erasing read no entry. Threads: confined. Cost: O(1); growing
// doubles the table in one go, two sequential streams (about 5 ms at 1,000,000).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "metadata/page_entry.h"

namespace larder::metadata {

class KeySlots {
 public:
  KeySlots() : slots_(kFirstSize) {}

  [[nodiscard]] std::size_t size() const { return used_; }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[home(tag_of(hash))]); }
  // The first page whose slot has the hash's bits, most likely the right one; to prefetch its entry. kNoPage: none.
  [[nodiscard]] PageNumber guess(std::uint64_t hash) const {
    return find(hash, [](PageNumber) { return true; });
  }
  // The page that `matches` accepts among those whose slot has the hash's bits; kNoPage: none.
  template <class Matches>
  [[nodiscard]] PageNumber find(std::uint64_t hash, Matches matches) const {
    const std::uint32_t tag = tag_of(hash);
    for (std::size_t at = home(tag); slots_[at].page != kNoPage; at = (at + 1) & mask()) {
      if (slots_[at].tag == tag && matches(slots_[at].page)) return slots_[at].page;
    }
    return kNoPage;
  }
  // The next insert() needs no memory.
  void make_room() {
    if ((used_ + 1) * 8 > slots_.size() * 5) grow();
  }
  // Precondition: the page is not in it.
  void insert(std::uint64_t hash, PageNumber page);
  // Precondition: the page is in it, under this hash.
  void erase(std::uint64_t hash, PageNumber page);

 private:
  static constexpr std::size_t kFirstSize = 64;
  struct Slot {
    std::uint32_t tag = 0;
    PageNumber page = kNoPage;  // kNoPage: empty
  };
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }
  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  [[nodiscard]] std::size_t home(std::uint32_t tag) const { return tag & mask(); }
  void place(Slot slot);
  void grow();

  std::vector<Slot> slots_;  // a power of two, at most 2^32; at least three eighths are empty
  std::size_t used_ = 0;
};

}  // namespace larder::metadata
