// SPDX-License-Identifier: Apache-2.0
// Ranks over TCP on this machine. What they say to each other is tested over the simulated network.
#include "controller/ranks/real_tcp_ranks.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>

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

// Real time, and as much more as the test says. Counts who asks.
class PushedClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    ++looks_;
    return real_clock().now() + Nanos(pushed_.load());
  }
  [[nodiscard]] std::int64_t wall_unix_seconds() const override { return real_clock().wall_unix_seconds(); }
  void push(Nanos by) { pushed_ += by.count(); }
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  std::atomic<std::int64_t> pushed_{0};
  mutable std::atomic<std::uint64_t> looks_{0};
};

// Comes back after so long.
void pass_real_time(Nanos time) {
  RankMember alone(settings_of_tcp(1, 2), real_clock(), [] {});
  EXPECT_EQ(alone.wait_formed(time).code(), StatusCode::kDeadlineExceeded);
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

std::unique_ptr<TcpRankGroup> open_rank(std::uint32_t rank, std::uint32_t ranks, std::uint16_t port,
                                        Clock& clock = real_clock()) {
  auto opened = TcpRankGroup::open({"127.0.0.1", port}, settings_of_tcp(rank, ranks), clock);
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
  EXPECT_EQ(rank_address_text(*parse_rank_address("[::1]:5000")), "[::1]:5000");
  EXPECT_EQ(rank_address_text(*parse_rank_address("node-1:7")), "node-1:7");
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

// However fast they come, and though none of them closes: descriptors stay, and then all of them are told to go.
TEST(TcpRanks, StrangersThatNeverCloseTakeFewDescriptorsAndNothingThatStays) {
  RankSettings settings = settings_of_tcp(0, 2);
  settings.greeting_limit = std::chrono::milliseconds(300);
  auto leader = TcpRankGroup::open({"127.0.0.1", 0}, settings, real_clock());
  ASSERT_TRUE(leader.is_ok());
  const std::size_t before = open_descriptors();
  constexpr std::size_t kStrangers = 200;
  std::vector<int> strangers;
  const std::string begun = encode_head({30'000, Kind::kHello, 0}) + std::string(20'000, 'x');
  for (std::size_t i = 0; i < kStrangers; ++i) {
    strangers.push_back(connect_to((*leader)->port()));
    if (i % 2 == 0) (void)!::send(strangers.back(), begun.data(), begun.size(), MSG_NOSIGNAL);
  }
  const auto follower = open_rank(1, 2, (*leader)->port());
  ASSERT_TRUE(follower->member().wait_formed(kPatience).is_ok());  // so all before it were taken
  const std::size_t most = before + kStrangers + 4 + kMaxStrangers + kAcceptsAtOnce;
  EXPECT_LE(open_descriptors(), most) << "of " << before << " before, and the strangers' own";
  const timeval patience{30, 0};
  for (const int stranger : strangers) {
    (void)::setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::array<char, 256> heard{};
    ssize_t got = 1;
    while (got > 0) got = ::recv(stranger, heard.data(), heard.size(), 0);
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it was not closed";
  }
  EXPECT_EQ((*leader)->member().traffic().strangers_refused, kStrangers);
  RankMember& member = (*leader)->member();
  const TimePoint end = real_clock().now() + kPatience;
  bool wants_output = true;  // also a frame that says "alive"
  while ((wants_output || member.traffic().links_open > 1) && real_clock().now() < end) {
    wants_output = member.wants_output();
  }
  EXPECT_FALSE(wants_output) << "the leader has something to say to those who are gone";
  EXPECT_EQ(member.traffic().links_open, 1u) << "the leader keeps what strangers left";
  for (const int stranger : strangers) ::close(stranger);
}

// A follower whose group is over has nothing to do, and the leader's port is free for the next one.
TEST(TcpRanks, AGroupThatIsOverIsQuiet) {
  PushedClock clock;
  const auto leader = open_rank(0, 2, 0);
  const auto follower = open_rank(1, 2, leader->port(), clock);
  ASSERT_TRUE(follower->member().wait_formed(kPatience).is_ok());
  leader->member().leave("the test said so");
  const std::string words = words_of_end(follower->member());
  EXPECT_NE(words.find("the test said so"), std::string::npos) << words;
  const TimePoint end = real_clock().now() + kPatience;
  std::unique_ptr<TcpRankGroup> next;
  while (next == nullptr && real_clock().now() < end) {
    auto opened = TcpRankGroup::open({"127.0.0.1", leader->port()}, settings_of_tcp(0, 2), real_clock());
    if (opened.is_ok()) next = std::move(*opened);
  }
  ASSERT_TRUE(next != nullptr) << "the old leader keeps its port";
  const auto again = open_rank(1, 2, next->port());
  EXPECT_TRUE(again->member().wait_formed(kPatience).is_ok());
  const std::uint64_t looks = clock.looks();
  pass_real_time(std::chrono::milliseconds(500));
  EXPECT_LT(clock.looks() - looks, 2000u) << "its thread does not rest";
}

// A machine that does not answer at all, and one that takes the connection and is silent, are both named.
TEST(TcpRanks, ADialThatHangsIsGivenUp) {
  const support::LoopbackListener full(0);
  std::vector<int> waiting;  // until the system answers no more
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)::connect(waiting.back(), reinterpret_cast<const sockaddr*>(&full.address()), sizeof full.address());
  }
  PushedClock clock;
  RankSettings settings = settings_of_tcp(1, 2);
  settings.forming_limit = std::chrono::seconds(60);
  auto follower = TcpRankGroup::open({"127.0.0.1", full.port()}, settings, clock);
  ASSERT_TRUE(follower.is_ok());
  RankMember& member = (*follower)->member();
  std::string words;
  const std::string expected = "no answer from 127.0.0.1:" + std::to_string(full.port());
  const TimePoint end = real_clock().now() + kPatience;
  while (words.find(expected) == std::string::npos && real_clock().now() < end) {
    clock.push(std::chrono::milliseconds(500));
    pass_real_time(std::chrono::milliseconds(20));
    words = member.wait_formed(Nanos(0)).message();
  }
  EXPECT_NE(words.find(expected), std::string::npos) << words;
  for (const int socket : waiting) ::close(socket);
}

TEST(TcpRanks, AConnectionToItselfIsNone) {
  OwnedSocket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof own;
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), size), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&own), size), 0) << "it reaches itself";
  const Status status = finish_connecting(socket.get());
  EXPECT_NE(status.message().find("nobody listens there"), std::string::npos) << status.to_string();
  const support::LoopbackListener other(1);
  const OwnedSocket right(connect_to(other.port()));
  EXPECT_TRUE(finish_connecting(right.get()).is_ok());
}

// "localhost" may be ::1 first, where this leader does not listen.
TEST(TcpRanks, EveryAddressOfANameIsTried) {
  const auto leader = open_rank(0, 2, 0);
  auto follower = TcpRankGroup::open({"localhost", leader->port()}, settings_of_tcp(1, 2), real_clock());
  ASSERT_TRUE(follower.is_ok()) << follower.status().to_string();
  EXPECT_TRUE((*follower)->member().wait_formed(kPatience).is_ok());
}

TEST(TcpRanks, WhoIsMissingAndWhereIsSaid) {
  const auto leader = open_rank(0, 3, 0);
  const std::string port = std::to_string(leader->port());
  const std::string words = leader->member().wait_formed(std::chrono::milliseconds(1)).message();
  EXPECT_NE(words.find("rank 1, rank 2 of 3 had not come to 127.0.0.1:" + port), std::string::npos) << words;
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
