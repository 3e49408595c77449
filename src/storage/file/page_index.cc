// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_index.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace larder::file_store {
namespace {

std::uint64_t aligned_bytes(std::uint32_t payload_bytes) {
  return (payload_bytes + (kPayloadAlignment - 1)) / kPayloadAlignment * kPayloadAlignment;
}

}  // namespace

// --- looking up ---

bool PageIndex::node_has(std::uint32_t node, IdentityId identity) const {
  const std::uint32_t bit = identities_[identity].bit;
  if (((nodes_[node].present >> bit) & 1u) == 0) return false;
  return bit != PageIdentities::kSharedBit || page_of(node, identity) != kNone;
}

std::uint32_t PageIndex::page_of(std::uint32_t node, IdentityId identity) const {
  std::uint32_t number = nodes_[node].first_page;
  while (number != kNone && pages_[number].identity != identity) number = pages_[number].next_in_node;
  return number;
}

std::uint32_t PageIndex::find_page(IdentityId identity, const PageKey& key) const {
  if (identity == 0) return kNone;
  const std::uint32_t node = nodes_.find(identities_[identity].namespace_id, key);
  return node == kNone || !node_has(node, identity) ? kNone : page_of(node, identity);
}

bool PageIndex::contains(IdentityId identity, const PageKey& key) const {
  if (identity == 0) return false;
  const std::uint32_t node = nodes_.find(identities_[identity].namespace_id, key);
  return node != kNone && node_has(node, identity);
}

void PageIndex::contains(IdentityId identity, std::span<const PageKey> keys, Presence& present) const {
  assert(present.size() >= keys.size());
  if (identity == 0) {
    std::fill_n(present.begin(), static_cast<std::ptrdiff_t>(keys.size()), false);
    return;
  }
  nodes_.find_all(identities_[identity].namespace_id, keys,
                  [&](std::size_t i, std::uint32_t node) { present[i] = node != kNone && node_has(node, identity); });
}

bool PageIndex::find(IdentityId identity, const PageKey& key, PageLocation& out) const {
  const std::uint32_t number = find_page(identity, key);
  if (number == kNone) return false;
  out = pages_[number].location();
  return true;
}

void PageIndex::touch(IdentityId identity, const PageKey& key) {
  if (identity == 0) return;
  const std::uint32_t node = nodes_.find(identities_[identity].namespace_id, key);
  if (node != kNone && node_has(node, identity)) nodes_[node].last_use = ++clock_;
}

// --- pages ---

// Puts the page where `location` says, and into the list of that segment.
void PageIndex::place(std::uint32_t number, const PageLocation& location) {
  Page& page = pages_[number];
  page.segment = location.segment;
  page.offset_units = static_cast<std::uint32_t>(location.offset / kPayloadAlignment);
  page.payload_bytes = location.payload_bytes;
  page.generation = location.generation;
  page.checksum = location.checksum;
  SegmentPages& segment = segments_[location.segment];
  page.previous = kNone;
  page.next = segment.first;
  if (page.next != kNone) pages_[page.next].previous = number;
  segment.first = number;
  ++segment.pages;
  segment.live_bytes += aligned_bytes(page.payload_bytes);
  payload_bytes_ += page.payload_bytes;
}

void PageIndex::unplace(std::uint32_t number) {
  const Page& page = pages_[number];
  const auto segment = segments_.find(page.segment);
  if (page.next != kNone) pages_[page.next].previous = page.previous;
  if (page.previous != kNone) {
    pages_[page.previous].next = page.next;
  } else {
    segment->second.first = page.next;
  }
  segment->second.live_bytes -= aligned_bytes(page.payload_bytes);
  payload_bytes_ -= page.payload_bytes;
  if (--segment->second.pages == 0) segments_.erase(segment);
}

void PageIndex::add_page(std::uint32_t node, IdentityId identity, const PageLocation& location) {
  const std::uint32_t number = pages_.take();
  Page& page = pages_[number];
  page.node = node;
  page.identity = identity;
  page.next_in_node = nodes_[node].first_page;
  nodes_[node].first_page = number;
  nodes_[node].present |= 1u << identities_[identity].bit;
  place(number, location);
  identities_.add_page(identity);
  ++page_count_;
}

void PageIndex::remove_from_node(std::uint32_t number) {
  IndexNode& node = nodes_[pages_[number].node];
  std::uint32_t* link = &node.first_page;
  while (*link != number) link = &pages_[*link].next_in_node;
  *link = pages_[number].next_in_node;
  const std::uint32_t bit = identities_[pages_[number].identity].bit;
  node.present &= ~(1u << bit);
  if (bit != PageIdentities::kSharedBit) return;
  for (std::uint32_t at = node.first_page; at != kNone; at = pages_[at].next_in_node) {
    node.present |= 1u << identities_[pages_[at].identity].bit;
  }
}

