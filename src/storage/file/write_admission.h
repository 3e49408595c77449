// SPDX-License-Identifier: Apache-2.0
// Which new pages are worth a write: an optional filter for content seen once, and a wear budget.
//
//  - filter: a group is declined the first time it is offered and admitted the second time within a window (a
//  "doorkeeper",
//    as in TinyLFU, Einziger et al. 2017). Two Bloom filters take turns, so that what was offered long ago is
//    forgotten; a false positive (about 1 %) only admits early. A chain's parent is offered at least as often as its
//    children, so a prefix is admitted from its head.
//  - budget: at most `bytes_per_day` are written, spread by a token bucket that holds one hour's share; cleaning
//  counts.
//
// Threads: confined. Memory: 2 * window * 10 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "key/page_key.h"

namespace larder::file_store {

struct AdmissionOptions {
  bool second_offer = false;        // false: everything is admitted
  std::size_t window = 1'000'000;   // groups remembered
  std::uint64_t bytes_per_day = 0;  // 0: no budget
};

class WriteAdmission {
 public:
  WriteAdmission(const AdmissionOptions& options, TimePoint now);
  // Ok: write it, and the bytes are taken from the budget. kUnsupported: declined, says by what.
  [[nodiscard]] Status admit(const PageKey& key, std::uint64_t bytes, TimePoint now);
  // Bytes written without being asked for (cleaning): the budget may go below zero.
  void spend(std::uint64_t bytes, TimePoint now);

 private:
  [[nodiscard]] bool seen_before(const PageKey& key);
  void refill(TimePoint now);

  const AdmissionOptions options_;
  std::vector<std::uint64_t> filters_[2];
  std::size_t offered_ = 0;  // in filters_[0]
  double tokens_ = 0, most_ = 0;
  TimePoint filled_at_;
};

}  // namespace larder::file_store
