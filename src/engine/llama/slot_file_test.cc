// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/slot_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"

namespace larder::llama {
namespace {

using Bytes = std::vector<std::byte>;

Bytes file_of(std::uint32_t version, std::span<const std::uint32_t> words, std::size_t blob_bytes) {
  Bytes bytes(12 + 4 * words.size() + blob_bytes, std::byte{0x55});
  store_le(bytes.data(), kSlotFileMagic);
  store_le(bytes.data() + 4, version);
  store_le(bytes.data() + 8, static_cast<std::uint32_t>(words.size()));
  for (std::size_t i = 0; i < words.size(); ++i) store_le(bytes.data() + 12 + 4 * i, words[i]);
  return bytes;
}

TEST(SlotFile, ReadsWhatItWrites) {
  for (const std::vector<TokenId>& tokens : {std::vector<TokenId>{}, {5}, {1, 2, 3, 70'000}}) {
    Bytes bytes(slot_head_bytes(tokens.size()) + 9, std::byte{7});
    write_slot_head(tokens, std::span(bytes).first(slot_head_bytes(tokens.size())));
    const auto file = parse_slot_file(bytes);
    ASSERT_TRUE(file) << file.status().to_string();
    EXPECT_EQ(file->tokens, tokens);
    EXPECT_EQ(file->blob.size(), 9u);
  }
}

TEST(SlotFile, ReadsPackedTokens) {
  const std::vector<std::uint32_t> words = {0xffffffff, 1, 2, 40, 41, 0};
  const Bytes bytes = file_of(3, words, 4);
  const auto file = parse_slot_file(bytes);
  ASSERT_TRUE(file) << file.status().to_string();
  EXPECT_EQ(file->tokens, (std::vector<TokenId>{40, 41}));
  EXPECT_EQ(file->blob.size(), 4u);
}

TEST(SlotFile, ImagesAndOtherVersionsAreUnsupported) {
  const std::vector<std::uint32_t> image = {0xffffffff, 1, 1, 40, 1, 0}, newer = {0xffffffff, 2, 0, 0};
  const std::vector<std::uint32_t> plain = {1};
  for (const Bytes& bytes : {file_of(3, image, 4), file_of(3, newer, 4), file_of(4, plain, 4), file_of(2, plain, 4)}) {
    EXPECT_EQ(parse_slot_file(bytes).status().code(), StatusCode::kUnsupported);
  }
}

TEST(SlotFile, EveryTruncationOfTheHeadIsRefused) {
  const std::vector<std::uint32_t> words = {0xffffffff, 1, 2, 40, 41, 0};
  const Bytes bytes = file_of(3, words, 0);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parse_slot_file(std::span(bytes).first(size)).status().code(), StatusCode::kCorrupt) << size;
  }
  for (std::size_t size = 1; size < words.size(); ++size) {  // a shorter list of packed tokens
    EXPECT_FALSE(parse_slot_file(file_of(3, std::span(words).first(size), 40))) << size;
  }
}

}  // namespace
}  // namespace larder::llama
