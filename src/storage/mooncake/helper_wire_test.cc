// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/helper_wire.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "storage/mooncake/store_codes.h"

namespace larder::mooncake {
namespace {

std::string encoded_reply(std::uint64_t number, bool has_failed, const std::vector<std::int64_t>& codes,
                          const std::string& words) {
  std::string out(kReplyHeadBytes + 8 * codes.size(), '\0');
  std::memcpy(out.data(), "LMR1", 4);
  store_le<std::uint32_t>(out.data() + 4, static_cast<std::uint32_t>(8 * codes.size() + words.size()));
  store_le<std::uint64_t>(out.data() + 8, number);
  store_le<std::uint32_t>(out.data() + 16, has_failed ? 1 : 0);
  store_le<std::uint32_t>(out.data() + 20, static_cast<std::uint32_t>(codes.size()));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    store_le<std::uint64_t>(out.data() + kReplyHeadBytes + 8 * i, static_cast<std::uint64_t>(codes[i]));
  }
  return out + words;
}

TEST(MooncakeWire, RequestsAreJson) {
  EXPECT_EQ(exists_request({"a", "b"}), R"({"op":"exists","names":["a","b"]})");
  EXPECT_EQ(get_request({{"a", {{0, 64, 10}, {1, 0, 5}}}, {"b", {}}}, {1, 1}),
            R"({"op":"get","names":["a","b"],"at":[[0,64,10,1,0,5],[]],"parts":[1,1]})");
  EXPECT_EQ(put_request({{"a", {{0, 0, 1}}}, {"b", {{0, 64, 2}}}}, {{"t", 1}, {"u", 1}}),
            R"({"op":"put","names":["a","b"],"at":[[0,0,1],[0,64,2]],"groups":[1,1],"tags":["t","u"]})");
  EXPECT_EQ(clear_request("^x\\.\"\n$"), R"({"op":"clear","pattern":"^x\\.\"\u000a$"})");
  const std::string whole = encode_request(0x0102, "{}");
  EXPECT_EQ(whole, std::string("LMQ1\x02\0\0\0\x02\x01\0\0\0\0\0\0{}", 18));
}

TEST(MooncakeWire, RepliesComeInPieces) {
  const std::string stream = encoded_reply(7, false, {0, -704, 1'000'000}, "") + encoded_reply(8, true, {}, "words");
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    ReplyReader reader;
    std::vector<Reply> got;
    for (const std::string& piece : {stream.substr(0, cut), stream.substr(cut)}) {
      reader.append(piece);
      for (auto next = reader.next(); next.is_ok() && next->has_value(); next = reader.next()) got.push_back(**next);
    }
    ASSERT_EQ(got.size(), 2u) << cut;
    EXPECT_EQ(got[0].codes, (std::vector<std::int64_t>{0, -704, 1'000'000}));
    EXPECT_EQ(got[1].number, 8u);
    EXPECT_TRUE(got[1].has_failed);
    EXPECT_EQ(got[1].words, "words");
  }
}

TEST(MooncakeWire, NonsenseIsCorruptAndNoMoreThanThat) {
  std::string bad = encoded_reply(1, false, {1}, "");
  bad[0] = 'X';
  ReplyReader magic;
  magic.append(bad);
  EXPECT_EQ(magic.next().status().code(), StatusCode::kCorrupt);
  std::string many = encoded_reply(1, false, {1}, "");
  store_le<std::uint32_t>(many.data() + 20, 0xffffffff);  // codes
  ReplyReader count;
  count.append(many);
  EXPECT_EQ(count.next().status().code(), StatusCode::kCorrupt);
  std::string large = encoded_reply(1, false, {1}, "");
  store_le<std::uint32_t>(large.data() + 4, 0xffffffff);  // bytes
  ReplyReader size;
  size.append(large);
  EXPECT_EQ(size.next().status().code(), StatusCode::kCorrupt);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    std::string reply = encoded_reply(seed, false, {1, 2, 3}, "abc") + encoded_reply(seed, true, {}, "x");
    for (std::uint64_t i = 0; i < 1 + seed % 4; ++i) reply[rng.below(reply.size())] = static_cast<char>(rng.below(256));
    ReplyReader reader;
    reader.append(reply);
    for (int i = 0; i < 3; ++i) {
      const auto next = reader.next();
      if (!next.is_ok() || !next->has_value()) break;
      EXPECT_LE((*next)->codes.size() * 8 + (*next)->words.size(), reply.size());
    }
  }
}

TEST(MooncakeCodes, SayWhatTheCallerShouldDo) {
  EXPECT_EQ(status_of(kNotFoundCode, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(status_of(kRemovedCode, "x").code(), StatusCode::kNotFound);
  for (const std::int64_t code : {kNoRoomCode, kBusyCode, std::int64_t{-1700}}) {
    EXPECT_EQ(status_of(code, "x").code(), StatusCode::kOverloaded) << code;
  }
  for (const std::int64_t code : {-800, -900, -901, -600, -1, -123456}) {
    const Status status = status_of(code, "doing it");
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << code;
    EXPECT_NE(status.message().find("doing it"), std::string::npos);
    EXPECT_NE(status.message().find(std::to_string(code)), std::string::npos);
  }
}

}  // namespace
}  // namespace larder::mooncake
