// SPDX-License-Identifier: Apache-2.0
// What writes to storage may take from everybody else: host memory, places for operations, and the marks of pages that
// they did not write.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/cache/harness.h"
#include "tree/tree_backlog.h"

namespace larder::test {
namespace {

using std::chrono::milliseconds;

Fault hold_writes(Call call, std::size_t /*number*/) { return call == Call::kWrite ? Fault::kHold : Fault::kNone; }

std::uint64_t host_pages(const Harness& h, ComponentKind c) { return h.cache->tree().counts(c, Tier::kHost).resident; }

void attach_again(Harness& h) {
  h.cache->detach_storage();
  ASSERT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
}

// Lets all that is held end, and nothing be held any more.
void let_writes_end(Harness& h) {
  h.backend->script = {};
  (void)h.backend->release();
  h.settle();
}

// ---- host memory

HarnessOptions small_host(Shape shape, std::size_t slots) {
  HarnessOptions o = eager_options(shape);
  o.host_slots = slots;
  o.config.chunked_prefill_tokens = 64;
  return o;
}

// The pages of one request are on the host, and their write has begun and does not end.
void run_and_hold(Harness& h) {
  h.backend->script = hold_writes;
  (void)h.run(prompt_of(60), 1, "", 64);
  look(h);
}

// The windows of what is being written are leased: evicting them would give the host nothing.
TEST(StoreLimits, WindowsThatAreBeingWrittenAreNoRoom) {
  Harness h(small_host(Shape::kFullSwa, 50));
  run_and_hold(h);
  EXPECT_EQ(host_pages(h, ComponentKind::kFull), 15u);
  EXPECT_EQ(host_pages(h, ComponentKind::kSwa), 15u);
  EXPECT_EQ(h.host->counts(ComponentKind::kSwa).leases, 15u);
  (void)h.run(prompt_of(60, 9), 1, "", 64);
  look(h);
  EXPECT_GT(h.cache->counters().backup_no_room, 0u);
  EXPECT_EQ(host_pages(h, ComponentKind::kSwa), 15u);
  EXPECT_EQ(h.host->counts(ComponentKind::kSwa).quarantined, 0u);
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  let_writes_end(h);
  (void)h.run(prompt_of(60, 20), 1, "", 64);
  h.settle();
  EXPECT_GT(h.cache->counters().host_evicted, 0u) << "what is written is room again";
  EXPECT_EQ(h.check_clean(), "");
}

// Stored, and nowhere else.
void store_long_prompt(Harness& h, std::size_t tokens) {
  (void)h.run(prompt_of(tokens, 50), 1, "", 64);
  h.settle();
  (void)h.cache->flush();
}

// One request runs and another waits for its stored prompt, engine step after engine step, for a minute.
// After how many of its 100 ms steps the other one has started. `storage` has the backend.
int steps_until_it_starts(Harness& h, Harness& storage, std::size_t tokens) {
  Harness::Job runs = h.begin(prompt_of(20, 33), 4);
  for (int i = 0; i < 10 && !h.advance(runs, 16); ++i) look(storage), look(h);
  Harness::Job waits = h.begin(prompt_of(tokens, 50), 4);
  int steps = 0;
  for (; steps < 600 && !h.advance(waits, 16); ++steps) {
    h.clock.advance(milliseconds(100));
    look(storage);
    look(h);
  }
  h.cache->abort(waits.id);
  h.cache->abort(runs.id);
  return steps;
}

// The defect: with wait_complete, a prompt that is longer than the host was asked for in every step, and never started
// while others ran.
TEST(StoreLimits, APromptThatTheHostCannotHoldIsFetchedInPart) {
  Harness larger(small_host(Shape::kFull, 128));  // an instance with a larger host has stored it
  store_long_prompt(larger, 96);
  HarnessOptions options = small_host(Shape::kFull, 12);
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.storage = false;
  Harness h(options);
  ASSERT_TRUE(h.cache->attach_storage(*larger.backend).is_ok());
  EXPECT_LT(steps_until_it_starts(h, larger, 96), 20);
  EXPECT_EQ(h.cache->counters().prefetched, 12u);
  h.cache->detach_storage();
  EXPECT_EQ(h.check_settled(), "");
}

// The same for one that would fit, were it not for a write that hangs: that is waited for, but not for ever.
TEST(StoreLimits, WaitingForHostRoomEnds) {
  HarnessOptions options = small_host(Shape::kFull, 26);
  options.config.prefetch_policy = PrefetchPolicy::kWaitComplete;
  options.config.prefetch_wait_limit = std::chrono::seconds(5);
  Harness h(options);
  store_long_prompt(h, 96);
  run_and_hold(h);
  const int steps = steps_until_it_starts(h, h, 96);
  EXPECT_GT(steps, 40);
  EXPECT_LT(steps, 60);
  EXPECT_EQ(h.cache->counters().prefetch_late, 1u);
  let_writes_end(h);
  EXPECT_EQ(h.check_clean(), "");
}

// What storage is about to take is on the host alone. A fetch that needs its place waits until storage has it.
TEST(StoreLimits, AFetchTakesNoPlaceOfWhatStorageIsTaking) {
  constexpr TokenId kPrompts = 5;
  constexpr std::size_t kTokens = 40;  // 10 pages
  HarnessOptions options = small_host(Shape::kFull, kPrompts * 10);
  options.device = {12, 0, 0};
  options.config.store_batch_nodes = 1;
  Harness h(options);
  store_long_prompt(h, 48);
  h.backend->script = hold_writes;
  for (TokenId i = 0; i < kPrompts; ++i) (void)h.run(prompt_of(kTokens, 100 * (i + 1)), 1, "", 64);
  look(h);
  Harness::Job fetches = h.begin(prompt_of(48, 50), 1);
  for (int polls = 0; polls < 8; ++polls) (void)h.run_background(100);
  let_writes_end(h);
  for (int moves = 0; moves < 100 && !h.done(fetches); ++moves) {
    if (!h.advance(fetches, 64)) look(h);
  }
  ASSERT_TRUE(h.done(fetches));
  EXPECT_GE(fetches.cached.storage, 40u) << "it was worth waiting for";
  h.finish(fetches);
  h.settle();
  (void)h.cache->flush();
  for (TokenId i = 0; i < kPrompts; ++i) {
    EXPECT_EQ(h.run(prompt_of(kTokens, 100 * (i + 1)), 1, "", 64).cached(), kTokens - 4) << i;
    h.settle();
  }
  EXPECT_EQ(h.check_clean(), "");
}

// The same where one write has ended and the next one, of what continues it, has yet to begin.
TEST(StoreLimits, NorBetweenTwoWrites) {
  HarnessOptions options = small_host(Shape::kFull, 22);
  options.device = {12, 0, 0};
  options.config.store_batch_nodes = 1;
  Harness h(options);
  store_long_prompt(h, 48);
  h.backend->script = hold_writes;
  (void)h.run(prompt_of(20, 100), 1, "", 64);
  (void)h.run(prompt_of(40, 100), 1, "", 64);
  (void)h.run(prompt_of(40, 900), 1, "", 64);
  look(h);
  EXPECT_EQ(h.backend->held(), 1u) << "the second half of a prompt waits for its first one";
  Harness::Job fetches = h.begin(prompt_of(48, 50), 1);
  for (int polls = 0; polls < 8; ++polls) (void)h.run_background(100);
  let_writes_end(h);
  h.cache->abort(fetches.id);
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(40, 100), 1, "", 64).cached(), 36u);
  EXPECT_EQ(h.check_settled(), "");
}

