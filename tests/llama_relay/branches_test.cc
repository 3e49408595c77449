// SPDX-License-Identifier: Apache-2.0
// What of a prompt is not computed anew, for each shape of a model; every answer is that of a server with empty slots.
#include <future>
#include <thread>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

std::string letters_of(const Tokens& tokens) { return {tokens.begin(), tokens.end()}; }

// Of an answer of /v1/messages.
std::string message_text(const Answer& answer) {
  if (answer.http != 200) return answer.body.dump();
  return answer.body.at("content")[0].at("text");
}

class RelayBranches : public testing::TestWithParam<const char*> {
 protected:
  Rig rig_{{.geometry = geometry_of(GetParam())}};
  const Tokens a_ = random_tokens(400, 1), other_ = random_tokens(400, 2);
  const bool is_dense_ = !rig_.geometry().has_partial_form();

  [[nodiscard]] Tokens branch(std::size_t at, std::uint64_t seed) const {
    return joined(first(a_, at), random_tokens(100, seed));
  }
};

TEST_P(RelayBranches, TheSecondOneResumesWhereTheFirstOneLeft) {
  EXPECT_EQ(rig_.reused(a_), 0u);
  rig_.wait_idle();  // or the next one does not know yet that it leaves the path of another
  // A dense model's slot rolls back; of the others nobody has been there: it becomes a restore point now.
  EXPECT_EQ(rig_.reused(branch(200, 3)), is_dense_ ? 200u : 0u);
  rig_.wait_idle();
  const Answer second = rig_.ask(branch(200, 4));
  EXPECT_EQ(second.reused, is_dense_ ? 200u : 192u);
  EXPECT_EQ(second.from, is_dense_ ? "slot" : "host");
  rig_.wait_idle();
  EXPECT_EQ(rig_.reused(a_), 384u);
  EXPECT_EQ(rig_.reused(other_), 0u);
  rig_.wait_idle();
  EXPECT_EQ(rig_.ask(joined(a_, random_tokens(50, 5))).from, "host");
  EXPECT_EQ(rig_.metric("larder_proxy_ignored_restores_total"), 0);
  EXPECT_EQ(rig_.metric("larder_proxy_failed_restores_total"), 0);
}

TEST_P(RelayBranches, TheStoreKeepsThemOverARestart) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  rig_.stop_proxy();
  rig_.kill_server();
  rig_.start_server();
  rig_.start_proxy();
  const Answer answer = rig_.ask(joined(first(a_, 390), random_tokens(60, 6)));
  EXPECT_EQ(answer.reused, 384u);
  EXPECT_EQ(answer.from, "storage");
}

// Of host memory nothing is left: the answer is computed from the first token.
TEST_P(RelayBranches, DroppedMemoryCostsTimeOnly) {
  (void)rig_.ask(first(a_, 200));
  rig_.wait_idle();
  (void)rig_.ask(first(other_, 200));
  rig_.wait_idle();
  rig_.flush();
  EXPECT_EQ(rig_.reused(first(a_, 200)), 0u);  // below 256 tokens storage is not asked
}

class RelayIdentity : public testing::Test {
 protected:
  const Tokens a_ = random_tokens(400, 1);

  static void restart(Rig& rig, std::uint32_t context = 1024) {
    rig.wait_idle();
    rig.stop_proxy();
    rig.kill_server();
    rig.start_server("fake-1", context);
    rig.start_proxy();
  }
};

TEST_F(RelayIdentity, TheContextCountsIfItChoosesTheFactorsOfRope) {
  for (const bool has_long_factors : {false, true}) {
    Rig rig({.geometry = geometry_of("dense"), .has_long_factors = has_long_factors});
    (void)rig.ask(a_);
    restart(rig, 2048);
    EXPECT_EQ(rig.reused(a_), has_long_factors ? 0u : 384u);
    restart(rig);
    EXPECT_EQ(rig.reused(a_), 384u) << "as at first";
  }
}

