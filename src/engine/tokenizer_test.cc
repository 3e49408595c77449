// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace larder {
namespace {

// Random ids with whole characters among them, so that valid, cut and invalid sequences all come up.
std::vector<TokenId> random_ids(Rng& rng) {
  std::vector<TokenId> ids;
  const std::vector<std::string> pieces = {
      "a", "é", "€", "𝄞", "\xf4\x80\x80\x81", "\xed\xa0\x80", "\xc0\x80", "\xf4\x8f\xbf\xbf"};
  for (std::uint64_t n = rng.below(40); n > 0; --n) {
    if (rng.chance(1, 2)) {
      ids.push_back(static_cast<TokenId>(rng.below(512)));
      continue;
    }
    const std::string& piece = pieces[rng.below(pieces.size())];
    for (const char c : piece.substr(0, rng.between(1, piece.size()))) ids.push_back(static_cast<std::uint8_t>(c));
  }
  return ids;
}

TEST(Tokenizer, PlainTextIsItsBytes) {
  const std::string text = "Grüße, 世界 𝄞\n";
  const std::vector<TokenId> ids = encode(text);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(decode(ids), text);
  EXPECT_TRUE(encode("").empty());
}

TEST(Tokenizer, EveryTokenSequenceSurvivesItsText) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    const std::vector<TokenId> ids = random_ids(rng);
    const std::string text = decode(ids);
    ASSERT_EQ(encode(text), ids) << "seed " << seed;
    // A stream in random pieces gives the same text.
    TextDecoder decoder;
    std::string streamed;
    for (std::size_t at = 0; at < ids.size();) {
      const std::size_t count = rng.between(1, ids.size() - at);
      streamed += decoder.push(std::span(ids).subspan(at, count));
      at += count;
    }
    ASSERT_EQ(streamed + decoder.finish(), text) << "seed " << seed;
  }
}

TEST(Tokenizer, TextIsWellFormedWhateverTheTokens) {
  EXPECT_EQ(decode(std::vector<TokenId>{0xff}), "\xf4\x80\x83\xbf");
  EXPECT_EQ(decode(std::vector<TokenId>{'h', TokenizerSpec::kEos, 'i'}), "h\xf4\x80\x84\x81i");
  EXPECT_EQ(decode(std::vector<TokenId>{'h', 1'000'000, 'i'}), "hi");  // beyond all escapes
  TextDecoder decoder;
  EXPECT_EQ(decoder.push(std::vector<TokenId>{0xe2, 0x82}), "");
  EXPECT_EQ(decoder.push(std::vector<TokenId>{0xac}), "€");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, ATurnIsAPrefixOfTheNextOne) {
  const std::vector<ChatMessage> first = {{"system", "be brief"}, {"user", "hello"}};
  std::vector<TokenId> tokens = encode_chat(first).value();
  EXPECT_EQ(tokens.front(), TokenizerSpec::kBos);
  EXPECT_EQ(tokens.back(), TokenizerSpec::kAssistant);
  const std::vector<TokenId> answer = {'o', 'k', 300, 0xc3, TokenizerSpec::kEos};
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  for (const bool with_end : {true, false}) {  // some clients drop the end-of-sequence text, others do not
    std::vector<ChatMessage> next = first;
    next.push_back({"assistant", decode(std::span(answer).first(answer.size() - (with_end ? 0 : 1)))});
    next.push_back({"user", "more"});
    const std::vector<TokenId> longer = encode_chat(next).value();
    ASSERT_GT(longer.size(), tokens.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), longer.begin()));
  }
}

TEST(Tokenizer, RefusesWhatItCannotSay) {
  EXPECT_EQ(encode_chat({}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<ChatMessage> odd = {{"robot", "x"}};
  EXPECT_NE(encode_chat(odd).status().message().find("robot"), std::string::npos);
  ModelSpec model;
  EXPECT_TRUE(check_tokenizer(model));
  model.vocab_size = 256;
  EXPECT_NE(check_tokenizer(model).message().find("at least 262"), std::string::npos);
}

}  // namespace
}  // namespace larder