// A storage that was detached goes on reading: what it reads stays cached, because without it the host had no more room
// than with it. Only a flush takes it from the tree.
TEST(StoreLimits, PagesOfADetachedStorageAreNoRoom) {
  Harness h(small_host(Shape::kFull, 20));
  run_and_hold(h);
  ASSERT_EQ(h.backend->held(), 1u);
  h.cache->detach_storage();
  (void)h.run(prompt_of(60, 9), 1, "", 64);
  look(h);
  EXPECT_EQ(h.cache->counters().host_evicted, 0u);
  EXPECT_EQ(host_pages(h, ComponentKind::kFull), 15u);
  EXPECT_EQ(h.cache->operations_in_flight(), 0u);
  EXPECT_EQ(h.cache->check_invariants().to_string(), "ok");
  (void)h.cache->flush();
  EXPECT_EQ(h.cache->tree().node_count(), 0u);
  EXPECT_EQ(h.host->counts(ComponentKind::kFull).quarantined, 15u);
  let_writes_end(h);
  EXPECT_EQ(h.check_clean(), "");
}

// When its write ends after all, they are room like any other.
TEST(StoreLimits, LateWriteOfADetachedStorageGivesItsPagesBack) {
  Harness h(small_host(Shape::kFull, 20));
  run_and_hold(h);
  h.cache->detach_storage();
  let_writes_end(h);
  EXPECT_EQ(h.host->counts(ComponentKind::kFull).leases, 0u);
  (void)h.run(prompt_of(60, 9), 1, "", 64);
  h.settle();
  EXPECT_EQ(h.cache->counters().backup_no_room, 0u);
  EXPECT_EQ(h.cache->counters().host_evicted, 10u);
  EXPECT_EQ(h.check_clean(), "");
}

