// SPDX-License-Identifier: Apache-2.0
// What the cache tells a storage, and how long it puts up with one: terms of operations, waits, declined pages, slow
// writes, shared reads, a store that somebody empties.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/rank_group.h"
#include "key/page_key.h"
#include "tests/cache/harness.h"
#include "tree/tree_backlog.h"

namespace larder::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- waits

// One request runs, the read of another takes the whole prefetch capacity and never ends: a third that waits for its
// turn starts without storage when its time is over.
class TurnWait {
 public:
  explicit TurnWait(RankGroup* ranks = nullptr) : h_(options(ranks)) {}
  Harness& harness() { return h_; }

  void store() {
    store_only(h_, prompt_of(60));
    store_only(h_, prompt_of(60, 9));
  }
  void begin_all() {
    h_.backend->script = [](Call c, std::size_t) { return hold(c, Call::kRead); };
    running_ = h_.begin(prompt_of(20, 33), 40);
    hangs_ = h_.begin(prompt_of(60), 4);
  }
  void begin_waiting() { waits_ = h_.begin(prompt_of(60, 9), 4); }
  [[nodiscard]] bool start_running() { return h_.advance(running_, 16); }
  [[nodiscard]] bool start_waiting() { return h_.advance(waits_, 16); }
  [[nodiscard]] const Harness::Job& waiting() const { return waits_; }
  void end() {
    for (const Harness::Job* job : {&running_, &hangs_, &waits_}) h_.cache->abort(job->id);
    h_.backend->script = {};
    (void)h_.backend->release();
  }

 private:
  static HarnessOptions options(RankGroup* ranks) {
    HarnessOptions o = eager_options(Shape::kFull);
    o.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
    o.config.prefetch_capacity = 0.01;
    o.config.prefetch_wait_limit = seconds(5);
    o.ranks = ranks;
    return o;
  }
  Harness h_;
  Harness::Job running_, hangs_, waits_;
};

TEST(StorageWait, WaitForATurnEnds) {
  TurnWait t;
  Harness& h = t.harness();
  t.store();
  t.begin_all();
  look(h);
  ASSERT_TRUE(t.start_running());
  h.clock.advance(seconds(1));
  t.begin_waiting();
  for (int i = 0; i < 49; ++i) {
    EXPECT_FALSE(t.start_waiting()) << i;
    h.clock.advance(milliseconds(100));
    look(h);
  }
  EXPECT_FALSE(t.start_waiting());
  EXPECT_EQ(h.cache->counters().prefetch_late, 1u);  // the one that hangs
  h.clock.advance(milliseconds(100));
  look(h);
  EXPECT_TRUE(t.start_waiting());
  EXPECT_EQ(t.waiting().cached.cached(), 0u);
  EXPECT_EQ(h.cache->counters().prefetch_late, 2u);
  t.end();
  EXPECT_EQ(h.check_settled(), "");
}

// Host slots that storage reads from, or writes into, are leased until it is done, also when nobody wants them any
// more.
TEST(StorageLeases, SlotsAreLeasedWhileStorageHasThem) {
  for (const Call call : {Call::kWrite, Call::kRead}) {
    HarnessOptions options = eager_options(Shape::kAll);
    options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
    Harness h(options);
    if (call == Call::kRead) store_only(h, prompt_of(60));
    h.backend->script = [call](Call c, std::size_t) { return hold(c, call); };
    Harness::Job job = h.begin(prompt_of(60), 4);
    for (int i = 0; i < 100 && h.backend->held() == 0; ++i) {
      if (h.done(job) || !h.advance(job, 16)) look(h);
    }
    ASSERT_GT(h.backend->held(), 0u);
    h.cache->abort(job.id);
    look(h);
    for (const ComponentKind c : {ComponentKind::kFull, ComponentKind::kSwa, ComponentKind::kMamba}) {
      EXPECT_GT(h.host->counts(c).leases, 0u) << component_name(c) << ", call " << static_cast<int>(call);
    }
    h.backend->script = {};
    (void)h.backend->release();
    EXPECT_EQ(h.check_settled(), "");
  }
}

