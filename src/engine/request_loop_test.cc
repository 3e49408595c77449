// SPDX-License-Identifier: Apache-2.0
// The loop turn by turn, against a cache and an engine that follow a script or a seed.
#include "engine/request_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "base/rng.h"
#include "engine/request_loop_test_support.h"

namespace larder {
namespace {

using loop_test::expected_output, loop_test::FakeCache, loop_test::prompt_of, loop_test::RequestLoopTest;

using Batch = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

TEST_F(RequestLoopTest, MixesDecodesWithChunksOfPrefill) {
  make({.running = 4, .chunk_tokens = 128});
  Rng rng(1);
  (void)add(prompt_of(rng, 100), 4);
  (void)add(prompt_of(rng, 300), 2);
  run_until_over();
  const std::vector<Batch> expected = {
      {{0, 100}},            // 28 tokens of the second would be a sliver
      {{100, 1}, {0, 128}},  // a decode and a chunk
      {{101, 1}, {128, 128}},
      {{102, 1}, {256, 44}},
      {{300, 1}},
  };
  EXPECT_EQ(engine_->batches, expected);
  EXPECT_EQ(cache_->finished, 2u);
  EXPECT_EQ(loop_->totals().steps, 5u);
}

TEST_F(RequestLoopTest, SharesTheChunkAmongShortPrompts) {
  make({.running = 8, .chunk_tokens = 128});
  Rng rng(1);
  for (const std::size_t tokens : {40u, 40u, 40u, 40u, 200u}) (void)add(prompt_of(rng, tokens), 1);
  run_until_over();
  const std::vector<Batch> expected = {{{0, 40}, {0, 40}, {0, 40}}, {{0, 40}, {0, 88}}, {{88, 112}}};
  EXPECT_EQ(engine_->batches, expected);
}

// Somebody asks whether the engine works: no user's request.
TEST_F(RequestLoopTest, AProbeIsInNoNumbers) {
  make({.running = 2, .chunk_tokens = 64});
  const std::string before = numbers_->render();
  auto probe = std::make_unique<Sequence>();
  probe->ticket = 7;
  probe->tokens = {1};
  probe->prompt = 1;
  probe->request.max_new_tokens = 2;
  probe->request.is_probe = true;
  std::uint64_t told = 0;
  probe->update = [&](const GenerateUpdate& update) { told += update.new_tokens.size(); };
  loop_->add(std::move(probe));
  for (int i = 0; i < 10; ++i) (void)loop_->turn();
  EXPECT_EQ(told, 2u);
  EXPECT_EQ(loop_->totals().prompt_tokens + loop_->totals().completion_tokens + loop_->totals().cached.prompt, 0u);
  EXPECT_EQ(numbers_->render(), before);
  Rng rng(1);
  (void)add(prompt_of(rng, 10), 2);
  run_until_over();
  EXPECT_EQ(loop_->totals().prompt_tokens, 10u);
  EXPECT_NE(numbers_->render(), before);
}

TEST_F(RequestLoopTest, BeginsOnlySoManyThatWait) {
  make({.running = 1, .chunk_tokens = 64});
  Rng rng(1);
  for (int i = 0; i < 200; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->begun, RequestLoop::kMaxBegunWaiting);
  run_until_over();
  EXPECT_EQ(cache_->begun, 200u);
  EXPECT_EQ(cache_->finished, 200u);
}

// However many wait for a storage that hangs: those that ask nothing of it start at once.
TEST_F(RequestLoopTest, ManyThatWaitForStorageHoldUpNobody) {
  for (const std::size_t waiting : {16u, 64u, 300u}) {
    SCOPED_TRACE(waiting);
    make({.running = 8, .chunk_tokens = 64, .prefetch_threshold = 32});
    cache_->storage_hangs = true;
    cache_->on_begin = [this](const BeginRequest& request) {
      cache_->prefetch_chance = request.tokens.size() < 32 ? 0 : 100;
      return Status::ok();
    };
    Rng rng(3);
    for (std::size_t i = 0; i < waiting; ++i) (void)add(prompt_of(rng, 32), 1);
    (void)loop_->turn();
    EXPECT_EQ(cache_->begun, std::min(waiting, RequestLoop::kMaxBegunWaiting));
    const Scheduler::Ticket next = add(prompt_of(rng, 31), 1);
    (void)loop_->turn();
    EXPECT_EQ(heard_[next].ends, 1u);
    EXPECT_TRUE(heard_[next].last.status.is_ok());
    EXPECT_EQ(loop_->waiting(), waiting);
    cache_->storage_hangs = false;
    run_until_over();
  }
}

// The defect: a long prompt that lies wholly on the device was not begun before one of those that fetch had left.
TEST_F(RequestLoopTest, ALongPromptThatIsThereStartsAtOnce) {
  constexpr std::size_t kLong = 40, kThere = 41;
  for (const std::size_t waiting : {16u, 64u, 300u}) {
    SCOPED_TRACE(waiting);
    make({.running = 8, .chunk_tokens = 64, .prefetch_threshold = 32});
    cache_->storage_hangs = true;
    cache_->on_would_fetch = [](const BeginRequest& request) { return request.tokens.size() != kThere; };
    cache_->on_begin = [this](const BeginRequest& request) {
      cache_->prefetch_chance = request.tokens.size() == kThere ? 0 : 100;
      return Status::ok();
    };
    Rng rng(3);
    for (std::size_t i = 0; i < waiting; ++i) (void)add(prompt_of(rng, kLong), 1);
    (void)loop_->turn();
    EXPECT_EQ(cache_->begun, std::min(waiting, RequestLoop::kMaxBegunWaiting));
    const Scheduler::Ticket next = add(prompt_of(rng, kThere), 1);
    (void)loop_->turn();
    EXPECT_EQ(heard_[next].ends, 1u);
    EXPECT_TRUE(heard_[next].last.status.is_ok());
    EXPECT_EQ(loop_->waiting(), waiting);
    cache_->storage_hangs = false;
    run_until_over();
  }
}

// What is in the cache changes while a prompt waits. In a turn only so many are looked at, each of them in its turn.
TEST_F(RequestLoopTest, EachThatWaitsIsLookedAtAgain) {
  constexpr std::size_t kTokens = RequestLoop::kTokensLookedAt / 8;
  make({.running = 8, .chunk_tokens = 64, .prefetch_threshold = 32});
  cache_->storage_hangs = true;
  cache_->prefetch_chance = 100;
  std::set<TokenId> there;  // first tokens
  std::size_t looks = 0;
  cache_->on_would_fetch = [&](const BeginRequest& request) {
    ++looks;
    cache_->prefetch_chance = there.contains(request.tokens[0]) ? 0 : 100;
    return !there.contains(request.tokens[0]);
  };
  for (std::size_t i = 0; i < RequestLoop::kMaxBegunWaiting; ++i) (void)add(std::vector<TokenId>(32, 1), 1);
  std::vector<Scheduler::Ticket> others;
  for (TokenId first = 2; first < 30; ++first) others.push_back(add(std::vector<TokenId>(kTokens, first), 0));
  for (int turn = 0; turn < 5; ++turn) {
    looks = 0;
    (void)loop_->turn();
    EXPECT_EQ(looks, 8u);
  }
  there = {10, 29};
  for (int turn = 0; turn < 4; ++turn) (void)loop_->turn();
  EXPECT_EQ(cache_->begun, RequestLoop::kMaxBegunWaiting + 2);
  EXPECT_EQ(loop_->running(), 2u);
  EXPECT_EQ(loop_->waiting(), RequestLoop::kMaxBegunWaiting + others.size() - 2);
}

// Those that need nothing from storage come without end, and take what room there is.
TEST_F(RequestLoopTest, ThoseThatNeedNoStorageStarveNobody) {
  constexpr std::size_t kThere = 41;
  make({.running = 4, .chunk_tokens = 64, .prefetch_threshold = 32});
  cache_->pages = 100;
  cache_->on_would_fetch = [](const BeginRequest& request) { return request.tokens.size() != kThere; };
  cache_->on_begin = [this](const BeginRequest& request) {
    cache_->prefetch_chance = request.tokens.size() == kThere ? 0 : 100;
    return Status::ok();
  };
  Rng rng(5);
  std::vector<Scheduler::Ticket> fetch;
  for (int i = 0; i < 100; ++i) fetch.push_back(add(prompt_of(rng, 90), 1));
  const auto are_over = [&] {
    return std::ranges::all_of(fetch, [&](Scheduler::Ticket ticket) { return heard_[ticket].ends == 1; });
  };
  int turns = 0;
  for (; turns < 20'000 && !are_over(); ++turns) {
    if (loop_->waiting() < 150) (void)add(prompt_of(rng, kThere), 1);
    (void)loop_->turn();
  }
  EXPECT_TRUE(are_over());
  EXPECT_LT(turns, 100 * 30) << "each is passed over so often at most";
  cache_->on_would_fetch = nullptr;
  run_until_over();
}

TEST_F(RequestLoopTest, ThoseThatWaitForAPlaceAtStorageHoldUpNobody) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->waits_for_place = [](const FakeCache::Entry& e) { return e.prompt.size() == 32; };
  Rng rng(3);
  for (int i = 0; i < 12; ++i) (void)add(prompt_of(rng, 32), 1);
  const Scheduler::Ticket next = add(prompt_of(rng, 31), 1);
  (void)loop_->turn();
  EXPECT_EQ(heard_[next].ends, 1u);
  for (int i = 0; i < 20; ++i) (void)loop_->turn();
  EXPECT_EQ(loop_->waiting(), 12u) << "none of them has failed";
  cache_->waits_for_place = nullptr;
  run_until_over();
}

// Those that are too short for storage are begun in the same bounds.
TEST_F(RequestLoopTest, BeginsOnlySoManyOfEachKind) {
  make({.running = 1, .chunk_tokens = 64, .prefetch_threshold = 32});
  Rng rng(1);
  for (int i = 0; i < 200; ++i) (void)add(prompt_of(rng, i % 4 == 0 ? 10 : 40), 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->begun, RequestLoop::kMaxBegunWaiting + 50);
  for (int i = 0; i < 200; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  EXPECT_LE(cache_->begun, 2 * RequestLoop::kMaxBegunWaiting + 2);
  run_until_over();
  EXPECT_EQ(cache_->finished, 400u);
}

TEST_F(RequestLoopTest, FailedLoadBackStartsAgain) {
  make({.running = 2, .chunk_tokens = 64});
  cache_->cached = 50;
  cache_->gate_failure_chance = 100;
  Rng rng(3);
  const std::vector<TokenId> prompt = prompt_of(rng, 100);
  (void)add(prompt, 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->restarts, 1u);
  cache_->gate_failure_chance = 0;
  run_until_over();
  EXPECT_TRUE(heard_[1].last.status.is_ok());
  EXPECT_EQ(heard_[1].tokens, expected_output(prompt, 3));
  EXPECT_EQ(heard_[1].last.cached.host, 50u);
}

TEST_F(RequestLoopTest, FailingForEverIsAnErrorNotALoop) {
  make({.running = 2, .chunk_tokens = 64});
  engine_->on_step = [](const SequenceStep&) { return unavailable("the device is gone"); };
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(50);
  EXPECT_EQ(heard_[1].last.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(cache_->restarts, RequestLoop::kMaxRestarts);
  // What the engine refuses as wrong is not tried again.
  engine_->on_step = [](const SequenceStep&) { return invalid_argument("no such token"); };
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(50);
  EXPECT_EQ(heard_[2].last.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_->restarts, RequestLoop::kMaxRestarts);
  EXPECT_TRUE(cache_->entries.empty());
}

TEST_F(RequestLoopTest, WhoNeverFitsGetsAnErrorInsteadOfAHang) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->on_start = [](const FakeCache::Entry& e) {
    return e.prompt.size() > 50 ? overloaded("it is too large") : Status::ok();
  };
  Rng rng(3);
  (void)add(prompt_of(rng, 60), 3);
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(100);
  EXPECT_EQ(heard_[1].last.status.code(), StatusCode::kOverloaded);
  EXPECT_NE(heard_[1].last.status.message().find("it is too large"), std::string::npos);
  EXPECT_TRUE(heard_[2].last.status.is_ok());
  EXPECT_EQ(loop_->totals().stalls, 1u);
}

// The device is full of those that run: who matters least makes room, and comes back with its tokens.
TEST_F(RequestLoopTest, WhoMattersLeastMakesRoom) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->pages = 60;
  Rng rng(3);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int32_t priority : {0, 0, 1, 0}) {
    prompts.push_back(prompt_of(rng, 10));
    (void)add(prompts.back(), 30, priority);
  }
  run_until_over(500);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(heard_[i + 1].last.status.is_ok()) << heard_[i + 1].last.status.to_string();
    EXPECT_EQ(heard_[i + 1].tokens, expected_output(prompts[i], 30));
  }
  // The third was submitted with a higher priority, and so begun first: its id is 1. Then came the others.
  ASSERT_FALSE(cache_->retracted.empty());
  EXPECT_EQ(cache_->retracted[0], 4u);
  EXPECT_EQ(std::ranges::count(cache_->retracted, 1u), 0);
  EXPECT_GE(std::ranges::count(cache_->retracted, 4u), std::ranges::count(cache_->retracted, 3u));
  EXPECT_GE(std::ranges::count(cache_->retracted, 3u), std::ranges::count(cache_->retracted, 2u));
  EXPECT_EQ(loop_->totals().retracts, cache_->retracted.size());
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

