// SPDX-License-Identifier: Apache-2.0
#include "metadata/page_heap.h"

#include <cassert>

namespace larder::metadata {

void PageHeap::push(PageNumber page, std::int64_t order) {
  assert(entries_[page].place == PagePlace::kNowhere);
  entries_[page].place = place_;
  items_.push_back({order, page});
  sift_up(items_.size() - 1);
}

void PageHeap::erase(PageNumber page) {
  PageEntry& entry = entries_[page];
  assert(entry.place == place_);
  const std::size_t at = entry.previous;
  entry.place = PagePlace::kNowhere;
  entry.previous = kNoPage;
  const Item last = items_.back();
  items_.pop_back();
  if (last.page == page) return;
  put(at, last);
  sift_up(at);
  sift_down(entries_[last.page].previous);
}

void PageHeap::sift_up(std::size_t at) {
  const Item item = items_[at];
  while (at > 0 && item.order < items_[(at - 1) / 2].order) {
    put(at, items_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  put(at, item);
}

void PageHeap::sift_down(std::size_t at) {
  const Item item = items_[at];
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= items_.size()) break;
    if (child + 1 < items_.size() && items_[child + 1].order < items_[child].order) ++child;
    if (item.order <= items_[child].order) break;
    put(at, items_[child]);
    at = child;
  }
  put(at, item);
}

}  // namespace larder::metadata
