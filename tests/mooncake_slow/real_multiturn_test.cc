// SPDX-License-Identifier: Apache-2.0
// Conversations through the whole server with backend `mooncake` on the real package: what they say does not depend on
// storage, and a new engine finds what the first one left.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/mooncake_slow/real_store.h"
#include "tests/support/conversations.h"

namespace larder::mooncake_test {
namespace {

MultiturnResult one_life(const std::string& model, const BackendOptions& storage,
                         const support::Talks& talks = support::few_talks()) {
  nlohmann::json extra = storage;
  if (!storage.empty()) extra["prefetch_threshold"] = 64;
  return support::talk(model, "mooncake", extra, talks);
}

class RealMooncakeTalk : public testing::TestWithParam<const char*> {};

TEST_P(RealMooncakeTalk, SaysWhatItWouldAndFindsItAgainAfterARestart) {
  const std::string reason = RealStore::why_not_here();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const RealStore store(256);
  const MultiturnResult truth = one_life(GetParam(), {});
  const RoundSummary alone = summarize(truth, -1);
  const MultiturnResult first = one_life(GetParam(), store.options());
  EXPECT_EQ(first_difference(first, truth), "") << "storage changes what the model says";
  EXPECT_EQ(summarize(first, -1).storage, 0u) << "there was nothing yet";
  const MultiturnResult second = one_life(GetParam(), store.options());
  EXPECT_EQ(first_difference(second, truth), "") << "storage changes what the model says";
  const RoundSummary found = summarize(second, -1);
  EXPECT_GT(found.storage, 0u);
  EXPECT_GT(found.hit_rate(), alone.hit_rate());
}

TEST(RealMooncakeTalks, ThePublishedJobHitsAllThatCanBeHit) {
  const std::string reason = RealStore::why_not_here();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const RealStore store(512, std::chrono::seconds(10));
  const MultiturnResult first = one_life("gdn-tiny", store.options(), support::published_talks());
  const RoundSummary all = summarize(first, -1);
  EXPECT_NEAR(all.hit_rate(), 517.0 / 576, 1e-9) << "the ideal of page granularity";
  EXPECT_GT(all.storage, 100'000u) << "most of it comes from storage";
  // Another engine finds all whole pages of each conversation, its first turn included.
  const MultiturnResult second = one_life("gdn-tiny", store.options(), support::published_talks());
  EXPECT_EQ(first_difference(second, first), "") << "storage changes what the model says";
  EXPECT_GT(summarize(second, -1).hit_rate(), all.hit_rate());
}

std::string name_of_model(const testing::TestParamInfo<const char*>& model) {
  std::string name = model.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, RealMooncakeTalk, testing::Values("gdn-tiny", "dsv4-tiny"), name_of_model);

}  // namespace
}  // namespace larder::mooncake_test