// The least important is starved itself: it waits, and nobody starts meanwhile.
TEST_F(RequestLoopTest, NobodyStartsWhileOneIsStarved) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->pages = 45;
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 30);
  (void)add(prompt_of(rng, 20), 3);
  for (int i = 0; i < 3; ++i) (void)loop_->turn();
  (void)add(prompt_of(rng, 10), 30);
  (void)add(prompt_of(rng, 1), 3);
  run_until_over(500);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

TEST_F(RequestLoopTest, WhoCannotBeginNowBeginsLater) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->on_begin = [&](const BeginRequest&) {
    return cache_->entries.size() >= 2 ? overloaded("two are in use, which is the limit") : Status::ok();
  };
  Rng rng(3);
  for (int i = 0; i < 12; ++i) (void)add(prompt_of(rng, 10), 3, i % 3);
  run_until_over(200);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

// The first in line waits for a place that one behind it has: it is passed over.
TEST_F(RequestLoopTest, WhoCannotBeginHoldsUpNobody) {
  make({.running = 1, .chunk_tokens = 64});
  cache_->on_begin = [&](const BeginRequest&) {
    return cache_->entries.size() >= 4 ? overloaded("four are in use, which is the limit") : Status::ok();
  };
  Rng rng(3);
  for (int i = 0; i < 6; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  for (int i = 0; i < 20; ++i) (void)add(prompt_of(rng, 10), 3, 1);
  run_until_over(400);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
  EXPECT_EQ(loop_->totals().stalls, 0u);
}

TEST_F(RequestLoopTest, WhoCanNeverBeginGetsAnErrorInsteadOfAHang) {
  make({.running = 4, .chunk_tokens = 64});
  cache_->on_begin = [](const BeginRequest&) { return overloaded("others have them all"); };
  cache_->operations = 1;
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 3);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(loop_->turn());
  cache_->operations = 0;  // nothing will come any more
  run_until_over(20);
  EXPECT_EQ(heard_[1].last.status.message(), "others have them all");
  EXPECT_EQ(loop_->totals().stalls, 1u);
  EXPECT_EQ(loop_->waiting(), 0u);
}

