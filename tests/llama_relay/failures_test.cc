// SPDX-License-Identifier: Apache-2.0
// Saves and restores that fail cost time: the answer is the same, and nothing is left behind.
#include <atomic>
#include <future>
#include <thread>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

constexpr Nanos kSoon = std::chrono::milliseconds(300);

class RelayFailures : public testing::TestWithParam<Fault> {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid")}};
  const Tokens a_ = random_tokens(200, 1), other_ = random_tokens(200, 2);

  [[nodiscard]] double saves(const std::string& outcome) const {
    return rig_.metric("larder_proxy_saves_total{outcome=\"" + outcome + "\"}");
  }
};

TEST_P(RelayFailures, OfASaveCostReuseOnly) {
  rig_.server().fail("save", GetParam());
  EXPECT_EQ(rig_.reused(a_), 0u);
  rig_.wait_idle();
  EXPECT_EQ(saves("saved"), 0);
  EXPECT_EQ(saves(GetParam() == Fault::kOtherToken ? "other_slot" : "refused"), 1);
  EXPECT_EQ(rig_.reused(other_), 0u);
  rig_.wait_idle();
  EXPECT_EQ(rig_.reused(a_), 0u) << "nothing of it was kept";
  rig_.wait_idle();
  EXPECT_EQ(rig_.reused(other_), 192u);
  rig_.wait_idle();
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{"larder-restore-0.slot"});
}

INSTANTIATE_TEST_SUITE_P(All, RelayFailures,
                         testing::Values(Fault::kRefuse, Fault::kDrop, Fault::kOtherToken, Fault::kCut));

class RelayRestores : public RelayFailures {};

TEST_P(RelayRestores, ThatFailAreComputed) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  (void)rig_.ask(other_);
  rig_.wait_idle();
  rig_.server().fail("restore", GetParam());
  EXPECT_EQ(rig_.reused(a_), 0u);
  EXPECT_EQ(rig_.metric("larder_proxy_failed_restores_total"), 1);
  rig_.wait_idle();
  (void)rig_.ask(other_);
  EXPECT_EQ(rig_.reused(a_), 192u) << "the next one may succeed";
}

INSTANTIATE_TEST_SUITE_P(All, RelayRestores, testing::Values(Fault::kRefuse, Fault::kDrop));

TEST_F(RelayFailures, OfAPrefillCostReuseOnly) {
  for (const Fault fault : {Fault::kRefuse, Fault::kDrop}) {
    rig_.server().fail("prefill", fault);
    EXPECT_EQ(rig_.reused(a_), 0u);
    rig_.wait_idle();
    EXPECT_EQ(saves("saved"), 0);
  }
}

TEST_F(RelayFailures, AnswersThatFailAreTheServers) {
  rig_.server().fail("answer", Fault::kRefuse);
  const Json body = {{"prompt", a_}, {"n_predict", 4}};
  const Answer refused = rig_.post("/completion", body);
  EXPECT_EQ(refused.http, 500u);
  EXPECT_EQ(refused.body.at("error").at("message"), "not today");
  rig_.server().fail("answer", Fault::kDrop);
  EXPECT_FALSE(rig_.post("/completion", body).status.is_ok());
  rig_.wait_idle();
  (void)rig_.ask(a_);
}

// Its head said 200.
TEST_F(RelayFailures, StreamsThatEndInAnErrorHaveFailed) {
  rig_.server().fail("answer", Fault::kErrorEvent);
  EXPECT_EQ(rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}, {"stream", true}}).http, 200u);
  rig_.wait_idle();
  EXPECT_EQ(rig_.metric("larder_proxy_failed_requests_total"), 1);
  const auto recent = HttpClient(rig_.url(), std::chrono::seconds(20)).request("GET", "/larder/recent");
  ASSERT_TRUE(recent.is_ok());
  const Json last = Json::parse(recent->body).at("requests")[0];
  EXPECT_EQ(last.at("finish"), "error") << last.dump();
  const Answer again = rig_.ask(a_);
  EXPECT_EQ(again.from, "host") << "its slot is empty";
  EXPECT_LE(again.reused, again.body.at("timings").at("cache_n").get<std::uint64_t>());
}

