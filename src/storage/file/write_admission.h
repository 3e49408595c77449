// SPDX-License-Identifier: Apache-2.0
// Which new pages are worth a write: an optional filter for content seen once, and a wear budget.
//
//  - filter: a group is declined the first time it is offered and admitted the second time within a window (a
//    "doorkeeper", as in TinyLFU, Einziger et al. 2017). Ranks, pools and namespaces offer pages under the same keys:
//    an offer of one is none of another. Two Bloom filters take turns, so that what was offered long ago is forgotten;
//    a false positive (about 1 %) only admits early. A chain's parent is offered at least as often as its children, so
//    a prefix is admitted from its head.
//  - budget: at most `bytes_per_day` are written, spread by a token bucket that holds one hour's share; cleaning
//  counts.
//
// Threads: confined. Memory: 2 * window * 10 bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "key/page_key.h"
#include "storage/file/page_identities.h"

namespace larder::file_store {

struct AdmissionOptions {
  bool second_offer = false;        // false: everything is admitted
  std::size_t window = 1'000'000;   // groups remembered
  std::uint64_t bytes_per_day = 0;  // 0: no budget
};

// Of a page of a namespace, a layout (so of a rank) and a pool.
[[nodiscard]] inline std::uint64_t offer_name(const PageIdentity& identity, const PageKey& key) {
  return key.prefix64() ^ (PageIdentityHash()(identity) * 0x9e3779b97f4a7c15u);
}

class WriteAdmission {
 public:
  WriteAdmission(const AdmissionOptions& options, TimePoint now);
  // Ok: write it, and the bytes are taken from the budget. kUnsupported: declined, says by what.
  // names: of the group's last page, offer_name() of each pool that has it there; one that was offered before is
  // enough, since the same page may come with a recurrent state the first time, and without one the second time.
  [[nodiscard]] Status admit(std::span<const std::uint64_t> names, std::uint64_t bytes, TimePoint now);
  [[nodiscard]] bool asks_names() const { return options_.second_offer; }  // else admit() looks at none
  // Bytes written without being asked for (cleaning): the budget may go below zero.
  void spend(std::uint64_t bytes, TimePoint now);

 private:
  [[nodiscard]] bool seen_before(std::uint64_t name);
  void refill(TimePoint now);

  const AdmissionOptions options_;
  std::vector<std::uint64_t> filters_[2];
  std::size_t offered_ = 0;  // in filters_[0]
  double tokens_ = 0, most_ = 0;
  TimePoint filled_at_;
};

}  // namespace larder::file_store
