// SPDX-License-Identifier: Apache-2.0
// A heap of pages by a number, out of whose middle a page can be taken. A page's place is kept in its entry.
//
// Threads: confined. Cost: O(log n); pushing numbers that grow, as deadlines do, is O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "metadata/page_entry.h"

namespace larder::metadata {

class PageHeap {
 public:
  struct Item {
    std::int64_t order;
    PageNumber page;
  };
  // `place` is what a page in this heap has in PageEntry::place.
  PageHeap(PageEntries& entries, PagePlace place) : entries_(entries), place_(place) {}

  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  // Precondition: not empty.
  [[nodiscard]] const Item& top() const { return items_.front(); }
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }

  // Precondition: the page is in this heap.
  [[nodiscard]] std::int64_t order_of(const PageEntry& entry) const { return items_[entry.previous].order; }
  // Is it in this heap, with a number that is not above `limit`?
  [[nodiscard]] bool is_due(const PageEntry& entry, std::int64_t limit) const {
    return entry.place == place_ && order_of(entry) <= limit;
  }

  // The next push() needs no memory.
  void make_room() { make_room_in(items_); }
  // Precondition: the page's place is kNowhere.
  void push(PageNumber page, std::int64_t order);
  // Precondition: the page is in this heap. Afterwards its place is kNowhere.
  void erase(PageNumber page);
  void pop() { erase(items_.front().page); }

 private:
  void put(std::size_t at, Item item) {
    items_[at] = item;
    entries_[item.page].previous = static_cast<PageNumber>(at);
  }
  void sift_up(std::size_t at);
  void sift_down(std::size_t at);

  PageEntries& entries_;
  const PagePlace place_;
  std::vector<Item> items_;
};

}  // namespace larder::metadata