// A slot's file of restores stays, for the next one. Where it is in the way it goes.
TEST(RelayFullFolder, FilesOfRestoresMakeRoomForOthers) {
  Rig rig({.geometry = geometry_of("dense"), .slots = 4});
  std::vector<Tokens> prompts;
  for (std::uint64_t i = 0; i < 4; ++i) {
    (void)rig.ask(prompts.emplace_back(random_tokens(200, 10 + i)));
    rig.wait_idle();
  }
  rig.server().replace();
  EXPECT_EQ(rig.ask(prompts[0]).from, "host");
  rig.wait_idle();
  const std::uint64_t one = rig.folder().used_bytes();
  EXPECT_GT(one, 0u);
  rig.folder().limit(one + one / 2);
  for (const std::size_t i : {1u, 2u, 3u}) {
    EXPECT_EQ(rig.ask(prompts[i]).from, "host") << "its file takes the place of the one before";
    rig.wait_idle();
  }
  EXPECT_EQ(rig.slot_files().size(), 1u);
  const std::string refused = "larder_proxy_saves_total{outcome=\"refused\"}";
  const double saved = rig.metric("larder_proxy_saves_total{outcome=\"saved\"}");
  (void)rig.ask(random_tokens(190, 20));
  rig.wait_idle();
  EXPECT_EQ(rig.metric(refused), 0);
  EXPECT_EQ(rig.metric("larder_proxy_saves_total{outcome=\"saved\"}"), saved + 1);
  EXPECT_EQ(rig.metric("larder_proxy_failed_restores_total"), 0);

  rig.folder().limit(one / 2);  // no file fits
  (void)rig.ask(random_tokens(190, 21));
  rig.wait_idle();
  EXPECT_EQ(rig.metric(refused), 1);
  EXPECT_EQ(rig.slot_files(), std::vector<std::string>{}) << "nothing is left that is of no use";
}

// With --slot-dir the folder is not the proxy's, and it may be memory.
TEST_F(RelayFailures, FilesOfRestoresGoWithTheProxy) {
  for (const Tokens& prompt : {a_, other_}) {
    (void)rig_.ask(prompt);
    rig_.wait_idle();
  }
  EXPECT_EQ(rig_.reused(a_), 192u);
  EXPECT_FALSE(rig_.slot_files().empty());
  rig_.stop_proxy();
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{});
}

// What nobody knows of a slot is not built on: it is emptied.
TEST_F(RelayFailures, SlotsOfUnknownContentAreEmptied) {
  rig_.server().fail("answer", Fault::kDrop);
  (void)rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}});
  rig_.wait_idle();
  const int erased = rig_.server().calls("erase");
  (void)rig_.ask(random_tokens(100, 3));
  EXPECT_EQ(rig_.server().calls("erase"), erased + 1);
  rig_.server().fail("answer", Fault::kDrop);
  (void)rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}});
  rig_.wait_idle();
  rig_.server().fail("erase", Fault::kRefuse);
  const int saved = rig_.server().calls("save");
  (void)rig_.ask(other_);
  rig_.wait_idle();
  EXPECT_EQ(rig_.server().calls("save"), saved) << "nothing is kept of a slot that was not emptied";
}

// Adapters are changed while a request waits for its slot: what it computes then is not the old ones' any more.
TEST(RelayAdapters, ThatChangeWhileARequestWaits) {
  Rig rig({.geometry = geometry_of("hybrid")});
  const Tokens first = random_tokens(200, 1), second = random_tokens(200, 2);
  const Json body = {{"prompt", second}, {"n_predict", 4}, {"return_tokens", true}};
  rig.server().hold("answer", 1);
  auto runs = std::async(std::launch::async, [&] { (void)rig.ask(first); });
  ASSERT_TRUE(rig.server().wait_held());
  auto waits = std::async(std::launch::async, [&] { return rig.post("/completion", body); });
  const auto is_waiting = [&] {
    return HttpClient(rig.url(), kSoon).request("GET", "/larder/status").value_or({}).body.find("\"waiting\":1") !=
           std::string::npos;
  };
  while (!is_waiting()) std::this_thread::yield();
  const int saved = rig.server().calls("save");
  HttpClient client(rig.url(), std::chrono::seconds(20));
  ASSERT_EQ(client.request("POST", "/lora-adapters", R"([{"id":0,"scale":0.5}])").value_or({}).status, 200u);
  rig.server().release();
  runs.wait();
  const Answer answer = waits.get();
  EXPECT_EQ(answer.tokens, rig.expected(second));
  EXPECT_FALSE(answer.reused.has_value()) << "it went on as it was";
  rig.wait_idle();
  EXPECT_EQ(rig.server().calls("save"), saved) << "nothing of it is kept";
  Json pinned = body;
  pinned["id_slot"] = 0;  // or the server says that it has none
  EXPECT_FALSE(rig.post("/completion", pinned).reused.has_value())
      << "nor is anything given to the server from then on";
}

