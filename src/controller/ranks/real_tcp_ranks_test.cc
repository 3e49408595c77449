// SPDX-License-Identifier: Apache-2.0
// Ranks over TCP on this machine. What they say to each other is tested over the simulated network.
#include "controller/ranks/real_tcp_ranks.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/loopback_listener.h"

namespace larder::ranks {
namespace {

constexpr Nanos kPatience = std::chrono::seconds(30);

RankSettings settings_of_tcp(std::uint32_t rank, std::uint32_t ranks) {
  RankSettings settings;
  settings.rank = rank;
  settings.ranks = ranks;
  settings.alive_interval = std::chrono::milliseconds(50);
  settings.silence_limit = std::chrono::seconds(5);
  return settings;
}

std::unique_ptr<TcpRankGroup> open_rank(std::uint32_t rank, std::uint32_t ranks, std::uint16_t port) {
  auto opened = TcpRankGroup::open({"127.0.0.1", port}, settings_of_tcp(rank, ranks), real_clock());
  EXPECT_TRUE(opened.is_ok()) << opened.status().to_string();
  return opened.is_ok() ? std::move(opened).value() : nullptr;
}

// Waits until the group of `member` is over, and why.
std::string words_of_end(RankMember& member) {
  std::vector<AgreedEvent> events;
  const TimePoint end = real_clock().now() + kPatience;
  for (std::uint64_t step = 0; real_clock().now() < end; ++step) {
    const Status taken = member.take(1'000'000 + step, true, std::chrono::milliseconds(1), events);
    if (taken.code() == StatusCode::kCancelled) return taken.message();
  }
  return "nothing";
}

int connect_to(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(RankAddress, IsAHostAndAPort) {
  EXPECT_EQ(parse_rank_address("127.0.0.1:5000")->port, 5000);
  EXPECT_EQ(parse_rank_address("[::1]:5000")->host, "::1");
  EXPECT_EQ(parse_rank_address("node-1:0")->host, "node-1");
  for (const char* wrong : {"", ":", "host", "host:", ":5000", "host:70000", "::1:5000", "host:5x", "[]:1"}) {
    EXPECT_EQ(parse_rank_address(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(TcpRanks, RefuseAnAddressThatOthersReachWithoutASecret) {
  RankSettings settings = settings_of_tcp(0, 2);
  const auto open = TcpRankGroup::open({"0.0.0.0", 0}, settings, real_clock());
  EXPECT_EQ(open.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(open.status().message().find("without a secret"), std::string::npos);
  settings.secret = "known to the ranks";
  EXPECT_TRUE(TcpRankGroup::open({"0.0.0.0", 0}, settings, real_clock()).is_ok());
}

TEST(TcpRanks, SayWhatIsWrongWithAnAddress) {
  const support::LoopbackListener taken(1);
  const auto at_taken = TcpRankGroup::open({"127.0.0.1", taken.port()}, settings_of_tcp(0, 2), real_clock());
  EXPECT_EQ(at_taken.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(at_taken.status().message().find("127.0.0.1:" + std::to_string(taken.port())), std::string::npos);
  const auto nowhere = TcpRankGroup::open({"no.such.host.invalid", 1}, settings_of_tcp(0, 2), real_clock());
  EXPECT_EQ(nowhere.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(TcpRankGroup::open({"127.0.0.1", 0}, settings_of_tcp(1, 2), real_clock()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(TcpRanks, AFollowerWaitsForItsLeader) {
  std::uint16_t port = 0;
  { port = open_rank(0, 1, 0)->port(); }
  const auto follower = open_rank(1, 2, port);
  EXPECT_EQ(follower->member().wait_formed(std::chrono::milliseconds(100)).code(), StatusCode::kDeadlineExceeded);
  const auto leader = open_rank(0, 2, port);
  EXPECT_TRUE(leader->member().wait_formed(kPatience).is_ok());
  EXPECT_TRUE(follower->member().wait_formed(kPatience).is_ok());
}

TEST(TcpRanks, WhoEndsIsNamedToAllOthers) {
  for (const std::uint32_t who : {0u, 2u}) {
    std::vector<std::unique_ptr<TcpRankGroup>> ranks;
    ranks.push_back(open_rank(0, 3, 0));
    for (const std::uint32_t rank : {1u, 2u}) ranks.push_back(open_rank(rank, 3, ranks[0]->port()));
    for (const auto& rank : ranks) ASSERT_TRUE(rank->member().wait_formed(kPatience).is_ok());
    ranks[who].reset();
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == who) continue;
      const std::string words = words_of_end(ranks[rank]->member());
      EXPECT_NE(words.find(who == 0 ? "the leader (rank 0) has ended" : "rank 2 "), std::string::npos) << words;
      EXPECT_NE(words.find("has ended"), std::string::npos) << words;
    }
  }
}

TEST(TcpRanks, StrangersHarmNobody) {
  const auto leader = open_rank(0, 2, 0);
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(connect_to(leader->port()));
    if (i % 2 == 0) (void)!::write(strangers.back(), "GET / HTTP/1.1\r\n\r\n", 18);
    if (i % 4 == 1) ::close(std::exchange(strangers.back(), -1));
  }
  const auto follower = open_rank(1, 2, leader->port());
  EXPECT_TRUE(follower->member().wait_formed(kPatience).is_ok());
  ASSERT_TRUE(leader->member().report(OpId(1), {1}).is_ok());
  ASSERT_TRUE(follower->member().report(OpId(1), {1}).is_ok());
  std::vector<AgreedEvent> events;
  for (std::uint64_t step = 0; events.empty() && step < 4000; ++step) {
    ASSERT_TRUE(leader->member().take(step, true, Nanos(0), events).is_ok());
    ASSERT_TRUE(follower->member().take(step, true, kPatience, events).is_ok());
  }
  EXPECT_EQ(events.size(), 2u);
  for (const int stranger : strangers) {
    if (stranger >= 0) ::close(stranger);
  }
}

// What answers at the leader's address is something else: the follower says so, and does not hang on it.
TEST(TcpRanks, AFollowerThatReachesAnotherServiceSaysSo) {
  const support::LoopbackListener other(8);
  RankSettings settings = settings_of_tcp(1, 2);
  settings.greeting_limit = std::chrono::milliseconds(100);
  settings.forming_limit = std::chrono::milliseconds(400);
  auto opened = TcpRankGroup::open({"127.0.0.1", other.port()}, settings, real_clock());
  ASSERT_TRUE(opened.is_ok());
  const std::string words = words_of_end((*opened)->member());
  EXPECT_NE(words.find("has found no leader"), std::string::npos) << words;
  EXPECT_NE(words.find("no greeting came"), std::string::npos) << words;
}

}  // namespace
}  // namespace larder::ranks
