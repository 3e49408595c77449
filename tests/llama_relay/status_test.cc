// SPDX-License-Identifier: Apache-2.0
// What the proxy says about itself: sums, the last requests and why not more of each was reused, the operator's page.
#include "base/file_system.h"
#include "server/metrics_json.h"
#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

class RelayStatus : public testing::Test {
 protected:
  [[nodiscard]] HttpReply get(const std::string& target, std::vector<HttpField> fields = {}) const {
    HttpClient client(rig_.url(), std::chrono::seconds(20));
    HttpReply out;
    const Status status = client.relay(
        {"GET", target, fields, ""},
        [&](const HttpReplyHead& head) {
          out.status = head.status;
          return true;
        },
        [&](std::string_view bytes) {
          out.body += bytes;
          return true;
        });
    EXPECT_TRUE(status.is_ok()) << target << ": " << status.to_string();
    return out;
  }
  [[nodiscard]] Json json(const std::string& target) const { return Json::parse(get(target).body, nullptr, false); }
  // The latest first. A client has its answer a little before the request is among them.
  [[nodiscard]] Json recent(std::size_t count) const {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    Json all;
    do {
      all = json("/larder/recent").at("requests");
    } while (all.size() < count && real_clock().now() < end);
    EXPECT_EQ(all.size(), count) << all.dump(2);
    return all;
  }

  Rig rig_{{.geometry = geometry_of("hybrid"), .slots = 1}};
  const Tokens a_ = random_tokens(200, 1), b_ = random_tokens(200, 2);
};

TEST_F(RelayStatus, AnAnnouncedStopIsSeenByHealthAlone) {
  EXPECT_EQ(get("/health").status, 200u);
  rig_.proxy().announce_stop();
  for (const char* path : {"/health", "/v1/health"}) {
    const HttpReply health = get(path);
    EXPECT_EQ(health.status, 503u) << path;
    EXPECT_NE(health.body.find("the server is stopping"), std::string::npos) << health.body;
  }
  (void)rig_.ask(a_);  // it is still taken
}

TEST_F(RelayStatus, SumsAndTheLastRequestsSayWhatWasReused) {
  (void)rig_.ask(a_);
  rig_.wait_idle();
  (void)rig_.ask(b_);  // the only slot loses the first prompt
  rig_.wait_idle();
  const Answer again = rig_.ask(joined(a_, random_tokens(40, 3)));
  EXPECT_EQ(again.from, "host");
  const Json requests = recent(3);
  EXPECT_EQ(requests[0]["prompt_tokens"], 240);
  EXPECT_EQ(requests[0]["cached_tokens"]["host"], again.reused.value_or(0));
  EXPECT_EQ(requests[0]["cached_tokens"]["device"], 0);
  EXPECT_EQ(requests[0]["finish"], "ok");
  EXPECT_TRUE(requests[0]["ttft_seconds"].is_null()) << "the answer came at once";
  EXPECT_GT(requests[0]["e2e_seconds"], 0);
  EXPECT_EQ(requests[1]["cached_tokens"]["host"], 0);
  EXPECT_EQ(requests[1]["miss"]["reason"], "never_seen");
  EXPECT_FALSE(requests[1].contains("error"));
  EXPECT_EQ(json("/larder/recent?limit=1").at("requests").size(), 1u);
  const Json status = json("/larder/status");
  EXPECT_EQ(status["server"], "larder proxy");
  EXPECT_EQ(status["prompt_tokens"], 640);
  EXPECT_EQ(status["cached_tokens"]["host"], again.reused.value_or(0));
  EXPECT_EQ(status["tiers"][0]["tier"], "host");
  EXPECT_GT(status["tiers"][0]["bytes"], 0);
  EXPECT_EQ(status["backend"]["backend"], "file");
}

TEST_F(RelayStatus, TheLastRequestsSayWhichWereNotLookedAtOrFailed) {
  (void)rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}, {"cache_prompt", false}});
  EXPECT_EQ(recent(1)[0]["passed_on"], "no_caching");
  rig_.server().fail("answer", Fault::kRefuse);
  EXPECT_GE(rig_.post("/completion", {{"prompt", a_}, {"n_predict", 4}}).http, 400u);
  EXPECT_EQ(recent(2)[0]["finish"], "error");
  EXPECT_NE(recent(2)[0].value("error", "").find("llama-server answered"), std::string::npos);
  (void)get("/props");  // no prompt, and so not among them
  HttpClient client(rig_.url(), std::chrono::seconds(20));
  const std::string body = Json{{"prompt", b_}, {"n_predict", 4}, {"stream", true}}.dump();
  EXPECT_TRUE(client.stream("POST", "/completion", body, [](std::string_view) { return true; }).is_ok());
  const Json streamed = recent(3)[0];
  EXPECT_GT(streamed["ttft_seconds"], 0) << streamed.dump();
  EXPECT_GE(streamed["e2e_seconds"], streamed["ttft_seconds"]);
  EXPECT_EQ(get("/larder/recent?limit=many").status, 400u);
}

TEST_F(RelayStatus, ItsMetricsComeAsJsonToo) {
  (void)rig_.ask(a_);
  const auto families = parse_metrics_json(get("/metrics?format=json").body);
  ASSERT_TRUE(families.is_ok()) << families.status().to_string();
  const auto sum = std::ranges::find(*families, "larder_proxy_prompt_tokens_total", &MetricFamily::name);
  ASSERT_NE(sum, families->end());
  EXPECT_EQ(sum->series.at(0).value, 200);
  EXPECT_NE(get("/metrics?format=text").body.find("\nlarder_proxy_prompt_tokens_total 200\n"), std::string::npos);
}

TEST_F(RelayStatus, WhatIsExplainedHasASaltThatIsText) {
  HttpClient client(rig_.url(), std::chrono::seconds(20));
  const auto explain = [&](const Json& body) { return client.request("POST", "/larder/explain", body.dump()); };
  EXPECT_EQ(explain({{"text", "a prompt"}, {"cache_salt", "a"}}).value_or({}).status, 200u);
  const HttpReply refused = explain({{"text", "a prompt"}, {"cache_salt", 7}}).value_or({});
  EXPECT_EQ(refused.status, 400u);
  EXPECT_NE(refused.body.find("cache_salt"), std::string::npos) << refused.body;
}

TEST_F(RelayStatus, TheOperatorsPageIsForThisMachineAlone) {
  EXPECT_NE(get("/larder/ui").body.find("src=\"ui/app.js\""), std::string::npos);
  EXPECT_NE(get("/larder/ui/app.js").body.find("'/larder/status'"), std::string::npos);
  EXPECT_EQ(get("/larder/ui/style.css").status, 200u);
  EXPECT_EQ(get("/larder/ui/other").status, 404u);
  for (const std::string target : {"/larder/ui", "/larder/ui/app.js", "/larder/status", "/larder/recent"}) {
    EXPECT_EQ(get(target, {{"Sec-Fetch-Site", "cross-site"}}).status, 403u) << target;
    EXPECT_EQ(get(target, {{"X-Forwarded-For", "192.0.2.1"}}).status, 403u) << target;
  }
}

}  // namespace
}  // namespace larder::llama::relay_test
