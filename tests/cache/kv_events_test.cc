// SPDX-License-Identifier: Apache-2.0
// Events of pages: in which order they are told, what is told at once, and what a sink without room misses.
#include "controller/kv_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "controller/space_table.h"
#include "key/page_key.h"
#include "tree/tree_test_support.h"

namespace larder::test {
namespace {

using tree_test::Fixture;
using tree_test::operator+;
using tree_test::Tokens;

constexpr std::uint32_t kPage = 4;

class Listener final : public KvEventSink {
 public:
  Wish wish() override { return std::exchange(next, Wish::kChanges); }
  void take(std::vector<KvEvent> events) override { batches.push_back(std::move(events)); }
  void dropped() override { ++drops; }
  bool wants_all_components() const override { return all_components; }

  Wish next = Wish::kChanges;
  bool all_components = false;
  int drops = 0;
  std::vector<std::vector<KvEvent>> batches;
};

class KvEventsTest : public testing::Test {
 protected:
  void open(bool with_mamba = false) {
    f_.emplace(tree_test::config_of(kPage, 0, with_mamba));
    spaces_.add({"lora", "tenant"}, f_->space, nullptr);
    recorder_.emplace(f_->tree, spaces_, listener_, clock_);
    recorder_->hand_over();
    clock_.advance(std::chrono::seconds(2));
    listener_.batches.clear();
  }
  static std::vector<std::int64_t> hashes(const Tokens& tokens) {
    PageKeyChain chain(kPage, std::nullopt);
    chain.extend(tokens);
    std::vector<std::int64_t> out;
    for (const PageKey& key : chain.keys()) out.push_back(event_block_hash(key));
    return out;
  }

  ManualClock clock_;
  SpaceTable spaces_;
  Listener listener_;
  std::optional<Fixture> f_;
  std::optional<KvEventRecorder> recorder_;
};

TEST_F(KvEventsTest, TheStoryBeginsWithClearedAndWhatIsThere) {
  f_.emplace(tree_test::config_of(kPage, 0, false));
  spaces_.add({"", ""}, f_->space, nullptr);
  const Tokens prompt = tree_test::iota_tokens(3 * kPage);
  f_->insert(prompt);
  recorder_.emplace(f_->tree, spaces_, listener_, clock_);
  EXPECT_TRUE(listener_.batches.empty());
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ASSERT_EQ(listener_.batches[0].size(), 2u);
  EXPECT_EQ(listener_.batches[0][0].kind, KvEventKind::kCleared);
  EXPECT_EQ(listener_.batches[0][1].blocks, hashes(prompt));
  recorder_->hand_over();
  EXPECT_EQ(listener_.batches.size(), 1u) << "nothing has happened";
}

TEST_F(KvEventsTest, OneEventForPagesThatComeOneAfterAnother) {
  open();
  const Tokens prompt = tree_test::iota_tokens(5 * kPage);
  f_->insert({prompt.begin(), prompt.begin() + 2 * kPage});
  f_->insert(prompt, {.owned_from = 2});
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ASSERT_EQ(listener_.batches[0].size(), 1u);
  const KvEvent& event = listener_.batches[0][0];
  EXPECT_EQ(event.kind, KvEventKind::kStored);
  EXPECT_EQ(event.tier, Tier::kDevice);
  EXPECT_EQ(event.blocks, hashes(prompt));
  EXPECT_EQ(event.parent, std::nullopt);
  EXPECT_EQ(event.tokens, prompt);
  ASSERT_NE(event.names, nullptr);
  EXPECT_EQ(event.names->adapter, "lora");
  EXPECT_EQ(event.names->salt, "tenant");
}

TEST_F(KvEventsTest, ABranchNamesThePageThatItGoesOnFrom) {
  open();
  const Tokens prompt = tree_test::iota_tokens(4 * kPage);
  f_->insert(prompt);
  const Tokens other = Tokens(prompt.begin(), prompt.begin() + 2 * kPage) + tree_test::iota_tokens(kPage, 100);
  f_->insert(other, {.owned_from = 2});
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches[0].size(), 2u);
  EXPECT_EQ(listener_.batches[0][1].parent, hashes(prompt)[1]);
  EXPECT_EQ(listener_.batches[0][1].blocks, std::vector<std::int64_t>{hashes(other)[2]});
  EXPECT_EQ(listener_.batches[0][1].tokens, tree_test::iota_tokens(kPage, 100));
}

TEST_F(KvEventsTest, ACopyIsToldWhenItIsDoneAndNotWhenItFails) {
  open();
  const Tokens prompt = tree_test::iota_tokens(2 * kPage);
  const NodeId node = f_->insert(prompt).node;
  recorder_->hand_over();
  listener_.batches.clear();
  ASSERT_TRUE(f_->start_backup(OpId(1), node).is_ok());
  (void)f_->tree.finish_op(OpId(1), false);
  ASSERT_TRUE(f_->start_backup(OpId(2), node).is_ok());
  recorder_->hand_over();
  EXPECT_TRUE(listener_.batches.empty()) << "it is under way";
  (void)f_->tree.finish_op(OpId(2), true);
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ASSERT_EQ(listener_.batches[0].size(), 1u);
  EXPECT_EQ(listener_.batches[0][0].tier, Tier::kHost);
  EXPECT_EQ(listener_.batches[0][0].blocks, hashes(prompt));
}

TEST_F(KvEventsTest, WhatIsEvictedPageByPageIsOneEvent) {
  open();
  const Tokens prompt = tree_test::iota_tokens(6 * kPage);
  f_->insert(prompt);
  recorder_->hand_over();
  listener_.batches.clear();
  for (int i = 0; i < 4; ++i) (void)f_->tree.evict_device(ComponentKind::kFull, 1, VictimRule::kDrop);
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ASSERT_EQ(listener_.batches[0].size(), 1u);
  EXPECT_EQ(listener_.batches[0][0].kind, KvEventKind::kRemoved);
  const std::vector<std::int64_t> all = hashes(prompt);
  EXPECT_EQ(listener_.batches[0][0].blocks, (std::vector<std::int64_t>{all[5], all[4], all[3], all[2]}));
}

TEST_F(KvEventsTest, AStateIsToldOfThePageThatItStandsAtToWhoWantsAllComponents) {
  for (const bool all : {false, true}) {
    listener_.all_components = all;
    spaces_ = {};
    recorder_.reset();
    open(true);
    const Tokens prompt = tree_test::iota_tokens(3 * kPage);
    f_->insert(prompt, {.checkpoints = {3}});
    recorder_->hand_over();
    ASSERT_EQ(listener_.batches[0].size(), all ? 2u : 1u);
    if (!all) continue;
    const KvEvent& event = listener_.batches[0][1];
    EXPECT_EQ(event.component, ComponentKind::kMamba);
    EXPECT_EQ(event.blocks, std::vector<std::int64_t>{hashes(prompt)[2]});
    EXPECT_EQ(event.parent, hashes(prompt)[1]);
    EXPECT_EQ(event.tokens, Tokens(prompt.end() - kPage, prompt.end()));
  }
}

TEST_F(KvEventsTest, WhatASinkHadNoRoomForIsToldAnewWhenItHas) {
  open();
  const Tokens prompt = tree_test::iota_tokens(3 * kPage), other = tree_test::iota_tokens(2 * kPage, 100);
  f_->insert(prompt);
  listener_.next = KvEventSink::Wish::kNothing;
  recorder_->hand_over();
  EXPECT_TRUE(listener_.batches.empty());
  EXPECT_EQ(listener_.drops, 1);
  listener_.next = KvEventSink::Wish::kNothing;
  recorder_->hand_over();
  EXPECT_EQ(listener_.drops, 1) << "nothing was dropped";
  f_->insert(other);
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ASSERT_EQ(listener_.batches[0].size(), 3u);
  EXPECT_EQ(listener_.batches[0][0].kind, KvEventKind::kCleared);
  std::vector<std::int64_t> told = listener_.batches[0][1].blocks, want = hashes(prompt);
  told.insert(told.end(), listener_.batches[0][2].blocks.begin(), listener_.batches[0][2].blocks.end());
  for (const std::int64_t block : hashes(other)) want.push_back(block);
  std::sort(told.begin(), told.end());
  std::sort(want.begin(), want.end());
  EXPECT_EQ(told, want);
}

TEST_F(KvEventsTest, AWishForAllIsGrantedWhenNothingHappens) {
  open();
  f_->insert(tree_test::iota_tokens(kPage));
  recorder_->hand_over();
  listener_.next = KvEventSink::Wish::kAll;
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 2u);
  EXPECT_EQ(listener_.batches[1][0].kind, KvEventKind::kCleared);
  EXPECT_EQ(listener_.batches[1].size(), 2u);
}