// --max-requests: as many again wait for their turn, so that a client which has its answer may come again at once.
TEST(RelayFull, AsManyAgainWaitAndFurtherOnesAreRefused) {
  Rig rig({.geometry = geometry_of("hybrid"), .workers = 1});
  std::atomic<int> refused = 0;
  const auto ask = [&](std::uint64_t seed) {
    return std::async(std::launch::async, [&rig, &refused, seed] {
      const Answer answer = rig.post("/completion", {{"prompt", random_tokens(200, seed)}, {"n_predict", 4}});
      if (answer.http == 503) ++refused;
      return answer.http;
    });
  };
  rig.server().hold("answer");
  auto runs = ask(1);
  ASSERT_TRUE(rig.server().wait_held());
  auto one = ask(2), other = ask(3);
  while (refused == 0) std::this_thread::yield();
  rig.server().release();
  EXPECT_EQ(runs.get(), 200u);
  EXPECT_EQ(one.get() + other.get(), 200u + 503u);
}

// A server whose adapters were touched is proven again with all of its slots. An answer that takes long holds one of
// them: others need not wait for its end.
TEST(RelayAdapters, ThatChangeWhileAnAnswerIsMadeHoldNobodyUp) {
  Rig rig({.geometry = geometry_of("hybrid"), .slots = 2, .slots_limit = std::chrono::milliseconds(1)});
  const Tokens first = random_tokens(200, 1), second = random_tokens(200, 2);
  const auto ask = [&](const Tokens& prompt, int slot) {
    const Json body = {{"prompt", prompt}, {"n_predict", 4}, {"return_tokens", true}, {"id_slot", slot}};
    return std::async(std::launch::async, [&rig, body] { return rig.post("/completion", body); });
  };
  rig.server().hold("answer");
  auto runs = ask(first, 0);
  ASSERT_TRUE(rig.server().wait_held());
  HttpClient client(rig.url(), std::chrono::seconds(20));
  const int saved = rig.server().calls("save");
  ASSERT_EQ(client.request("POST", "/lora-adapters", "[]").value_or({}).status, 200u);
  auto plain = ask(second, 1);
  EXPECT_TRUE(rig.server().wait_held(2)) << "it does not wait for the first one's slot";
  rig.server().release();
  EXPECT_EQ(runs.get().tokens, rig.expected(first));
  const Answer answer = plain.get();
  EXPECT_EQ(answer.tokens, rig.expected(second));
  EXPECT_FALSE(answer.reused.has_value()) << "it went on as it was";
  rig.wait_idle();
  EXPECT_EQ(rig.server().calls("save"), saved) << "nothing of both is kept from then on";
  EXPECT_TRUE(rig.ask(second).reused.has_value()) << "with all slots free it has been proven";
}

// Behind one address another server may take over at any time, of another model perhaps, which would take our pages for
// its own.
class RelayReplaced : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid")}};
  const Tokens a_ = random_tokens(200, 1), other_ = random_tokens(200, 2);

  // Asks, and has the server replaced before the call is answered.
  void ask_meanwhile(const std::string& call, const Tokens& prompt) {
    rig_.server().hold(call);
    auto asks = std::async(std::launch::async, [&] { return rig_.post("/completion", {{"prompt", prompt}}); });
    ASSERT_TRUE(rig_.server().wait_held());
    rig_.server().replace();
    rig_.server().release();
    EXPECT_EQ(asks.get().http, 200u);
    rig_.wait_idle();
  }
};

TEST_F(RelayReplaced, BeforeARestoreIsGivenNothing) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  rig_.server().fail("answer", Fault::kDrop);
  (void)rig_.post("/completion", {{"prompt", other_}, {"n_predict", 4}});  // what is in the slot is not known then
  rig_.wait_idle();
  const int restored = rig_.server().calls("restore");
  ask_meanwhile("erase", a_);
  EXPECT_EQ(rig_.server().calls("restore"), restored);
  EXPECT_EQ(rig_.ask(a_).from, "host") << "it has been proven";
}