// With --kv-unified-per-slot a slot of few tokens may have a long context behind it, and the long factors.
TEST_F(RelayIdentity, SlotsThatHideTheContextAreRefusedIfItChoosesTheFactors) {
  for (const bool has_long_factors : {false, true}) {
    Rig rig({.geometry = geometry_of("dense"), .has_long_factors = has_long_factors});
    rig.stop_proxy();
    const Status started = rig.try_start_proxy(true);
    EXPECT_EQ(started.code(), has_long_factors ? StatusCode::kUnsupported : StatusCode::kOk) << started.to_string();
    if (!has_long_factors) continue;
    EXPECT_NE(started.message().find("--kv-unified-per-slot"), std::string::npos) << started.message();
    rig.kill_server();
    rig.start_server("fake-1", kOriginalContext + 1);  // whatever is behind it is longer, too
    EXPECT_TRUE(rig.try_start_proxy(true).is_ok());
  }
}

TEST_F(RelayIdentity, AnAdapterIsWhatItsFileHas) {
  Rig rig({.geometry = geometry_of("dense"), .has_adapter = true});
  (void)rig.ask(a_);
  restart(rig);
  EXPECT_EQ(rig.reused(a_), 384u);
  rig.write_adapter(2);
  restart(rig);
  EXPECT_EQ(rig.reused(a_), 0u);
}

TEST_F(RelayIdentity, AServerWhoseStartsLookAlikeIsRefusedUnlessItIsOurOwn) {
  for (const char* marker : {"", "<__media__>", "<__media_pinned__>"}) {
    for (const bool is_own : {false, true}) {
      SCOPED_TRACE(std::string(marker) + (is_own ? ", own" : ""));
      Rig rig({.geometry = geometry_of("dense"), .is_own = is_own});
      rig.stop_proxy();
      rig.kill_server();
      rig.pin_marker(marker);
      rig.start_server();
      const Status started = rig.try_start_proxy(false);
      EXPECT_EQ(started.code(), is_own ? StatusCode::kOk : StatusCode::kUnsupported) << started.to_string();
      if (is_own) continue;
      EXPECT_NE(started.message().find("media_marker"), std::string::npos) << started.message();
    }
  }
}

TEST_F(RelayIdentity, AServerOfOurOwnIsProvenAgainAfterItsRestart) {
  Rig rig({.geometry = geometry_of("dense"), .has_adapter = true, .is_own = true});
  rig.stop_proxy();
  rig.kill_server();
  rig.pin_marker("<__media__>");
  rig.start_server();
  rig.start_proxy();
  (void)rig.ask(a_);
  rig.wait_idle();
  rig.kill_server();
  rig.start_server();
  EXPECT_EQ(rig.reused(a_), 384u) << "it is the one that is known";
  rig.wait_idle();
  rig.kill_server();
  rig.write_adapter(2);
  rig.start_server();
  EXPECT_EQ(rig.post("/completion", {{"prompt", a_}, {"n_predict", 4}}).http, 200u);
  const std::vector<std::string> complaints = rig.server().take_complaints();
  ASSERT_EQ(complaints.size(), 1u) << "its adapter is another one, so the request goes on as it is";
  EXPECT_NE(complaints[0].find("without a slot"), std::string::npos) << complaints[0];
}

INSTANTIATE_TEST_SUITE_P(All, RelayBranches,
                         testing::Values("dense", "uneven", "sliding", "hybrid", "hybrid_rope", "hybrid_sliding",
                                         "short_convolution", "recurrent", "streams"),
                         [](const auto& one) { return std::string(one.param); });

TEST(RelayMisses, AnswersSayWhyNoMoreWasReused) {
  Rig rig({.geometry = geometry_of("hybrid")});
  const Tokens a = random_tokens(240, 1);
  EXPECT_EQ(rig.ask(a).miss, "never_seen; at_token=0");
  rig.wait_idle();
  EXPECT_EQ(rig.ask(joined(first(a, 100), random_tokens(60, 2))).miss, "no_checkpoint; at_token=0");
  rig.wait_idle();
  EXPECT_EQ(rig.ask(random_tokens(240, 3)).miss, "never_seen; at_token=0");
  rig.wait_idle();
  rig.flush();
  const Answer flushed = rig.ask(a);  // below 256 tokens storage is not asked
  EXPECT_EQ(flushed.reused, 0u);
  EXPECT_EQ(flushed.miss, "not_fetched; at_token=0");
  EXPECT_EQ(rig.metric("larder_misses_total{reason=\"never_seen\"}"), 2);
  EXPECT_EQ(rig.metric("larder_misses_total{reason=\"no_checkpoint\"}"), 1);
}

