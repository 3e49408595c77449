// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_request.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

using Parsed = std::variant<LlamaRequest, PlainReason>;

Parsed parse(std::string_view path, std::string_view body) { return parse_llama_request("POST", path, body); }
std::string reason_of(const Parsed& parsed) {
  const auto* reason = std::get_if<PlainReason>(&parsed);
  return reason == nullptr ? "looked at" : std::string(plain_reason_name(*reason));
}

TEST(LlamaRequest, PromptsAreTextTokensOrMessages) {
  const Parsed text = parse("/completion", R"({"prompt": "once", "stream": true, "cache_salt": "me"})");
  ASSERT_EQ(reason_of(text), "looked at");
  EXPECT_EQ(std::get<std::string>(std::get<LlamaRequest>(text).prompt), "once");
  EXPECT_TRUE(std::get<LlamaRequest>(text).streams);
  EXPECT_EQ(std::get<LlamaRequest>(text).salt, "me");
  const Parsed tokens = parse("/v1/completions", R"({"prompt": [5, 6, 7], "n": 2})");
  ASSERT_EQ(reason_of(tokens), "looked at");
  EXPECT_EQ(std::get<std::vector<TokenId>>(std::get<LlamaRequest>(tokens).prompt), (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(std::get<LlamaRequest>(tokens).answers, 2u);
  const Parsed one_text = parse("/v1/completions", R"({"prompt": ["once"]})");
  ASSERT_EQ(reason_of(one_text), "looked at");
  EXPECT_EQ(std::get<std::string>(std::get<LlamaRequest>(one_text).prompt), "once");
  const Parsed one_list = parse("/completion", R"({"prompt": [[5, 6]]})");
  ASSERT_EQ(reason_of(one_list), "looked at");
  EXPECT_EQ(std::get<std::vector<TokenId>>(std::get<LlamaRequest>(one_list).prompt), (std::vector<TokenId>{5, 6}));
  const Parsed chat = parse("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})");
  ASSERT_EQ(reason_of(chat), "looked at");
  EXPECT_TRUE(std::get<LlamaRequest>(chat).is_chat());
}

TEST(LlamaRequest, OtherInterfacesAreChats) {
  const Parsed responses = parse("/v1/responses", R"({"input": "hi", "max_output_tokens": 7, "stream": true})");
  ASSERT_EQ(reason_of(responses), "looked at");
  const auto& first = std::get<LlamaRequest>(responses);
  EXPECT_TRUE(first.is_chat() && first.is_converted() && first.takes_slot && first.streams);
  EXPECT_EQ(first.most_tokens, 7u);
  EXPECT_EQ(first.chat()["messages"].dump(), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(first.text_for_slot(1),
            R"({"input":"hi","max_output_tokens":7,"stream":true,"id_slot":1,"cache_prompt":true,"n_cache_reuse":0})");
  const Parsed messages = parse("/v1/messages", R"({"messages": [{"role": "user", "content": "hi"}], "system": "s",
                                                    "cache_prompt": false, "cache_salt": "me"})");
  ASSERT_EQ(reason_of(messages), "looked at") << "llama-server does not look at cache_prompt there";
  const auto& second = std::get<LlamaRequest>(messages);
  EXPECT_TRUE(second.is_chat() && second.is_converted() && !second.takes_slot);
  EXPECT_EQ(second.most_tokens, 4096u);
  EXPECT_EQ(second.salt, "me");
  EXPECT_NE(second.system_part().find(R"([{"role":"system","content":"s"}])"), std::string::npos);
  EXPECT_FALSE(route_takes_slot("POST", "/v1/messages"));
  EXPECT_TRUE(route_takes_slot("POST", "/v1/responses"));
  EXPECT_FALSE(route_takes_slot("POST", "/tokenize"));
  EXPECT_EQ(route_use("POST", "/v1/messages/count_tokens"), RouteUse::kNone);
  EXPECT_TRUE(route_takes_slot("POST", "/api/chat"));
}

TEST(LlamaRequest, WhatIsNotLookedAtHasAReason) {
  EXPECT_EQ(reason_of(parse_llama_request("GET", "/v1/chat/completions", "{}")), "other_route");
  EXPECT_EQ(reason_of(parse("/tokenize", "{}")), "other_route");
  EXPECT_EQ(reason_of(parse("/v1/embeddings", "{}")), "other_route");
  EXPECT_EQ(reason_of(parse("/infill", "{}")), "other_prompt");
  EXPECT_EQ(reason_of(parse("/v1/responses", R"({"input": "x", "lora": []})")), "adapters");
  EXPECT_EQ(reason_of(parse("/v1/responses", R"({"input": [{"type": "item_reference"}]})")), "other_prompt");
  EXPECT_EQ(reason_of(parse("/v1/messages", R"({"messages": 7})")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", "{\"prompt\": ")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", "[1]")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", "{}")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": "x", "stream": "yes"})")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": "x", "n": 0})")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": "x", "n": 1.5})")), "not_understood");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": ["a", "b"]})")), "several_prompts");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": [1, "b"]})")), "several_prompts");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": [[1], [2]]})")), "several_prompts");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": [-1]})")), "several_prompts");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": {"prompt_string": "x"}})")), "media");
  EXPECT_EQ(reason_of(parse("/v1/chat/completions",
                            R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})")),
            "media");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": "x", "lora": []})")), "adapters");
  EXPECT_EQ(reason_of(parse("/completion", R"({"prompt": "x", "cache_prompt": false})")), "no_caching");
}

