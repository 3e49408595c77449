// SPDX-License-Identifier: Apache-2.0
// Who stands behind the proxy is proven again after a restart, a sleep or a change of its adapters. A proof that fails
// is not forgotten, and does not end the cache; nor does a server that is another one for a while.
#include <future>
#include <thread>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

Json body_of(const Tokens& prompt) { return {{"prompt", prompt}, {"n_predict", 4}}; }

class RelayIdentified : public testing::Test {
 protected:
  const Tokens a_ = random_tokens(200, 1), other_ = random_tokens(200, 2);

  void ask_all(Rig& rig) const {
    for (const Tokens& prompt : {a_, other_}) {
      (void)rig.ask(prompt);
      rig.wait_idle();
    }
  }
  // Its adapter is another one by now: nothing that was kept may be given.
  void expect_refused(Rig& rig) const {
    EXPECT_FALSE(rig.post("/completion", body_of(a_)).reused.has_value());
    rig.wait_idle();
    (void)rig.server().take_complaints();  // it goes on as it is, without a slot
  }
};

// It may load its model, and another adapter with it, for longer than the proxy waits for an answer.
TEST_F(RelayIdentified, AProofAfterASleepThatFailsIsMadeAgain) {
  Rig rig({.geometry = geometry_of("dense"), .has_adapter = true});
  ask_all(rig);
  rig.server().doze();
  rig.write_adapter(2);
  rig.server().fail("adapters", Fault::kRefuse);
  EXPECT_FALSE(rig.post("/completion", body_of(other_)).reused.has_value()) << "it wakes the server up";
  rig.wait_idle();
  expect_refused(rig);
}

TEST_F(RelayIdentified, AProofAfterASleepThatFailsIsMadeAgainOfTheSameOne) {
  Rig rig({.geometry = geometry_of("dense"), .has_adapter = true});
  ask_all(rig);
  rig.server().doze();
  rig.server().fail("prefill", Fault::kRefuse);
  EXPECT_FALSE(rig.post("/completion", body_of(other_)).reused.has_value());
  rig.wait_idle();
  EXPECT_EQ(rig.ask(a_).from, "host");
  EXPECT_EQ(rig.metric("larder_proxy_requests_total{how=\"unknown_server\"}"), 1);
}

TEST_F(RelayIdentified, ASleepThatIsSeenBeforeARestoreCountsForTheNextOne) {
  Rig rig({.geometry = geometry_of("dense"), .has_adapter = true});
  ask_all(rig);
  rig.server().fail("answer", Fault::kDrop);
  (void)rig.post("/completion", body_of(other_));  // what is in the slot is not known then
  rig.wait_idle();
  rig.server().hold("erase");
  auto asks = std::async(std::launch::async, [&] { return rig.post("/completion", body_of(a_)); });
  ASSERT_TRUE(rig.server().wait_held());
  rig.server().doze();
  rig.write_adapter(2);
  const int restored = rig.server().calls("restore");
  rig.server().release();
  EXPECT_EQ(asks.get().http, 200u);
  rig.wait_idle();
  EXPECT_EQ(rig.server().calls("restore"), restored);
  expect_refused(rig);
}

// On a busy machine it may take minutes. A request that went on would use the slot of the proof.
TEST_F(RelayIdentified, RequestsBesideAProofWaitForIt) {
  Rig rig({.geometry = geometry_of("dense"), .slots_limit = std::chrono::milliseconds(1)});
  ask_all(rig);
  rig.server().replace();
  rig.server().hold("prompt");
  auto proves = std::async(std::launch::async, [&] { return rig.ask(a_); });
  ASSERT_TRUE(rig.server().wait_held());
  const int asked = rig.server().calls("props"), answered = rig.server().calls("answer");
  auto waits = std::async(std::launch::async, [&] { return rig.ask(other_); });
  // It asks anew who is there whenever the limit for slots has passed.
  while (rig.server().calls("props") < asked + 3 && rig.server().calls("answer") == answered) std::this_thread::yield();
  EXPECT_EQ(rig.server().calls("answer"), answered);
  rig.server().release();
  EXPECT_EQ(proves.get().reused, 192u);
  EXPECT_EQ(waits.get().reused, 192u);
}

