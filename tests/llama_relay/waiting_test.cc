// SPDX-License-Identifier: Apache-2.0
// Streams whose prompt is computed before their request goes on: their clients hear that somebody is there.
#include <future>
#include <thread>

#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

constexpr Nanos kWaited = std::chrono::seconds(11);

class RelayWaiting : public testing::Test {
 protected:
  ManualClock clock_;
  Rig rig_{{.geometry = geometry_of("hybrid"), .clock = &clock_}};
  const Tokens prompt_ = random_tokens(200, 1);

  struct Reply {
    Status status;
    std::string text, from;
  };
  std::atomic<unsigned> http_ = 0;
  std::atomic<std::size_t> bytes_ = 0;

  std::future<Reply> ask(const std::string& path, const Json& body) {
    http_ = 0;
    bytes_ = 0;
    return std::async(std::launch::async, [this, path, text = body.dump()] {
      HttpClient client(rig_.url(), std::chrono::seconds(20));
      const std::vector<HttpField> fields = {{"Content-Type", "application/json"}};
      Reply reply;
      const auto on_head = [&](const HttpReplyHead& head) {
        http_ = head.status;
        for (const HttpField& field : head.fields) {
          if (field.name == "X-Larder-Reused-From") reply.from = field.value;
        }
        return true;
      };
      reply.status = client.relay({"POST", path, fields, text}, on_head, [&](std::string_view piece) {
        reply.text += piece;
        bytes_ = reply.text.size();
        return true;
      });
      return reply;
    });
  }
  // A head, and one ping more than before.
  [[nodiscard]] bool hears_a_ping() {
    const std::size_t before = bytes_;
    clock_.advance(kWaited);
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    while (bytes_ == before && real_clock().now() < end) std::this_thread::yield();
    return http_ == 200 && bytes_ > before;
  }
  [[nodiscard]] Json stream(const Tokens& prompt) const {
    return {{"prompt", prompt}, {"n_predict", 4}, {"stream", true}};
  }
};

TEST_F(RelayWaiting, StreamsHaveTheirHeadAndPingsWhileThePromptIsComputed) {
  rig_.server().hold("prompt");
  auto asks = ask("/completion", stream(prompt_));
  ASSERT_TRUE(rig_.server().wait_held());
  EXPECT_EQ(http_, 0u) << "at first its status may still become another one";
  EXPECT_TRUE(hears_a_ping());
  EXPECT_TRUE(hears_a_ping());
  rig_.server().release();
  const Reply reply = asks.get();
  EXPECT_TRUE(reply.status.is_ok()) << reply.status.to_string();
  EXPECT_TRUE(reply.text.starts_with(":\n\n:\n\ndata: {")) << reply.text;
  EXPECT_TRUE(reply.text.ends_with("data: [DONE]\n\n")) << reply.text;
  EXPECT_EQ(reply.from, "slot");
  rig_.wait_idle();
  EXPECT_EQ(rig_.reused(prompt_), 192u) << "and it was kept";
}

TEST_F(RelayWaiting, StreamsHaveThemWhileTheyWaitForASlot) {
  rig_.server().hold("answer", 1);
  auto first = std::async(std::launch::async, [&] { return rig_.post("/completion", stream(prompt_)).http; });
  ASSERT_TRUE(rig_.server().wait_held());
  auto second = ask("/completion", stream(random_tokens(100, 2)));
  while (!rig_.has_waiting()) std::this_thread::yield();
  EXPECT_TRUE(hears_a_ping());
  rig_.server().release();
  EXPECT_EQ(first.get(), 200u);
  EXPECT_TRUE(second.get().text.ends_with("data: [DONE]\n\n"));
}

TEST_F(RelayWaiting, ARefusalComesAsAnEventThen) {
  const Json message = {{"messages", Json::array({Json{{"role", "user"}, {"content", std::string(150, 'a')}}})},
                        {"max_tokens", 4},
                        {"stream", true}};
  for (const bool is_messages : {false, true}) {
    rig_.server().hold("prompt");
    auto asks = is_messages ? ask("/v1/messages", message) : ask("/completion", stream(prompt_));
    ASSERT_TRUE(rig_.server().wait_held());
    EXPECT_TRUE(hears_a_ping());
    rig_.server().fail("answer", Fault::kRefuse);
    rig_.server().release();
    const Reply reply = asks.get();
    EXPECT_TRUE(reply.status.is_ok()) << reply.status.to_string();
    const std::string error = R"("error":{"code":500,"message":"not today"}})";
    const std::string event =
        is_messages ? "event: error\ndata: {\"type\":\"error\"," + error + "\n\n" : "data: {" + error + "\n\n";
    EXPECT_TRUE(reply.text.ends_with(event)) << reply.text;
    rig_.wait_idle();
  }
}

TEST_F(RelayWaiting, SoDoesTheLossOfTheServer) {
  rig_.server().hold("prompt");
  auto asks = ask("/completion", stream(prompt_));
  ASSERT_TRUE(rig_.server().wait_held());
  EXPECT_TRUE(hears_a_ping());
  rig_.kill_server();
  const Reply reply = asks.get();
  EXPECT_TRUE(reply.status.is_ok()) << reply.status.to_string();
  EXPECT_NE(reply.text.find("data: {\"error\":{\"message\":"), std::string::npos) << reply.text;
}

// A stream beside it has had two by then.
TEST_F(RelayWaiting, WholeAnswersHaveNone) {
  rig_.server().hold("prompt");
  auto whole = ask("/completion", {{"prompt", prompt_}, {"n_predict", 4}});
  ASSERT_TRUE(rig_.server().wait_held());
  auto beside = ask("/completion", stream(random_tokens(100, 2)));
  while (!rig_.has_waiting()) std::this_thread::yield();
  EXPECT_TRUE(hears_a_ping());
  EXPECT_TRUE(hears_a_ping());
  rig_.server().release();
  const std::string text = whole.get().text;
  EXPECT_TRUE(text.starts_with("{")) << text;
  EXPECT_TRUE(beside.get().text.starts_with(":\n\n:\n\ndata: {"));
}

}  // namespace
}  // namespace larder::llama::relay_test
