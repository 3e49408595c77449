// SPDX-License-Identifier: Apache-2.0
// The invariants of the page index, checked one structure after the other. For tests.
#include <algorithm>
#include <bit>
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
  LARDER_RETURN_IF_ERROR(check_table());
  LARDER_RETURN_IF_ERROR(check_nodes());
  LARDER_RETURN_IF_ERROR(check_pages());
  LARDER_RETURN_IF_ERROR(check_heap());
  LARDER_RETURN_IF_ERROR(check_segments());
  return check_identities();
}

Status PageIndex::check_table() const {
  std::uint64_t used = 0, live = 0;
  for (std::size_t slot = 0; slot < table_.size(); ++slot) {
    if (table_[slot] == kNone) continue;
    ++used;
    const std::uint32_t number = number_at(slot);
    if (number >= nodes_.made() || nodes_[number].namespace_id == 0) return broken("slot without a node", slot);
    const Node& node = nodes_[number];
    if (table_[slot] != slot_value(hash_of(node.namespace_id, node.key), number)) return broken("wrong tag", slot);
    if (find_node(node.namespace_id, node.key) != number) return broken("node not found by its key", number);
  }
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) live += nodes_[number].namespace_id != 0 ? 1 : 0;
  if (used != node_count_ || live != node_count_) return broken("nodes and slots do not match", used);
  if (!table_.empty() && (!std::has_single_bit(table_.size()) || used * 4 > table_.size() * 3)) {
    return broken("table size", table_.size());
  }
  return Status::ok();
}

Status PageIndex::check_nodes() const {
  std::vector<std::uint32_t> children(nodes_.made(), 0);
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const Node& node = nodes_[number];
    if (node.namespace_id == 0 || node.parent == kNone) continue;
    if (node.parent >= nodes_.made() || node.parent == number) return broken("bad parent", number);
    if (nodes_[node.parent].namespace_id != node.namespace_id) return broken("parent of another namespace", number);
    ++children[node.parent];
  }
  for (std::uint32_t number = 0; number < nodes_.made(); ++number) {
    const Node& node = nodes_[number];
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
    const Node& node = nodes_[number];
    if (node.namespace_id == 0) continue;
    std::uint32_t present = 0;
    for (std::uint32_t at = node.first_page; at != kNone; at = pages_[at].next_in_node) {
      const Page& page = pages_[at];
      if (++in_nodes > page_count_) return broken("list of a node has no end", number);
      if (page.identity == 0 || page.node != number) return broken("page of another node", at);
      if (identities_[page.identity - 1].namespace_id != node.namespace_id) return broken("wrong namespace", at);
      if (page_of(number, page.identity) != at) return broken("two pages of one identity", at);
      present |= 1u << identities_[page.identity - 1].bit;
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
    const Node& node = nodes_[candidate.node];
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

Status PageIndex::check_identities() const {
  std::vector<std::uint64_t> pages(identities_.size(), 0);
  for (std::uint32_t number = 0; number < pages_.made(); ++number) {
    if (pages_[number].identity != 0) ++pages[pages_[number].identity - 1];
  }
  std::vector<std::uint32_t> counts(namespaces_.size(), 0), bits(namespaces_.size(), 0);
  for (std::size_t i = 0; i < identities_.size(); ++i) {
    const Identity& identity = identities_[i];
    if (identity.pages != pages[i]) return broken("wrong count of pages of identity", i + 1);
    if (identity.pages == 0) continue;
    if (find_identity(identity.identity) != i + 1) return broken("identity not found", i + 1);
    const std::size_t in = identity.namespace_id - 1;
    if (namespaces_[in].digest != identity.identity.namespace_digest) return broken("wrong namespace", i + 1);
    ++counts[in];
    if (identity.bit == kSharedBit) continue;
    if (((bits[in] >> identity.bit) & 1u) != 0) return broken("two identities with one bit", i + 1);
    bits[in] |= 1u << identity.bit;
  }
  std::size_t live = 0;
  for (std::size_t i = 0; i < namespaces_.size(); ++i) {
    const Namespace& in = namespaces_[i];
    if (in.identities != counts[i]) return broken("wrong count of identities", i + 1);
    if (in.identities == 0) continue;
    ++live;
    if (in.bits != bits[i]) return broken("wrong bits of namespace", i + 1);
    const auto known = namespace_ids_.find(in.digest);
    if (known == namespace_ids_.end() || known->second != i + 1) return broken("namespace not found", i + 1);
  }
  if (live != namespace_ids_.size()) return broken("namespaces too many", live);
  const std::size_t in_use = identities_.size() - free_identities_.size();
  return in_use == identity_ids_.size() ? Status::ok() : broken("identities too many", in_use);
}

}  // namespace larder::file_store
