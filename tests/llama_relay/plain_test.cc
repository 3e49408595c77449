// SPDX-License-Identifier: Apache-2.0
// Requests whose prompt is not looked at go on as they are, and are counted.
#include <future>
#include <thread>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

class RelayPlain : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid"), .slots = 2}};
  const Tokens a_ = random_tokens(200, 1);

  [[nodiscard]] double plain(const std::string& reason) const {
    return rig_.metric("larder_proxy_requests_total{how=\"" + reason + "\"}");
  }
};

TEST_F(RelayPlain, WithoutCaching) {
  const Answer answer = rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}, {"cache_prompt", false}});
  EXPECT_EQ(answer.tokens, rig_.expected(a_));
  EXPECT_FALSE(answer.reused.has_value());
  EXPECT_EQ(plain("no_caching"), 1);
  rig_.wait_idle();
  EXPECT_EQ(rig_.server().calls("save"), 2) << "those of the probe";
}

TEST_F(RelayPlain, WithImages) {
  const Json image = {{"prompt_string", "what is this?"}, {"multimodal_data", {"aGVsbG8="}}};
  const Json chat = Json::array({Json{
      {"role", "user"},
      {"content", Json::array({Json{{"type", "text"}, {"text", "what is this?"}}, Json{{"type", "image_url"}}})}}});
  (void)rig_.ask(random_tokens(200, 3));  // the proxy knows what is in both slots
  (void)rig_.ask(random_tokens(200, 4));
  EXPECT_EQ(rig_.post("/completion", {{"prompt", image}, {"n_predict", 4}}).http, 200u);
  EXPECT_EQ(rig_.post("/v1/chat/completions", {{"messages", chat}, {"max_tokens", 4}}).http, 200u);
  EXPECT_EQ(plain("media"), 2);
  rig_.wait_idle();
  (void)rig_.ask(a_);
  (void)rig_.ask(random_tokens(200, 2));
  rig_.wait_idle();
  EXPECT_EQ(rig_.metric("larder_proxy_saves_total{outcome=\"saved\"}"), 4) << "slots with images were emptied first";
}

TEST_F(RelayPlain, WithSeveralPrompts) {
  const Json body = {{"prompt", Json::array({a_, a_})}, {"n_predict", 4}};
  EXPECT_EQ(rig_.post("/completion", body).tokens, rig_.expected(a_));
  EXPECT_EQ(plain("several_prompts"), 1);
}

TEST_F(RelayPlain, WithMoreAnswersThanSlots) {
  EXPECT_EQ(rig_.post("/completion", {{"prompt", a_}, {"n", 3}}).http, 400u);
  EXPECT_EQ(plain("too_many_answers"), 1);
}

TEST_F(RelayPlain, WithPromptsThatFitNoSlot) {
  const Tokens longer = random_tokens(1100, 3);
  EXPECT_EQ(rig_.post("/completion", {{"prompt", longer}, {"n_predict", 4}}).http, 400u);
  EXPECT_EQ(plain("not_understood"), 1);
}

// Its document, copied, would end the process.
TEST_F(RelayPlain, WithNestingThatIsTooDeep) {
  constexpr std::size_t kLevels = 100'000;
  const std::string deep = R"({"prompt":[1],"x":)" + std::string(kLevels, '[') + std::string(kLevels, ']') + "}";
  HttpClient client(rig_.url(), std::chrono::seconds(20));
  EXPECT_TRUE(client.request("POST", "/completion", deep).is_ok());
  EXPECT_EQ(plain("not_understood"), 1);
  rig_.wait_idle();
  (void)rig_.ask(a_);
}

// Of a server that cannot be asked who it is nothing is known afterwards: it chose the slot.
TEST(RelayUnchecked, RequestsLeaveSlotsOfWhichNothingIsKnown) {
  Rig rig({.geometry = geometry_of("dense")});
  const Tokens a = random_tokens(200, 1);
  (void)rig.ask(a);
  rig.wait_idle();
  rig.server().fail("props", Fault::kRefuse);
  const Json chat = {{"messages", Json::array({Json{{"role", "user"}, {"content", "a"}}})}, {"max_tokens", 4}};
  EXPECT_EQ(rig.post("/v1/messages", chat).http, 200u);
  const int erased = rig.server().calls("erase");
  EXPECT_EQ(rig.ask(a).from, "host");
  EXPECT_EQ(rig.server().calls("erase"), erased + 1);
}