TEST(RelaySlots, StatesThatTheServerKeepsAreUsed) {
  Rig rig({.geometry = geometry_of("hybrid"), .checkpoint_offset = 4});
  const Tokens a = random_tokens(200, 1);
  EXPECT_EQ(rig.reused(a), 0u);
  const Answer again = rig.ask(a);
  EXPECT_EQ(again.reused, 196u);
  EXPECT_EQ(again.from, "slot");
}

TEST(RelaySlots, OthersHaveWhatOneHasComputed) {
  Rig rig({.geometry = geometry_of("hybrid"), .slots = 3});
  const Tokens shared = random_tokens(160, 1);
  EXPECT_EQ(rig.reused(joined(shared, random_tokens(40, 2))), 0u);
  rig.wait_idle();
  EXPECT_EQ(rig.reused(joined(shared, random_tokens(40, 3))), 0u);
  rig.wait_idle();
  for (std::uint64_t seed = 4; seed < 8; ++seed) {
    EXPECT_EQ(rig.reused(joined(shared, random_tokens(40, seed))), 160u);
  }
}

// One context for all slots, and a smaller one than the proxy believes: what idle ones hold is in the way of a restore.
TEST(RelaySlots, IdleOnesMakeRoomForARestore) {
  Rig rig({.geometry = geometry_of("dense"), .slots = 2, .shared_context = 300});
  const Tokens a = random_tokens(200, 1);
  for (const Tokens& prompt : {a, random_tokens(200, 2), random_tokens(200, 3)}) {
    (void)rig.ask(prompt);
    rig.wait_idle();
  }
  EXPECT_EQ(rig.reused(a), 192u);
  EXPECT_EQ(rig.metric("larder_proxy_failed_restores_total"), 0);
}

// A context that is shifted has rows that no prompt gives, and with like tokens nothing else tells.
TEST(RelaySlots, ThatWereShiftedAreEmptied) {
  for (const Json& limit : {Json::object(), Json{{"n_predict", 400}}, Json{{"n_predict", -1}},
                            Json{{"max_tokens", 5}, {"n_predict", -1}}, Json{{"n_predict", 156}}}) {
    SCOPED_TRACE(limit.dump());
    Rig rig({.geometry = geometry_of("dense"), .shifts_context = true});
    rig.stop_proxy();
    rig.kill_server();
    rig.start_server("fake-1", 256);
    rig.start_proxy();
    const Tokens prompt(100, 'A');
    Json body = limit;
    body["prompt"] = prompt;
    EXPECT_EQ(rig.post("/completion", body).http, 200u);
    rig.wait_idle();
    const int erased = rig.server().calls("erase");
    (void)rig.ask(joined(prompt, Tokens(20, 'A')));
    EXPECT_EQ(rig.server().calls("erase"), erased + 1);
    rig.wait_idle();
    (void)rig.ask(joined(prompt, random_tokens(20, 1)));
  }
}

// With --swa-full llama-server goes back to any token whose window begins behind a row. A slot that was composed has
// the rows of one window: within it nearly all of what such a token sees is not there, and nothing tells.
class RelayFullWindows : public testing::Test {
 protected:
  static BlobGeometry geometry() {
    BlobGeometry geometry = geometry_of("sliding");
    geometry.window_tokens = 40;
    return geometry;
  }
  Rig rig_{{.geometry = geometry(), .has_full_window = true}};
  const std::string text_ = "<user>" + std::string(124, 'p') + std::string(130, 'q') + std::string(139, 'r');
  const Tokens a_ = tokens_of_text(text_), other_ = random_tokens(400, 2);

