// SPDX-License-Identifier: Apache-2.0
// Four ranks in one process, each with its own tree, pools, storage and order of completions: they must take identical
// decisions, and nobody may hang. Storage of each rank fails and delays on its own. They agree in one process, over a
// simulated network, and over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <sstream>

#include "base/thread_pool.h"
#include "controller/rank_group.h"
#include "sim/faulty_backend.h"
#include "tests/cache/harness.h"
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

// hard: few operations, a small group, storage that fails on one rank and not on the other, is detached and attached,
// and an operator who asks one rank.
struct Life {
  Shape shape;
  bool hard = false;
  GroupKind kind = GroupKind::kInProcess;
};

// One rank's life: the same script of requests on every rank; copies complete when this rank's own dice say so.
class RankLife {
 public:
  RankLife(RankGroup& group, Pace& pace, const Life& life, std::uint64_t seed)
      : rank_(group.rank()),
        hard_(life.hard),
        pace_(pace),
        script_(seed),
        dice_(seed * 1000 + group.rank()),
        harness_(options_for(group, life, seed)) {}

  std::string run(int steps) {
    for (int i = 0; i < steps; ++i) {
      pace_.arrive(rank_, i);
      step(i);
    }
    // Every rank drains for the same number of steps: the group counts steps.
    for (int i = 0; i < kDrainSteps; ++i) {
      pace_.arrive(rank_, steps + i);
      harness_.clock.advance(std::chrono::milliseconds(50));
      (void)harness_.run_background(64);
      move_all(i);
    }
    log_ << "left " << jobs_.size() << ", operations " << harness_.cache->operations_in_flight();
    if (!harness_.failure.empty()) log_ << " FAILURE " << harness_.failure;
    const Status s = harness_.cache->check_invariants();
    if (!s.is_ok()) log_ << " INVARIANT " << s.to_string();
    if (harness_.cache->counters().rank_timeouts > 0) log_ << " TIMEOUTS";
    return log_.str();
  }

  std::size_t left() const { return jobs_.size(); }

 private:
  static constexpr int kDrainSteps = 600;

  static HarnessOptions options_for(RankGroup& group, const Life& life, std::uint64_t seed) {
    HarnessOptions o;
    o.shape = life.shape;
    if (life.hard) {
      o.config.max_operations = 8;
      const std::uint64_t fault_seed = seed * 91 + group.rank();
      o.wrap_backend = [fault_seed](std::unique_ptr<StorageBackend> inner) {
        const sim::FaultPlan plan{.refuse_percent = 5, .hang_percent = 0, .fail_percent = 15, .partial_percent = 5};
        return std::make_unique<sim::FaultyBackend>(std::move(inner), fault_seed, plan);
      };
    }
    o.ranks = &group;
    o.seed = seed * 77 + group.rank();
    o.device = {48, 48, 10};
    o.host_slots = 120;
    o.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
    o.config.prefetch_threshold = 4;
    o.config.chunked_prefill_tokens = 16;
    // A rank that lost pages the others have: its storage is smaller than theirs.
    o.backend_options = {{"max_size", std::to_string(100'000 + 150'000 * group.rank())}};
    return o;
  }

  void step(int i) {
    if (jobs_.size() < 4 && script_.below(3) == 0) begin();
    harness_.clock.advance(std::chrono::milliseconds(dice_.below(40)));
    (void)harness_.run_background(dice_.below(8));  // one poll per step on every rank
    if (hard_ && script_.below(41) == 0) toggle_storage();
    if (hard_ && rank_ == 0 && dice_.below(5) == 0) explain();
    move_all(i);
    log_slots();
    if (script_.below(97) == 0) log_ << "flush " << harness_.cache->flush() << "\n";
  }

  // Decisions are alike by luck for a while when what they rest on is not.
  void log_slots() {
    for (const ComponentKind c : kAllComponents) {
      const SlotTable::Counts slots = harness_.device->slots(c).counts();
      log_ << ' ' << slots.free << '/' << slots.live << '/' << slots.quarantined;
      for (const Tier t : {Tier::kDevice, Tier::kHost}) {
        const TierCounts& counts = harness_.cache->tree().counts(c, t);
        log_ << ' ' << counts.resident << '/' << counts.locked << '/' << counts.pending;
      }
    }
    const CacheCounters c = harness_.cache->counters();
    log_ << " nodes " << harness_.cache->tree().node_count() << " waits " << c.store_waits << " shared "
         << c.prefetch_shared << " stored " << c.stored << '\n';
  }

  void toggle_storage() {
    if (is_attached_) {
      harness_.cache->detach_storage();
    } else if (!harness_.cache->attach_storage(*harness_.backend).is_ok()) {
      harness_.failure = "attach";
    }
    is_attached_ = !is_attached_;
  }

  void explain() {
    const std::vector<TokenId> prompt(20, 1);
    BeginRequest request;
    request.tokens = prompt;
    request.salt = "tenant " + std::to_string(dice_.below(3));
    harness_.cache->explain(request, [](Explanation) {});
  }

  void begin() {
    std::vector<TokenId> prompt;
    if (!history_.empty() && script_.below(3) != 0) {
      prompt = history_[script_.below(history_.size())];
      prompt.resize(script_.below(prompt.size() + 1));
    }
    const std::size_t more = 1 + script_.below(30);
    for (std::size_t k = 0; k < more; ++k) prompt.push_back(static_cast<TokenId>(script_.below(3)));
    if (prompt.size() > 90) prompt.resize(90);
    jobs_.push_back(harness_.begin(prompt, script_.below(12)));
  }

  void move_all(int step) {
    for (std::size_t k = 0; k < jobs_.size();) {
      Harness::Job& job = jobs_[k];
      const bool was_started = job.started;
      const bool moved = harness_.advance(job, 16);
      log_ << step << ":" << job.id.v << (moved ? "+" : "-" + harness_.refusal);
      if (job.started && !was_started)
        log_ << " hit " << job.cached.device << "/" << job.cached.host << "/" << job.cached.storage;
      log_ << "\n";
      if (harness_.done(job)) {
        history_.push_back(job.tokens);
        harness_.finish(job);
        jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(k));
      } else {
        ++k;
      }
    }
  }

  const std::uint32_t rank_;
  const bool hard_;
  bool is_attached_ = true;
  Pace& pace_;
  Rng script_;  // the same numbers on every rank
  Rng dice_;    // this rank's delays
  Harness harness_;
  std::vector<Harness::Job> jobs_;
  std::vector<std::vector<TokenId>> history_;
  std::ostringstream log_;
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
                          {
                            RankLife life(*groups[rank], pace, GetParam(), seed);
                            logs[rank] = life.run(400);
                          }
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
  const Result<StepGrant> step = h.cache->prepare_step(*running, 8);
  ASSERT_TRUE(step.is_ok());
  const Result<RequestId> fetching = h.cache->begin({.tokens = stored, .max_new_tokens = 4});
  ASSERT_TRUE(fetching.is_ok());
  ASSERT_EQ(h.cache->phase(*fetching), RequestPhase::kPrefetching);
  (void)h.run(prompt_of(8, 70), 1);  // its backup is under way

  group.lose_leader([&](Nanos wait) { h.clock.advance(wait); });
  const TimePoint before = h.clock.now();
  (void)h.run_background(1);
  EXPECT_EQ(h.clock.now() - before, Nanos(std::chrono::seconds(1)));
  EXPECT_EQ(h.cache->counters().rank_timeouts, 1u);
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
  EXPECT_EQ(h.cache->complete_step(step->token, other).to_string(), refused);
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
