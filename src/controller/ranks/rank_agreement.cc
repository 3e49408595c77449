// SPDX-License-Identifier: Apache-2.0
#include "controller/ranks/rank_agreement.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "base/defect.h"

namespace larder::ranks {
namespace {

void and_into(OutcomeBits& sum, const OutcomeBits& bits) {
  const std::size_t common = std::min(sum.size(), bits.size());
  for (std::size_t i = 0; i < common; ++i) sum[i] &= bits[i];
  sum.resize(std::max(sum.size(), bits.size()));
  std::fill(sum.begin() + static_cast<std::ptrdiff_t>(common), sum.end(), 0);
}

}  // namespace

RankAgreement::RankAgreement(std::uint32_t ranks, std::size_t max_outstanding)
    : max_outstanding_(std::max<std::size_t>(max_outstanding, 1)), members_(std::max(ranks, 1u)) {}

std::uint64_t RankAgreement::outstanding(std::uint32_t rank) const {
  return members_[rank].reported - (rank == 0 ? first_agreed_ : members_[rank].applied);
}

Status RankAgreement::report(std::uint32_t rank, OpId op, const OutcomeBits& bits) {
  if (outstanding(rank) >= max_outstanding_) {
    return overloaded("rank group: rank " + std::to_string(rank) + " has " + std::to_string(max_outstanding_) +
                      " events outstanding; take() and apply some first");
  }
  const auto [at, added] = open_.try_emplace(op, OpenEvent{bits, std::vector<bool>(members_.size())});
  OpenEvent& event = at->second;
  if (event.reported[rank]) {
    return invalid_argument("rank group: rank " + std::to_string(rank) + " reported operation " + std::to_string(op.v) +
                            " twice");
  }
  if (!added && !defect(Defect::kRanksDecideAlone)) and_into(event.bits, bits);
  event.reported[rank] = true;
  ++event.reports;
  ++members_[rank].reported;
  if (rank == 0) leader_order_.push_back(op);
  is_one_complete_ = is_one_complete_ || event.reports == members_.size();
  return Status::ok();
}

std::uint64_t RankAgreement::promote() {
  if (std::exchange(is_one_complete_, false)) {
    std::deque<OpId> still_open;
    for (const OpId op : leader_order_) {
      const auto at = open_.find(op);
      if (at->second.reports < members_.size()) {
        still_open.push_back(op);
        continue;
      }
      agreed_.push_back({op, std::move(at->second.bits)});
      open_.erase(at);
    }
    leader_order_.swap(still_open);
  }
  return first_agreed_ + agreed_.size();
}

const AgreedEvent& RankAgreement::event(std::uint64_t number) const {
  assert(number >= first_agreed_ && number - first_agreed_ < agreed_.size());
  return agreed_[static_cast<std::size_t>(number - first_agreed_)];
}

void RankAgreement::applied(std::uint32_t rank, std::uint64_t count) {
  assert(count >= members_[rank].applied && count <= first_agreed_ + agreed_.size());
  members_[rank].applied = count;
  std::uint64_t everywhere = count;
  for (const Member& member : members_) everywhere = std::min(everywhere, member.applied);
  for (; first_agreed_ < everywhere; ++first_agreed_) agreed_.pop_front();
}

RankAgreement::Owed RankAgreement::owed(std::uint32_t rank) const {
  Owed owed;
  for (const auto& [op, event] : open_) {
    if (event.reported[rank]) continue;
    if (owed.outcomes == 0 || op < owed.oldest) owed.oldest = op;
    ++owed.outcomes;
  }
  return owed;
}

}  // namespace larder::ranks