// An aborted request takes its deadline along, and the next one gets its own.
TEST(StorageWait, TurnTimerFollowsTheFirstThatWaits) {
  TurnWait t;
  Harness& h = t.harness();
  t.store();
  t.begin_all();
  look(h);
  ASSERT_TRUE(t.start_running());
  Harness::Job first = h.begin(prompt_of(60, 9), 4);
  EXPECT_FALSE(h.advance(first, 16));
  h.clock.advance(seconds(2));
  t.begin_waiting();
  EXPECT_FALSE(t.start_waiting());
  h.cache->abort(first.id);
  h.clock.advance(seconds(3));
  look(h);
  EXPECT_FALSE(t.start_waiting());  // the deadline of the first
  h.clock.advance(seconds(2));
  look(h);
  EXPECT_TRUE(t.start_waiting());
  t.end();
  EXPECT_EQ(h.check_settled(), "");
}

// Two ranks in one thread: the leader polls first, so the follower finds its plan.
class TwoStorageRanks {
 public:
  TwoStorageRanks() : groups(make_in_process_rank_group(2, clock, 64)) {}
  static void look_at(Harness& a, Harness& b) {
    for (int i = 0; i < 20; ++i) {
      (void)a.run_background(100);
      (void)b.run_background(100);
    }
  }
  // `act` on both, then everything that follows from it.
  template <class Act>
  static void on_both(Harness& a, Harness& b, Act act) {
    act(a);
    act(b);
    look_at(a, b);
  }
  // A request from begin to finish, in the same steps on both.
  static CachedTokens run(Harness& a, Harness& b, const std::vector<TokenId>& prompt, const std::string& salt = "") {
    Harness::Job ja = a.begin(prompt, 4, salt), jb = b.begin(prompt, 4, salt);
    for (int i = 0; i < 1000 && !(a.done(ja) && b.done(jb)); ++i) {
      const bool moved = !a.done(ja) && a.advance(ja, 16);
      const bool moved_too = !b.done(jb) && b.advance(jb, 16);
      EXPECT_EQ(moved, moved_too) << a.refusal << " / " << b.refusal;
      if (!moved) look_at(a, b);
    }
    EXPECT_EQ(ja.cached.cached(), jb.cached.cached());
    a.finish(ja);
    b.finish(jb);
    look_at(a, b);
    return ja.cached;
  }

  ManualClock clock;
  std::vector<std::unique_ptr<RankGroup>> groups;
};

// The clock of one rank is behind: nobody gives up before it does, and then both do in the same step.
TEST(StorageWait, RanksGiveUpTogether) {
  TwoStorageRanks ranks;
  TurnWait a(ranks.groups[0].get()), b(ranks.groups[1].get());
  Harness &ha = a.harness(), &hb = b.harness();
  for (const TokenId first : {0u, 9u}) {
    (void)TwoStorageRanks::run(ha, hb, prompt_of(60, first));
    TwoStorageRanks::on_both(ha, hb, [](Harness& h) { (void)h.cache->flush(); });
  }
  a.begin_all();
  b.begin_all();
  TwoStorageRanks::look_at(ha, hb);
  ASSERT_TRUE(a.start_running() && b.start_running());
  a.begin_waiting();
  b.begin_waiting();
  EXPECT_FALSE(a.start_waiting() || b.start_waiting());
  ha.clock.advance(seconds(6));
  TwoStorageRanks::look_at(ha, hb);
  EXPECT_FALSE(a.start_waiting());
  EXPECT_FALSE(b.start_waiting());
  hb.clock.advance(seconds(6));
  TwoStorageRanks::look_at(ha, hb);
  EXPECT_TRUE(a.start_waiting());
  EXPECT_TRUE(b.start_waiting());
  a.end();
  b.end();
  TwoStorageRanks::look_at(ha, hb);
  for (Harness* h : {&ha, &hb}) {
    EXPECT_EQ(h->failure, "");
    EXPECT_EQ(h->cache->operations_in_flight(), 0u);
    EXPECT_EQ(h->cache->check_invariants().to_string(), "ok");
    EXPECT_EQ(h->cache->counters().rank_timeouts, 0u);
  }
}

