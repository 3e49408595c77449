// SPDX-License-Identifier: Apache-2.0
// The invariants of the page index, checked one structure after the other. For tests.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/file/page_index.h"

namespace larder::file_store {
namespace {

Status broken(const char* what, std::uint64_t number) {
  return internal_error("page index: " + std::string(what) + ", number " + std::to_string(number));
}

}  // namespace

Status PageIndex::check_invariants() const {
  LARDER_RETURN_IF_ERROR(nodes_.check());
  LARDER_RETURN_IF_ERROR(check_nodes());
  LARDER_RETURN_IF_ERROR(check_pages());
  LARDER_RETURN_IF_ERROR(check_heap());
  LARDER_RETURN_IF_ERROR(check_segments());
  std::vector<std::uint64_t> pages(identities_.end_id() - 1, 0);
  for (std::uint32_t number = 0; number < pages_.made(); ++number) {
    if (pages_[number].identity != 0) ++pages[pages_[number].identity - 1];
  }
  return identities_.check(pages);
}

Status PageIndex::check_nodes() const {
  std::vector<std::uint32_t> children(nodes_.made(), 0);
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const IndexNode& node = nodes_[number];
    if (node.namespace_id == 0 || node.parent == kNone) continue;
    if (node.parent >= nodes_.made() || node.parent == number) return broken("bad parent", number);
    if (nodes_[node.parent].namespace_id != node.namespace_id) return broken("parent of another namespace", number);
    ++children[node.parent];
  }
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const IndexNode& node = nodes_[number];
    if (node.namespace_id == 0) continue;
    if (node.children != children[number]) return broken("wrong count of children", number);
    if (node.last_use > clock_) return broken("used in the future", number);
    if (node.first_page != kNone) continue;
    if (node.children == 0) return broken("ghost without children", number);
    if (node.parent != kNone) return broken("ghost with a parent", number);
  }
  return Status::ok();
}

Status PageIndex::check_pages() const {
  std::uint64_t in_nodes = 0, live = 0;
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const IndexNode& node = nodes_[number];
    if (node.namespace_id == 0) continue;
    std::uint32_t present = 0;
    for (std::uint32_t at = node.first_page; at != kNone; at = pages_[at].next_in_node) {
      const Page& page = pages_[at];
      if (++in_nodes > page_count_) return broken("list of a node has no end", number);
      if (page.identity == 0 || page.node != number) return broken("page of another node", at);
      if (identities_[page.identity].namespace_id != node.namespace_id) return broken("wrong namespace", at);
      if (page_of(number, page.identity) != at) return broken("two pages of one identity", at);
      present |= 1u << identities_[page.identity].bit;
    }
    if (present != node.present) return broken("wrong presence bits", number);
  }
  for (std::uint32_t number = 0; number < pages_.made(); ++number) live += pages_[number].identity != 0 ? 1 : 0;
  return in_nodes == page_count_ && live == page_count_ ? Status::ok() : broken("wrong count of pages", in_nodes);
}

Status PageIndex::check_heap() const {
  std::vector<bool> seen(nodes_.made(), false);
  if (!std::is_heap(heap_.begin(), heap_.end())) return broken("not a heap", heap_.size());
  if (heap_.size() > heap_limit_) return broken("heap beyond its limit", heap_.size());
  for (const Candidate& candidate : heap_) {
    const IndexNode& node = nodes_[candidate.node];
    if (seen[candidate.node] || node.in_heap != 1) return broken("entry without a mark, or two", candidate.node);
    seen[candidate.node] = true;
    if (node.is_leaf() && candidate.use() > node.last_use) return broken("entry younger than the node", candidate.node);
  }
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    if ((nodes_[number].in_heap == 1) != seen[number]) return broken("mark without an entry", number);
    if (nodes_[number].is_leaf() && !seen[number]) return broken("leaf without an entry", number);
  }
  return Status::ok();
}

Status PageIndex::check_segments() const {
  std::uint64_t all_pages = 0, all_bytes = 0;
  for (const auto& [id, segment] : segments_) {
    std::uint64_t pages = 0, live_bytes = 0;
    std::uint32_t previous = kNone;
    for (std::uint32_t at = segment.first; at != kNone; at = pages_[at].next) {
      const Page& page = pages_[at];
      if (++pages > page_count_) return broken("list of a segment has no end", id);
      if (page.identity == 0 || page.segment != id) return broken("page of another segment", at);
      if (page.previous != previous) return broken("segment list does not go back", at);
      previous = at;
      live_bytes += (page.payload_bytes + (kPayloadAlignment - 1)) / kPayloadAlignment * kPayloadAlignment;
      all_bytes += page.payload_bytes;
    }
    if (pages == 0 || pages != segment.pages) return broken("wrong count of pages of segment", id);
    if (live_bytes != segment.live_bytes) return broken("wrong live bytes of segment", id);
    all_pages += pages;
  }
  if (all_pages != page_count_) return broken("pages without a segment", all_pages);
  return all_bytes == payload_bytes_ ? Status::ok() : broken("wrong payload bytes", all_bytes);
}

}  // namespace larder::file_store