// Meanwhile the story goes on for those who know it.
TEST_F(KvEventsTest, BeginningsKeepTheirDistance) {
  open();
  const auto ask = [this] {
    listener_.next = KvEventSink::Wish::kAll;
    recorder_->hand_over();
  };
  ask();
  ASSERT_EQ(listener_.batches.size(), 1u);
  ask();
  EXPECT_EQ(listener_.batches.size(), 1u) << "too soon";
  f_->insert(tree_test::iota_tokens(kPage));
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 2u);
  EXPECT_EQ(listener_.batches[1][0].kind, KvEventKind::kStored);
  clock_.advance(std::chrono::seconds(1));
  recorder_->hand_over();
  ASSERT_EQ(listener_.batches.size(), 3u) << "owed";
  EXPECT_EQ(listener_.batches[2][0].kind, KvEventKind::kCleared);
  EXPECT_EQ(listener_.batches[2].size(), 2u);
}

TEST_F(KvEventsTest, ALongNameIsToldByItsHash) {
  f_.emplace(tree_test::config_of(kPage, 0, false));
  spaces_.add({std::string(256, 'a'), std::string(257, 's')}, f_->space, nullptr);
  f_->insert(tree_test::iota_tokens(kPage));
  recorder_.emplace(f_->tree, spaces_, listener_, clock_);
  recorder_->hand_over();
  const KvEvent& event = listener_.batches[0][1];
  EXPECT_EQ(event.names->adapter, std::string(256, 'a'));
  EXPECT_TRUE(event.names->salt.starts_with("sha256:")) << event.names->salt;
  EXPECT_EQ(event.names->salt.size(), 7u + 64u);
}

TEST_F(KvEventsTest, ABeginningOfALargeTreeComesInPieces) {
  open();
  constexpr std::size_t kPrompts = 40, kTokens = 4096;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    f_->insert(tree_test::iota_tokens(kTokens, static_cast<TokenId>(1 + i * kTokens)));
  }
  recorder_->hand_over();
  listener_.batches.clear();
  listener_.next = KvEventSink::Wish::kAll;
  recorder_->hand_over();
  EXPECT_EQ(listener_.batches.size(), 3u);
  std::size_t blocks = 0;
  for (const auto& batch : listener_.batches) {
    for (const KvEvent& event : batch) blocks += event.blocks.size();
  }
  EXPECT_EQ(blocks, kPrompts * kTokens / kPage);
}

}  // namespace
}  // namespace larder::test
