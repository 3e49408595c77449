// SPDX-License-Identifier: Apache-2.0
// What the leader of a rank group knows: which outcomes each rank has reported, and the list that all agree on.
//
//   report(r) ──► the operation's bits &= ..., reports + 1      the leader's report: it joins the leader's order
//   promote() ──► operations that every rank has reported move, in that order, to the end of the agreed list
//   applied(r, n) ──► what every rank has applied leaves the front of the list
//
// Threads: confined. Limits: max_outstanding events of each rank: of the leader (rank 0) those that not every rank has
// applied, which bounds the agreed list; of another rank those that it has not applied itself.
// Cost: report(): one hash look-up. promote(): nothing, unless an operation has become complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/strong.h"
#include "controller/rank_group.h"

namespace larder::ranks {

class RankAgreement {
 public:
  // `ranks` and `max_outstanding`: at least 1.
  RankAgreement(std::uint32_t ranks, std::size_t max_outstanding);

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }
  // kOverloaded: more than max_outstanding. kInvalidArgument: this rank has reported the operation already.
  [[nodiscard]] Status report(std::uint32_t rank, OpId op, const OutcomeBits& bits);
  // The length of the agreed list from its very first event on.
  std::uint64_t promote();
  // Precondition: not applied by every rank, and number < promote().
  [[nodiscard]] const AgreedEvent& event(std::uint64_t number) const;
  // `rank` has applied the first `count` events. Precondition: not fewer than before, nor more than there are.
  void applied(std::uint32_t rank, std::uint64_t count);
  [[nodiscard]] std::uint64_t applied(std::uint32_t rank) const { return members_[rank].applied; }

  // Operations of which some rank, but not this one, has reported the outcome. O(open operations).
  struct Owed {
    std::size_t outcomes = 0;
    OpId oldest;  // the one with the smallest number
  };
  [[nodiscard]] Owed owed(std::uint32_t rank) const;

 private:
  struct OpenEvent {
    OutcomeBits bits;            // AND of the reports so far
    std::vector<bool> reported;  // by rank
    std::uint32_t reports = 0;
  };
  struct Member {
    std::uint64_t reported = 0;  // events, in all
    std::uint64_t applied = 0;   // events of the agreed list
  };
  [[nodiscard]] std::uint64_t outstanding(std::uint32_t rank) const;

  const std::size_t max_outstanding_;
  std::vector<Member> members_;
  std::unordered_map<OpId, OpenEvent> open_;
  std::deque<OpId> leader_order_;   // open events that the leader has reported
  bool is_one_complete_ = false;    // an open event has every report
  std::deque<AgreedEvent> agreed_;  // events first_agreed_, first_agreed_ + 1, ...
  std::uint64_t first_agreed_ = 0;
};

}  // namespace larder::ranks