// States and windows are memory, too: a storage that hangs gets sixty percent of the host, whatever it is made of.
TEST(StoreLimits, StatesAndWindowsCountAsHostMemory) {
  for (const Shape shape : {Shape::kFullMamba, Shape::kAll}) {
    HarnessOptions o = eager_options(shape);
    o.host_slots = 80;
    Harness h(o);
    h.backend->script = hold_writes;
    for (TokenId i = 0; i < 11; ++i) (void)h.run(prompt_of(9, i * 5), 1);
    look(h);
    std::uint64_t leased = 0;
    for (const ComponentKind c : kAllComponents) {
      leased += std::uint64_t{h.host->counts(c).leases} * h.host->blocks_per_slot(c);
    }
    EXPECT_LE(leased, h.host->total_blocks() * 60 / 100) << shape_name(shape);
    EXPECT_GE(leased, h.host->total_blocks() * 40 / 100) << shape_name(shape);
    EXPECT_EQ(h.cache->counters().host_evicted, 0u) << "all of it has room on the host";
    let_writes_end(h);
    (void)h.cache->flush();
    for (TokenId i = 0; i < 11; ++i) {
      EXPECT_EQ(h.run(prompt_of(9, i * 5), 1).storage, 8u) << shape_name(shape) << i;
      h.settle();
    }
    EXPECT_EQ(h.check_clean(), "");
  }
}

// The first write of a storage that is attached to a full cache takes no more than that either.
TEST(StoreLimits, FirstWriteAfterAnAttachLeavesRoom) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.host_slots = 40;
  Harness h(o);
  h.cache->detach_storage();
  for (TokenId i = 0; i < 18; ++i) (void)h.run(prompt_of(9, i * 5), 1);
  look(h);
  ASSERT_EQ(host_pages(h, ComponentKind::kFull), 36u);
  h.backend->script = hold_writes;
  EXPECT_TRUE(h.cache->attach_storage(*h.backend).is_ok());
  look(h);
  EXPECT_EQ(h.host->counts(ComponentKind::kFull).leases, 24u) << "sixty percent";
  let_writes_end(h);
  EXPECT_EQ(h.cache->counters().stored, 36u) << "the others follow";
  EXPECT_EQ(h.check_clean(), "");
}

// ---- places

// Four places for stores: a storage that hangs in all of them and is detached leaves the next one as many. There is an
// end to that, and copies never notice.
TEST(StoreLimits, DetachedStorageLeavesTheNextOneItsPlaces) {
  HarnessOptions o = eager_options(Shape::kFull);
  o.config.max_operations = 16;
  Harness h(o);
  TokenId next = 0;
  const auto run_some = [&] {
    for (int i = 0; i < 4; ++i, next += 5) (void)h.run(prompt_of(9, next), 1);
    look(h);
  };
  h.backend->script = hold_writes;
  run_some();
  EXPECT_EQ(h.backend->held(), 4u);
  attach_again(h);
  run_some();
  EXPECT_EQ(h.backend->held(), 8u) << "those of the first, and as many of the second";
  attach_again(h);
  run_some();
  EXPECT_EQ(h.backend->held(), 8u) << "those that hang are bounded";
  EXPECT_EQ(h.cache->counters().backed_up, 24u) << "twelve prompts of two pages";
  EXPECT_EQ(h.failure, "");
  let_writes_end(h);
  EXPECT_TRUE(h.cache->tree().backlog().unstored(3, 100).empty()) << "the third storage has caught up";
  EXPECT_EQ(h.check_clean(), "");
}