// ---- what the tree knows and nobody has

// Many short prompts take the places of a long one's state and window on the device, and the host has no room for
// them: of the long one there are the pages of full alone. Storage is asked for the rest all the same, whether the host
// has some of those pages or none.
TEST(StorageRest, WhatOnlyStorageHasIsFetched) {
  std::size_t without_rest = 0, reads = 0;
  for (const Shape shape : {Shape::kFullMamba, Shape::kFullSwa, Shape::kAll}) {
    for (std::size_t host_slots = 30; host_slots < 140; host_slots += 2) {
      HarnessOptions o = eager_options(shape);
      o.device = {64, shape == Shape::kFullMamba ? 0u : 16u, 4};
      o.host_slots = host_slots;
      Harness h(o);
      const std::vector<TokenId> prompt = prompt_of(41);
      (void)h.run(prompt, 1);
      h.settle();
      for (TokenId i = 0; i < 20; ++i) {
        (void)h.run(prompt_of(9, 50 + i * 5), 1);
        h.settle();
      }
      const MatchResult match = h.cache->tree().match(NamespaceId(0), prompt);
      const bool is_full_alone = match.full_device_pages == 10 && match.any.at.pages == 0;
      without_rest += is_full_alone ? 1 : 0;
      std::size_t own_reads = 0;
      h.backend->script = [&](Call c, std::size_t) {
        own_reads += c == Call::kRead ? 1 : 0;
        return Fault::kNone;
      };
      EXPECT_EQ(h.run(prompt, 1).cached(), 40u) << shape_name(shape) << host_slots << (is_full_alone ? "" : " (whole)");
      EXPECT_LE(own_reads, 1u) << shape_name(shape) << host_slots << ": what was read could not be kept";
      reads += own_reads;
      EXPECT_EQ(h.check_settled(), "") << shape_name(shape) << host_slots;
    }
  }
  EXPECT_GT(without_rest, 50u) << "it was not what this is about";
  EXPECT_GE(reads, without_rest);
}

// ---- terms

TEST(StorageTerms, WritesNameTheParentOfEachPage) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSidecar, Shape::kAll}) {
    Harness h(eager_options(shape));
    std::map<std::array<std::uint8_t, 32>, std::array<std::uint8_t, 32>> parent_of;
    h.backend->saw_write = [&](const WriteRequest& request) {
      EXPECT_EQ(request.terms.urgency, Urgency::kBackground);
      for (const PageGroup& group : request.groups) {
        for (const WriteItem& item : group.items) {
          const auto [at, is_new] = parent_of.emplace(item.key.bytes, item.parent.bytes);
          EXPECT_TRUE(is_new || at->second == item.parent.bytes) << "two parents of one page";
        }
      }
    };
    const std::vector<TokenId> prompt = prompt_of(60);
    std::vector<TokenId> fork = prompt;
    for (std::size_t i = 33; i < fork.size(); ++i) fork[i] = 1;
    (void)h.run(prompt, 4);
    (void)h.run(fork, 4);
    h.settle();
    NamespaceScope scope;
    scope.layout = h.options.layout;
    for (const std::vector<TokenId>& tokens : {prompt, fork}) {
      PageKeyChain chain(h.model.page_size, namespace_digest(h.model, scope));
      chain.append_pages(std::span<const TokenId>(tokens));
      ASSERT_GE(chain.keys().size(), 15u);
      for (std::size_t i = 0; i < 15; ++i) {
        const auto found = parent_of.find(chain.keys()[i].bytes);
        ASSERT_NE(found, parent_of.end()) << shape_name(shape) << " page " << i;
        EXPECT_EQ(found->second, (i > 0 ? chain.keys()[i - 1] : PageKey{}).bytes) << shape_name(shape) << " page " << i;
      }
    }
  }
}

