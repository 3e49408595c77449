// SPDX-License-Identifier: Apache-2.0
// Ranks over a simulated network, on one thread and on simulated time: whatever happens, each rank applies the same
// events in the same order, or is told in words which rank has gone, within the limits. Every failure replays from its
// seed.
#include "controller/ranks/rank_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/rank_world.h"

namespace larder::ranks {
namespace {

using test::contains;
using test::kSilence;
using test::settings_of;
using World = test::RankWorld;

// One rank's life: operations begin at steps that are alike on all ranks, and end when its own dice say so.
class Life {
 public:
  Life(RankMember& member, std::uint64_t seed) : member_(member), dice_(seed * 31 + member.rank()) {}

  // Does something that a rank may do now. `most`: operations in all.
  void act(std::uint64_t seed, std::uint64_t most) {
    if (!over.is_ok()) return;
    Rng begins(seed * 77 + step_);  // alike on all ranks
    if (!has_begun_) {
      for (std::uint64_t i = begins.below(3); i > 0 && begun_ < most && waiting_ < 20; --i, ++waiting_) {
        running_.insert(begun_++);
      }
      has_begun_ = true;
    }
    for (const std::uint64_t op : std::set<std::uint64_t>(running_)) {
      if (!dice_.chance(1, 3)) continue;
      const Status reported = member_.report(OpId(op), outcome(seed, op));
      if (reported.is_ok()) running_.erase(op);
      EXPECT_TRUE(reported.is_ok() || reported.code() == StatusCode::kUnavailable) << reported.to_string();
    }
    std::vector<AgreedEvent> events;
    const Status taken = member_.take(step_, waiting_ > 0, Nanos(0), events);
    if (taken.code() == StatusCode::kDeadlineExceeded) return;
    if (!taken.is_ok()) {
      EXPECT_EQ(taken.code(), StatusCode::kCancelled) << taken.to_string();
      over = taken;
      return;
    }
    for (const AgreedEvent& event : events) log.push_back({step_, event});
    waiting_ -= events.size();
    ++step_;
    has_begun_ = false;
  }
  [[nodiscard]] OutcomeBits outcome(std::uint64_t seed, std::uint64_t op) const {
    Rng rng(seed * 1'000'003 + op * 64 + member_.rank());
    return {rng.next_u64() | rng.next_u64() | rng.next_u64()};
  }
  [[nodiscard]] std::uint64_t step() const { return step_; }

  std::vector<std::pair<std::uint64_t, AgreedEvent>> log;
  Status over;

 private:
  RankMember& member_;
  Rng dice_;
  std::uint64_t step_ = 0, begun_ = 0, waiting_ = 0;
  bool has_begun_ = false;
  std::set<std::uint64_t> running_;
};

// What one applied, the other applied before the same step, as far as both came.
void expect_alike(const Life& a, const Life& b) {
  for (std::size_t i = 0; i < std::min(a.log.size(), b.log.size()); ++i) {
    ASSERT_EQ(a.log[i].first, b.log[i].first);
    ASSERT_EQ(a.log[i].second.op, b.log[i].second.op);
    ASSERT_EQ(a.log[i].second.bits, b.log[i].second.bits);
  }
}

enum class Fault : std::uint8_t { kNone, kCut, kStop, kKill, kLeave, kFlippedBit };
constexpr std::uint64_t kFaults = 6;

// 2 to 5 ranks; at a seeded moment something happens to one of them.
void run_story(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint64_t kOperations = 120;
  Rng rng(seed);
  const auto ranks = static_cast<std::uint32_t>(rng.between(2, 5));
  const auto fault = static_cast<Fault>(seed % kFaults);
  const std::uint64_t moment = rng.between(0, 1500);
  const auto victim = static_cast<std::uint32_t>(rng.below(ranks));
  World world(ranks, seed);
  if (rng.chance(1, 3)) world.network().hang_dials(300'000);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) world.add(settings_of(rank, ranks, seed));
  std::vector<Life> lives;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) lives.emplace_back(world[rank], seed);
  std::set<std::uint32_t> gone;
  bool has_happened = false;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const auto rank = static_cast<std::uint32_t>(rng.below(ranks));
    std::uint64_t slowest = lives[0].step();
    for (const Life& life : lives) slowest = std::min(slowest, life.step());
    if (!gone.contains(rank) && lives[rank].step() < slowest + 6) lives[rank].act(seed, kOperations);
    for (std::uint64_t moves = rng.below(6); moves > 0; --moves) (void)world.network().step();
    if (i % 40 == 0) world.pass(std::chrono::milliseconds(250));
    if (has_happened || i < moment || !world.is_formed()) continue;
    has_happened = true;
    if (fault == Fault::kCut) world.network().cut(victim == 0 ? 1 : victim);
    if (fault == Fault::kStop) world.network().stop(victim), gone.insert(victim);
    if (fault == Fault::kKill) world.network().remove(victim), gone.insert(victim);
    if (fault == Fault::kLeave) world[victim].leave("the test said so"), gone.insert(victim);
    if (fault == Fault::kFlippedBit) world.network().flip_bits(1'000'000);
  }
  ASSERT_TRUE(has_happened);
  world.pass(kSilence + std::chrono::seconds(2));
  const auto has_ended = [&](std::uint32_t rank) {
    return gone.contains(rank) || !lives[rank].over.is_ok() ||
           (fault == Fault::kNone && lives[rank].log.size() == kOperations);
  };
  for (std::uint64_t i = 0, ended = 0; i < 4000 && ended < ranks; ++i) {
    ended = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      has_ended(rank) ? void(++ended) : lives[rank].act(seed, kOperations);
    }
    i % 40 == 0 ? world.pass(std::chrono::milliseconds(250)) : world.network().run();
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    expect_alike(lives[0], lives[rank]);
    if (gone.contains(rank)) continue;
    if (fault == Fault::kNone) {
      EXPECT_TRUE(world[rank].status().is_ok()) << world.words(rank);
      EXPECT_EQ(lives[rank].log.size(), kOperations) << "rank " << rank;
    } else {
      EXPECT_EQ(world[rank].status().code(), StatusCode::kCancelled) << "rank " << rank << " was told nothing";
    }
    if (!gone.empty()) {
      const std::string name = "rank " + std::to_string(victim), words = world.words(rank);
      EXPECT_TRUE(contains(words, name + " ") || contains(words, name + ")")) << words;
    }
  }
}

