// SPDX-License-Identifier: Apache-2.0
// Ranks over a simulated network, on one thread and on simulated time: whatever happens, each rank applies the same
// events in the same order, or is told in words which rank has gone, within the limits. Every failure replays from its
// seed.
#include "controller/ranks/rank_session.h"

#include <gtest/gtest.h>

#include <set>

#include "sim/sim_rank_network.h"
#include "tests/support/rank_groups.h"

namespace larder::ranks {
namespace {

using test::seeded_draw;

constexpr Nanos kSilence = std::chrono::seconds(10);

RankSettings settings_of(std::uint32_t rank, std::uint32_t ranks, std::uint64_t seed = 1) {
  RankSettings settings;
  settings.rank = rank;
  settings.ranks = ranks;
  settings.max_outstanding = 64;
  settings.facts = {{"model", "gdn-tiny"}, {"page size", "64"}};
  settings.secret = "the group's secret";
  settings.silence_limit = kSilence;
  settings.draw = seeded_draw(seed * 1000 + rank);
  return settings;
}

// A group on simulated time. Its members may be given other settings before they come.
class World {
 public:
  World(std::uint32_t ranks, std::uint64_t seed) : ranks_(ranks), seed_(seed), network_(seed) {
    members_.resize(ranks);
  }
  RankMember& add(const RankSettings& settings) {
    auto& member = members_.at(settings.rank);
    member = std::make_unique<RankMember>(settings, clock_, [] {});
    network_.add(*member);
    return *member;
  }
  void add_all() {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) add(settings_of(rank, ranks_, seed_));
    network_.run();
  }
  // In steps of a quarter of a second, in which all that can arrive arrives.
  void pass(Nanos time) {
    for (; time > Nanos(0); time -= std::chrono::milliseconds(250)) {
      clock_.advance(std::chrono::milliseconds(250));
      network_.run();
      network_.tick_all();
      network_.run();
    }
  }
  [[nodiscard]] RankMember& operator[](std::uint32_t rank) { return *members_.at(rank); }
  [[nodiscard]] sim::SimRankNetwork& network() { return network_; }
  [[nodiscard]] std::string words(std::uint32_t rank) { return members_.at(rank)->status().message(); }
  void end(std::uint32_t rank) {
    network_.remove(rank);
    members_.at(rank).reset();
  }

