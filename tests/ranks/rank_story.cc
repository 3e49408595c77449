// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/rank_story.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/ranks/rank_process.h"
#include "tests/support/real_killed_process.h"
#include "tests/support/temporary_directory.h"

namespace larder::ranks_test {
namespace {

using support::KilledProcess;

constexpr auto kPatience = std::chrono::seconds(40);  // nobody hangs; within the limit of the test program
constexpr std::uint64_t kForEver = 1'000'000, kSecondLife = 60;
constexpr std::uint64_t kSilenceMs = 10'000;  // eight processes share what cores there are with other tests
constexpr Nanos kStoppedLimit = std::chrono::milliseconds(kSilenceMs) + std::chrono::seconds(15);
constexpr std::array kSizes = {2u, 4u, 8u};
constexpr std::array kShapes = {test::Shape::kFull, test::Shape::kFullSwa, test::Shape::kFullMamba, test::Shape::kAll,
                                test::Shape::kFullSidecar};

struct StoryResult {
  Nanos slowest{};            // until the last of the others had said it
  std::uint64_t storage = 0;  // tokens found there in the second life, by one rank
};

class RankStory {
 public:
  explicit RankStory(std::uint64_t seed) : rng_(seed) {
    plan_.seed = seed;
    plan_.ranks = kSizes[seed % kSizes.size()];
    plan_.shape = kShapes[seed / 2 % kShapes.size()];
    plan_.directory = directory_.path();
    is_killed_ = seed / 3 % 2 == 0;
    victim_ = static_cast<std::uint32_t>(rng_.below(plan_.ranks));
    where_ = "seed " + std::to_string(seed) + ": rank " + std::to_string(victim_) + " of " +
             std::to_string(plan_.ranks) + " " + (is_killed_ ? "killed" : "stopped");
  }

  void run(StoryResult& result) {
    ASSERT_FALSE(directory_.path().empty());
    plan_.silence_ms = kSilenceMs;
    ASSERT_NO_FATAL_FAILURE(start(kForEver));
    KilledProcess& victim = *processes_[victim_];
    victim.read_lines(static_cast<std::size_t>(rng_.below(250)), kPatience, 'S');
    victim.read_for(std::chrono::microseconds(rng_.below(3000)));
    const TimePoint before = real_clock().now();
    ASSERT_TRUE((is_killed_ ? victim.kill() : victim.stop()).is_ok()) << where_;
    for (std::uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      if (rank != victim_) expect_told(rank);
    }
    result.slowest = real_clock().now() - before;
    if (!is_killed_) {
      EXPECT_LT(result.slowest, kStoppedLimit) << where_;
    }
    collect();
    plan_.silence_ms = 60'000;  // on a machine that has other work nobody is to be lost
    ASSERT_NO_FATAL_FAILURE(start(kSecondLife));
    for (std::uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      processes_[rank]->read_lines(1, kPatience, 'D');
      const std::string done = line_of(rank, 'D');
      ASSERT_FALSE(done.empty()) << where_ << ": rank " << rank
                                 << " did not end its second life: " << line_of(rank, 'L') << line_of(rank, '!');
      std::istringstream in(done.substr(1));
      std::uint64_t device = 0, host = 0;
      in >> device >> host >> result.storage;
    }
    collect();
  }

 private:
  void start(std::uint64_t steps) {
    (void)std::remove((plan_.directory + "/board").c_str());
    processes_.clear();
    plan_.steps = steps;
    plan_.port = 0;
    for (plan_.rank = 0; plan_.rank < plan_.ranks; ++plan_.rank) {
      processes_.push_back(std::make_unique<KilledProcess>());
      ASSERT_TRUE(processes_.back()->start(plan_.arguments()).is_ok()) << where_;
      if (plan_.rank > 0) continue;
      processes_[0]->read_lines(1, kPatience, 'P');
      const std::string port = line_of(0, 'P');
      ASSERT_FALSE(port.empty()) << where_ << ": " << line_of(0, '!');
      plan_.port = static_cast<std::uint16_t>(std::stoul(port.substr(1)));
    }
  }

  [[nodiscard]] std::string line_of(std::uint32_t rank, char kind) const {
    for (const std::string& line : processes_[rank]->lines()) {
      if (line.starts_with(kind)) return line;
    }
    return {};
  }

  void expect_told(std::uint32_t rank) {
    processes_[rank]->read_lines(1, kPatience, 'L');
    const std::string told = line_of(rank, 'L');
    const std::string name = "rank " + std::to_string(victim_);
    EXPECT_FALSE(told.empty()) << where_ << ": rank " << rank << " was told nothing " << line_of(rank, '!');
    EXPECT_TRUE(told.find(name + " ") != std::string::npos || told.find(name + ")") != std::string::npos)
        << where_ << ": rank " << rank << " was told: " << told;
    // A killed one is known by its connection, at once; only of a stopped one silence is the sign.
    const bool has_gone = told.find("has gone: ") != std::string::npos;
    const bool was_silent = told.find("has not been heard") != std::string::npos;
    EXPECT_TRUE(has_gone == is_killed_ && was_silent != is_killed_) << where_ << ": rank " << rank << ": " << told;
  }

  // Ends what still runs. Nobody has said that something is wrong, and all said the same of each step.
  void collect() {
    std::map<std::string, std::string> decided;  // by step
    for (std::uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      const Status ended = processes_[rank]->kill();
      EXPECT_TRUE(ended.is_ok() || ended.message() == "no process" || ended.message().ends_with("state 0"))
          << where_ << ": rank " << rank << ": " << ended.to_string();
      EXPECT_EQ(line_of(rank, '!'), "") << where_ << ": rank " << rank;
      for (const std::string& line : processes_[rank]->lines()) {
        if (!line.starts_with('S')) continue;
        const std::size_t space = line.find(' ', 2);
        const auto [at, is_first] = decided.emplace(line.substr(2, space - 2), line);
        EXPECT_EQ(at->second, line) << where_ << ": rank " << rank << " has decided otherwise";
        if (at->second != line) return;
      }
    }
  }

  Rng rng_;
  support::TemporaryDirectory directory_;
  RankProcessPlan plan_;
  bool is_killed_ = false;
  std::uint32_t victim_ = 0;
  std::string where_;
  std::vector<std::unique_ptr<KilledProcess>> processes_;
};

}  // namespace

void run_stories(std::uint64_t first, std::uint64_t count) {
  Nanos slowest_killed{}, slowest_stopped{};
  std::uint64_t storage = 0;
  for (std::uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    StoryResult result;
    RankStory(seed).run(result);
    Nanos& slowest = seed / 3 % 2 == 0 ? slowest_killed : slowest_stopped;
    slowest = std::max(slowest, result.slowest);
    storage += result.storage;
  }
  EXPECT_GT(storage, 0u) << "no life found anything of the one before";
  const auto ms = [](Nanos time) { return std::to_string(time / std::chrono::milliseconds(1)) + " ms"; };
  std::printf("all others had said so: after a kill within %s, after a stop within %s (limit %s)\n",
              ms(slowest_killed).c_str(), ms(slowest_stopped).c_str(),
              ms(std::chrono::milliseconds(kSilenceMs)).c_str());
}

}  // namespace larder::ranks_test