TEST(RankSession, WhateverHappensRanksApplyTheSameOrAreTold) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) run_story(seed);
}

TEST(RankSession, NothingPendingIsNoMessage) {
  World world(4, 1);
  world.add_all();
  const RankTraffic before = world[0].traffic(), before_follower = world[3].traffic();
  std::vector<AgreedEvent> events;
  for (std::uint64_t step = 0; step < 10'000; ++step) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(world[rank].take(step, false, Nanos(0), events).is_ok());
    EXPECT_FALSE(world[step % 4].wants_output());
  }
  world.network().run();
  EXPECT_EQ(world[0].traffic().bytes_sent, before.bytes_sent);
  EXPECT_EQ(world[3].traffic().bytes_sent, before_follower.bytes_sent);
}

// A wake-up that finds several outcomes says them in one message, and several plans likewise.
TEST(RankSession, WhatWaitsGoesInOneMessage) {
  World world(2, 1);
  world.add_all();
  std::vector<AgreedEvent> events;
  for (std::uint64_t op = 0; op < 40; ++op) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world[rank].report(OpId(op), {op}).is_ok());
  }
  world.network().run();
  for (std::uint64_t step = 0; step < 100; ++step) ASSERT_TRUE(world[0].take(step, true, Nanos(0), events).is_ok());
  world.network().run();
  EXPECT_EQ(events.size(), 40u);
  EXPECT_EQ(world[1].traffic().sent(Kind::kReports), 1u);
  EXPECT_EQ(world[0].traffic().sent(Kind::kPlans), 1u);
  events.clear();
  for (std::uint64_t step = 0; step < 100; ++step) ASSERT_TRUE(world[1].take(step, true, Nanos(0), events).is_ok());
  EXPECT_EQ(events.size(), 40u);
}

// Outcomes of many pages are cut into frames that the wire allows.
TEST(RankSession, LongListsOfLongOutcomesArrive) {
  World world(3, 1);
  world.add_all();
  const OutcomeBits bits(kMaxWords, ~0ull);
  std::vector<AgreedEvent> events;
  for (std::uint64_t op = 0; op < 12; ++op) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(world[rank].report(OpId(op), bits).is_ok());
  }
  world.network().run();
  ASSERT_TRUE(world[0].take(0, true, Nanos(0), events).is_ok());
  world.network().run();
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    events.clear();
    ASSERT_TRUE(world[rank].take(0, true, Nanos(0), events).is_ok()) << world.words(rank);
    ASSERT_EQ(events.size(), 12u);
    for (const AgreedEvent& event : events) ASSERT_EQ(event.bits, bits);
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world[rank].report(OpId(99), OutcomeBits(kMaxWords + 1)).code(), StatusCode::kInvalidArgument) << rank;
  }
}