TEST_F(RequestLoopTest, StallWaitsForWhatIsInFlightAndThenFailsTheYoungest) {
  make({.running = 4, .chunk_tokens = 64});
  Rng rng(3);
  for (int i = 0; i < 3; ++i) (void)add(prompt_of(rng, 10), 3);
  (void)loop_->turn();
  ASSERT_EQ(loop_->running(), 3u);
  cache_->on_prepare = [&](const FakeCache::Entry&) {
    return cache_->entries.size() > 2 ? overloaded("no window page is free") : Status::ok();
  };
  cache_->operations = 1;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(loop_->turn());
  EXPECT_EQ(loop_->running(), 3u);  // the copy in flight may free something
  cache_->operations = 0;
  run_until_over(100);
  EXPECT_EQ(heard_[3].last.status.code(), StatusCode::kOverloaded);
  EXPECT_TRUE(heard_[1].last.status.is_ok());
  EXPECT_TRUE(heard_[2].last.status.is_ok());
}

// Who has made room for others has not stalled.
TEST_F(RequestLoopTest, RetractsForOthersAreNoneOfAStall) {
  make({.running = 4, .chunk_tokens = 64});
  Rng rng(3);
  (void)add(prompt_of(rng, 10), 60, 1);
  const Scheduler::Ticket meek = add(prompt_of(rng, 10), 60);
  (void)loop_->turn();
  for (std::uint32_t i = 0; i < RequestLoop::kMaxStallRetracts; ++i) {
    cache_->pages = 1;  // the first one is starved
    (void)loop_->turn();
    ASSERT_EQ(loop_->running(), 1u);
    cache_->pages = 0;
    for (int turn = 0; turn < 2; ++turn) (void)loop_->turn();
    ASSERT_EQ(loop_->running(), 2u);
  }
  EXPECT_EQ(loop_->totals().retracts, RequestLoop::kMaxStallRetracts);
  cache_->on_prepare = [](const FakeCache::Entry&) { return overloaded("no window page is free"); };
  for (std::uint32_t i = 0; i < RequestLoop::kStalledTurns; ++i) (void)loop_->turn();
  EXPECT_EQ(loop_->totals().stalls, 1u);
  EXPECT_EQ(heard_[meek].ends, 0u) << heard_[meek].last.status.to_string();
  cache_->on_prepare = {};
  run_until_over(200);
  for (const auto& [ticket, heard] : heard_) EXPECT_TRUE(heard.last.status.is_ok()) << ticket;
}

