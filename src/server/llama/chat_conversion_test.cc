// SPDX-License-Identifier: Apache-2.0
#include "server/llama/chat_conversion.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;
using Convert = ConvertedChat (*)(const Json&);

Json parsed(std::string_view text) {
  const Json body = Json::parse(text, nullptr, false);
  EXPECT_TRUE(body.is_object()) << text;
  return body;
}

// Equal, in the order of their members, too: templates print tools as JSON.
void expect_chat(Convert convert, std::string_view body, std::string_view chat) {
  const ConvertedChat made = convert(parsed(body));
  const auto* reason = std::get_if<PlainReason>(&made);
  ASSERT_EQ(reason, nullptr) << body << ": " << plain_reason_name(*reason);
  EXPECT_EQ(std::get<Json>(made).dump(), parsed(chat).dump()) << body;
}

void expect_reason(Convert convert, std::string_view body, std::string_view reason) {
  const ConvertedChat made = convert(parsed(body));
  const auto* given = std::get_if<PlainReason>(&made);
  EXPECT_EQ(given == nullptr ? "converted" : plain_reason_name(*given), reason) << body;
}

// ---- /v1/responses

TEST(ResponsesConversion, TextAndInstructions) {
  expect_chat(chat_of_responses,
              R"({"model": "m", "instructions": "Be brief.", "input": "Hi", "max_output_tokens": 5, "id_slot": 2})",
              R"({"model": "m", "id_slot": 2, "messages": [{"role": "system", "content": "Be brief."},
                  {"role": "user", "content": "Hi"}], "max_tokens": 5})");
  expect_chat(chat_of_responses, R"({"input": "Hi", "instructions": null, "previous_response_id": null})",
              R"({"previous_response_id": null, "messages": [{"role": "system", "content": ""},
                  {"role": "user", "content": "Hi"}]})");
}

TEST(ResponsesConversion, MessagesKeepTheirPartsApart) {
  expect_chat(chat_of_responses,
              R"({"input": [{"role": "developer", "content": "Be brief."},
                  {"type": "message", "id": "i", "status": "completed", "role": "user",
                   "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                  {"type": "message", "role": "assistant", "status": "completed",
                   "content": [{"type": "output_text", "text": "c", "annotations": []}]}]})",
              R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                  {"id": "i", "role": "user",
                   "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "c"}]}]})");
}

TEST(ResponsesConversion, ThoughtsAndCallsJoinTheAssistantsMessage) {
  expect_chat(chat_of_responses,
              R"({"input": [{"role": "user", "content": "a"},
                  {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                  {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\":1}"},
                  {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "1", "output": "one"},
                  {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
                  {"type": "function_call", "call_id": "3", "name": "h", "arguments": "{}"}]})",
              R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                  {"role": "assistant", "content": [], "reasoning_content": "hm", "tool_calls": [
                    {"type": "function", "id": "1", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                    {"type": "function", "id": "2", "function": {"name": "g", "arguments": "{}"}}]},
                  {"role": "tool", "tool_call_id": "1", "content": "one"},
                  {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]},
                  {"role": "assistant", "tool_calls": [
                    {"type": "function", "id": "3", "function": {"name": "h", "arguments": "{}"}}]}]})");
}

TEST(ResponsesConversion, AnswersThatFollowOneAnotherAreOne) {
  expect_chat(chat_of_responses,
              R"({"input": [{"type": "reasoning", "summary": [], "content": [{"text": "hm"}]},
                  {"type": "message", "id": "i", "role": "assistant",
                   "content": [{"type": "output_text", "text": "a"}]},
                  {"type": "message", "role": "assistant", "content": "b"},
                  {"role": "user", "content": "c"},
                  {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                  {"type": "message", "role": "assistant", "content": "d"}]})",
              R"({"messages": [{"role": "assistant",
                   "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                   "reasoning_content": "hm"},
                  {"role": "user", "content": [{"type": "text", "text": "c"}]},
                  {"role": "assistant", "tool_calls": [
                    {"type": "function", "id": "1", "function": {"name": "f", "arguments": "{}"}}],
                   "content": [{"type": "text", "text": "d"}]}]})");
}