// As no salt at all it would share with everybody.
TEST_F(RelayPlain, WithASaltThatIsNoText) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  const Answer answer = rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}, {"cache_salt", 7}});
  EXPECT_EQ(answer.tokens, rig_.expected(a_));
  EXPECT_FALSE(answer.reused.has_value());
  EXPECT_EQ(plain("not_understood"), 1);
}

// Only who has the same salt shares anything: neither the time that a prompt takes nor "cache_n" tells of another's.
TEST(RelayPlainSlots, UseNothingOfAnotherTenant) {
  Rig rig({.geometry = geometry_of("dense")});
  const std::string text(200, 'q');
  const auto cached = [&](const Json& prompt, const Json& salt) {
    const Answer answer = rig.post("/completion", {{"prompt", prompt}, {"n_predict", 4}, {"cache_salt", salt}});
    EXPECT_EQ(answer.http, 200u) << answer.body.dump();
    rig.wait_idle();
    return answer.body.at("timings").at("cache_n").get<int>();
  };
  const Json image = {{"prompt_string", text}, {"multimodal_data", {"aGVsbG8="}}};
  (void)cached(text, "me");
  EXPECT_EQ(cached(text, 7), 0);
  EXPECT_EQ(cached(text, 7), 0) << "who gives no text shares with nobody";
  (void)cached(text, "me");
  EXPECT_EQ(cached(image, "you"), 0);
  EXPECT_EQ(cached(image, "you"), 201) << "its own";
  EXPECT_EQ(cached(image, "me"), 0);
  EXPECT_EQ(cached(image, nullptr), 0);
}

// Such a server has no slots of ours, but those of its own.
TEST(RelayPlainSlots, OfAServerThatIsRefusedShowNoTenantAnothers) {
  Rig rig({.geometry = geometry_of("dense")});
  rig.kill_server();
  rig.start_server("fake-2");
  const auto cached = [&](const Json& salt) {
    const Json body = {{"prompt", std::string(200, 'q')}, {"n_predict", 4}, {"cache_salt", salt}};
    return rig.post("/completion", body).body.at("timings").at("cache_n").get<int>();
  };
  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached(nullptr), 200) << "there is one tenant";
  EXPECT_EQ(cached("you"), 0);
  EXPECT_EQ(cached(nullptr), 0);
  (void)rig.server().take_complaints();  // all of them were sent without a slot
}

// llama-server reads deeper nesting than the proxy, and such a body cannot be told what it may use.
class RelayDeepBodies : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("dense")}};

  [[nodiscard]] int cached(const Json& salt, bool is_deep) const {
    Json nested = Json::array();
    for (int i = 0; i < 70; ++i) nested = Json::array({nested});
    Json body = {{"prompt", std::string(200, 'q')}, {"n_predict", 4}, {"cache_salt", salt}};
    if (is_deep) body["samplers"] = nested;
    const Answer answer = rig_.post("/completion", body);
    EXPECT_EQ(answer.http, 200u) << answer.body.dump();
    rig_.wait_idle();
    return answer.body.at("timings").at("cache_n").get<int>();
  }
};

TEST_F(RelayDeepBodies, HaveNothingOfAnotherTenant) {
  (void)cached("me", false);
  EXPECT_EQ(cached("you", true), 0);
  EXPECT_EQ(cached("you", true), 0) << "who shares with nobody";
  (void)rig_.server().take_complaints();  // it was sent without a slot
}

TEST_F(RelayDeepBodies, LeaveNothingToAnotherTenant) {
  (void)cached("me", true);
  EXPECT_EQ(cached("you", true), 0);
  (void)rig_.server().take_complaints();
}

TEST_F(RelayDeepBodies, HaveNothingOfAnotherTenantOfAServerThatIsRefused) {
  rig_.kill_server();
  rig_.start_server("fake-2");
  (void)cached("me", false);
  EXPECT_EQ(cached("you", true), 0);
  (void)rig_.server().take_complaints();
}

