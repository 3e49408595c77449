// SPDX-License-Identifier: Apache-2.0
// Four ranks in one process, each with its own tree, pools, storage and order of completions: they must take identical
// decisions, and nobody may hang. Storage of each rank fails and delays on its own. They agree in one process, over a
// simulated network, and over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/thread_pool.h"
#include "controller/rank_group.h"
#include "tests/cache/harness.h"
#include "tests/cache/rank_life.h"
#include "tests/support/follower_of_one.h"
#include "tests/support/rank_groups.h"

namespace larder::test {
namespace {

constexpr std::uint32_t kRanks = 4;

// Ranks of a real engine stay within a step of each other, because they compute together. Here: within kLead steps.
class Pace {
 public:
  void arrive(std::uint32_t rank, int step) {
    std::unique_lock<std::mutex> guard(mutex_);
    steps_[rank] = step;
    moved_.notify_all();
    moved_.wait(guard, [&] { return step <= *std::min_element(steps_.begin(), steps_.end()) + kLead; });
  }

 private:
  static constexpr int kLead = 3;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<int> steps_ = std::vector<int>(kRanks, 0);
};

// One rank's life from begin to end, at the others' pace.
std::string run_life(RankGroup& group, Pace& pace, const RankLifeOptions& options, std::uint64_t seed, int steps) {
  RankLife life(group, options, seed);
  for (int i = 0; i < steps; ++i) {
    pace.arrive(group.rank(), i);
    life.step(i);
  }
  // Every rank drains for the same number of steps: the group counts steps.
  for (int i = 0; i < RankLife::kDrainSteps; ++i) {
    pace.arrive(group.rank(), steps + i);
    life.drain_step(i);
  }
  std::string log = life.take_log() + life.end();
  return log;
}

struct Life {
  Shape shape;
  bool hard = false;
  GroupKind kind = GroupKind::kInProcess;
};

// Where two logs part; empty if they do not.
std::string difference(const std::string& a, const std::string& b) {
  if (a == b) return "";
  std::size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  const std::size_t from = at < 80 ? 0 : at - 80;
  return "..." + a.substr(from, 160) + "...\n instead of ..." + b.substr(from, 160);
}

class Ranks : public ::testing::TestWithParam<Life> {};

TEST_P(Ranks, DecideAlikeWhateverTheirDelays) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    RankGroups groups(GetParam().kind, kRanks, real_clock(), GetParam().hard ? 14 : 4096, seed);
    std::vector<std::string> logs(kRanks);
    std::mutex mutex;
    std::condition_variable all_done;
    std::uint32_t done = 0;
    Pace pace;
    {
      ThreadPoolExecutor pool("ranks", kRanks, kRanks);
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(pool.post([&, rank] {
                          RankLifeOptions options{GetParam().shape, GetParam().hard};
                          if (seed % 2 == 0) options.poll_budget = 64;
                          logs[rank] = run_life(*groups[rank], pace, options, seed, 400);
                          const std::lock_guard<std::mutex> guard(mutex);
                          ++done;
                          all_done.notify_one();
                        })
                        .is_ok());
      }
      std::unique_lock<std::mutex> guard(mutex);
      ASSERT_TRUE(all_done.wait_for(guard, std::chrono::seconds(120), [&] { return done == kRanks; }))
          << "seed " << seed;
    }
    for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
      ASSERT_EQ(difference(logs[rank], logs[0]), "") << "rank " << rank << " differs, seed " << seed;
    }
    EXPECT_EQ(logs[0].find("FAILURE"), std::string::npos) << logs[0].substr(logs[0].size() - 300) << " seed " << seed;
    EXPECT_EQ(logs[0].find("INVARIANT"), std::string::npos) << logs[0].substr(logs[0].size() - 300) << " seed " << seed;
    EXPECT_EQ(logs[0].find("TIMEOUTS"), std::string::npos) << "seed " << seed;
    EXPECT_NE(logs[0].find("left 0"), std::string::npos)
        << "requests starve, seed " << seed << logs[0].substr(0, 600) << "..." << logs[0].substr(logs[0].size() - 200);
    EXPECT_NE(logs[0].find("hit"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Ranks,
                         ::testing::Values(Life{Shape::kFull}, Life{Shape::kFullSwa}, Life{Shape::kFullMamba},
                                           Life{Shape::kAll}, Life{Shape::kFull, true}, Life{Shape::kAll, true},
                                           Life{Shape::kAll, false, GroupKind::kSimulated},
                                           Life{Shape::kAll, true, GroupKind::kSimulated},
                                           Life{Shape::kFullMamba, false, GroupKind::kTcp},
                                           Life{Shape::kAll, true, GroupKind::kTcp}),
                         [](const auto& param_info) {
                           const Life& life = param_info.param;
                           return shape_name(life.shape) + (life.hard ? "_hard" : "") +
                                  (life.kind == GroupKind::kInProcess ? "" : "_" + group_kind_name(life.kind));
                         });

// Two ranks that are called alike, by an engine that computes on whatever its gates say.
class TwoRanks {
 public:
  explicit TwoRanks(Shape shape) : groups(make_in_process_rank_group(2, real_clock(), 4096)) {
    HarnessOptions o = eager_options(shape);
    o.storage = false;
    o.device = {64, 64, 5};
    for (const auto& group : groups) {
      o.ranks = group.get();
      ranks.push_back(std::make_unique<Harness>(o));
    }
  }
  void poll() {
    for (int i = 0; i < 6; ++i) {
      for (const auto& h : ranks) (void)h->executor.run_all(), (void)h->cache->poll(Nanos{0});
    }
  }
  // begin and start, of `tokens` with one to come. Its copies have ended, and no rank has been told.
  RequestId start(const std::vector<TokenId>& tokens) {
    std::vector<RequestId> ids;
    for (const auto& h : ranks) ids.push_back(h->cache->begin({.tokens = tokens, .max_new_tokens = 1}).value());
    EXPECT_EQ(ids[0], ids[1]);
    poll();
    for (const auto& h : ranks) {
      const Result<CachedTokens> cached = h->cache->start(ids[0]);
      EXPECT_TRUE(cached.is_ok()) << cached.status().to_string();
      resumed = h->cache->computed_tokens(ids[0]);
      (void)h->executor.run_all();
    }
    return ids[0];
  }
  // One step, whatever became of what it reads.
  void step(RequestId id, const std::vector<TokenId>& tokens, std::size_t until) {
    for (const auto& h : ranks) {
      const Result<StepGrant> grant = h->cache->prepare_step(id, until);
      ASSERT_TRUE(grant.is_ok()) << grant.status().to_string();
      ASSERT_EQ(grant->until, until);
      EXPECT_TRUE(h->cache->complete_step(grant->token, std::span(tokens).first(until)).is_ok());
    }
  }
  void finish(RequestId id) {
    for (const auto& h : ranks) h->cache->finish(id);
    poll();
  }
  void run(const std::vector<TokenId>& tokens) {
    const RequestId id = start(tokens);
    for (std::size_t at = resumed; at < tokens.size();) {
      at = std::min(tokens.size(), at + 16);
      step(id, tokens, at);
      poll();
    }
    finish(id);
  }
  // Of full on the device: the same on both. Else 999.
  [[nodiscard]] std::uint32_t pages() const {
    std::vector<std::uint32_t> pages;
    for (const auto& h : ranks) {
      EXPECT_EQ(h->cache->check_invariants().to_string(), "ok");
      pages.push_back(h->cache->tree().counts(ComponentKind::kFull, Tier::kDevice).resident);
    }
    EXPECT_EQ(pages[0], pages[1]) << "the trees have parted";
    return pages[0] == pages[1] ? pages[0] : 999;
  }

  std::vector<std::unique_ptr<RankGroup>> groups;  // outlive the ranks
  std::vector<std::unique_ptr<Harness>> ranks;
  std::uint64_t resumed = 0;
};

// A checkpoint that came on one rank and not on the other: nothing in the tree is pending, so only the request knows.
TEST(RanksOfWhichOneHasNoCheckpoint, KeepNothingThatWasComputedFromIt) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    for (const CopyDirection direction : {CopyDirection::kDeviceToDevice, CopyDirection::kHostToDevice}) {
      for (const bool fails : {true, false}) {
        for (const bool ends_at_once : {false, true}) {
          SCOPED_TRACE(shape_name(shape) + (fails ? " fails" : "") + (ends_at_once ? " ends" : "") +
                       (direction == CopyDirection::kHostToDevice ? " from host" : ""));
          TwoRanks two(shape);
          two.run(prompt_of(40));
          if (direction == CopyDirection::kHostToDevice) {  // its state leaves the device, its pages stay
            for (TokenId i = 1; i < 6; ++i) two.run(prompt_of(8, 9 * i));
          }
          const std::uint32_t before = two.pages();
          if (fails) {
            two.ranks[1]->device_api->script = [=](CopyDirection d, std::size_t) {
              return d == direction ? Fault::kFail : Fault::kNone;
            };
          }
          const std::vector<TokenId> tokens = prompt_of(61);
          const std::size_t copies = two.ranks[0]->device_api->transfers[static_cast<std::size_t>(direction)];
          const RequestId id = two.start(tokens);
          ASSERT_EQ(two.resumed, 40u);
          ASSERT_EQ(two.ranks[0]->device_api->transfers[static_cast<std::size_t>(direction)], copies + 1);
          two.step(id, tokens, 50);
          EXPECT_EQ(two.pages(), before) << "one rank knows of its own copy alone";
          if (!ends_at_once) two.poll();
          two.step(id, tokens, 60);
          EXPECT_EQ(two.pages(), before + (fails || ends_at_once ? 0 : 5));
          two.ranks[1]->device_api->script = {};
          two.finish(id);
          EXPECT_EQ(two.pages(), before + (fails || ends_at_once ? 0 : 5));
          const RequestId next = two.start(tokens);
          EXPECT_EQ(two.resumed, fails || ends_at_once ? 40u : 60u);
          two.finish(next);
          EXPECT_EQ(two.pages(), before + (fails || ends_at_once ? 0 : 5));
        }
      }
    }
  }
}