// ---- marks

// A write of fifteen pages fails while the device gives up their tail, piece by piece; so the retry is of three nodes.
// While that is under way, the device takes two pages more: the first of the three nodes is cut, and were its parts
// free, the tree would merge one of them with the second node and give its id to the next prompt.
class RetryOfCutNodes {
 public:
  RetryOfCutNodes() : h_(options()) {
    h_.backend->saw_write = [this](const WriteRequest& request) { groups_ = request.groups.size(); };
    h_.backend->script = [this](Call c, std::size_t number) {
      return c == Call::kWrite && (number == 0 || groups_ == 3) ? Fault::kHold : Fault::kNone;
    };
  }
  Harness& harness() { return h_; }

  // Groups of so many pages fail from now on, those of fifteen too.
  void fail_groups_of(std::size_t pages) {
    h_.backend->write_group = [pages](const PageGroup& group) {
      const bool fails = group.items.size() == 15 || group.items.size() == pages;
      return fails ? unavailable("scripted") : Status::ok();
    };
  }
  void run() {
    compute(60, 0);   // [0, 15), which is held
    compute(88, 9);   // cuts it at 10
    compute(12, 18);  // and at 7
    EXPECT_EQ(h_.backend->release(), 1u);
    look(h_);
    h_.clock.advance(milliseconds(100));
    look(h_);
    EXPECT_EQ(h_.backend->held(), 1u) << "the retry";
    compute(8, 27);  // at 5
    EXPECT_EQ(h_.backend->release(), 1u);
    h_.settle();
    EXPECT_EQ(h_.failure, "");
  }

 private:
  static HarnessOptions options() {
    HarnessOptions o = eager_options(Shape::kFull);
    o.device = {32, 0, 0};
    o.config.chunked_prefill_tokens = 128;
    o.config.backup_retries = 1;
    return o;
  }
  void compute(std::size_t tokens, TokenId first) {
    (void)h_.run(prompt_of(tokens, first), 1, "", 128);
    look(h_);
  }

  std::size_t groups_ = 0;  // of the last write
  Harness h_;
};

// What does not count as stored, whether it waits or rests.
std::vector<NodeId> not_stored(const RadixTree& tree, std::uint32_t epoch) {
  std::vector<NodeId> nodes =
      tree.backlog().unstored(77, 1000);  // of an epoch that nobody tracks: all that the host has
  std::erase_if(nodes, [&](NodeId node) { return tree.view(node).stored_epoch == epoch; });
  return nodes;
}

TEST(StoreMarks, FailedPagesDoNotCountAsStoredWithTheNextOnes) {
  RetryOfCutNodes retry;
  Harness& h = retry.harness();
  retry.fail_groups_of(7);
  retry.run();
  EXPECT_EQ(h.cache->counters().store_failed, 7u);
  std::set<std::uint64_t> unstored;
  for (const NodeId node : not_stored(h.cache->tree(), 1)) {
    const NodeView view = h.cache->tree().view(node);
    for (std::uint64_t page = view.begin; page < view.end; ++page) unstored.insert(page);
  }
  EXPECT_EQ(unstored, (std::set<std::uint64_t>{0, 1, 2, 3, 4, 5, 6}));
  h.backend->write_group = {};
  EXPECT_EQ(h.check_clean(), "");
}

TEST(StoreMarks, PagesOfAnotherPromptDoNotCountAsStored) {
  RetryOfCutNodes retry;
  Harness& h = retry.harness();
  retry.fail_groups_of(2);  // the last prompt's
  retry.run();
  const std::vector<NodeId> unstored = not_stored(h.cache->tree(), 1);
  ASSERT_EQ(unstored.size(), 1u);
  EXPECT_EQ(h.cache->tree().view(unstored.front()).end, 2u);
  h.backend->write_group = {};
  h.clock.advance(std::chrono::seconds(2));  // what it lost is looked for
  h.settle();
  (void)h.cache->flush();
  EXPECT_EQ(h.run(prompt_of(60), 1).storage, 56u);
  EXPECT_EQ(h.run(prompt_of(8, 27), 1).storage, 4u);
  EXPECT_EQ(h.check_settled(), "");
}

}  // namespace
}  // namespace larder::test
