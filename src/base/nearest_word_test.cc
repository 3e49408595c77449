// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_word.h"

#include <gtest/gtest.h>

#include <array>

namespace larder {
namespace {

constexpr std::array<std::string_view, 5> kKnown = {"window", "page_size", "hicache-size", "layers", "layer_count"};

TEST(NearestWord, IsWhatWasMeant) {
  EXPECT_EQ(nearest_word("windw", kKnown), "window");
  EXPECT_EQ(nearest_word("pagesize", kKnown), "page_size");
  EXPECT_EQ(nearest_word("window", kKnown), "window");
  EXPECT_EQ(nearest_word("layesr", kKnown), "layers");
  constexpr std::array<std::string_view, 2> kCommands = {"serve", "store"};
  EXPECT_EQ(nearest_word("stroe", kCommands), "store");
  EXPECT_EQ(nearest_word("hicache", kKnown), "hicache-size") << "the only one that contains it";
}

TEST(NearestWord, IsNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_word("temperature", kKnown), "");
  EXPECT_EQ(nearest_word("aye", {}), "");
  EXPECT_EQ(nearest_word("size", kKnown), "") << "two contain it";
  EXPECT_EQ(nearest_word(std::string(129, 'w'), kKnown), "");
}

TEST(NearestWord, Sentence) {
  EXPECT_EQ(did_you_mean("windw", kKnown), "; did you mean 'window'?");
  EXPECT_EQ(did_you_mean("windw", kKnown, "--", ""), "; did you mean --window?");
  EXPECT_EQ(did_you_mean("temperature", kKnown), "");
}

}  // namespace
}  // namespace larder
