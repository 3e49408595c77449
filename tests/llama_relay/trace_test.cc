// SPDX-License-Identifier: Apache-2.0
// --record-trace of the proxy: prompts as llama-server has made tokens of them, and answers as it counts them.
#include <chrono>
#include <set>
#include <sstream>

#include "base/clock.h"
#include "base/file_system.h"
#include "tests/llama_relay/relay_rig.h"

namespace larder::llama::relay_test {
namespace {

class RelayTrace : public testing::Test {
 protected:
  // The proxy stops, and the file is whole.
  std::vector<Json> lines() {
    rig_.stop_proxy();
    const auto file = real_file_system().open(path_, {});
    EXPECT_TRUE(file.is_ok());
    std::string all(static_cast<std::size_t>(*(*file)->size_bytes()), '\0');
    EXPECT_TRUE(read_exactly(**file, std::as_writable_bytes(std::span(all)), 0).is_ok());
    std::vector<Json> out;
    std::istringstream text(all);
    for (std::string line; std::getline(text, line);) out.push_back(Json::parse(line));
    return out;
  }
  // Requests are counted when they are over, which is after their answer.
  [[nodiscard]] double unknown(double wanted) const {
    const TimePoint end = real_clock().now() + std::chrono::seconds(20);
    double count = 0;
    do {
      count = rig_.metric("larder_trace_dropped_requests_total{reason=\"unknown_prompt\"}");
    } while (count < wanted && real_clock().now() < end);
    return count;
  }

  const support::TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/trace";
  Rig rig_{
      {.geometry = geometry_of("hybrid"), .slots = 2, .trace = {.path = path_, .key_file = {}, .block_tokens = kPage}}};
  const Tokens a_ = random_tokens(200, 1);
};

TEST_F(RelayTrace, HasPromptsAndAnswers) {
  (void)rig_.ask(a_);
  Json more = {{"cache_salt", "tenant"}};
  (void)rig_.ask(a_, more);
  (void)rig_.ask(joined(a_, random_tokens(30, 2)));
  EXPECT_EQ(
      rig_.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 3}})
          .http,
      200u);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["input_length"], 200);
  EXPECT_EQ(all[0]["output_length"], 4);
  EXPECT_EQ(all[0]["block_tokens"], 16);
  ASSERT_EQ(all[0]["hash_ids"].size(), 13u);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(all[0]["hash_ids"][i], all[2]["hash_ids"][i]) << i;
    EXPECT_NE(all[0]["hash_ids"][i], all[1]["hash_ids"][i]) << i << ": of another tenant";
  }
  EXPECT_EQ(all[2]["input_length"], 230);
  EXPECT_EQ(all[3]["output_length"], 3);
}

TEST_F(RelayTrace, CountsPromptsThatItDoesNotKnow) {
  EXPECT_EQ(rig_.post("/completion", {{"prompt", Json::array({a_, a_})}, {"n_predict", 4}}).http, 200u);
  EXPECT_EQ(unknown(1), 1);
  EXPECT_EQ(rig_.post("/completion", {{"prompt", random_tokens(1100, 3)}, {"n_predict", 4}}).http, 400u);
  EXPECT_EQ(unknown(1), 1) << "it was refused";
  EXPECT_TRUE(lines().empty());
}

TEST_F(RelayTrace, ClientsThatLeaveAreThereWithTheAnswerSoFar) {
  rig_.server().hold("answer", 2);
  HttpClient leaver(rig_.url(), std::chrono::seconds(20));
  int events = 0;
  const Json body = {{"prompt", a_}, {"n_predict", 1000}, {"stream", true}};
  const auto reply = leaver.stream("POST", "/completion", body.dump(), [&](std::string_view line) {
    events += line.starts_with("data: {") ? 1 : 0;
    return events < 2;
  });
  EXPECT_EQ(reply.status().code(), StatusCode::kCancelled);
  leaver.disconnect();
  rig_.wait_idle();
  rig_.server().release();
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["input_length"], 200);
  EXPECT_EQ(all[0]["output_length"], 2);
}

}  // namespace
}  // namespace larder::llama::relay_test