TEST(StorageTerms, WritesAreDurableIfTheConfigurationSaysSo) {
  for (const bool is_durable : {false, true}) {
    HarnessOptions o = eager_options(Shape::kFullMamba);
    o.config.storage_durable = is_durable;
    Harness h(o);
    std::size_t writes = 0;
    h.backend->saw_write = [&](const WriteRequest& request) {
      ++writes;
      EXPECT_EQ(request.durable, is_durable);
    };
    h.backend->script = [](Call c, std::size_t number) {
      return c == Call::kWrite && number == 0 ? Fault::kFail : Fault::kNone;
    };
    (void)h.run(prompt_of(60), 4);
    for (int i = 0; i < 5; ++i) {
      h.settle();
      h.clock.advance(seconds(10));
    }
    EXPECT_GT(writes, 1u) << "and once more after a failure";
  }
}

TEST(StorageTerms, ReadsSayWhoWaitsAndUntilWhen) {
  for (const PrefetchPolicy policy :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    HarnessOptions o = eager_options(Shape::kFull);
    o.config.prefetch_policy = policy;
    o.config.prefetch_wait_limit = seconds(7);
    Harness h(o);
    store_only(h, prompt_of(60));
    std::vector<OperationTerms> seen;
    h.backend->saw_exists = [&](const ExistsRequest& request) { seen.push_back(request.terms); };
    h.backend->saw_read = [&](const ReadRequest& request) { seen.push_back(request.terms); };
    const TimePoint begun = h.clock.now();
    Harness::Job job = h.begin(prompt_of(60), 4);
    look(h);
    ASSERT_EQ(seen.size(), 2u);
    const bool waits = policy != PrefetchPolicy::kBestEffort;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(seen[i].urgency, waits ? Urgency::kWaiting : Urgency::kSpeculative);
      const TimePoint until = policy == PrefetchPolicy::kBestEffort     ? TimePoint::max()
                              : policy == PrefetchPolicy::kWaitComplete ? begun + seconds(7)
                                                                        : begun + prefetch_deadline(o.config, i * 56);
      EXPECT_EQ(seen[i].deadline, until) << prefetch_policy_name(policy) << i;
      ASSERT_NE(seen[i].cancel, nullptr);
      EXPECT_FALSE(seen[i].cancel->load());
    }
    h.cache->abort(job.id);
    h.settle();
    EXPECT_FALSE(seen[0].cancel->load()) << "it was over already";
    EXPECT_EQ(h.check_clean(), "");
  }
}

// Two requests with the same prompt share one read; it is cancelled when both are gone.
TEST(StorageTerms, SharedReadIsCancelledByTheLast) {
  for (const Call held : {Call::kExists, Call::kRead}) {
    Harness h(eager_options(Shape::kFullMamba));
    store_only(h, prompt_of(60));
    std::shared_ptr<const std::atomic<bool>> cancel;
    h.backend->script = [&](Call c, std::size_t) { return hold(c, held); };
    h.backend->saw_exists = [&](const ExistsRequest& request) { cancel = request.terms.cancel; };
    Harness::Job a = h.begin(prompt_of(60), 4);
    look(h);
    Harness::Job b = h.begin(prompt_of(60), 4);
    look(h);
    ASSERT_EQ(h.backend->held(), 1u);
    EXPECT_EQ(h.cache->counters().prefetch_shared, 1u);
    EXPECT_EQ(h.cache->phase(b.id), RequestPhase::kPrefetching);
    h.cache->abort(a.id);
    EXPECT_FALSE(cancel->load());
    h.cache->abort(b.id);
    EXPECT_TRUE(cancel->load());
    Harness::Job c = h.begin(prompt_of(60), 4);  // does not rely on what may never come
    EXPECT_EQ(h.cache->counters().prefetch_shared, 1u);
    h.cache->abort(c.id);
    h.backend->script = {};
    (void)h.backend->release();
    EXPECT_EQ(h.check_settled(), "");
  }
}