  // The slot has 384 tokens of a_ then, from the host.
  void compose() {
    for (const Tokens& prompt : {a_, other_}) {
      (void)rig_.ask(prompt);
      rig_.wait_idle();
    }
    EXPECT_EQ(rig_.ask(joined(a_, random_tokens(20, 3))).from, "host");
    rig_.wait_idle();
  }
};

TEST_F(RelayFullWindows, OfComposedSlotsAreNotGoneBackInto) {
  compose();
  const Tokens edited = joined(first(a_, 380), random_tokens(60, 4));
  (void)rig_.ask(edited);
  rig_.wait_idle();
  (void)rig_.ask(other_);
  rig_.wait_idle();
  EXPECT_GT(rig_.reused(edited), 0u) << "and what was kept of it is right";
}

TEST_F(RelayFullWindows, WhatIsBehindTheComposedPartIsUsed) {
  compose();
  const int erased = rig_.server().calls("erase");
  (void)rig_.ask(joined(first(a_, 390), random_tokens(8, 4)));
  EXPECT_EQ(rig_.server().calls("erase"), erased);
}

TEST_F(RelayFullWindows, OfComposedSlotsAreNotForWhoGoesOnPlainly) {
  const Tokens edited = joined(first(a_, 380), random_tokens(4, 4));
  const std::string same = text_.substr(0, 379);  // one token stands before it
  compose();
  EXPECT_EQ(rig_.post("/completion", {{"prompt", Json::array({edited, edited})}, {"n_predict", 4}}).tokens,
            rig_.expected(edited));
  compose();
  const Json image = {{"prompt_string", same}, {"multimodal_data", {"aGVsbG8="}}};
  EXPECT_EQ(rig_.post("/completion", {{"prompt", image}, {"n_predict", 4}}).tokens,
            rig_.expected(joined(tokens_of_text(same), {kMedia})));
}

// It waits for a slot when all are busy, and llama-server gives it the first one that becomes free.
TEST_F(RelayFullWindows, OfComposedSlotsAreNotForMessagesWithImages) {
  for (const Tokens& prompt : {a_, other_}) {
    (void)rig_.ask(prompt);
    rig_.wait_idle();
  }
  rig_.server().hold("answer", 1);
  auto composed = std::async(std::launch::async, [&] { return rig_.ask(joined(a_, random_tokens(20, 3))); });
  ASSERT_TRUE(rig_.server().wait_held());
  const int answers = rig_.server().calls("answer");
  const std::string same = text_.substr(std::string("<user>").size(), 350);
  const Json content = Json::array({Json{{"type", "text"}, {"text", same}}, Json{{"type", "image"}}});
  const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", content}}})}, {"max_tokens", 4}};
  auto image = std::async(std::launch::async, [&] { return rig_.post("/v1/messages", body); });
  while (rig_.server().calls("answer") == answers && !rig_.has_waiting()) std::this_thread::yield();
  rig_.server().release();
  EXPECT_EQ(composed.get().from, "host");
  const Tokens prompt = joined(tokens_of_text("<user>" + same + "\n<assistant>"), {kMedia});
  EXPECT_EQ(message_text(image.get()), letters_of(rig_.expected(prompt)));
}

// Both slots hold all of its prompt. The one that it was given is emptied and computed but for the last token, and so
// llama-server takes the other one.
TEST(RelayFullWindowSlots, OfWhichTwoAreComposedAreNotGoneBackInto) {
  BlobGeometry geometry = geometry_of("sliding");
  geometry.window_tokens = 40;
  Rig rig({.geometry = geometry, .slots = 2, .has_full_window = true});
  const std::string said(340, 'p'), chat = "<user>" + said + "\n<assistant>";
  const Tokens a = tokens_of_text(chat + std::string(30, 'r'));
  for (const Tokens& prompt : {a, random_tokens(400, 2), random_tokens(400, 3)}) {
    (void)rig.ask(prompt);
    rig.wait_idle();
  }
  rig.server().hold("answer", 1);
  const auto compose = [&](std::uint64_t seed) {
    return std::async(std::launch::async, [&, seed] { return rig.ask(joined(a, random_tokens(20, seed))).from; });
  };
  auto first = compose(4), second = compose(5);
  ASSERT_TRUE(rig.server().wait_held(2));
  rig.server().release();
  EXPECT_EQ(first.get(), "host");
  EXPECT_EQ(second.get(), "host");
  rig.wait_idle();
  const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", said}}})}, {"max_tokens", 4}};
  EXPECT_EQ(message_text(rig.post("/v1/messages", body)), letters_of(rig.expected(tokens_of_text(chat))));
}

