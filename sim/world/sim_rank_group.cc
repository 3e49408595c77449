// SPDX-License-Identifier: Apache-2.0
#include "sim/world/sim_rank_group.h"

#include <utility>

namespace larder::sim {
namespace {

class SimulatedRank final : public RankGroup {
 public:
  SimulatedRank(std::unique_ptr<RankGroup> inner, std::function<void(const std::string&)> fail)
      : inner_(std::move(inner)), fail_(std::move(fail)) {}

  [[nodiscard]] std::uint32_t rank() const override { return inner_->rank(); }
  [[nodiscard]] std::uint32_t size() const override { return inner_->size(); }
  [[nodiscard]] Status report(OpId op, OutcomeBits bits) override { return inner_->report(op, std::move(bits)); }
  [[nodiscard]] Status take(std::uint64_t step, bool pending, Nanos, std::vector<AgreedEvent>& out) override {
    const Status taken = inner_->take(step, pending, Nanos{0}, out);
    if (taken.code() != StatusCode::kDeadlineExceeded) return taken;
    const std::string why = "rank " + std::to_string(rank()) + " takes step " + std::to_string(step) +
                            ", and the leader did not: the ranks have decided differently";
    fail_(why);
    inner_->give_up(why);
    return cancelled(why);
  }
  void give_up(const std::string& why) override { inner_->give_up(why); }

 private:
  const std::unique_ptr<RankGroup> inner_;
  const std::function<void(const std::string&)> fail_;
};

}  // namespace

std::vector<std::unique_ptr<RankGroup>> make_simulated_rank_group(std::uint32_t ranks, Clock& clock,
                                                                  std::size_t max_outstanding,
                                                                  const std::function<void(const std::string&)>& fail) {
  std::vector<std::unique_ptr<RankGroup>> members = make_in_process_rank_group(ranks, clock, max_outstanding);
  for (std::unique_ptr<RankGroup>& member : members) {
    member = std::make_unique<SimulatedRank>(std::move(member), fail);
  }
  return members;
}

}  // namespace larder::sim
