// SPDX-License-Identifier: Apache-2.0
#include "tree/child_table.h"

#include <cassert>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mix.h"

namespace larder::tree {

std::uint64_t edge_hash(Id parent, const TokenId* page, std::uint32_t page_size) {
  if (page_size == 1) return mix64((static_cast<std::uint64_t>(parent) << 32) | *page);
  const std::uint64_t tokens = XXH3_64bits(page, page_size * sizeof(TokenId));
  return mix64(tokens ^ (parent * 0x9e3779b97f4a7c15ull));
}

void ChildTable::insert(std::uint64_t hash, Id id) {
  if ((size_ + 1) * 8 > entries_.size() * 5) grow();
  std::size_t i = hash & mask_;
  while (entries_[i].id != kNoNode) i = (i + 1) & mask_;
  entries_[i] = {hash, id};
  ++size_;
}

std::size_t ChildTable::index_of_entry(std::uint64_t hash, Id id) const {
  std::size_t i = hash & mask_;
  while (entries_[i].id != id) {
    assert(entries_[i].id != kNoNode);
    i = (i + 1) & mask_;
  }
  return i;
}

void ChildTable::erase(std::uint64_t hash, Id id) {
  std::size_t hole = index_of_entry(hash, id);
  for (std::size_t i = (hole + 1) & mask_; entries_[i].id != kNoNode; i = (i + 1) & mask_) {
    const std::size_t home = entries_[i].hash & mask_;
    // The entry may move into the hole unless its home lies behind the hole on the way to it.
    if (((i - home) & mask_) >= ((i - hole) & mask_)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole] = Entry{};
  --size_;
}

void ChildTable::replace(std::uint64_t hash, Id old_id, Id new_id) {
  entries_[index_of_entry(hash, old_id)].id = new_id;
}

void ChildTable::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  mask_ = entries_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.id == kNoNode) continue;
    std::size_t i = entry.hash & mask_;
    while (entries_[i].id != kNoNode) i = (i + 1) & mask_;
    entries_[i] = entry;
  }
}

}  // namespace larder::tree
