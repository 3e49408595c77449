// SPDX-License-Identifier: Apache-2.0
#include "metadata/key_slots.h"

#include <utility>

namespace larder::metadata {

void KeySlots::place(Slot slot) {
  std::size_t at = home(slot.tag);
  while (slots_[at].page != kNoPage) at = (at + 1) & mask();
  slots_[at] = slot;
}

void KeySlots::insert(std::uint64_t hash, PageNumber page) {
  make_room();
  place({tag_of(hash), page});
  ++used_;
}

void KeySlots::erase(std::uint64_t hash, PageNumber page) {
  std::size_t hole = home(tag_of(hash));
  while (slots_[hole].page != page) hole = (hole + 1) & mask();
  --used_;
  // Those behind it move up, unless that would put them before their home.
  for (std::size_t at = (hole + 1) & mask(); slots_[at].page != kNoPage; at = (at + 1) & mask()) {
    const std::size_t from_home = (at - home(slots_[at].tag)) & mask();
    const std::size_t from_hole = (at - hole) & mask();
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = Slot{};
}

void KeySlots::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.page != kNoPage) place(slot);
  }
}

}  // namespace larder::metadata
