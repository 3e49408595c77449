// SPDX-License-Identifier: Apache-2.0
// Every message comes back as it was; no piece of one, and no broken one, is taken for another without its code.
#include "controller/ranks/rank_wire.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "controller/ranks/rank_link.h"

namespace larder::ranks {
namespace {

using End = RankLink::End;

Digest256 digest_of(std::uint8_t byte) {
  Digest256 digest;
  digest.bytes.fill(byte);
  return digest;
}

Hello sample_hello() { return {kVersion, digest_of(7), 3, 8, {{"model", "gdn-tiny"}, {"page_size", "64"}}}; }
Reports sample_reports() { return {{5, 6}, {{OpId(1), {}}, {OpId(1ull << 40), {1, ~0ull}}}}; }
Plans sample_plans() { return {{{OpId(9), {3}}}, {{1, 0}, {2, 1}}}; }

bool same(const std::vector<AgreedEvent>& a, const std::vector<AgreedEvent>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const AgreedEvent& x, const AgreedEvent& y) { return x.op == y.op && x.bits == y.bits; });
}

TEST(RankWire, MessagesComeBack) {
  const auto challenge = decode_challenge(encode(Challenge{9, digest_of(1)}));
  ASSERT_TRUE(challenge.is_ok());
  EXPECT_EQ(challenge->version, 9);
  EXPECT_EQ(challenge->nonce, digest_of(1));
  const auto hello = decode_hello(encode(sample_hello()));
  ASSERT_TRUE(hello.is_ok());
  EXPECT_EQ(hello->rank, 3u);
  EXPECT_EQ(hello->ranks, 8u);
  EXPECT_EQ(hello->facts, sample_hello().facts);
  const auto words = decode_words(encode(Words{conflict("why")}));
  ASSERT_TRUE(words.is_ok());
  EXPECT_EQ(words->status.to_string(), "conflict: why");
  const auto reports = decode_reports(encode(sample_reports()));
  ASSERT_TRUE(reports.is_ok());
  EXPECT_EQ(reports->progress.applied, 5u);
  EXPECT_EQ(reports->progress.next_step, 6u);
  EXPECT_TRUE(same(reports->outcomes, sample_reports().outcomes));
  const auto plans = decode_plans(encode(sample_plans()));
  ASSERT_TRUE(plans.is_ok());
  EXPECT_TRUE(same(plans->events, sample_plans().events));
  EXPECT_EQ(plans->plans, sample_plans().plans);
}

TEST(RankWire, PartsOfMessagesAndLongerOnesAreRefused) {
  const auto check = [](const std::string& body, const auto& decode) {
    for (std::size_t size = 0; size < body.size(); ++size) {
      EXPECT_EQ(decode(std::string_view(body).substr(0, size)).status().code(), StatusCode::kCorrupt) << size;
    }
    EXPECT_EQ(decode(body + '\0').status().code(), StatusCode::kCorrupt);
  };
  check(encode(Challenge{kVersion, digest_of(1)}), decode_challenge);
  check(encode(sample_hello()), decode_hello);
  check(encode(Words{conflict("why")}), decode_words);
  check(encode(Progress{1, 2}), decode_progress);
  check(encode(sample_reports()), decode_reports);
  check(encode(sample_plans()), decode_plans);
}

TEST(RankWire, LongTextsAreCutAndLongListsRefused) {
  const auto words = decode_words(encode(Words{internal_error(std::string(5000, 'x'))}));
  ASSERT_TRUE(words.is_ok());
  EXPECT_EQ(words->status.message(), std::string(kMaxTextBytes, 'x'));
  const auto lines = decode_words(encode(Words{conflict("one\nerror cache: two\x1b[2J, \xc3\xa4")}));
  ASSERT_TRUE(lines.is_ok());
  EXPECT_EQ(lines->status.message(), "one?error cache: two?[2J, \xc3\xa4") << "a text has a line of its own";
  Hello hello = sample_hello();
  hello.facts.resize(kMaxFacts + 1);
  EXPECT_EQ(decode_hello(encode(hello)).status().code(), StatusCode::kCorrupt);
  Reports reports;
  reports.outcomes.push_back({OpId(1), OutcomeBits(kMaxWords + 1)});
  EXPECT_EQ(decode_reports(encode(reports)).status().code(), StatusCode::kCorrupt);
}