// From the first tenant on nothing is shared in slots that llama-server chooses: nobody may bring that about who has no
// key.
TEST(RelayPlainSlots, ArePartedByNobodyWhoIsNotLetIn) {
  Rig rig({.geometry = geometry_of("dense"), .key = "secret"});
  rig.kill_server();
  rig.start_server("fake-2");
  const auto post = [&](const Json& salt, const std::string& key) {
    const Json body = {{"prompt", std::string(200, 'q')}, {"n_predict", 4}, {"cache_salt", salt}};
    return rig.post("/completion", body, {{"Authorization", "Bearer " + key}});
  };
  (void)post(nullptr, "secret");
  EXPECT_EQ(post("you", "another").http, 401u);
  EXPECT_EQ(post(nullptr, "secret").body.at("timings").at("cache_n"), 200);
  EXPECT_EQ(post("you", "secret").body.at("timings").at("cache_n"), 0);
  EXPECT_EQ(post(nullptr, "secret").body.at("timings").at("cache_n"), 0) << "who is let in may";
  (void)rig.server().take_complaints();
}

// Those that name no slot: llama-server takes the one that begins most like them.
class RelayChosenSlots : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("dense"), .slots = 2}};
  const std::string text_ = std::string(200, 'q');
  const Json image_ = Json::array({Json{{"type", "text"}, {"text", text_}}, Json{{"type", "image"}}});

  // How many of its tokens were in the slot.
  [[nodiscard]] int cached(const Json& content, const Json& salt) const {
    const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", content}}})},
                       {"max_tokens", 4},
                       {"cache_salt", salt}};
    const Answer answer = rig_.post("/v1/messages", body);
    EXPECT_EQ(answer.http, 200u) << answer.body.dump();
    return answer.body.at("usage").at("cache_read_input_tokens").get<int>();
  }
};

TEST_F(RelayChosenSlots, HaveNothingOfAnotherTenant) {
  (void)cached(text_, "me");
  EXPECT_EQ(cached(image_, "you"), 0);
  EXPECT_GT(cached(image_, "you"), 200) << "its own";
  EXPECT_EQ(cached(image_, nullptr), 0);
  EXPECT_EQ(cached(image_, 7), 0);
  EXPECT_EQ(cached(image_, 7), 0) << "who gives no text shares with nobody";
  (void)rig_.post("/completion", {{"prompt", text_}, {"n_predict", 4}, {"cache_salt", "me"}});
  const Tokens prompt = tokens_of_text(text_);
  const Json prompts = {{"prompt", Json::array({prompt, prompt})}, {"n_predict", 4}};
  EXPECT_EQ(rig_.post("/completion", prompts).body.at("timings").at("cache_n"), 0);
}

TEST_F(RelayChosenSlots, AreThoseOfAllWhereThereIsOneTenant) {
  (void)cached(text_, nullptr);
  rig_.wait_idle();
  EXPECT_GT(cached(image_, nullptr), 200);
  EXPECT_GT(cached(image_, nullptr), 200);
  rig_.wait_idle();
  EXPECT_EQ(rig_.metric("larder_proxy_requests_total{how=\"media\"}"), 2);
}

// Of two slots one is free, and llama-server would wait for neither.
TEST_F(RelayChosenSlots, AreAllOfThemWhereThereAreTenants) {
  (void)cached(text_, "me");
  rig_.server().hold("answer", 1);
  auto first = std::async(std::launch::async, [&] { return cached(text_ + "1", "me"); });
  ASSERT_TRUE(rig_.server().wait_held());
  const int answers = rig_.server().calls("answer");
  auto second = std::async(std::launch::async, [&] { return cached(image_, "you"); });
  while (rig_.server().calls("answer") == answers && !rig_.has_waiting()) std::this_thread::yield();
  EXPECT_EQ(rig_.server().calls("answer"), answers);
  rig_.server().release();
  (void)first.get();
  EXPECT_EQ(second.get(), 0);
}

TEST_F(RelayChosenSlots, ThatCannotBeEmptiedAnswerNobody) {
  (void)cached(text_, "me");
  rig_.server().fail("erase", Fault::kRefuse);
  const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", image_}}})},
                     {"max_tokens", 4},
                     {"cache_salt", "you"}};
  const int answers = rig_.server().calls("answer");
  EXPECT_EQ(rig_.post("/v1/messages", body).http, 502u);
  EXPECT_EQ(rig_.server().calls("answer"), answers);
  EXPECT_EQ(cached(image_, "you"), 0);
}