TEST(StorageTerms, SharedReadServesBoth) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa, Shape::kFullMamba, Shape::kAll}) {
    Harness h(eager_options(shape));
    store_only(h, prompt_of(60));
    const std::size_t reads = h.backend->calls[static_cast<std::size_t>(Call::kRead)];
    Harness::Job a = h.begin(prompt_of(60), 4), b = h.begin(prompt_of(60), 4);
    look(h);
    for (Harness::Job* job : {&a, &b}) {
      while (!h.done(*job) && h.failure.empty()) {
        if (!h.advance(*job, 16)) (void)h.run_background(10);
      }
      h.finish(*job);
    }
    EXPECT_EQ(h.backend->calls[static_cast<std::size_t>(Call::kRead)], reads + 1);
    EXPECT_EQ(a.cached.storage, 56u) << shape_name(shape);
    EXPECT_EQ(b.cached.cached(), 56u) << shape_name(shape);
    EXPECT_EQ(h.check_settled(), "");
  }
}

// ---- what storage does not want

TEST(StorageDeclines, DeclinedPagesAreLeftAlone) {
  Harness h(eager_options(Shape::kFullMamba));
  std::size_t asked = 0;
  h.backend->write_group = [&](const PageGroup&) { return ++asked % 2 == 0 ? unsupported("scripted") : Status::ok(); };
  for (TokenId i = 0; i < 4; ++i) (void)h.run(prompt_of(60, i * 9), 4);
  h.settle();
  EXPECT_EQ(h.failure, "");
  const CacheCounters c = h.cache->counters();
  EXPECT_GT(c.store_declined, 0u);
  EXPECT_GT(c.stored, 0u);
  EXPECT_EQ(c.store_failed, 0u);
  EXPECT_EQ(c.store_declined + c.stored, c.backed_up);
  const std::size_t once = asked;
  (void)h.run(prompt_of(20, 50), 4);
  h.settle();
  EXPECT_LE(asked, once + 3) << "only what is new is asked about";
  // Another storage is another question.
  h.backend->write_group = {};
  h.cache->detach_storage();
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  h.settle();
  EXPECT_TRUE(h.cache->tree().backlog().unstored(2, 100).empty());
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 4).storage, 56u);
  EXPECT_EQ(h.check_settled(), "");
}

// One group is declined and another fails: the failed one is tried again, and nothing else.
TEST(StorageDeclines, RetryLeavesDeclinedPagesOut) {
  Harness h(eager_options(Shape::kFull));
  h.cache->detach_storage();
  (void)h.run(prompt_of(60), 4);
  (void)h.run(prompt_of(60, 9), 4);
  h.settle();
  std::size_t groups = 0, first_write = 0;
  h.backend->saw_write = [&](const WriteRequest& request) {
    groups += request.groups.size();
    if (first_write == 0) first_write = request.groups.size();
  };
  std::size_t asked = 0;
  h.backend->write_group = [&](const PageGroup&) {
    ++asked;
    return asked == 1 ? unsupported("scripted") : asked == 2 ? unavailable("scripted") : Status::ok();
  };
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  h.settle();
  ASSERT_GE(first_write, 2u);
  EXPECT_EQ(groups, first_write + 1);
  EXPECT_EQ(h.cache->counters().store_failed, 0u);
  EXPECT_EQ(h.check_clean(), "");
}

// A page that one rank's storage declines is stored on neither, as far as the cache goes.
TEST(StorageDeclines, RanksAgreeOnDeclinedPages) {
  TwoStorageRanks ranks;
  HarnessOptions o = eager_options(Shape::kFull);
  o.ranks = ranks.groups[0].get();
  Harness a(o);
  o.ranks = ranks.groups[1].get();
  Harness b(o);
  std::size_t asked = 0;
  b.backend->write_group = [&](const PageGroup&) { return ++asked % 2 == 0 ? unsupported("scripted") : Status::ok(); };
  for (TokenId i = 0; i < 4; ++i) (void)TwoStorageRanks::run(a, b, prompt_of(60, i * 9));
  EXPECT_GT(a.cache->counters().store_declined, 0u);
  EXPECT_EQ(a.cache->counters().store_declined, b.cache->counters().store_declined);
  EXPECT_EQ(a.cache->counters().stored, b.cache->counters().stored);
  EXPECT_EQ(a.failure + b.failure, "");
}