TEST(ResponsesConversion, ToolsAndEffort) {
  expect_chat(chat_of_responses,
              R"({"input": "a", "tool_choice": "required", "reasoning": {"effort": "low", "summary": "auto"},
                  "tools": [{"type": "function", "name": "f", "parameters": {"z": 1, "a": 2}, "strict": false},
                            {"type": "web_search"}, {"name": "g", "type": "function"}]})",
              R"({"tool_choice": "required", "messages": [{"role": "user", "content": "a"}],
                  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2},
                                                              "strict": false}},
                            {"type": "function", "function": {"name": "g", "strict": true}}],
                  "reasoning_effort": "low"})");
  expect_chat(chat_of_responses, R"({"input": "a", "tools": [{"type": "web_search"}], "reasoning": null})",
              R"({"messages": [{"role": "user", "content": "a"}]})");
}

TEST(ResponsesConversion, WhatIsNotCertainHasAReason) {
  const auto item = [](std::string_view text, std::string_view reason) {
    expect_reason(chat_of_responses, "{\"input\": [" + std::string(text) + "]}", reason);
  };
  item(R"({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})", "media");
  item(R"({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]})", "media");
  item(R"({"role": "user", "content": [{"type": "input_other"}]})", "other_prompt");
  item(R"({"role": "user", "content": [{"type": "input_text"}]})", "not_understood");
  item(R"({"role": "user", "content": [7]})", "not_understood");
  item(R"({"role": "user"})", "not_understood");
  item(R"({"role": "critic", "content": "x"})", "not_understood");
  item(R"({"role": "assistant", "content": "no type"})", "not_understood");
  item(R"({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})",
       "other_prompt");
  item(R"({"type": "reasoning", "summary": [], "encrypted_content": "x"})", "not_understood");
  item(R"({"type": "function_call", "name": "f", "arguments": "{}"})", "not_understood");
  item(R"({"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]})", "media");
  item(R"({"type": "function_call_output", "call_id": "1", "output": 7})", "not_understood");
  item(R"({"type": "item_reference", "id": "x"})", "other_prompt");
  item("7", "not_understood");
  expect_reason(chat_of_responses, "{}", "not_understood");
  expect_reason(chat_of_responses, R"({"input": 7})", "not_understood");
  expect_reason(chat_of_responses, R"({"input": "a", "instructions": ["b"]})", "not_understood");
  expect_reason(chat_of_responses, R"({"input": "a", "previous_response_id": "r"})", "not_understood");
  expect_reason(chat_of_responses, R"({"input": "a", "tools": {}})", "not_understood");
  expect_reason(chat_of_responses, R"({"input": "a", "tools": [1]})", "not_understood");
}

// ---- /v1/messages

TEST(MessagesConversion, SystemAndTexts) {
  expect_chat(chat_of_messages,
              R"({"model": "m", "max_tokens": 5, "system": "Be brief.", "temperature": 0, "stream": true,
                  "messages": [{"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "text", "text": "b", "cache_control": {}}]}],
                  "chat_template_kwargs": {"enable_thinking": false}, "add_generation_prompt": false})",
              R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "text", "text": "b", "cache_control": {}}]}],
                  "max_tokens": 5, "stream": true, "chat_template_kwargs": {"enable_thinking": false}})");
  expect_chat(chat_of_messages,
              R"({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "messages": []})",
              R"({"messages": [{"role": "system", "content": "ab"}], "max_tokens": 4096})");
}