TEST_F(RequestLoopTest, AStartWhoseLoadFailedIsCountedAsWhatItCameTo) {
  make({.running = 1, .chunk_tokens = 64});
  cache_->cached = 50;
  cache_->gate_failure_chance = 100;
  Rng rng(3);
  (void)add(prompt_of(rng, 60), 3);
  (void)loop_->turn();
  EXPECT_EQ(cache_->restarts, 1u);
  cache_->cached = cache_->gate_failure_chance = 0;
  cache_->miss = MissReason::kLoadFailed;
  run_until_over(20);
  EXPECT_EQ(loop_->totals().prompt_tokens, 60u);
  EXPECT_EQ(loop_->totals().cached.cached(), 0u);
  for (const char* line :
       {"sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 0\n",
        "sglang:prompt_tokens_total{model_name=\"m\"} 60\n", "sglang:queue_time_seconds_count{model_name=\"m\"} 1\n",
        "larder_misses_total{model_name=\"m\",reason=\"load_failed\"} 1\n",
        "larder_missed_tokens_total{model_name=\"m\",reason=\"load_failed\"} 60\n"}) {
    EXPECT_NE(numbers_->render().find(line), std::string::npos) << line << numbers_->render();
  }
}

TEST_F(RequestLoopTest, AStartThatWasRetractedBeforeItsStepIsNotCounted) {
  make({.running = 2, .chunk_tokens = 64});
  cache_->pages = 40;
  Rng rng(3);
  (void)add(prompt_of(rng, 20), 15);
  for (int turn = 0; turn < 3; ++turn) (void)loop_->turn();
  cache_->cached = 5;
  const std::uint64_t left = cache_->pages - cache_->entries.begin()->second.held;
  const Scheduler::Ticket meek = add(prompt_of(rng, left), 2);
  (void)loop_->turn();  // it starts, and the first one needs a page of it at once
  ASSERT_EQ(loop_->totals().retracts, 1u);
  cache_->cached = 0;
  run_until_over(100);
  EXPECT_EQ(heard_[meek].last.cached.cached(), 0u);
  EXPECT_EQ(loop_->totals().prompt_tokens, 20 + left);
  EXPECT_EQ(loop_->totals().cached.cached(), 0u);
}