// ---- storage that is slow

// Writes end once in `period` polls; what goes through a small host reaches storage nonetheless.
std::uint64_t lost_to_a_slow_storage(Shape shape, int period) {
  HarnessOptions o = eager_options(shape);
  o.device = {32, 32, 6};
  o.host_slots = 60;
  Harness h(o);
  h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kWrite); };
  int polls = 0;
  for (TokenId i = 0; i < 20 && h.failure.empty(); ++i) {
    Harness::Job job = h.begin(prompt_of(100, i * 3), 4);
    while (!h.done(job) && h.failure.empty()) {
      if (h.advance(job, 16)) continue;
      (void)h.run_background(1000);
      if (++polls % period == 0) (void)h.backend->release();
    }
    h.finish(job);
  }
  EXPECT_EQ(h.failure, "");
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
  EXPECT_GT(h.cache->counters().store_waits, 0u);
  (void)h.cache->flush();
  std::uint64_t lost = 0;
  for (TokenId i = 0; i < 20; ++i) {
    lost += h.run(prompt_of(100, i * 3), 4).storage < 96 ? 1 : 0;
    h.settle();
    (void)h.cache->flush();
  }
  EXPECT_EQ(h.check_clean(), "");
  return lost;
}

TEST(StorageSlow, PagesWaitForStorageInsteadOfGoingUnstored) {
  // The last one may be on the device only when the flush comes.
  EXPECT_LE(lost_to_a_slow_storage(Shape::kFull, 8), 1u);
  EXPECT_LE(lost_to_a_slow_storage(Shape::kFullMamba, 8), 1u);
}

// It took something, and then nothing any more: the wait ends after some polls, for good.
TEST(StorageSlow, StorageThatStopsIsWaitedForOnce) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.device = {32, 0, 0};
  o.host_slots = 60;
  Harness h(o);
  (void)h.run(prompt_of(60), 4);
  h.settle();
  h.backend->script = [](Call c, std::size_t) { return hold(c, Call::kWrite); };
  for (TokenId i = 1; i < 20; ++i) (void)h.run(prompt_of(100, i * 3), 4);
  const std::uint64_t waits = h.cache->counters().store_waits;
  EXPECT_LE(waits, 40u);
  EXPECT_GT(h.cache->counters().host_evicted, 0u);
  EXPECT_EQ(h.failure, "");
  h.backend->script = {};
  (void)h.backend->release();
  EXPECT_EQ(h.check_settled(), "");
}

// ---- policies

TEST(Policies, ChangeUnderWay) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    HarnessOptions o = eager_options(shape);
    o.device = {32, 32, 6};
    o.host_slots = 100;
    Harness h(o);
    (void)h.run(prompt_of(60), 4);
    h.settle();
    const std::uint64_t through = h.cache->counters().backed_up;
    EXPECT_GT(through, 0u);
    h.cache->set_policies(PrefetchPolicy::kBestEffort, WritePolicy::kWriteBack);
    (void)h.run(prompt_of(60, 9), 4);
    h.settle();
    EXPECT_EQ(h.cache->counters().backed_up, through);
    for (TokenId i = 2; i < 6; ++i) (void)h.run(prompt_of(100, i * 9), 4);  // gaps on the host
    h.settle();
    EXPECT_GT(h.cache->counters().backed_up, through);
    (void)h.cache->flush();
    Harness::Job job = h.begin(prompt_of(60), 4);
    EXPECT_EQ(h.cache->phase(job.id), RequestPhase::kReady);
    h.cache->abort(job.id);
    h.settle();
    h.cache->set_policies(PrefetchPolicy::kWaitComplete, WritePolicy::kWriteThrough);
    for (TokenId i = 0; i < 6; ++i) store_only(h, prompt_of(80, i * 9));
    EXPECT_GE(h.run(prompt_of(60), 4).storage, 56u);
    EXPECT_EQ(h.check_settled(), "");
  }
}

}  // namespace
}  // namespace larder::test