TEST(LlamaRequest, AllElseOfTheBodyStaysAsItIs) {
  const auto request =
      std::get<LlamaRequest>(parse("/completion", R"({"z": 1.5, "prompt": "é", "id_slot": 9, "a": {"b": [null]}})"));
  EXPECT_EQ(request.text_for_slot(2),
            R"({"z":1.5,"prompt":"é","id_slot":2,"a":{"b":[null]},"cache_prompt":true,"n_cache_reuse":0})");
  EXPECT_EQ(request.text_for_slot(2, false),
            R"({"z":1.5,"prompt":"é","id_slot":2,"a":{"b":[null]},"cache_prompt":false,"n_cache_reuse":0})");
}

TEST(LlamaRequest, WhatGoesOnPlainlySaysWhatItMayShare) {
  const auto plain = parse_plain_request(R"({"input":"x"})"), several = parse_plain_request(R"({"n":3,"id_slot":2})");
  ASSERT_TRUE(plain && several);
  EXPECT_EQ(plain->text(1, true), R"({"input":"x","id_slot":1,"n_cache_reuse":0})");
  EXPECT_EQ(plain->text(1, false), R"({"input":"x","id_slot":1,"cache_prompt":false,"n_cache_reuse":0})");
  EXPECT_EQ(plain->salt, "");
  EXPECT_FALSE(plain->has_adapters);
  EXPECT_EQ(several->text(std::nullopt, true), R"({"n":3,"id_slot":2,"n_cache_reuse":0})");
  EXPECT_EQ(several->answers, 3u);
  const auto mine = parse_plain_request(R"({"cache_salt":"me","lora":[]})");
  ASSERT_TRUE(mine);
  EXPECT_EQ(mine->salt, "me");
  EXPECT_TRUE(mine->has_adapters);
  EXPECT_EQ(parse_plain_request(R"({"cache_salt":7})").value().salt, std::nullopt);
  EXPECT_FALSE(parse_plain_request("nonsense"));
}

// A document of so many levels is parsed, and its copy or its text ends the process: each level is a call.
TEST(LlamaRequest, WhatIsNestedTooDeepIsNotRead) {
  constexpr std::size_t kLevels = 100'000;
  const std::string body = R"({"prompt":[1],"x":)" + std::string(kLevels, '[') + std::string(kLevels, ']') + "}";
  EXPECT_EQ(reason_of(parse("/completion", body)), "not_understood");
  EXPECT_FALSE(parse_plain_request(body));
}

TEST(LlamaRequest, TheLimitOfAnAnswerIsTheLargestThatIsGiven) {
  const auto limit = [](std::string_view fields) {
    return std::get<LlamaRequest>(parse("/completion", "{\"prompt\":\"x\"" + std::string(fields) + "}")).most_tokens;
  };
  EXPECT_EQ(limit(""), std::nullopt);
  EXPECT_EQ(limit(R"(,"n_predict":-1)"), std::nullopt);
  EXPECT_EQ(limit(R"(,"n_predict":7)"), 7u);
  EXPECT_EQ(limit(R"(,"max_tokens":9,"n_predict":7)"), 9u);
  for (const char* none : {"-1", "null", "7.5"}) {
    EXPECT_EQ(limit(R"(,"max_tokens":9,"n_predict":)" + std::string(none)), std::nullopt) << none;
  }
}

TEST(LlamaRequest, TheSystemPartIsTheFirstMessages) {
  const auto chat = [](std::string_view messages) {
    return std::get<LlamaRequest>(
        parse("/v1/chat/completions", "{\"tools\":[1],\"messages\":" + std::string(messages) + "}"));
  };
  EXPECT_EQ(chat(R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])").system_part(),
            R"({"tools":[1],"messages":[{"role":"system","content":"s"}],"add_generation_prompt":false})");
  EXPECT_EQ(chat(R"([{"role":"user","content":"u"}])").system_part(), "");
  EXPECT_EQ(chat(R"([{"role":"system","content":"s"}])").system_part(), "");
  EXPECT_EQ(chat(R"([7, {"role":"user","content":"u"}])").system_part(), "");
}

}  // namespace
}  // namespace larder::llama
