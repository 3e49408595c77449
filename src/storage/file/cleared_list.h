// SPDX-License-Identifier: Apache-2.0
// What was cleared while pages of it may still lie on disk: the CLEARED file of a running store.
//
// Threads: confined (the store's mutex). Cost: covers() is O(1), one look-up at most; entries() sorts them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "storage/file/page_index.h"
#include "storage/file/segment_format.h"

namespace larder::file_store {

class ClearedList {
 public:
  // With so many entries, cleaning takes the segments that keep them (maintenance.h).
  static constexpr std::size_t kCrowded = kMaxCleared / 2;

  ClearedList() = default;
  explicit ClearedList(const std::vector<Cleared>& entries) {
    for (const Cleared& entry : entries) {
      newest_ = std::max(newest_, entry.generation);
      std::uint64_t& known = entry.namespace_digest.is_zero() ? all_ : of_namespace_[entry.namespace_digest];
      known = std::max(known, entry.generation);
    }
  }

  // Was the page cleared?
  [[nodiscard]] bool covers(const ListedPage& page) const {
    const std::uint64_t generation = page.location.generation;
    if (generation < all_) return true;
    if (generation >= newest_) return false;  // so are those that are being written
    const auto found = of_namespace_.find(page.identity.namespace_digest);
    return found != of_namespace_.end() && generation < found->second;
  }
  // Entries that no segment is older than have done their work. `oldest`: the first generation of the oldest segment.
  void forget_settled(std::uint64_t oldest) {
    std::erase_if(of_namespace_, [oldest](const auto& entry) { return entry.second <= oldest; });
    if (all_ <= oldest) all_ = 0;
  }
  // How many entries forget_settled() would leave. Cost: O(entries).
  [[nodiscard]] std::size_t kept_by(std::uint64_t oldest) const {
    const auto kept = std::count_if(of_namespace_.begin(), of_namespace_.end(),
                                    [oldest](const auto& entry) { return entry.second > oldest; });
    return static_cast<std::size_t>(kept) + (all_ > oldest ? 1 : 0);
  }
  // What was written before `generation` is cleared: of that namespace, or of all (a digest of 0). `generation` is
  // above all earlier ones. False: there are too many.
  [[nodiscard]] bool add(const Digest256& namespace_digest, std::uint64_t generation) {
    if (namespace_digest.is_zero()) {
      of_namespace_.clear();
      all_ = generation;
    } else {
      if (size() >= kMaxCleared && !of_namespace_.contains(namespace_digest)) return false;
      of_namespace_[namespace_digest] = generation;
    }
    newest_ = generation;
    return true;
  }
  [[nodiscard]] std::size_t size() const { return of_namespace_.size() + (all_ > 0 ? 1 : 0); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  // The oldest first. Cost: O(entries log entries).
  [[nodiscard]] std::vector<Cleared> entries() const {
    std::vector<Cleared> out;
    out.reserve(size());
    if (all_ > 0) out.push_back({Digest256{}, all_});
    for (const auto& [digest, generation] : of_namespace_) out.push_back({digest, generation});
    std::sort(out.begin(), out.end(), [](const Cleared& a, const Cleared& b) {
      return std::tie(a.generation, a.namespace_digest) < std::tie(b.generation, b.namespace_digest);
    });
    return out;
  }

 private:
  std::unordered_map<Digest256, std::uint64_t> of_namespace_;  // generation of its last clear
  std::uint64_t all_ = 0;                                      // of the last clear of all; 0: there is none to know of
  std::uint64_t newest_ = 0;  // generation of the last clear: not below that of any entry
};

}  // namespace larder::file_store