TEST_F(RelayReplaced, BeforeASaveGivesNothing) {
  ask_meanwhile("prompt", a_);
  EXPECT_EQ(rig_.metric("larder_proxy_saves_total{outcome=\"saved\"}"), 0);
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{});
  EXPECT_EQ(rig_.reused(a_), 0u);
}

class RelayHangs : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid"), .quiet_limit = kSoon}};
  const Tokens a_ = random_tokens(200, 1), other_ = random_tokens(200, 2);
};

TEST_F(RelayHangs, OfARestoreEndAtTheLimit) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  (void)rig_.ask(other_);
  rig_.wait_idle();
  rig_.server().hold("restore");
  const Answer late = rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}});
  EXPECT_EQ(late.http, 502u) << "its slot is busy for longer than the limit, too: " << late.body.dump();
  EXPECT_NE(late.body.dump().find("larder proxy: "), std::string::npos);
  rig_.wait_idle();
  rig_.server().release();
  (void)rig_.ask(a_);
}

TEST_F(RelayHangs, OfASaveEndAtTheLimit) {
  rig_.server().hold("save");
  EXPECT_EQ(rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}}).http, 502u);
  rig_.wait_idle();
  rig_.server().release();
  (void)rig_.ask(a_);
  rig_.wait_idle();
  (void)rig_.ask(other_);
  rig_.wait_idle();
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{}) << "of the save that came too late";
}

// A client that leaves after `calls` of its kind wait.
class Leaver {
 public:
  Leaver(const Rig& rig, const Tokens& prompt)
      : client_(rig.url(), std::chrono::seconds(20)), body_(Json{{"prompt", prompt}, {"n_predict", 4}}.dump()) {}
  ~Leaver() {
    client_.cancel();
    asks_.wait();
  }
  Leaver(const Leaver&) = delete;
  Leaver& operator=(const Leaver&) = delete;

 private:
  HttpClient client_;
  const std::string body_;
  std::future<void> asks_ =
      std::async(std::launch::async, [this] { (void)client_.request("POST", "/completion", body_); });
};

class RelayLeavers : public testing::Test {
 protected:
  Rig rig_{{.geometry = geometry_of("hybrid")}};
  const Tokens a_ = random_tokens(200, 1), other_ = random_tokens(200, 2), third_ = random_tokens(200, 3);

  void keep_both() {
    for (const Tokens& prompt : {a_, other_, third_}) {
      (void)rig_.ask(prompt);
      rig_.wait_idle();
    }
  }
};

TEST_F(RelayLeavers, WhileTheirSlotIsSavedLeaveNoFile) {
  rig_.server().hold("save");
  {
    const Leaver leaver(rig_, a_);
    ASSERT_TRUE(rig_.server().wait_held());
  }
  rig_.wait_idle();
  rig_.server().release();
  (void)rig_.ask(other_);
  rig_.wait_idle();
  (void)rig_.ask(third_);
  rig_.wait_idle();
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{});
}

TEST_F(RelayLeavers, WhileTheirSlotIsSavedLeaveNoFileToTheNextProxy) {
  rig_.server().hold("save");
  {
    const Leaver leaver(rig_, a_);
    ASSERT_TRUE(rig_.server().wait_held());
  }
  rig_.wait_idle();
  rig_.server().release();
  const Json plain = {{"prompt", a_}, {"n_predict", 4}, {"cache_prompt", false}};
  EXPECT_EQ(rig_.post("/completion", plain).http, 200u);  // in the only slot: the file is written then
  rig_.stop_proxy();
  EXPECT_EQ(rig_.slot_files(), std::vector<std::string>{});
}

// The file of a restore that nobody waits for any more is written over, while the server reads it; and the one who did
// that leaves, too. What is in the slot then was never computed.
TEST_F(RelayLeavers, WhileTheirSlotIsRestoredLeaveNothingWrongInIt) {
  keep_both();
  rig_.server().hold("restore");
  {
    const Leaver leaver(rig_, a_);
    ASSERT_TRUE(rig_.server().wait_held());
  }
  rig_.wait_idle();
  {
    const Leaver leaver(rig_, other_);
    ASSERT_TRUE(rig_.server().wait_queued());
  }
  rig_.wait_idle();
  rig_.server().release();
  rig_.flush();  // or the slot is restored again
  (void)rig_.ask(joined(a_, random_tokens(20, 4)));
}

}  // namespace
}  // namespace larder::llama::relay_test