TEST(MessagesConversion, TheStampOfARequestIsTakenOut) {
  const auto system = [](std::string_view text) {
    const ConvertedChat made = chat_of_messages({{"system", text}, {"messages", Json::array()}});
    return std::get<Json>(made)["messages"][0]["content"].get<std::string>();
  };
  EXPECT_EQ(system("x-anthropic-billing-header: cc=2; cch=a5145;You"),
            "x-anthropic-billing-header: cc=2; cch=fffff;You");
  EXPECT_EQ(system("x-anthropic-billing-header: cch=a5145"), "x-anthropic-billing-header: cch=a5145");
  EXPECT_EQ(system("x-anthropic-billing-header: cch=a51456;"), "x-anthropic-billing-header: cch=a51456;");
  EXPECT_EQ(system("cch=a5145;"), "cch=a5145;");
}

TEST(MessagesConversion, CallsResultsAndThoughts) {
  expect_chat(chat_of_messages,
              R"({"max_tokens": 1, "messages": [
                  {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "s"},
                    {"type": "thinking", "thinking": "m"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"z": 1, "a": [2.50, "é"]}},
                    {"type": "tool_use", "id": "2", "name": "g"}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "one"},
                    {"type": "text", "text": "and"},
                    {"type": "tool_result", "tool_use_id": "2",
                     "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]},
                    {"type": "tool_result", "tool_use_id": "3", "is_error": true}]}]})",
              R"({"messages": [
                  {"role": "assistant", "content": "", "tool_calls": [
                    {"type": "function", "id": "1",
                     "function": {"name": "f", "arguments": "{\"z\":1,\"a\":[2.5,\"é\"]}"}},
                    {"type": "function", "id": "2", "function": {"name": "g", "arguments": "{}"}}],
                   "reasoning_content": "hm"},
                  {"role": "user", "content": [{"type": "text", "text": "and"}]},
                  {"role": "tool", "tool_call_id": "1", "content": "one"},
                  {"role": "tool", "tool_call_id": "2", "content": "two"},
                  {"role": "tool", "tool_call_id": "3", "content": ""}], "max_tokens": 1})");
}

TEST(MessagesConversion, ToolsAndChoices) {
  const auto choice = [](std::string_view given) {
    const Json body = parsed("{\"messages\": [], \"tool_choice\": " + std::string(given) + "}");
    return std::get<Json>(chat_of_messages(body)).value("tool_choice", "none given");
  };
  EXPECT_EQ(choice(R"({"type": "auto"})"), "auto");
  EXPECT_EQ(choice(R"({"type": "any"})"), "required");
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})"), "required");
  EXPECT_EQ(choice(R"({"type": "none"})"), "none given");
  EXPECT_EQ(choice(R"("any")"), "none given");
  expect_chat(chat_of_messages,
              R"({"max_tokens": 1, "messages": [], "tools": [
                  {"input_schema": {"z": 1, "a": 2}, "description": "d", "name": "f"}, {"name": "g"}]})",
              R"({"messages": [], "tools": [
                  {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": 1, "a": 2}}},
                  {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}}],
                  "max_tokens": 1})");
}

TEST(MessagesConversion, WhatIsNotCertainHasAReason) {
  const auto block = [](std::string_view text, std::string_view reason) {
    expect_reason(chat_of_messages, "{\"messages\": [{\"role\": \"user\", \"content\": [" + std::string(text) + "]}]}",
                  reason);
  };
  block(R"({"type": "image", "source": {}})", "media");
  block(R"({"type": "document", "source": {}})", "other_prompt");
  block(R"({"type": "redacted_thinking", "data": "x"})", "other_prompt");
  block(R"({"type": "tool_result", "content": [{"type": "image"}]})", "media");
  block(R"({"type": "tool_result", "content": {}})", "not_understood");
  block(R"({"type": "text"})", "not_understood");
  block("7", "other_prompt");
  expect_reason(chat_of_messages, "{}", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": 7})", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": [{"role": "assistant"}]})", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": [{"content": "x"}]})", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": [{"role": "user", "content": {}}]})", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": [], "system": 7})", "not_understood");
  expect_reason(chat_of_messages, R"({"messages": [], "system": [{"type": "image"}]})", "media");
  expect_reason(chat_of_messages, R"({"messages": [], "tools": 7})", "not_understood");
}

}  // namespace
}  // namespace larder::llama
