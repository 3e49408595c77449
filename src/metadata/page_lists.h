// SPDX-License-Identifier: Apache-2.0
// The lists of stored pages, linked through their entries; the oldest first.
//
// Threads: confined. Cost: O(1) each.
#pragma once

#include <array>
#include <cstdint>

#include "metadata/page_entry.h"

namespace larder::metadata {

enum class PageList : std::uint8_t {
  kLeaves,  // without stored children, in the order of their use
  kHeld,    // the same, recovered from a journal: not to be evicted before a certain time
  kInner,   // with stored children, in no order
};

class PageLists {
 public:
  explicit PageLists(PageEntries& entries) : entries_(entries) {
    for (PageNumber list = 0; list < kLists; ++list) ends_[list] = {kFirstEnd + list, kFirstEnd + list};
  }
  // kNoPage: empty.
  [[nodiscard]] PageNumber front(PageList list) const {
    const PageNumber page = ends_[static_cast<std::size_t>(list)].next;
    return page >= kFirstEnd ? kNoPage : page;
  }
  // The one after it in its list; kNoPage: it is the last.
  [[nodiscard]] PageNumber after(PageNumber page) const {
    const PageNumber next = entries_[page].next;
    return next >= kFirstEnd ? kNoPage : next;
  }
  // Precondition: the page's place is kNowhere.
  void push_back(PageList list, PageNumber page) {
    const PageNumber end = end_of(list);
    const PageNumber last = previous(end);
    entries_[page].place = PagePlace::kLinked;
    join(last, page);
    join(page, end);
  }
  // Precondition: the page's place is kLinked.
  void erase(PageNumber page) {
    PageEntry& entry = entries_[page];
    join(entry.previous, entry.next);
    entry.previous = entry.next = kNoPage;
    entry.place = PagePlace::kNowhere;
  }
  // All of `from` before all of `into`.
  void move_to_front(PageList from, PageList into) {
    if (front(from) == kNoPage) return;
    const PageNumber source = end_of(from), target = end_of(into);
    const PageNumber first = next(source), last = previous(source), old_first = next(target);
    join(source, source);
    join(target, first);
    join(last, old_first);
  }

 private:
  static constexpr std::size_t kLists = 3;
  static constexpr PageNumber kFirstEnd = kNoPage - kLists;  // "pages" that are both ends of the lists
  struct End {
    PageNumber previous, next;
  };
  static PageNumber end_of(PageList list) { return kFirstEnd + static_cast<PageNumber>(list); }
  [[nodiscard]] PageNumber& previous(PageNumber at) {
    return at >= kFirstEnd ? ends_[at - kFirstEnd].previous : entries_[at].previous;
  }
  [[nodiscard]] PageNumber& next(PageNumber at) {
    return at >= kFirstEnd ? ends_[at - kFirstEnd].next : entries_[at].next;
  }
  void join(PageNumber left, PageNumber right) {
    next(left) = right;
    previous(right) = left;
  }

  PageEntries& entries_;
  std::array<End, kLists> ends_;
};

}  // namespace larder::metadata