TEST(RankWire, HeadsSayWhatIsPossible) {
  EXPECT_TRUE(decode_head(encode_head({7, Kind::kPlans, 3})).is_ok());
  EXPECT_FALSE(decode_head(encode_head({kMaxBodyBytes + 1, Kind::kPlans, 3})).is_ok());
  EXPECT_FALSE(decode_head(encode_head({7, Kind(0), 3})).is_ok());
  EXPECT_FALSE(decode_head(encode_head({7, Kind(kKindCount), 3})).is_ok());
  for (const std::size_t at : {5u, 6u, 7u}) {
    std::string bytes = encode_head({7, Kind::kPlans, 3});
    bytes[at] = 1;
    EXPECT_FALSE(decode_head(bytes).is_ok());
  }
}

// Frames that arrive in any pieces.
TEST(RankLink, GivesWholeFramesInTheirOrder) {
  Rng rng(3);
  RankLink leader(End::kLeader), follower(End::kFollower);
  leader.use_key("key");
  follower.use_key("key");
  std::string bytes;
  for (int i = 0; i < 50; ++i) follower.send(Kind::kAlive, std::string(static_cast<std::size_t>(i) * 7, 'a'));
  bytes = follower.take_output();
  int frames = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = static_cast<std::size_t>(rng.between(1, 100));
    leader.receive(std::string_view(bytes).substr(at, size));
    at += size;
    for (;;) {
      auto frame = leader.next();
      ASSERT_TRUE(frame.is_ok());
      if (!frame->has_value()) break;
      EXPECT_EQ((*frame)->body.size(), static_cast<std::size_t>(frames) * 7);
      EXPECT_TRUE(leader.is_genuine(**frame));
      EXPECT_FALSE(leader.is_plain(**frame));
      ++frames;
    }
  }
  EXPECT_EQ(frames, 50);
}

TEST(RankLink, BelievesNoFrameThatWasTouched) {
  RankLink follower(End::kFollower);
  follower.use_key("key");
  follower.send(Kind::kReports, encode(sample_reports()));
  const std::string bytes = follower.take_output();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string touched = bytes;
    touched[bit / 8] = static_cast<char>(touched[bit / 8] ^ (1 << (bit % 8)));
    RankLink leader(End::kLeader);
    leader.use_key("key");
    leader.receive(touched);
    auto frame = leader.next();
    EXPECT_TRUE(!frame.is_ok() || !frame->has_value() || !leader.is_genuine(**frame)) << bit;
  }
}

TEST(RankLink, BelievesNoFrameOfAnotherKeyDirectionOrPlace) {
  RankLink follower(End::kFollower), leader(End::kLeader), own(End::kFollower);
  follower.use_key("key");
  leader.use_key("another");
  own.use_key("key");
  follower.send(Kind::kAlive, encode(Progress{}));
  const std::string bytes = follower.take_output();
  leader.receive(bytes);
  EXPECT_FALSE(leader.is_genuine(*leader.next().value()));
  own.receive(bytes);  // a follower hears its own words again
  EXPECT_FALSE(own.is_genuine(*own.next().value()));
  leader.receive(bytes);  // twice
  EXPECT_EQ(leader.next().status().code(), StatusCode::kCorrupt);
}

TEST(RankLink, KeysDifferByAllThatTheyFollowFrom) {
  const std::string key = session_key("secret", digest_of(1), digest_of(2));
  EXPECT_EQ(key, session_key("secret", digest_of(1), digest_of(2)));
  EXPECT_NE(key, session_key("secrets", digest_of(1), digest_of(2)));
  EXPECT_NE(key, session_key("secret", digest_of(2), digest_of(1)));
  EXPECT_NE(key, session_key("secret", digest_of(1), digest_of(3)));
}

TEST(RankLink, AGreetingIsShort) {
  RankLink leader(End::kLeader);
  leader.receive(encode_head({kMaxGreetingBytes + 1, Kind::kHello, 0}));
  EXPECT_EQ(leader.next().status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace larder::ranks
