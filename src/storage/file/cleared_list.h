// SPDX-License-Identifier: Apache-2.0
// What was cleared while pages of it may still lie on disk: the CLEARED file of a running store.
//
// Threads: confined (the store's mutex). Cost: covers() is O(1) for a page that was written after the last clear, which
// is what writes ask for, else O(entries).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

class ClearedList {
 public:
  ClearedList() = default;
  explicit ClearedList(std::vector<Cleared> entries) : entries_(std::move(entries)) {
    for (const Cleared& entry : entries_) newest_ = std::max(newest_, entry.generation);
  }

  // Was the page cleared?
  [[nodiscard]] bool covers(const ListedPage& page) const {
    return page.location.generation < newest_ &&
           is_in(entries_, page.identity.namespace_digest, page.location.generation);
  }
  // Entries that no segment is older than have done their work. `oldest`: the first generation of the oldest segment.
  void forget_settled(std::uint64_t oldest) {
    std::erase_if(entries_, [oldest](const Cleared& entry) { return entry.generation <= oldest; });
  }
  // What was written before `generation` is cleared: of that namespace, or of all (a digest of 0). `generation` is
  // above all earlier ones. False: there are too many.
  [[nodiscard]] bool add(const Digest256& namespace_digest, std::uint64_t generation) {
    if (namespace_digest.is_zero()) entries_.clear();
    std::erase_if(entries_, [&](const Cleared& entry) { return entry.namespace_digest == namespace_digest; });
    if (entries_.size() >= kMaxCleared) return false;
    entries_.push_back({namespace_digest, generation});
    newest_ = generation;
    return true;
  }
  [[nodiscard]] const std::vector<Cleared>& entries() const { return entries_; }

 private:
  std::vector<Cleared> entries_;
  std::uint64_t newest_ = 0;  // generation of the last clear: not below that of any entry
};

}  // namespace larder::file_store