// The second answer is made in the lowest idle slot, whatever that holds.
TEST(RelaySlots, OfSeveralAnswersEmptyOthers) {
  Rig rig({.geometry = geometry_of("dense"), .slots = 3});
  const Tokens a = random_tokens(200, 1);
  (void)rig.ask(a);
  rig.wait_idle();
  (void)rig.ask(random_tokens(200, 2), {{"n", 2}});
  rig.wait_idle();
  const Answer again = rig.ask(a);
  EXPECT_EQ(again.reused, 192u);
  EXPECT_EQ(again.from, "host") << "nobody knows what is left in its slot";
}

TEST(RelaySlots, TenantsShareNothing) {
  for (const char* shape : {"dense", "hybrid"}) {
    SCOPED_TRACE(shape);
    Rig rig({.geometry = geometry_of(shape), .checkpoint_offset = 4});
    const Tokens a = random_tokens(200, 1);
    EXPECT_EQ(rig.ask(a, {{"cache_salt", "me"}}).reused, 0u);
    rig.wait_idle();
    const Answer you = rig.ask(a, {{"cache_salt", "you"}});
    EXPECT_EQ(you.reused, 0u);
    EXPECT_LE(you.body.at("timings").at("cache_n"), 192) << "what was computed for it just now, and no more";
    rig.wait_idle();
    EXPECT_EQ(rig.ask(a, {{"cache_salt", "me"}}).reused, 192u);
  }
}

TEST(RelayChats, SystemPromptsAreRestorePointsBeforeAnybodyElseCame) {
  Rig rig({.geometry = geometry_of("hybrid")});
  const std::string system(150, 's');
  const auto chat = [&](const std::string& question) {
    const Json body = {{"messages", Json::array({Json{{"role", "system"}, {"content", system}},
                                                 Json{{"role", "user"}, {"content", question}}})},
                       {"max_tokens", 4}};
    const Answer answer = rig.post("/v1/chat/completions", body);
    EXPECT_EQ(answer.http, 200u) << answer.body.dump();
    const std::string text = "<system>" + system + "\n<user>" + question + "\n<assistant>";
    std::string expected;
    for (const TokenId token : rig.expected(tokens_of_text(text))) expected += static_cast<char>(token);
    EXPECT_EQ(answer.body.at("choices")[0].at("message").at("content"), expected);
    rig.wait_idle();
    return answer.reused.value_or(0);
  };
  EXPECT_EQ(chat(std::string(90, 'x')), 0u);
  EXPECT_EQ(chat(std::string(90, 'y')), 160u);  // <system>, 150 and a line's end are 159, and one token before them
}

// /v1/messages names no slot: the prompt is led to the one that the server takes.
TEST(RelayChats, MessagesFindTheirSlot) {
  for (const char* shape : {"dense", "hybrid"}) {
    SCOPED_TRACE(shape);
    Rig rig({.geometry = geometry_of(shape), .slots = 2});
    const auto say = [&](const std::string& text) {
      const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}, {"max_tokens", 4}};
      const Answer answer = rig.post("/v1/messages", body);
      EXPECT_EQ(message_text(answer), letters_of(rig.expected(tokens_of_text("<user>" + text + "\n<assistant>"))));
      rig.wait_idle();
      return answer.reused.value_or(0);
    };
    const std::string shared(130, 'm');
    EXPECT_EQ(say(shared + std::string(66, 'a')), 0u);
    (void)say(std::string(100, 'z'));
    (void)say(shared + std::string(66, 'b'));
    EXPECT_EQ(say(shared + std::string(66, 'c')), rig.geometry().has_partial_form() ? 128u : 137u);
    EXPECT_EQ(rig.metric("larder_proxy_other_slots_total"), 0);
  }
}

}  // namespace
}  // namespace larder::llama::relay_test