TEST_F(RelayIdentified, ClientsThatLeaveDoNotWaitForAProof) {
  Rig rig({.geometry = geometry_of("dense"), .slots = 2});
  ask_all(rig);
  rig.server().replace();
  rig.server().hold("prompt");
  auto proves = std::async(std::launch::async, [&] { return rig.ask(a_); });
  ASSERT_TRUE(rig.server().wait_held());
  const auto are_waiting = [&](int count) {
    const auto reply = HttpClient(rig.url(), std::chrono::seconds(20)).request("GET", "/larder/status");
    return Json::parse(reply.value_or({}).body).at("slots").at("waiting") == count;
  };
  HttpClient client(rig.url(), std::chrono::seconds(20));
  auto leaves = std::async(std::launch::async,
                           [&] { return client.request("POST", "/completion", body_of(other_).dump()).is_ok(); });
  while (!are_waiting(1)) std::this_thread::yield();
  client.cancel();
  EXPECT_FALSE(leaves.get());
  while (!are_waiting(0)) std::this_thread::yield();
  const int answered = rig.server().calls("answer");
  rig.server().release();
  EXPECT_EQ(proves.get().reused, 192u);
  EXPECT_EQ(rig.server().calls("answer"), answered + 4) << "three of the proof, and one";
}

// Somebody has used the slot of the proof, perhaps: that is no sign of another model.
TEST_F(RelayIdentified, AProofThatReadsForeignTokensIsMadeAgain) {
  Rig rig({.geometry = geometry_of("dense")});
  ask_all(rig);
  rig.server().replace();
  rig.server().fail("save", Fault::kOtherToken);
  EXPECT_FALSE(rig.post("/completion", body_of(other_)).reused.has_value());
  rig.wait_idle();
  EXPECT_EQ(rig.ask(a_).from, "host");
  EXPECT_EQ(rig.metric("larder_proxy_server_losses_total"), 1) << "of two proofs";
}

TEST_F(RelayIdentified, AProofThatFailsIsNotMadeAgainAtOnce) {
  Rig rig({.geometry = geometry_of("dense"), .proof_pause = std::chrono::hours(1)});
  ask_all(rig);
  rig.server().replace();
  rig.server().fail("prefill", Fault::kRefuse);
  EXPECT_FALSE(rig.post("/completion", body_of(other_)).reused.has_value());
  rig.wait_idle();
  const int prefilled = rig.server().calls("prefill");
  EXPECT_FALSE(rig.post("/completion", body_of(a_)).reused.has_value());
  rig.wait_idle();
  EXPECT_EQ(rig.server().calls("prefill"), prefilled);
  rig.server().replace();
  EXPECT_EQ(rig.ask(a_).from, "host") << "one that was started anew is proven at once";
  EXPECT_EQ(rig.metric("larder_proxy_server_losses_total"), 2);
}

class RelayAdapted : public RelayIdentified {
 protected:
  Rig rig_{{.geometry = geometry_of("dense"), .slots = 2, .slots_limit = std::chrono::seconds(1), .has_adapter = true}};
  HttpClient client_{rig_.url(), std::chrono::seconds(20)};
  const std::string as_they_were_ = client_.request("GET", "/lora-adapters").value_or({}).body;

  void set_adapters(const std::string& body) {
    EXPECT_EQ(client_.request("POST", "/lora-adapters", body).value_or({}).status, 200u);
  }
  void set_half() {
    Json half = Json::parse(as_they_were_);
    half[0]["scale"] = 0.5;
    set_adapters(half.dump());
  }
};

TEST_F(RelayAdapted, AdaptersThatAreSetBackFindWhatWasKept) {
  ask_all(rig_);
  set_adapters(as_they_were_);
  EXPECT_EQ(rig_.ask(a_).from, "host") << "they are the same";
  rig_.wait_idle();
  for (int i = 0; i < 2; ++i) {
    set_half();
    expect_refused(rig_);
    set_adapters(as_they_were_);
    EXPECT_EQ(rig_.ask(a_).from, "host");
    rig_.wait_idle();
  }
}

TEST_F(RelayAdapted, AStartWithTheAdaptersOfBeforeFindsWhatWasKept) {
  ask_all(rig_);
  set_half();
  expect_refused(rig_);
  rig_.kill_server();
  rig_.start_server();
  EXPECT_EQ(rig_.ask(a_).from, "host");
}