TEST(RankThatLostItsLeader, DecidesNothingAnyMore) {
  FollowerOfOne group;
  HarnessOptions o = eager_options(Shape::kFull);
  o.ranks = &group;
  o.config.rank_plan_wait = std::chrono::milliseconds(2);
  o.config.rank_plan_limit = std::chrono::seconds(1);
  Harness h(o);
  (void)h.run(prompt_of(40), 1);
  h.settle();
  (void)h.cache->flush();
  const std::vector<TokenId> other = prompt_of(8, 50), stored = prompt_of(41);
  const Result<RequestId> running = h.cache->begin({.tokens = other, .max_new_tokens = 4});
  ASSERT_TRUE(running.is_ok());
  h.settle();
  ASSERT_TRUE(h.cache->start(*running).is_ok());
  const Result<StepGrant> step = h.cache->prepare_step(*running, 7), next = h.cache->prepare_step(*running, 8);
  ASSERT_TRUE(step.is_ok() && next.is_ok());
  const Result<RequestId> fetching = h.cache->begin({.tokens = stored, .max_new_tokens = 4});
  ASSERT_TRUE(fetching.is_ok());
  ASSERT_EQ(h.cache->phase(*fetching), RequestPhase::kPrefetching);
  (void)h.run(prompt_of(8, 70), 1);  // its backup is under way

  group.lose_leader([&](Nanos wait) { h.clock.advance(wait); });
  const TimePoint before = h.clock.now();
  (void)h.run_background(1);
  EXPECT_EQ(h.clock.now() - before, Nanos(std::chrono::seconds(1)));
  EXPECT_EQ(h.cache->counters().rank_timeouts, 1u);
  EXPECT_NE(group.given_up().find("its cache has lost the others at step "), std::string::npos) << group.given_up();
  EXPECT_NE(group.given_up().find("no plan"), std::string::npos) << group.given_up();
  const std::uint64_t waits = group.waits();
  const std::size_t reported = group.reported();
  for (int i = 0; i < 10; ++i) (void)h.run_background(8);
  EXPECT_EQ(group.waits(), waits) << "it has given up, and waits no more";
  EXPECT_EQ(h.cache->phase(*fetching), RequestPhase::kReady) << "nobody waits for what cannot come";
  const std::string refused = h.cache->start(*fetching).status().to_string();
  EXPECT_EQ(h.cache->start(*fetching).status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.find("rank 1 has lost the others"), std::string::npos) << refused;
  EXPECT_EQ(h.cache->begin({.tokens = other}).status().to_string(), refused);
  EXPECT_EQ(h.cache->prepare_step(*running, 8).status().to_string(), refused);
  EXPECT_EQ(h.cache->complete_step(step->token, std::span(other).first(7)).to_string(), refused);
  EXPECT_EQ(h.cache->cancel_step(step->token).code(), StatusCode::kNotFound) << "it has ended";
  EXPECT_TRUE(h.cache->cancel_step(next->token).is_ok()) << "it only lets go";
  EXPECT_EQ(h.cache->restart(*running).to_string(), refused);
  h.cache->storage_cleared();
  h.cache->finish(*running);
  h.cache->abort(*fetching);
  for (int i = 0; i < 20; ++i) (void)h.run_background(8);
  EXPECT_EQ(group.reported(), reported) << "the others hear nothing from it";
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
}

}  // namespace
}  // namespace larder::test