// One load fails in each of a request's lives, and more important ones take its room again and again.
TEST_F(RequestLoopTest, FailedLoadsOfEarlierLivesCountNoMore) {
  make({.running = 8, .chunk_tokens = 64});
  cache_->pages = 100;
  std::size_t lives = 0;
  cache_->on_load = [&](const FakeCache::Entry& e) {
    if (e.prompt.size() != 30 || lives > cache_->retracted.size()) return false;
    lives = cache_->retracted.size() + 1;
    return true;
  };
  Rng rng(3);
  const std::vector<TokenId> prompt = prompt_of(rng, 30);
  const Scheduler::Ticket meek = add(prompt, 60);
  for (std::uint32_t life = 0; life < RequestLoop::kMaxRestarts + 2; ++life) {
    for (int i = 0; i < 4; ++i) (void)loop_->turn();
    const Scheduler::Ticket other = add(prompt_of(rng, 35), 50, 1);
    for (int i = 0; i < 200 && heard_[other].ends == 0; ++i) (void)loop_->turn();
    ASSERT_EQ(heard_[other].ends, 1u);
  }
  run_until_over(300);
  EXPECT_GT(loop_->totals().restarts, RequestLoop::kMaxRestarts);
  EXPECT_TRUE(heard_[meek].last.status.is_ok()) << heard_[meek].last.status.to_string();
  EXPECT_EQ(heard_[meek].tokens, expected_output(prompt, 60));
}