// In a slot of which the proxy knows nothing it leaves what other adapters have computed.
TEST_F(RelayAdapted, NoProofBeginsWhileARequestOfOtherAdaptersRuns) {
  ask_all(rig_);
  set_half();
  expect_refused(rig_);
  const int answered = rig_.server().calls("answer"), prefilled = rig_.server().calls("prefill");
  rig_.server().hold("answer");
  auto runs = std::async(std::launch::async, [&] { return rig_.post("/completion", body_of(other_)); });
  ASSERT_TRUE(rig_.server().wait_held());
  set_adapters(as_they_were_);
  auto beside = std::async(std::launch::async, [&] { return rig_.post("/completion", body_of(a_)); });
  while (rig_.server().calls("answer") < answered + 2) std::this_thread::yield();
  EXPECT_EQ(rig_.server().calls("prefill"), prefilled) << "it goes on plainly";
  rig_.server().release();
  EXPECT_EQ(runs.get().http, 200u);
  EXPECT_FALSE(beside.get().reused.has_value());
  rig_.wait_idle();
  (void)rig_.server().take_complaints();  // the first one was sent without a slot
  EXPECT_EQ(rig_.ask(a_).from, "host");
}

TEST_F(RelayIdentified, AnotherBuildIsRefusedUntilItsNextStart) {
  Rig rig({.geometry = geometry_of("dense")});
  ask_all(rig);
  rig.kill_server();
  rig.start_server("fake-2");
  expect_refused(rig);
  rig.kill_server();
  rig.start_server();
  EXPECT_EQ(rig.ask(a_).from, "host");
}

// On a slow processor, or while it loads its model after a sleep.
TEST_F(RelayIdentified, AProofMayTakeLongerThanAQuestion) {
  Rig rig({.geometry = geometry_of("dense"), .ask_limit = std::chrono::seconds(5)});
  ask_all(rig);
  rig.server().replace();
  rig.server().hold("prompt");
  auto proves = std::async(std::launch::async, [&] { return rig.ask(a_); });
  ASSERT_TRUE(rig.server().wait_held());
  EXPECT_EQ(proves.wait_for(std::chrono::seconds(6)), std::future_status::timeout);
  rig.server().release();
  EXPECT_EQ(proves.get().from, "host");
}

TEST_F(RelayIdentified, AStopEndsAProof) {
  Rig rig({.geometry = geometry_of("dense"), .quiet_limit = std::chrono::hours(1)});
  ask_all(rig);
  rig.server().replace();
  rig.server().hold("prompt");
  HttpClient client(rig.url(), std::chrono::hours(1));
  auto asks =
      std::async(std::launch::async, [&] { return client.request("POST", "/completion", body_of(a_).dump()).is_ok(); });
  ASSERT_TRUE(rig.server().wait_held());
  auto stops = std::async(std::launch::async, [&] { rig.stop_proxy(); });
  EXPECT_EQ(stops.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  rig.server().release();
  EXPECT_FALSE(asks.get());
}

// As llama-server finds it.
TEST_F(RelayIdentified, AKeyMayStandInEitherFieldAndWithoutAScheme) {
  Rig rig({.geometry = geometry_of("dense"), .key = "secret"});
  const auto reused = [&](const std::vector<HttpField>& fields) {
    const Answer answer = rig.post("/completion", body_of(a_), fields);
    rig.wait_idle();
    EXPECT_EQ(answer.http, 200u);
    return answer.reused;
  };
  EXPECT_EQ(reused({{"Authorization", "Bearer secret"}}), 0u);
  EXPECT_EQ(reused({{"Authorization", "secret"}}), 199u);
  EXPECT_EQ(reused({{"X-Api-Key", "secret"}}), 199u);
  EXPECT_EQ(reused({{"X-Api-Key", "Bearer secret"}}), 199u);
  EXPECT_EQ(reused({{"Authorization", "secret"}, {"X-Api-Key", "another"}}), 199u);
  EXPECT_EQ(rig.post("/completion", body_of(a_), {{"Authorization", "another"}, {"X-Api-Key", "secret"}}).http, 401u);
}

TEST_F(RelayIdentified, AControlVectorIsWhatItsFileHas) {
  Rig rig({.geometry = geometry_of("dense"), .has_control_vector = true});
  const auto restart = [&](bool with_proxy) {
    rig.wait_idle();
    if (with_proxy) rig.stop_proxy();
    rig.kill_server();
    rig.start_server();
    if (with_proxy) rig.start_proxy();
  };
  const Tokens prompt = random_tokens(400, 3);
  (void)rig.ask(prompt);
  restart(true);
  EXPECT_EQ(rig.reused(prompt), 384u);
  rig.write_control_vector(2);
  restart(true);
  EXPECT_EQ(rig.reused(prompt), 0u);
  rig.write_control_vector(3);
  restart(false);
  EXPECT_FALSE(rig.post("/completion", body_of(prompt)).reused.has_value()) << "it is another server than before";
  rig.wait_idle();
  (void)rig.server().take_complaints();
}

}  // namespace
}  // namespace larder::llama::relay_test
