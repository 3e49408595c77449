// SPDX-License-Identifier: Apache-2.0
// How a rank group forms over a simulated network: who is taken, who is refused and in which words, what strangers may
// do, and that whoever cannot show that he knows the secret ends nothing.
#include <gtest/gtest.h>

#include "controller/ranks/rank_link.h"
#include "controller/ranks/rank_session.h"
#include "tests/support/rank_world.h"

namespace larder::ranks {
namespace {

using test::contains;
using test::kSilence;
using test::settings_of;
using World = test::RankWorld;

TEST(RankGreeting, ARankThatIsNotLikeTheOthersIsRefusedInWords) {
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
      {"no follower 3 in a group of 2", [](RankSettings& s) { s.rank = 3; }},
      {"max_outstanding is 32, not 64", [](RankSettings& s) { s.max_outstanding = 32; }},
      {"alive_interval is 2000 ms, not 1000 ms", [](RankSettings& s) { s.alive_interval *= 2; }},
      {"silence_limit is 20000 ms, not 10000 ms", [](RankSettings& s) { s.silence_limit *= 2; }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.words);
    World world(4, 1);
    world.add(settings_of(0, 2));
    RankSettings settings = settings_of(1, 2, 7);
    wrong.change(settings);
    RankMember& member = world.add(settings);
    world.network().run();
    EXPECT_EQ(member.status().code(), StatusCode::kCancelled);
    EXPECT_TRUE(contains(member.status().message(), wrong.words)) << member.status().message();
    EXPECT_TRUE(world[0].status().is_ok()) << "the leader waits for the right one";
    const std::string waiting = world[0].wait_formed(Nanos(0)).message();
    EXPECT_TRUE(contains(waiting, "rank 1 of 2 had not come")) << waiting;
    EXPECT_TRUE(contains(waiting, wrong.words)) << waiting << ": what was refused is not said";
    world.end(settings.rank);
    world.add(settings_of(1, 2, 9));
    world.network().run();
    EXPECT_TRUE(world[0].wait_formed(Nanos(0)).is_ok());
    EXPECT_TRUE(world[1].wait_formed(Nanos(0)).is_ok()) << world.words(1);
  }
}

// Who does not show that he knows the secret is believed nothing, also no refusal: the right leader may still come.
TEST(RankGreeting, WhoHasAnotherSecretIsRefusedAndTriesAgain) {
  for (const char* secret : {"a guess", ""}) {
    World world(2, 1);
    RankSettings leader = settings_of(0, 2);
    leader.secret = secret;
    world.add(leader);
    world.add(settings_of(1, 2));
    world.pass(std::chrono::seconds(3));
    EXPECT_TRUE(world[1].status().is_ok()) << world.words(1);
    for (const std::uint32_t rank : {0u, 1u}) {
      const std::string waiting = world[rank].wait_formed(Nanos(0)).message();
      EXPECT_TRUE(contains(waiting, "the secret is not the leader's")) << waiting;
    }
    world.end(0);
    world.add(settings_of(0, 2, 3));
    world.pass(std::chrono::seconds(3));
    EXPECT_TRUE(world.is_formed()) << world.words(1);
  }
}

// Processes that are started anew one by one: the old leader still runs when the new follower comes.
TEST(RankGreeting, AFollowerOutlastsALeaderWhoseGroupIsOver) {
  World world(2, 1);
  world.add_all();
  world.end(1);
  world.network().run();
  EXPECT_TRUE(contains(world.words(0), "rank 1 (rank 1's machine) has gone")) << world.words(0);
  world.add(settings_of(1, 2, 2));
  world.pass(std::chrono::seconds(20));
  EXPECT_TRUE(world[1].status().is_ok()) << world.words(1);
  // It may also have been taken while the leader did not know yet that its group is over.
  const LinkId at_leader = world[0].open_link("rank 1's machine").value();
  EXPECT_TRUE(world[0].take_output(at_leader).is_last);
  world.end(0);
  world.add(settings_of(0, 2, 2));
  world.pass(std::chrono::seconds(2));
  EXPECT_TRUE(world.is_formed()) << world.words(1);
}

// What one says before he has shown that he knows the secret ends no follower.
TEST(RankGreeting, WordsOfAStrangerEndNoFollower) {
  World world(2, 1);
  RankMember& follower = world.add(settings_of(1, 2));
  const auto say = [&](const std::vector<std::pair<Kind, std::string>>& frames) {
    RankLink link(RankLink::End::kLeader);
    const LinkId id = follower.open_link("a stranger").value();
    for (const auto& [kind, body] : frames) {
      link.send_plain(kind, body);
      follower.receive(id, link.take_output());
    }
    EXPECT_TRUE(follower.status().is_ok()) << follower.status().message();
    RankSession::Output left = follower.take_output(id);
    while (!left.is_last && !left.bytes.empty()) left = follower.take_output(id);
    EXPECT_TRUE(left.is_last) << "it holds on to a stranger";
    EXPECT_FALSE(follower.wants_link()) << "the connection is still there";
    follower.close_link(id, "closed");
    EXPECT_TRUE(follower.wants_link());
    return follower.wait_formed(Nanos(0)).message();
  };
  const std::string challenge = encode(Challenge{kVersion, {}});
  for (const Status& refusal : {conflict("you are not welcome"), cancelled("it is over"), unsupported("too old")}) {
    const std::string words = say({{Kind::kChallenge, challenge}, {Kind::kWelcome, encode(Words{refusal})}});
    EXPECT_TRUE(contains(words, refusal.message())) << words;
  }
  EXPECT_TRUE(contains(say({{Kind::kChallenge, encode(Challenge{9, {}})}}), "speaks version 9 of the protocol"));
  EXPECT_TRUE(contains(say({{Kind::kChallenge, challenge}, {Kind::kWelcome, encode(Words{})}}), "secret"));
  EXPECT_TRUE(contains(say({{Kind::kFarewell, encode(Words{cancelled("go")})}}), "no leader of ranks"));
  world.add(settings_of(0, 2));
  world.network().run();
  EXPECT_TRUE(world.is_formed()) << world.words(1);
}

TEST(RankGreeting, ARankThatIsOverTakesNoConnection) {
  for (const std::uint32_t rank : {0u, 1u}) {
    World world(2, 1);
    RankMember& member = world.add(settings_of(rank, 2));
    member.leave("the test said so");
    EXPECT_FALSE(member.wants_output());
    const LinkId link = member.open_link("the other").value();
    const Kind greeting = rank == 0 ? Kind::kHello : Kind::kChallenge;
    member.receive(link, encode_head({30'000, greeting, 0}) + std::string(20'000, 'x'));
    EXPECT_TRUE(member.wants_output()) << "to say that it is to be closed";
    const RankSession::Output output = member.take_output(link);
    EXPECT_TRUE(output.is_last);
    EXPECT_EQ(output.bytes, "");
    member.close_link(link, "nothing was left to say");
    EXPECT_FALSE(member.wants_output() || member.wants_link());
    EXPECT_TRUE(contains(member.status().message(), "the test said so"));
  }
}

TEST(RankGreeting, AllAreThereOnlyOnceAllAreThere) {
  World world(3, 1);
  world.add(settings_of(0, 3));
  world.add(settings_of(1, 3));
  world.pass(std::chrono::seconds(1));
  for (const std::uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(world[rank].wait_formed(Nanos(0)).code(), StatusCode::kDeadlineExceeded) << "rank " << rank;
  }
  world.add(settings_of(2, 3));
  world.network().run();
  EXPECT_TRUE(world.is_formed());
}

// A follower that is slow to find the leader's name, or stands still, may do so no longer than forming_limit.
TEST(RankGreeting, TimeIsCountedWhereARankStoodStillWhileTheGroupWasForming) {
  for (const std::uint32_t rank : {0u, 1u}) {
    World world(2, 1);
    world.add(settings_of(rank, 2));
    world.clock().advance(std::chrono::seconds(299));
    world[rank].tick();
    EXPECT_TRUE(world[rank].status().is_ok()) << world.words(rank);
    world.clock().advance(std::chrono::seconds(2));
    world[rank].tick();
    EXPECT_TRUE(contains(world.words(rank), "301.0 s")) << world.words(rank);
  }
}

TEST(RankGreeting, WithoutANumberThatNobodyCanGuessThereIsNoConnection) {
  for (const std::uint32_t rank : {0u, 1u}) {
    World world(2, 1);
    RankSettings settings = settings_of(rank, 2);
    settings.draw = []() -> Result<Digest256> { return unavailable("no random numbers today"); };
    RankMember& member = world.add(settings);
    EXPECT_EQ(member.open_link("the other").status().message(), "no random numbers today");
    EXPECT_FALSE(member.wants_output());
    world.add(settings_of(1 - rank, 2));
    world.pass(std::chrono::seconds(2));
    EXPECT_FALSE(member.wait_formed(Nanos(0)).is_ok());
  }
}

// Each connection that came and went has left nothing.
TEST(RankGreeting, StrangersLeaveNothingToSay) {
  World world(2, 1);
  world.add_all();
  for (int i = 0; i < 40; ++i) {
    (void)world.network().connect_stranger(encode_head({30'000, Kind::kHello, 0}) + std::string(29'000, 'x'));
  }
  world.network().run();
  world.pass(std::chrono::seconds(8));
  EXPECT_EQ(world[0].traffic().strangers_refused, 40u);
  EXPECT_EQ(world[0].traffic().links_open, 1u);
  EXPECT_FALSE(world[0].wants_output());
  EXPECT_TRUE(world[0].status().is_ok()) << world.words(0);
}

TEST(RankGreeting, ASecondProcessOfTheSameRankIsRefusedAndTheFirstGoesOn) {
  World world(2, 1), twin(2, 2);
  world.add_all();
  RankMember second(settings_of(1, 2, 9), real_clock(), [] {});
  // Its connection by hand: a stranger to the simulated network.
  const LinkId at_second = second.open_link("the leader's machine").value();
  const LinkId at_leader = world[0].open_link("the twin's machine").value();
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

TEST(RankGreeting, WhoDoesNotComeIsNamed) {
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
  alone.pass(std::chrono::seconds(302));
  EXPECT_TRUE(contains(alone.words(1), "has found no leader at ")) << alone.words(1);
  EXPECT_TRUE(contains(alone.words(1), " for 30")) << alone.words(1);
  EXPECT_TRUE(contains(alone.words(1), "(connection refused)")) << alone.words(1);
}

// Strangers: rubbish, other protocols, what a rank has said before, too much, nothing at all.
TEST(RankGreeting, StrangersHarmNobody) {
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
TEST(RankGreeting, StrangersKeepNoRankOut) {
  World world(2, 1);
  world.add(settings_of(0, 2));
  for (int i = 0; i < 200; ++i) (void)world.network().connect_stranger("");
  world.add(settings_of(1, 2));
  world.network().run();
  EXPECT_TRUE(world[0].wait_formed(Nanos(0)).is_ok());
  EXPECT_TRUE(world[1].wait_formed(Nanos(0)).is_ok());
}

TEST(RankGreeting, SettingsThatCannotBeMeantAreNamed) {
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
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts.resize(65); }), "61 facts"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts[0].value.assign(300, 'x'); }), "'model' is too long"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.silence_limit = s.alive_interval; }), "three times"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.alive_interval = Nanos::max(); }), "three times"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts[0].value = "two\nlines"; }), "no text"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.max_outstanding = 0; }), "max_outstanding is 0"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts[1].name = "model"; }), "'model' is there twice"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.facts[1].name = "silence_limit"; }), "is there twice"));
  EXPECT_TRUE(contains(refused([](RankSettings& s) { s.forming_limit = Nanos(0); }), "0 s"));
}

}  // namespace
}  // namespace larder::ranks
