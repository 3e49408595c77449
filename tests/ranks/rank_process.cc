// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/rank_process.h"

#include <chrono>

#include "base/lock_rank.h"
#include "base/log.h"
#include "base/ranked_mutex.h"
#include "controller/ranks/real_tcp_ranks.h"
#include "key/sha256.h"
#include "tests/cache/rank_life.h"
#include "tests/ranks/real_step_board.h"
#include "tests/support/real_killed_process.h"

namespace larder::ranks_test {
namespace {

using support::say;

constexpr Nanos kFormingPatience = std::chrono::seconds(60);
constexpr std::uint64_t kMostAhead = 3;  // steps, of the slowest

RankProcessPlan plan_of(const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t at) { return std::stoull(arguments.at(at)); };
  RankProcessPlan plan;
  plan.rank = static_cast<std::uint32_t>(number(2));
  plan.ranks = static_cast<std::uint32_t>(number(3));
  plan.port = static_cast<std::uint16_t>(number(4));
  plan.seed = number(5);
  plan.steps = number(6);
  plan.shape = static_cast<test::Shape>(number(7));
  plan.silence_ms = number(8);
  plan.directory = arguments.at(9);
  return plan;
}

class RankProcess {
 public:
  RankProcess(const RankProcessPlan& plan, ranks::RankMember& member, StepBoard board)
      : plan_(plan),
        member_(member),
        board_(std::move(board)),
        life_(member, {plan.shape, false, plan.directory + "/rank" + std::to_string(plan.rank)}, plan.seed) {}

  // False: it has said why it ends.
  bool run() {
    const std::uint64_t end = plan_.steps + test::RankLife::kDrainSteps;
    for (std::uint64_t step = 0; step < end; ++step) {
      wait_for_others(step);
      const int number = static_cast<int>(step);
      step < plan_.steps ? life_.step(number) : life_.drain_step(number);
      if (!is_well()) return false;
      say("S " + std::to_string(step) + " " + std::to_string(sha256(life_.take_log()).prefix64()) + "\n");
    }
    const std::string left = life_.end();
    if (left.find("left 0") == std::string::npos || left.find_first_of("FIT") != std::string::npos) {
      say("! " + left + "\n");
      return false;
    }
    // Who ended before the others are done would be missed by them.
    board_.set(plan_.rank, end + 2 * kMostAhead);
    wait_for_others(end + 3 * kMostAhead);
    const CachedTokens& found = life_.found();
    say("D " + std::to_string(found.device) + " " + std::to_string(found.host) + " " + std::to_string(found.storage) +
        "\n");
    return true;
  }

 private:
  // Until the slowest is near enough, or the group is over.
  void wait_for_others(std::uint64_t step) {
    if (step < plan_.steps + test::RankLife::kDrainSteps) board_.set(plan_.rank, step);
    LockGuard guard(mutex_);
    while (step > board_.slowest() + kMostAhead && !is_over()) {
      (void)never_.wait_for(mutex_, std::chrono::microseconds(200));
    }
  }
  [[nodiscard]] bool is_over() const { return !member_.status().is_ok(); }
  bool is_well() {
    test::Harness& harness = life_.harness();
    const bool is_lost = harness.cache->counters().rank_timeouts > 0;
    // What a cache that has lost the others answers is no failure; what it did before may be one.
    if (!harness.failure.empty() && harness.failure.find("has lost the others") == std::string::npos) {
      say("! " + harness.failure + "\n");
    } else if (const Status s = harness.cache->check_invariants(); !s.is_ok()) {
      say("! " + s.to_string() + "\n");
    } else if (!is_lost) {
      return true;
    } else {
      say("L " + member_.status().message() + "\n");
    }
    return false;
  }

  const RankProcessPlan& plan_;
  ranks::RankMember& member_;
  StepBoard board_;
  test::RankLife life_;
  RankedMutex mutex_{LockRank::kServer};
  RankedCondition never_;
};

}  // namespace

std::vector<std::string> RankProcessPlan::arguments() const {
  return {"rank",
          kRankArgument,
          std::to_string(rank),
          std::to_string(ranks),
          std::to_string(port),
          std::to_string(seed),
          std::to_string(steps),
          std::to_string(static_cast<int>(shape)),
          std::to_string(silence_ms),
          directory};
}

int run_rank_process(const std::vector<std::string>& arguments) {
  set_log_level(LogLevel::kOff);
  const RankProcessPlan plan = plan_of(arguments);
  ranks::RankSettings settings;
  settings.rank = plan.rank;
  settings.ranks = plan.ranks;
  settings.facts = {{"seed", std::to_string(plan.seed)}};
  settings.secret = "of this test";
  settings.silence_limit = std::chrono::milliseconds(plan.silence_ms);
  settings.alive_interval = settings.silence_limit / 20;
  auto group = ranks::TcpRankGroup::open({"127.0.0.1", plan.port}, settings, real_clock());
  if (!group.is_ok()) {
    say("! " + group.status().to_string() + "\n");
    return 0;
  }
  if (plan.rank == 0) say("P " + std::to_string((*group)->port()) + "\n");
  auto board = StepBoard::open(plan.directory + "/board", plan.ranks);
  if (!board.is_ok()) {
    say("! " + board.status().to_string() + "\n");
    return 0;
  }
  const Status formed = (*group)->member().wait_formed(kFormingPatience);
  if (!formed.is_ok()) {
    say("L " + formed.message() + "\n");
    return 0;
  }
  (void)RankProcess(plan, (*group)->member(), std::move(*board)).run();
  return 0;
}

}  // namespace larder::ranks_test
