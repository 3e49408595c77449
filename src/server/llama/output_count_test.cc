// SPDX-License-Identifier: Apache-2.0
#include "server/llama/output_count.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

std::uint64_t output_in(std::string_view answer, std::size_t piece = 7) {
  OutputCount count;
  for (std::size_t at = 0; at < answer.size(); at += piece) count.feed(answer.substr(at, piece));
  count.end();
  return count.tokens();
}

TEST(OutputCount, OfWholeAnswers) {
  EXPECT_EQ(output_in(R"({"content":"x","tokens_predicted":5,"timings":{"prompt_n":3,"predicted_n":5}})"), 5u);
  EXPECT_EQ(output_in(R"({"choices":[],"usage":{"completion_tokens":6,"prompt_tokens":9}})"), 6u);
  EXPECT_EQ(output_in(R"({"type":"message","usage":{"input_tokens":9,"output_tokens":7}})"), 7u);
  EXPECT_EQ(output_in(R"([{"tokens_predicted":3},{"tokens_predicted":4}])"), 7u);
}

TEST(OutputCount, OfStreamsTheLastEventThatTells) {
  EXPECT_EQ(output_in("data: {\"content\":\"a\",\"tokens_predicted\":1}\n\n"
                      "data: {\"content\":\"\",\"tokens_predicted\":12,\"stop\":true}\n\n"),
            12u);
  EXPECT_EQ(output_in("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
                      "data: {\"choices\":[],\"timings\":{\"prompt_n\":3,\"predicted_n\":9}}\n\ndata: [DONE]\n\n"),
            9u);
  EXPECT_EQ(output_in("event: message_start\ndata: {\"message\":{\"usage\":{\"output_tokens\":0}}}\n\n"
                      "event: message_delta\ndata: {\"usage\":{\"output_tokens\":8}}\n\n"
                      "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
            8u);
  EXPECT_EQ(output_in("data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"output_tokens\":4}}}\n\n"),
            4u);
}

TEST(OutputCount, OfAStreamThatWasCutOffItsEvents) {
  EXPECT_EQ(output_in("data: {\"choices\":[{}]}\n\ndata: {\"choices\":[{}]}\n\ndata: {\"cho"), 3u);
  EXPECT_EQ(output_in("data: {\"choices\":[{}]}\n\ndata: [DONE]\n\n"), 1u);
}

TEST(OutputCount, WhatTellsNothing) {
  EXPECT_EQ(output_in(""), 0u);
  EXPECT_EQ(output_in("\n\n\n"), 0u);
  EXPECT_EQ(output_in("{\"tokens_predicted\": many}"), 0u);
  EXPECT_EQ(output_in("{\"tokens_predicted\": -4}"), 0u);
  EXPECT_EQ(output_in("{\"tokens_predicted\": 18446744073709551615}"), 0u) << "a trace with such a line is refused";
  const std::string longer(AnswerLines::kMostBytes + 1, ' ');
  EXPECT_EQ(output_in(longer + "{\"tokens_predicted\":5}", 1 << 20), 0u);
  EXPECT_EQ(output_in(longer + "\n{\"tokens_predicted\":5}", 1 << 20), 5u) << "the next line";
}

}  // namespace
}  // namespace larder::llama
