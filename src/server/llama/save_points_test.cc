// SPDX-License-Identifier: Apache-2.0
#include "server/llama/save_points.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

using Places = std::vector<std::uint64_t>;

TEST(SavePoints, TheEndOfAPromptIsTheLastPageThatTheSamePromptResumesAt) {
  EXPECT_EQ(last_restore_point(0, 64), 0u);
  EXPECT_EQ(last_restore_point(64, 64), 0u);
  EXPECT_EQ(last_restore_point(65, 64), 64u);
  EXPECT_EQ(save_points({}, {.tokens = 3000}), (Places{2944}));
  EXPECT_EQ(save_points({}, {.tokens = 63}), Places{});
}

TEST(SavePoints, AForkIsKeptWhereOthersWent) {
  EXPECT_EQ(save_points({}, {.tokens = 3000, .resume = 0, .known = 1000}), (Places{960, 2944}));
  EXPECT_EQ(save_points({}, {.tokens = 3000, .resume = 960, .known = 1000}), (Places{2944}));
  EXPECT_EQ(save_points({}, {.tokens = 3000, .resume = 0, .known = 3000}), (Places{2944}));
}

TEST(SavePoints, NothingIsKeptOfWhatIsThere) {
  EXPECT_EQ(save_points({}, {.tokens = 3000, .resume = 2996, .known = 2944}), Places{});
  EXPECT_EQ(save_points({}, {.tokens = 3000, .resume = 2944}), Places{});
}

TEST(SavePoints, PlacesAreApart) {
  const Places marks = {500, 2900, 1000};
  const SavePolicy wide{.page_size = 64, .grid = 0, .spacing = 256};
  EXPECT_EQ(save_points(wide, {.tokens = 3000, .known = 1100, .marks = marks}), (Places{448, 1088, 2944}));
}

TEST(SavePoints, TheGridFillsWhatIsLong) {
  EXPECT_EQ(save_points({.page_size = 64, .grid = 1024}, {.tokens = 3000, .resume = 1500}), (Places{2048, 2944}));
  EXPECT_EQ(save_points({.page_size = 64, .grid = 0}, {.tokens = 30000}), (Places{29952}));
  EXPECT_EQ(save_points({.page_size = 64, .grid = 1000}, {.tokens = 3000}), (Places{960, 1984, 2944}));
}

}  // namespace
}  // namespace larder::llama