 private:
  const std::uint32_t ranks_;
  const std::uint64_t seed_;
  ManualClock clock_;
  std::vector<std::unique_ptr<RankMember>> members_;
  sim::SimRankNetwork network_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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
  for (std::uint32_t rank = 0; rank < ranks; ++rank) world.add(settings_of(rank, ranks, seed));
  std::vector<Life> lives;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) lives.emplace_back(world[rank], seed);
  std::set<std::uint32_t> gone;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const auto rank = static_cast<std::uint32_t>(rng.below(ranks));
    std::uint64_t slowest = lives[0].step();
    for (const Life& life : lives) slowest = std::min(slowest, life.step());
    if (!gone.contains(rank) && lives[rank].step() < slowest + 6) lives[rank].act(seed, kOperations);
    for (std::uint64_t moves = rng.below(6); moves > 0; --moves) (void)world.network().step();
    if (i % 40 == 0) world.pass(std::chrono::milliseconds(250));
    if (i != moment) continue;
    if (fault == Fault::kCut) world.network().cut(victim == 0 ? 1 : victim);
    if (fault == Fault::kStop) world.network().stop(victim), gone.insert(victim);
    if (fault == Fault::kKill) world.network().remove(victim), gone.insert(victim);
    if (fault == Fault::kLeave) world[victim].leave("the test said so"), gone.insert(victim);
    if (fault == Fault::kFlippedBit) world.network().flip_bits(1'000'000);
  }
  world.pass(kSilence + std::chrono::seconds(2));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < 4000 && !gone.contains(rank) && lives[rank].over.is_ok(); ++i) {
      lives[rank].act(seed, kOperations);
      world.network().run();
      if (fault == Fault::kNone && lives[rank].log.size() == kOperations) break;
    }
    expect_alike(lives[0], lives[rank]);
    if (gone.contains(rank)) continue;
    if (fault == Fault::kNone) {
      EXPECT_TRUE(world[rank].status().is_ok()) << world.words(rank);
    } else {
      EXPECT_EQ(world[rank].status().code(), StatusCode::kCancelled) << "rank " << rank << " was told nothing";
    }
    if (!gone.empty()) {
      const std::string name = "rank " + std::to_string(victim), words = world.words(rank);
      EXPECT_TRUE(contains(words, name + " ") || contains(words, name + ")")) << words;
    }
  }
  if (fault == Fault::kNone) {
    EXPECT_GT(lives[0].log.size(), kOperations / 2);
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
  EXPECT_EQ(world[1].report(OpId(99), OutcomeBits(kMaxWords + 1)).code(), StatusCode::kInvalidArgument);
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

TEST(RankSession, ARankThatIsNotLikeTheOthersIsRefusedInWords) {
  struct Case {
    const char* words;
    std::function<void(RankSettings&)> change;
  };
  const std::vector<Case> cases = {
      {"page size is 16, not 64", [](RankSettings& s) { s.facts[1].value = "16"; }},
      {"model is jamba-tiny, not gdn-tiny", [](RankSettings& s) { s.facts[0].value = "jamba-tiny"; }},
      {"page size is unknown, not 64", [](RankSettings& s) { s.facts.pop_back(); }},
      {"policy is lru, not unknown",
       [](RankSettings& s) {
         s.facts.push_back({"policy", "lru"});
       }},
      {"belongs to a group of 4, the leader to one of 2", [](RankSettings& s) { s.ranks = 4; }},
      {"no follower 3 in a group of 2", [](RankSettings& s) { s.rank = 3, s.ranks = 4; }},
      {"the secret is not the leader's", [](RankSettings& s) { s.secret = "a guess"; }},
      {"the secret is not the leader's", [](RankSettings& s) { s.secret.clear(); }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.words);
    World world(4, 1);
    world.add(settings_of(0, 2));
    RankSettings settings = settings_of(1, 2, 7);
    wrong.change(settings);
    if (settings.ranks == 4 && settings.rank == 3) {
      EXPECT_TRUE(contains(
          [&] {
            World other(4, 1);
            RankSettings leader = settings_of(0, 2);
            other.add(leader);
            RankMember& member = other.add(settings);
            other.network().run();
            return member.status().message();
          }(),
          "belongs to a group of 4"));
      continue;
    }
    RankMember& member = world.add(settings);
    world.network().run();
    EXPECT_EQ(member.status().code(), StatusCode::kCancelled);
    EXPECT_TRUE(contains(member.status().message(), wrong.words)) << member.status().message();
    EXPECT_TRUE(world[0].status().is_ok()) << "the leader waits for the right one";
    world.end(1);
    world.add(settings_of(1, 2, 9));
    world.network().run();
    EXPECT_TRUE(world[0].wait_formed(Nanos(0)).is_ok());
    EXPECT_TRUE(world[1].wait_formed(Nanos(0)).is_ok()) << world.words(1);
  }
}

TEST(RankSession, ASecondProcessOfTheSameRankIsRefusedAndTheFirstGoesOn) {
  World world(2, 1), twin(2, 2);
  world.add_all();
  RankMember second(settings_of(1, 2, 9), real_clock(), [] {});
  // Its connection by hand: a stranger to the simulated network.
  const LinkId at_second = second.open_link("the leader's machine");
  const LinkId at_leader = world[0].open_link("the twin's machine");
  for (int i = 0; i < 4; ++i) {
    second.receive(at_second, world[0].take_output(at_leader).bytes);
    world[0].receive(at_leader, second.take_output(at_second).bytes);
  }
  EXPECT_TRUE(contains(second.status().message(), "rank 1 is here already, from rank 1's machine"))
      << second.status().message();
  world.pass(kSilence * 2);
  EXPECT_TRUE(world[0].status().is_ok()) << world.words(0);
  EXPECT_TRUE(world[1].status().is_ok()) << world.words(1);
}

TEST(RankSession, WhoDoesNotComeIsNamed) {
  World world(4, 1);
  world.add(settings_of(0, 4));
  world.add(settings_of(2, 4));
  world.network().run();
  EXPECT_EQ(world[0].wait_formed(Nanos(0)).code(), StatusCode::kDeadlineExceeded);
  world.pass(std::chrono::seconds(302));
  for (const std::uint32_t rank : {0u, 2u}) {
    EXPECT_TRUE(contains(world.words(rank), "rank 1, rank 3 of 4 had not come")) << world.words(rank);
  }
  World alone(2, 1);
  alone.add(settings_of(1, 2));
  alone[1].close_link(0, "connection refused");
  alone.pass(std::chrono::seconds(302));
  EXPECT_TRUE(contains(alone.words(1), "has found no leader for 30")) << alone.words(1);
  EXPECT_TRUE(contains(alone.words(1), "(connection refused)")) << alone.words(1);
}

// Strangers: rubbish, other protocols, what a rank has said before, too much, nothing at all.
TEST(RankSession, StrangersHarmNobody) {
  World world(2, 1);
  world.add_all();
  sim::SimRankNetwork& network = world.network();
  Rng rng(5);
  std::vector<std::size_t> strangers = {
      network.connect_stranger("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
      network.connect_stranger(std::string(100'000, '\0')),
      network.connect_stranger(network.said_by(1)),  // a replay of all that rank 1 has said
      network.connect_stranger(encode_head({kMaxGreetingBytes + 1, Kind::kHello, 0})),
      network.connect_stranger(encode_head({100, Kind::kReports, 0}) + std::string(116, 'x')),
      network.connect_stranger(""),
  };
  network.run();
  EXPECT_TRUE(contains(network.heard(strangers[2]), "the secret is not the leader's"));
  for (int i = 0; i < 50; ++i) {
    std::string rubbish(static_cast<std::size_t>(rng.below(300)), '\0');
    for (char& byte : rubbish) byte = static_cast<char>(rng.below(256));
    strangers.push_back(network.connect_stranger(rubbish));
  }
  network.run();
  world.pass(std::chrono::seconds(6));
  for (const std::size_t stranger : strangers) EXPECT_TRUE(network.is_closed(stranger)) << stranger;
  EXPECT_GE(world[0].traffic().strangers_refused, strangers.size());
  std::vector<AgreedEvent> events;
  for (const std::uint32_t rank : {0u, 1u}) ASSERT_TRUE(world[rank].report(OpId(1), {1}).is_ok());
  network.run();
  ASSERT_TRUE(world[0].take(0, true, Nanos(0), events).is_ok());
  network.run();
  ASSERT_TRUE(world[1].take(0, true, Nanos(0), events).is_ok()) << world.words(1);
  EXPECT_EQ(events.size(), 2u);
}

// However many strangers sit there and say nothing, a rank finds its place.
TEST(RankSession, StrangersKeepNoRankOut) {
  World world(2, 1);
  world.add(settings_of(0, 2));
  for (int i = 0; i < 200; ++i) (void)world.network().connect_stranger("");
  world.add(settings_of(1, 2));
  world.network().run();
  EXPECT_TRUE(world[0].wait_formed(Nanos(0)).is_ok());
  EXPECT_TRUE(world[1].wait_formed(Nanos(0)).is_ok());
}

TEST(RankSession, SettingsThatCannotBeMeantAreNamed) {
  const auto refused = [](const std::function<void(RankSettings&)>& change) {
    RankSettings settings = settings_of(0, 2);
    change(settings);
    const Status status = check_rank_settings(settings);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_TRUE(check_rank_settings(settings_of(1, 2)).is_ok());
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.rank = 2; }), "no rank 2 of 2"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.ranks = 0; }), "0 ranks"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.ranks = kMaxRanks + 1; }), "1025 ranks"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts.resize(65); }), "64 facts"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts[0].value.assign(300, 'x'); }), "'model' is too long"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.silence_limit = s.alive_interval; }), "three times"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.forming_limit = Nanos(0); }), "0 s"));
}

}  // namespace
}  // namespace larder::ranks