// Also the node, if this was its last page and it has no children.
void PageIndex::remove_page(std::uint32_t number) {
  Page& page = pages_[number];
  const std::uint32_t node = page.node;
  unplace(number);
  remove_from_node(number);
  identities_.remove_page(page.identity);
  page.identity = 0;
  pages_.give(number);
  --page_count_;
  if (nodes_[node].first_page == kNone) node_emptied(node);
}

Status PageIndex::insert(const PageIdentity& identity, const PageKey& key, const PageKey& parent,
                         const PageLocation& location) {
  assert(location.offset % kPayloadAlignment == 0 && location.offset <= kMaxPayloadOffset);
  IdentityId id = find_identity(identity);
  std::uint32_t node = kNone;
  if (const std::uint32_t number = find_page(id, key); number != kNone) {
    if (pages_[number].generation >= location.generation) return Status::ok();
    unplace(number);
    place(number, location);
    node = pages_[number].node;
  } else {
    if (page_count_ >= kMaxPages) return overloaded("file store: the index is full");
    if (id == 0 && identities() >= most_identities_) return too_many_identities();
    if (id == 0) id = identities_.make(identity);
    node = nodes_.find_or_make(identities_[id].namespace_id, key);
    add_page(node, id, location);
  }
  nodes_[node].last_use = ++clock_;
  set_parent(node, parent);
  if (nodes_[node].is_leaf()) leaves_.push(nodes_, node);
  last_node_ = node;
  return Status::ok();
}

bool PageIndex::move(const PageIdentity& identity, const PageKey& key, const PageLocation& from,
                     const PageLocation& to) {
  assert(to.offset % kPayloadAlignment == 0 && to.offset <= kMaxPayloadOffset);
  const std::uint32_t number = find_page(find_identity(identity), key);
  if (number == kNone) return false;
  PageLocation location = pages_[number].location();
  if (location.segment != from.segment || location.offset != from.offset) return false;
  location.segment = to.segment;
  location.offset = to.offset;
  unplace(number);
  place(number, location);
  return true;
}

bool PageIndex::erase(IdentityId identity, const PageKey& key, std::uint64_t generation) {
  const std::uint32_t number = find_page(identity, key);
  if (number == kNone || pages_[number].generation != generation) return false;
  remove_page(number);
  return true;
}

// --- many pages ---

void PageIndex::list_segment(SegmentId segment, std::size_t limit, std::vector<ListedPage>& out) const {
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return;
  std::uint32_t number = found->second.first;
  for (std::size_t i = 0; i < limit && number != kNone; ++i) {
    const Page& page = pages_[number];
    const IndexNode& node = nodes_[page.node];
    const PageKey parent = node.parent == kNone ? PageKey{} : nodes_[node.parent].key;
    out.push_back({identities_[page.identity].identity, node.key, parent, page.location(), 0});
    number = page.next;
  }
}

std::uint64_t PageIndex::live_bytes(SegmentId segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? 0 : found->second.live_bytes;
}

std::uint64_t PageIndex::live_pages(SegmentId segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? 0 : found->second.pages;
}

std::uint64_t PageIndex::drop_segment(SegmentId segment) {
  std::uint64_t dropped = 0;
  for (auto found = segments_.find(segment); found != segments_.end(); found = segments_.find(segment)) {
    remove_page(found->second.first);
    ++dropped;
  }
  return dropped;
}

void PageIndex::unlink_namespace(const Digest256& namespace_digest) {
  identities_.unlink_namespace(namespace_digest);
  drop_cursor_ = 0;
}

// A page keeps its number, and none is unlinked by itself: so none is behind the cursor.
bool PageIndex::drop_unlinked(std::size_t places) {
  for (; places > 0 && unlinked_pages() > 0; --places, ++drop_cursor_) {
    if (drop_cursor_ >= pages_.made()) drop_cursor_ = 0;
    const Page& page = pages_[drop_cursor_];
    if (page.identity != 0 && identities_[page.identity].is_unlinked) remove_page(drop_cursor_);
  }
  return unlinked_pages() > 0;
}

void PageIndex::drop_unlinked_of(SegmentId segment) {
  const auto found = segments_.find(segment);
  if (unlinked_pages() == 0 || found == segments_.end()) return;
  for (std::uint32_t number = found->second.first; number != kNone;) {
    const std::uint32_t gone = std::exchange(number, pages_[number].next);
    if (identities_[pages_[gone].identity].is_unlinked) remove_page(gone);
  }
}

void PageIndex::clear() { *this = PageIndex(most_identities_); }

std::size_t PageIndex::memory_bytes() const {
  return nodes_.memory_bytes() + pages_.memory_bytes() + leaves_.memory_bytes();
}

void PageIndex::reserve(std::uint64_t pages) {
  pages = std::min(pages, kMaxPages);
  nodes_.reserve(pages);
  pages_.reserve(pages);
}

}  // namespace larder::file_store
