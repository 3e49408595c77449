// SPDX-License-Identifier: Apache-2.0
// The invariants of the page index, checked one structure after the other. For tests.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "storage/file/index_check.h"
#include "storage/file/page_index.h"

namespace larder::file_store {

// One structure each.
struct PageIndexCheck {
  const PageIndex& index;
  [[nodiscard]] Status check_nodes() const;
  [[nodiscard]] Status check_pages() const;
  [[nodiscard]] Status check_heap() const;
  [[nodiscard]] Status check_segments() const;
};

Status PageIndex::check_invariants() const {
  const PageIndexCheck check{*this};
  LARDER_RETURN_IF_ERROR(nodes_.check());
  LARDER_RETURN_IF_ERROR(check.check_nodes());
  LARDER_RETURN_IF_ERROR(check.check_pages());
  LARDER_RETURN_IF_ERROR(check.check_heap());
  LARDER_RETURN_IF_ERROR(check.check_segments());
  std::vector<std::uint64_t> pages(identities_.end_id() - 1, 0);
  for (std::uint32_t number = 0; number < pages_.made(); ++number) {
    if (pages_[number].identity != 0) ++pages[pages_[number].identity - 1];
  }
  return identities_.check(pages);
}

Status PageIndexCheck::check_nodes() const {
  std::vector<std::uint32_t> children(index.nodes_.made(), 0);
  for (std::uint32_t number = 0; number < index.nodes_.made(); ++number) {
    const IndexNode& node = index.nodes_[number];
    if (node.namespace_id == 0 || node.parent == kNoNumber) continue;
    if (node.parent >= index.nodes_.made() || node.parent == number) return broken_index("bad parent", number);
    if (index.nodes_[node.parent].namespace_id != node.namespace_id)
      return broken_index("parent of another namespace", number);
    ++children[node.parent];
  }
  for (std::uint32_t number = 0; number < index.nodes_.made(); ++number) {
    const IndexNode& node = index.nodes_[number];
    if (node.namespace_id == 0) continue;
    if (node.children != children[number]) return broken_index("wrong count of children", number);
    if (node.last_use > index.clock_) return broken_index("used in the future", number);
    if (node.first_page != kNoNumber) continue;
    if (node.children == 0) return broken_index("ghost without children", number);
    if (node.parent != kNoNumber) return broken_index("ghost with a parent", number);
  }
  return Status::ok();
}

Status PageIndexCheck::check_pages() const {
  std::uint64_t in_nodes = 0, live = 0;
  for (std::uint32_t number = 0; number < index.nodes_.made(); ++number) {
    const IndexNode& node = index.nodes_[number];
    if (node.namespace_id == 0) continue;
    std::uint32_t present = 0;
    for (std::uint32_t at = node.first_page; at != kNoNumber; at = index.pages_[at].next_in_node) {
      const PageIndex::Page& page = index.pages_[at];
      if (++in_nodes > index.page_count_) return broken_index("list of a node has no end", number);
      if (page.identity == 0 || page.node != number) return broken_index("page of another node", at);
      if (index.identities_[page.identity].namespace_id != node.namespace_id)
        return broken_index("wrong namespace", at);
      if (index.page_of(number, page.identity) != at) return broken_index("two pages of one identity", at);
      present |= 1u << index.identities_[page.identity].bit;
    }
    if (present != node.present) return broken_index("wrong presence bits", number);
  }
  for (std::uint32_t number = 0; number < index.pages_.made(); ++number)
    live += index.pages_[number].identity != 0 ? 1 : 0;
  return in_nodes == index.page_count_ && live == index.page_count_ ? Status::ok()
                                                                    : broken_index("wrong count of pages", in_nodes);
}

Status PageIndexCheck::check_heap() const {
  const std::vector<LeafHeap::Entry>& entries = index.leaves_.entries_;
  std::vector<bool> seen(index.nodes_.made(), false);
  if (!std::is_heap(entries.begin(), entries.end())) return broken_index("not a heap", entries.size());
  if (entries.size() > index.leaves_.limit_) return broken_index("heap beyond its limit", entries.size());
  for (const LeafHeap::Entry& entry : entries) {
    const IndexNode& node = index.nodes_[entry.node];
    if (seen[entry.node] || node.in_heap != 1) return broken_index("entry without a mark, or two", entry.node);
    seen[entry.node] = true;
    if (node.is_leaf() && entry.use() > node.last_use) return broken_index("entry younger than the node", entry.node);
  }
  for (std::uint32_t number = 0; number < index.nodes_.made(); ++number) {
    if ((index.nodes_[number].in_heap == 1) != seen[number]) return broken_index("mark without an entry", number);
    if (index.nodes_[number].is_leaf() && !seen[number]) return broken_index("leaf without an entry", number);
  }
  return Status::ok();
}

Status PageIndexCheck::check_segments() const {
  std::uint64_t all_pages = 0, all_bytes = 0;
  for (const auto& [id, segment] : index.segments_) {
    std::uint64_t pages = 0, live_bytes = 0;
    std::uint32_t previous = kNoNumber;
    for (std::uint32_t at = segment.first; at != kNoNumber; at = index.pages_[at].next) {
      const PageIndex::Page& page = index.pages_[at];
      if (++pages > index.page_count_) return broken_index("list of a segment has no end", id);
      if (page.identity == 0 || page.segment != id) return broken_index("page of another segment", at);
      if (page.previous != previous) return broken_index("segment list does not go back", at);
      previous = at;
      live_bytes += (page.payload_bytes + (kPayloadAlignment - 1)) / kPayloadAlignment * kPayloadAlignment;
      all_bytes += page.payload_bytes;
    }
    if (pages == 0 || pages != segment.pages) return broken_index("wrong count of pages of segment", id);
    if (live_bytes != segment.live_bytes) return broken_index("wrong live bytes of segment", id);
    all_pages += pages;
  }
  if (all_pages != index.page_count_) return broken_index("pages without a segment", all_pages);
  return all_bytes == index.payload_bytes_ ? Status::ok() : broken_index("wrong payload bytes", all_bytes);
}

}  // namespace larder::file_store