TEST(RankSession, WordsSayWhoWasLostSinceWhenAndWhatItOwed) {
  World world(3, 1);
  world.add_all();
  for (const std::uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(world[rank].report(OpId(17), {1}).is_ok());
    ASSERT_TRUE(world[rank].report(OpId(23), {1}).is_ok());
  }
  std::vector<AgreedEvent> events;
  ASSERT_TRUE(world[0].take(41, true, Nanos(0), events).is_ok());
  world.network().run();
  const std::vector<RankHealth> health = world[0].health();
  ASSERT_EQ(health.size(), 2u);
  EXPECT_EQ(health[0].owed.outcomes, 0u);
  EXPECT_EQ(health[1].owed.outcomes, 2u);
  EXPECT_EQ(health[1].owed.oldest, OpId(17));
  world.network().stop(2);
  world.pass(kSilence - std::chrono::seconds(1));
  EXPECT_TRUE(world[0].status().is_ok()) << "not before its limit";
  world.pass(std::chrono::seconds(2));
  for (const std::uint32_t rank : {0u, 1u}) {
    const std::string words = world.words(rank);
    EXPECT_TRUE(contains(words, "rank 2 (rank 2's machine) has not been heard for 10.")) << words;
    EXPECT_TRUE(contains(words, "at step 0 of 41")) << words;
    EXPECT_TRUE(contains(words, "it owed the outcome of operation 17 and of 1 more")) << words;
    EXPECT_EQ(world[rank].take(50, true, std::chrono::seconds(60), events).message(), words);
    EXPECT_EQ(world[rank].take(50, false, Nanos(0), events).message(), words) << "also with nothing pending";
    EXPECT_EQ(world[rank].report(OpId(30), {1}).code(), StatusCode::kUnavailable);
  }
  world.network().stop(2, false);  // it goes on, and hears that it was given up
  world.pass(std::chrono::seconds(1));
  EXPECT_TRUE(contains(world.words(2), "rank 2 (rank 2's machine) has not been heard")) << world.words(2);
}

TEST(RankSession, WhoStoodStillHimselfBlamesNobody) {
  World world(2, 1);
  world.add_all();
  for (const std::uint32_t rank : {0u, 1u}) {
    world.network().stop(rank);
    world.pass(kSilence - std::chrono::seconds(2));  // the other would say so, if it were longer
    world.network().stop(rank, false);
    world.pass(std::chrono::seconds(5));
    EXPECT_TRUE(world[0].status().is_ok()) << world.words(0);
    EXPECT_TRUE(world[1].status().is_ok()) << world.words(1);
  }
}

// Silence ends with a whole, genuine frame: not with bytes that anybody on the way could add.
TEST(RankSession, BytesThatAreNoFrameAreSilence) {
  for (const bool is_leader : {true, false}) {
    const auto leader = RankSession::make(settings_of(0, 2)), follower = RankSession::make(settings_of(1, 2));
    Digest256 nonce;
    const LinkId at_leader = leader->open("a rank", nonce), at_follower = follower->open("its leader", nonce);
    for (int i = 0; i < 3; ++i) {
      follower->receive(at_follower, leader->take_output(at_leader).bytes);
      leader->receive(at_leader, follower->take_output(at_follower).bytes);
    }
    ASSERT_TRUE(leader->is_formed() && follower->is_formed());
    RankSession& session = is_leader ? *leader : *follower;
    const LinkId link = is_leader ? at_leader : at_follower;
    session.receive(link, encode_head({1000, Kind::kAlive, is_leader ? 1ull : 3ull}));
    for (Nanos passed{}; passed < kSilence; passed += std::chrono::milliseconds(250)) {
      EXPECT_TRUE(session.over().is_ok()) << session.over().message();
      session.receive(link, "x");
      session.tick(std::chrono::milliseconds(250));
    }
    EXPECT_TRUE(contains(session.over().message(), "has not been heard")) << session.over().message();
  }
}

TEST(RankSession, WhoGivesUpIsNamed) {
  for (const std::uint32_t who : {0u, 1u}) {
    World world(3, 1);
    world.add_all();
    RankGroup& group = world[who];
    group.give_up("its cache waited in vain");
    world.network().run();
    const std::string name = "rank " + std::to_string(who);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(world[rank].wants_output()) << "rank " << rank;
      EXPECT_EQ(world[rank].traffic().links_open, 0u) << "rank " << rank;
      EXPECT_TRUE(contains(world.words(rank), name) && contains(world.words(rank), "its cache waited in vain"))
          << world.words(rank);
    }
  }
}

}  // namespace
}  // namespace larder::ranks
