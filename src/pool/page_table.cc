// SPDX-License-Identifier: Apache-2.0
#include "pool/page_table.h"

#include <algorithm>
#include <cassert>

namespace larder {

void PageChanges::note(std::uint64_t at, std::uint64_t version) {
  if (count_ > 0) {
    Change& last = changes_[count_ - 1];
    assert(version >= last.version);
    if (last.version == version && at + 1 >= last.range.from && at <= last.range.to) {
      last.range = {std::min(last.range.from, at), std::max(last.range.to, at + 1)};
      return;
    }
  }
  if (count_ == kMostRanges) {
    // The younger version of the two: who has the older one is told of both again, and nobody of neither.
    const Change oldest = changes_[0];
    std::copy(changes_.begin() + 1, changes_.end(), changes_.begin());
    PageRange& range = changes_[0].range;
    range = {std::min(range.from, oldest.range.from), std::max(range.to, oldest.range.to)};
    --count_;
  }
  changes_[count_++] = {{at, at + 1}, version};
}

void PageChanges::append_since(std::uint64_t version, std::uint64_t size, std::vector<PageRange>& out) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const PageRange range = {changes_[i].range.from, std::min(changes_[i].range.to, size)};
    if (changes_[i].version > version && range.from < range.to) out.push_back(range);
  }
}

PageTable::Changes PageTable::changed_since(std::uint64_t version) const {
  Changes changes;
  changes.state = version <= first_;
  full_changes_.append_since(version, full.size(), changes.full);
  swa_changes_.append_since(version, swa.size(), changes.swa);
  return changes;
}

void PageTable::note_all() {
  for (std::uint64_t i = 0; i < full.size(); ++i) full_changes_.note(i, version_ + 1);
  for (std::uint64_t i = 0; i < swa.size(); ++i) swa_changes_.note(i, version_ + 1);
  is_changed_ = true;
}

void PageTable::put(ComponentKind c, std::uint64_t at, DeviceSlot slot) {
  std::vector<DeviceSlot>& list = c == ComponentKind::kFull ? full : swa;
  assert(c != ComponentKind::kMamba && at <= list.size());
  if (at == list.size()) {
    list.push_back(slot);
  } else if (list[at] == slot) {
    return;
  } else {
    list[at] = slot;
  }
  (c == ComponentKind::kFull ? full_changes_ : swa_changes_).note(at, version_ + 1);
  is_changed_ = true;
}

void PageTable::publish() {
  if (!is_changed_) return;
  ++version_;
  is_changed_ = false;
}

}  // namespace larder