// Nor one whose prompt is known: /v1/messages cannot be told to use nothing of its slot.
TEST_F(RelayChosenSlots, ThatCannotBeEmptiedAnswerNoKnownPrompt) {
  (void)cached(text_, "me");
  rig_.wait_idle();
  rig_.server().fail("erase", Fault::kRefuse, 9);
  const Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", text_}}})},
                     {"max_tokens", 4},
                     {"cache_salt", "you"}};
  const int answers = rig_.server().calls("answer");
  EXPECT_EQ(rig_.post("/v1/messages", body).http, 502u);
  EXPECT_EQ(rig_.server().calls("answer"), answers);
  rig_.wait_idle();
  rig_.server().fail("erase", Fault::kRefuse, 1);
  (void)cached(text_, "you");  // the second try empties it
}

// llama-server itself goes on from them.
TEST(RelayPlainSlots, UseNothingOfAnAdapter) {
  Rig rig({.geometry = geometry_of("dense")});
  const Tokens a = random_tokens(200, 1);
  const Json lora = Json::array({Json{{"id", 0}, {"scale", 1.0}}});
  for (const Json& plain : {Json{{"prompt", a}, {"cache_salt", 7}, {"n_predict", 4}},
                            Json{{"prompt", Json::array({a, a})}, {"n_predict", 4}}}) {
    EXPECT_EQ(rig.post("/completion", {{"prompt", a}, {"n_predict", 4}, {"lora", lora}}).http, 200u);
    rig.wait_idle();
    EXPECT_EQ(rig.post("/completion", plain).tokens, rig.expected(a));
    rig.wait_idle();
  }
}

// The second answer is made in whichever slot is idle: one that another request has, too, and saves next.
TEST(RelayPlainSlots, OfSeveralAnswersWithAnAdapterAreNobodyElses) {
  Rig rig({.geometry = geometry_of("dense"), .slots = 2});
  const Tokens a = random_tokens(200, 1);
  const Json adapted = {{"prompt", a}, {"n", 2}, {"n_predict", 4}, {"lora", Json::array({Json{{"scale", 1.0}}})}};
  rig.server().hold("answer", 2);
  auto base = std::async(std::launch::async, [&] { return rig.ask(a); });
  ASSERT_TRUE(rig.server().wait_held());
  const int answers = rig.server().calls("answer");
  auto other = std::async(std::launch::async, [&] { return rig.post("/completion", adapted); });
  while (rig.server().calls("answer") == answers && !rig.has_waiting()) std::this_thread::yield();
  rig.server().release();
  (void)base.get();
  EXPECT_EQ(other.get().http, 200u);
  rig.wait_idle();
  for (const std::uint64_t seed : {2, 3}) {
    (void)rig.ask(random_tokens(200, seed));
    rig.wait_idle();
  }
  EXPECT_EQ(rig.ask(a).reused, 192u);
}

// llama-server drops it, and would take a path for another than the proxy does.
TEST_F(RelayPlain, TargetsHaveNoFragment) {
  const int answers = rig_.server().calls("answer");
  for (const char* target : {"/completion#", "/slots/0?action=restore#x"}) {
    EXPECT_EQ(rig_.post(target, {{"prompt", a_}, {"n_predict", 4}}).http, 400u) << target;
  }
  EXPECT_EQ(rig_.server().calls("answer"), answers);
}

TEST_F(RelayPlain, OtherRoutesPass) {
  EXPECT_EQ(rig_.post("/v1/nothing", {{"a", 1}}).http, 404u);
  EXPECT_EQ(rig_.post("/tokenize", {{"content", "ab"}, {"add_special", true}, {"parse_special", true}}).tokens,
            (Tokens{256, 'a', 'b'}));
  HttpClient client(rig_.url(), std::chrono::seconds(20));
  const auto health = client.request("GET", "/health");
  ASSERT_TRUE(health.is_ok());
  EXPECT_EQ(health->body, R"({"status":"ok"})");
}

TEST_F(RelayPlain, TextIsWhatTheServerMakesOfIt) {
  const std::string text(100, 'q');
  std::string expected;
  for (const TokenId token : rig_.expected(tokens_of_text(text))) expected += static_cast<char>(token);
  for (const std::uint64_t reused : {0u, 96u}) {
    const Answer answer = rig_.post("/v1/completions", {{"prompt", text}, {"max_tokens", 4}});
    EXPECT_EQ(answer.body.at("choices")[0].at("text"), expected);
    EXPECT_EQ(answer.reused, reused);
    rig_.wait_idle();
  }
  EXPECT_EQ(rig_.metric("larder_proxy_prompt_mismatches_total"), 0);
}

}  // namespace
}  // namespace larder::llama::relay_test
