// SPDX-License-Identifier: Apache-2.0
#include "storage/file/page_identities.h"

#include <algorithm>
#include <bit>

#include "storage/file/index_check.h"

namespace larder::file_store {

IdentityId PageIdentities::find(const PageIdentity& identity) const {
  const auto at = ids_.find(identity);
  return at == ids_.end() ? 0 : at->second;
}

IdentityId PageIdentities::make(const PageIdentity& identity) {
  IdentityId id = 0;
  if (free_.empty()) {
    entries_.emplace_back();
    id = static_cast<IdentityId>(entries_.size());
  } else {
    id = free_.back();
    free_.pop_back();
  }
  const std::uint32_t namespace_id = find_or_make_namespace(identity.namespace_digest);
  Namespace& in = namespaces_[namespace_id - 1];
  const std::uint32_t bit = std::min(static_cast<std::uint32_t>(std::countr_one(in.bits)), kSharedBit);
  if (bit != kSharedBit) in.bits |= 1u << bit;
  ++in.identities;
  entries_[id - 1] = {identity, 0, namespace_id, bit, 0, in.first, false};
  if (in.first != 0) entries_[in.first - 1].previous = id;
  in.first = id;
  ids_.emplace(identity, id);
  return id;
}

std::uint32_t PageIdentities::find_namespace(const Digest256& digest) const {
  const auto known = namespace_ids_.find(digest);
  return known == namespace_ids_.end() ? 0 : known->second;
}

// The caller adds an identity to it.
std::uint32_t PageIdentities::find_or_make_namespace(const Digest256& digest) {
  if (const std::uint32_t known = find_namespace(digest); known != 0) return known;
  std::uint32_t id = 0;
  if (free_namespaces_.empty()) {
    namespaces_.emplace_back();
    id = static_cast<std::uint32_t>(namespaces_.size());
  } else {
    id = free_namespaces_.back();
    free_namespaces_.pop_back();
  }
  namespaces_[id - 1] = {digest, 0, 0, 0, false};
  namespace_ids_.emplace(digest, id);
  return id;
}

void PageIdentities::remove_page(IdentityId id) {
  Entry& entry = entries_[id - 1];
  if (entry.is_unlinked) --unlinked_pages_;
  if (--entry.pages > 0) return;
  if (entry.is_unlinked) {
    --unlinked_;
  } else {
    ids_.erase(entry.identity);
  }
  free_.push_back(id);
  leave_namespace(id);
}

// Without identities, it goes.
void PageIdentities::leave_namespace(IdentityId id) {
  const Entry& entry = entries_[id - 1];
  Namespace& in = namespaces_[entry.namespace_id - 1];
  if (entry.bit != kSharedBit) in.bits &= ~(1u << entry.bit);
  if (entry.next != 0) entries_[entry.next - 1].previous = entry.previous;
  (entry.previous != 0 ? entries_[entry.previous - 1].next : in.first) = entry.next;
  if (--in.identities > 0) return;
  if (!in.is_unlinked) namespace_ids_.erase(in.digest);
  free_namespaces_.push_back(entry.namespace_id);
}

void PageIdentities::unlink_namespace(const Digest256& digest) {
  const auto known = namespace_ids_.find(digest);
  if (known == namespace_ids_.end()) return;
  Namespace& gone = namespaces_[known->second - 1];
  for (IdentityId id = gone.first; id != 0; id = entries_[id - 1].next) {
    Entry& entry = entries_[id - 1];
    ids_.erase(entry.identity);
    entry.is_unlinked = true;
    unlinked_pages_ += entry.pages;
    ++unlinked_;
  }
  gone.is_unlinked = true;
  namespace_ids_.erase(known);
}

Status PageIdentities::check(std::span<const std::uint64_t> pages) const {
  std::vector<std::uint32_t> counts(namespaces_.size(), 0), bits(namespaces_.size(), 0);
  std::uint64_t unlinked_pages = 0;
  std::size_t unlinked = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.pages != pages[i]) return broken_index("wrong count of pages of identity", i + 1);
    if (entry.pages == 0) continue;
    const std::size_t in = entry.namespace_id - 1;
    if (entry.is_unlinked != namespaces_[in].is_unlinked) return broken_index("half a namespace unlinked", i + 1);
    if (entry.is_unlinked) ++unlinked, unlinked_pages += entry.pages;
    if ((find(entry.identity) == i + 1) == entry.is_unlinked) return broken_index("identity not found", i + 1);
    if (namespaces_[in].digest != entry.identity.namespace_digest) return broken_index("wrong namespace", i + 1);
    ++counts[in];
    if (entry.bit == kSharedBit) continue;
    if (((bits[in] >> entry.bit) & 1u) != 0) return broken_index("two identities with one bit", i + 1);
    bits[in] |= 1u << entry.bit;
  }
  std::size_t live = 0;
  for (std::size_t i = 0; i < namespaces_.size(); ++i) {
    const Namespace& in = namespaces_[i];
    if (in.identities != counts[i]) return broken_index("wrong count of identities", i + 1);
    if (in.identities == 0) continue;
    std::uint32_t listed = 0;
    for (IdentityId id = in.first; id != 0 && listed <= counts[i]; id = entries_[id - 1].next) ++listed;
    if (listed != counts[i]) return broken_index("wrong list of identities", i + 1);
    live += in.is_unlinked ? 0 : 1;
    if (in.bits != bits[i]) return broken_index("wrong bits of namespace", i + 1);
    const auto known = namespace_ids_.find(in.digest);
    const bool is_found = known != namespace_ids_.end() && known->second == i + 1;
    if (is_found == in.is_unlinked) return broken_index("namespace not found", i + 1);
  }
  if (live != namespace_ids_.size()) return broken_index("namespaces too many", live);
  if (unlinked != unlinked_ || unlinked_pages != unlinked_pages_) return broken_index("wrong count unlinked", unlinked);
  const std::size_t in_use = entries_.size() - free_.size();
  return in_use == ids_.size() + unlinked ? Status::ok() : broken_index("identities too many", in_use);
}

}  // namespace larder::file_store
