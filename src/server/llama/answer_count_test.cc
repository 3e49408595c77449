// SPDX-License-Identifier: Apache-2.0
#include "server/llama/answer_count.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

using Count = std::optional<std::uint64_t>;

// In pieces of one byte, as a network may bring it.
AnswerCount count_of(std::string_view answer) {
  AnswerCount count;
  for (const char byte : answer) count.feed({&byte, 1});
  count.end();
  return count;
}

void expect(std::string_view answer, Count prompt, Count cached) {
  const AnswerCount count = count_of(answer);
  EXPECT_EQ(count.prompt_tokens(), prompt) << answer;
  EXPECT_EQ(count.cached_tokens(), cached) << answer;
}

TEST(AnswerCount, EachInterfaceHasItsPlace) {
  expect(R"({"content":"x","tokens_evaluated":7,"timings":{"cache_n":3,"prompt_n":4}})", 7, 3);
  expect(R"([{"tokens_evaluated":7},{"tokens_evaluated":7}])", 7, std::nullopt);
  expect(R"({"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":2}}})", 9, 2);
  expect(R"({"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":2}}})", 9, 2);
  expect(R"({"usage":{"input_tokens":7,"cache_read_input_tokens":2,"output_tokens":1}})", 9, 2);
  expect(R"({"timings":{"cache_n":2,"prompt_n":7}})", 9, 2);
}

TEST(AnswerCount, EventsAreReadUntilOneHasIt) {
  expect(
      "data: {\"choices\":[]}\n\ndata: {\"choices\":[],\"timings\":{\"cache_n\":2,\"prompt_n\":7}}\n\ndata: [DONE]\n\n",
      9, 2);
  expect("event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":9}}}\n\n", 9, std::nullopt);
  expect(
      "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":8}}}\n\n"
      "event: message_delta\ndata: {\"usage\":{\"output_tokens\":5}}\n\n",
      9, 8);
  expect("data: {\"prompt_progress\":{},\"timings\":{\"cache_n\":2,\"prompt_n\":1}}\n\n", std::nullopt, std::nullopt);
}

// Until then a stream's prompt may not be computed to its end.
TEST(AnswerCount, EventsThatBringNoOutputAreKnown) {
  for (const char* events :
       {"", ":\n\n", "event: error\n", "data: {\"error\":{\"code\":500}}\n\n",
        "data: {\"content\":\"\",\"tokens_evaluated\":9,\"prompt_progress\":{\"total\":9}}\n\n",
        "data: {\"type\":\"response.created\"}\n\ndata: {\"type\":\"response.in_progress\"}\n\n"}) {
    EXPECT_FALSE(count_of(events).has_output()) << events;
    EXPECT_TRUE(count_of(std::string(events) + "\ndata: {\"content\":\"a\"}\n\n").has_output()) << events;
  }
}

// It may come behind output, and behind the count.
TEST(AnswerCount, EventsThatTellOfAnErrorAreKnown) {
  const std::string output =
      "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":8}}}\n\n"
      "data: {\"content\":\"error\"}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"{\\\"error\\\":1}\"}}]}\n\n";
  EXPECT_FALSE(count_of(output + "data: [DONE]\n\n").has_error());
  for (const char* error : {"data: {\"error\":{\"code\":500}}\n\n", "event: error\ndata: {\"message\":\"no\"}\n\n",
                            "data:{\"type\":\"error\",\"error\":{}}", "event:error\r\n"}) {
    EXPECT_TRUE(count_of(error).has_error()) << error;
    EXPECT_TRUE(count_of(output + error).has_error()) << error;
  }
  EXPECT_FALSE(count_of(R"({"error":{"code":500}})").has_error()) << "its status tells that";
}

TEST(AnswerCount, EventsThatBringOutputAreCounted) {
  EXPECT_EQ(count_of("data: {\"content\":\"a\"}\n\n:\n\ndata: {\"content\":\"b\",\"tokens_evaluated\":1}\n\n"
                     "data: {\"content\":\"c\"}\n\n")
                .outputs(),
            3u);
}

TEST(AnswerCount, WhatSaysNothingIsNotKnown) {
  expect("", std::nullopt, std::nullopt);
  expect("<html>\"usage\"</html>", std::nullopt, std::nullopt);
  expect(R"({"usage":{"prompt_tokens":-1}})", std::nullopt, std::nullopt);
  expect(R"({"content":"\"usage\":{\"prompt_tokens\":5}"})", std::nullopt, std::nullopt);
  expect(std::string(AnswerLines::kMostBytes + 1, 'x') + "\n{\"usage\":{\"prompt_tokens\":5}}\n", std::nullopt,
         std::nullopt);
}

}  // namespace
}  // namespace larder::llama