TEST_F(RequestLoopTest, CallbackThatThrowsHarmsNobodyElse) {
  make({.running = 4, .chunk_tokens = 64});
  Rng rng(3);
  auto bad = std::make_unique<Sequence>();
  bad->ticket = 99;
  bad->tokens = prompt_of(rng, 10);
  bad->prompt = 10;
  bad->request.max_new_tokens = 3;
  bad->update = [](const GenerateUpdate&) { throw std::runtime_error("client code"); };
  loop_->add(std::move(bad));
  (void)add(prompt_of(rng, 10), 3);
  run_until_over(100);
  EXPECT_EQ(cache_->finished, 2u);
}

TEST_F(RequestLoopTest, CancelAndAbortAllEndInAnyPhase) {
  make({.running = 1, .chunk_tokens = 16});
  Rng rng(3);
  for (int i = 0; i < 4; ++i) (void)add(prompt_of(rng, 100), 3);
  (void)loop_->turn();
  loop_->cancel(1);  // in the middle of its prompt
  loop_->cancel(3);  // waiting
  loop_->cancel(3);
  loop_->cancel(77);
  EXPECT_EQ(heard_[1].last.finish, FinishReason::kAbort);
  EXPECT_EQ(heard_[3].last.status.code(), StatusCode::kCancelled);
  (void)loop_->turn();
  EXPECT_EQ(loop_->running(), 1u);
  loop_->finish(2);
  EXPECT_EQ(heard_[2].last.finish, FinishReason::kStop);
  EXPECT_TRUE(heard_[2].last.status.is_ok());
  (void)loop_->turn();
  loop_->abort_all(cancelled("shutting down"));
  for (const auto& [ticket, h] : heard_) EXPECT_EQ(h.ends, 1u) << ticket;
  EXPECT_TRUE(cache_->entries.empty());
  EXPECT_EQ(cache_->finished, 3u);  // those that ran keep what they computed
  EXPECT_FALSE(loop_->turn());
}

