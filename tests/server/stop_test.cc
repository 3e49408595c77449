// SPDX-License-Identifier: Apache-2.0
// A stop, step by step: what is announced, who is let in meanwhile, and how what has not ended is cut off.
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "tests/server/raw_connection.h"
#include "tests/server/server_fixture.h"

namespace larder {
namespace {

class StopTest : public ServerFixture {
 protected:
  static std::string post(std::string_view path, const Json& body) {
    const std::string text = body.dump();
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
  }
};

TEST_F(StopTest, AnAnnouncedStopIsSeenByHealthAlone) {
  EXPECT_EQ(call("GET", "/health").status, 200u);
  api_->announce_stop();
  const HttpReply health = call("GET", "/health");
  EXPECT_EQ(health.status, 503u);
  EXPECT_NE(health.body.find("the server is stopping"), std::string::npos) << health.body;
  EXPECT_EQ(call("GET", "/health_generate").status, 503u);
  EXPECT_EQ(call("POST", "/generate", generate_body({1}, 1).dump()).status, 200u) << "it is still taken";
  EXPECT_EQ(call("GET", "/metrics").status, 200u);
}

TEST_F(StopTest, AStreamThatIsCutOffEndsWithAnError) {
  scheduler_->hold();
  std::size_t cancelled = 0;
  for (const char* path : {"/generate", "/v1/completions", "/v1/chat/completions"}) {
    Json body = generate_body({1}, 100);
    body["stream"] = true;
    body["prompt"] = Json::array({1});
    body["messages"] = Json::array({{{"role", "user"}, {"content", "a"}}});
    RawConnection client(api_->port());
    client.send(post(path, body));
    scheduler_->wait_open(1);
    scheduler_->step();
    const std::string begin = client.read_to("data: ");
    ASSERT_TRUE(begin.starts_with("HTTP/1.1 200")) << path << ": " << begin;
    api_->cut_off();
    const std::string rest = client.read_to("data: [DONE]\n\n\r\n0\r\n\r\n");
    EXPECT_NE(rest.find("data: {\"error\":{\"message\":\"the server is stopping: this answer was cut off\""),
              std::string::npos)
        << path << ": " << rest;
    EXPECT_TRUE(rest.ends_with("0\r\n\r\n")) << "the end of the answer";
    scheduler_->wait_cancelled(++cancelled);
  }
}

TEST_F(StopTest, AnAnswerThatHasNotBegunSaysThatTheServerStops) {
  scheduler_->hold();
  for (const bool is_stream : {false, true}) {
    Json body = generate_body({1}, 100);
    body["stream"] = is_stream;
    RawConnection client(api_->port());
    client.send(post("/generate", body));
    scheduler_->wait_open(1);
    api_->cut_off();
    const std::string answer = client.read_to("}}");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
    EXPECT_NE(answer.find("the server is stopping"), std::string::npos) << answer;
  }
  scheduler_->wait_cancelled(2);
}

TEST_F(StopTest, WhatHasEndedIsNotCutOff) {
  const auto connection = client();
  for (int i = 0; i < 200; ++i) {
    const auto reply = connection->request("POST", "/generate", generate_body({1}, 1).dump());
    ASSERT_TRUE(reply.is_ok() && reply->status == 200u) << i;
  }
  api_->cut_off();
  EXPECT_EQ(call("POST", "/generate", generate_body({1}, 1).dump()).status, 200u);
}

TEST_F(StopTest, WhoReadsIsDrainedOnceItIsCutOff) {
  scheduler_->hold();
  ThreadPoolExecutor clients("clients", 1, 8);
  ASSERT_TRUE(
      clients.post([&] { EXPECT_EQ(call("POST", "/generate", generate_body({1}, 4).dump()).status, 503u); }).is_ok());
  scheduler_->wait_open(1);
  api_->stop_accepting();
  EXPECT_FALSE(api_->wait_drained(std::chrono::milliseconds(10)));
  api_->cut_off();
  EXPECT_TRUE(api_->wait_drained(std::chrono::seconds(20)));
}

}  // namespace
}  // namespace larder