TEST_F(RequestLoopTest, AfterAnExceptionEveryRequestEndsOnceAndTheCacheIsLeftAlone) {
  make({.running = 2, .chunk_tokens = 64});
  Rng rng(3);
  for (const std::uint64_t max_new : {1u, 30u, 30u, 30u}) (void)add(prompt_of(rng, 10), max_new);
  cache_->on_complete = [](const FakeCache::Entry& e) {
    if (e.max_new == 30) throw std::runtime_error("no memory");
  };
  EXPECT_THROW((void)loop_->turn(), std::runtime_error);
  EXPECT_EQ(heard_[1].ends, 1u);  // in the same step, and not yet swept
  loop_->fail_all(internal_error("no memory"));
  for (const auto& [ticket, h] : heard_) {
    EXPECT_EQ(h.ends, 1u) << ticket;
    EXPECT_EQ(h.last.status.code(), ticket == 1 ? StatusCode::kOk : StatusCode::kInternal) << ticket;
  }
  EXPECT_EQ(cache_->finished, 1u);
  EXPECT_EQ(cache_->aborted, 0u);
  EXPECT_EQ(loop_->running() + loop_->waiting(), 0u);
}

TEST_F(RequestLoopTest, ARequestThatAnExceptionThrowsAwayIsToldSo) {
  make({.running = 1, .chunk_tokens = 64});
  Rng rng(3);
  for (int i = 0; i < 2; ++i) (void)add(prompt_of(rng, 10), 30);
  (void)loop_->turn();
  cache_->on_abort = [](const FakeCache::Entry&) { throw std::runtime_error("no memory"); };
  EXPECT_THROW(loop_->cancel(2), std::runtime_error);
  EXPECT_EQ(heard_[2].ends, 1u);
  EXPECT_EQ(heard_[2].last.finish, FinishReason::kAbort);
  EXPECT_EQ(heard_[2].last.status.code(), StatusCode::kInternal);
}

// Whatever the cache answers, every request ends once, with the tokens of an undisturbed run or with an error.
TEST_F(RequestLoopTest, RandomTroubleNeverChangesTokens) {
  std::uint64_t disturbed = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    make({.running = static_cast<std::uint32_t>(rng.between(1, 5)),
          .chunk_tokens = static_cast<std::uint32_t>(rng.between(1, 90))},
         seed);
    cache_->overload_chance = rng.below(60);
    cache_->prefetch_chance = rng.below(100);
    cache_->gate_failure_chance = rng.below(30);
    cache_->cached = rng.below(40);
    std::map<Scheduler::Ticket, std::vector<TokenId>> expected;
    for (std::uint64_t n = rng.between(1, 25); n > 0; --n) {
      const std::vector<TokenId> prompt = prompt_of(rng, rng.between(1, 120));
      const std::uint64_t count = rng.below(12);
      expected[add(prompt, count, static_cast<std::int32_t>(rng.below(3)))] = expected_output(prompt, count);
      for (std::uint64_t turns = rng.below(4); turns > 0; --turns) (void)loop_->turn();
    }
    run_until_over();
    for (const auto& [ticket, tokens] : expected) {
      if (heard_[ticket].last.status.is_ok()) {
        EXPECT_EQ(heard_[ticket].tokens, tokens) << "ticket " << ticket;
      } else {
        ++disturbed;
      }
    }
    EXPECT_TRUE(cache_->entries.empty());
    EXPECT_EQ(cache_->finished + cache_->aborted, expected.size());
    if (HasFailure()) return;
  }
  EXPECT_GT(disturbed, 0u);  // the trouble was trouble
}

}  // namespace
}  // namespace larder
