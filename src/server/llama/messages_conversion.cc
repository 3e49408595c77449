// SPDX-License-Identifier: Apache-2.0
// /v1/messages as /v1/chat/completions.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "server/llama/chat_conversion.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;
using Refusal = std::optional<PlainReason>;  // nullopt: converted

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
constexpr std::string_view kStamp = "cch=";
constexpr std::size_t kStampBytes = 5;
constexpr int kMostTokens = 4096;  // of an answer, where the client does not say

// Empty: it is not there, or no text.
std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

PlainReason reason_of_kind(const Json& block) {
  return block.is_object() && text_of(block, "type") == "image" ? PlainReason::kMedia : PlainReason::kOtherPrompt;
}

bool is_kind(const Json& block, std::string_view kind) {
  return block.is_object() && text_of(block, "type") == kind && block.contains("type");
}

// Claude Code stamps each request in its system prompt. llama-server writes "fffff" there, so that it is a prefix.
std::string without_stamp(std::string text) {
  if (!text.starts_with(kBillingHeader)) return text;
  const std::size_t found = text.find(kStamp, kBillingHeader.size());
  if (found == text.npos) return text;
  const std::size_t at = found + kStamp.size();
  if (at + kStampBytes >= text.size() || text[at + kStampBytes] != ';') return text;
  return text.replace(at, kStampBytes, kStampBytes, 'f');
}

Refusal add_system(const Json& body, Json& messages) {
  const auto system = body.find("system");
  if (system == body.end() || system->is_null()) return std::nullopt;
  std::string content;
  if (system->is_string()) {
    content = without_stamp(system->get<std::string>());
  } else if (system->is_array()) {
    for (const Json& block : *system) {
      if (!is_kind(block, "text")) return reason_of_kind(block);
      content += without_stamp(text_of(block, "text"));
    }
  } else {
    return PlainReason::kNotUnderstood;
  }
  messages.push_back({{"role", "system"}, {"content", std::move(content)}});
  return std::nullopt;
}

Json call_of(const Json& block) {
  const auto input = block.find("input");
  const bool has_input = input != block.end() && !input->is_null();
  return {{"type", "function"},
          {"id", text_of(block, "id")},
          {"function", {{"name", text_of(block, "name")}, {"arguments", has_input ? input->dump() : "{}"}}}};
}

Refusal add_result(const Json& block, Json& results) {
  std::string text;
  const auto content = block.find("content");
  if (content != block.end() && content->is_string()) {
    text = content->get<std::string>();
  } else if (content != block.end() && content->is_array()) {
    for (const Json& part : *content) {
      if (!is_kind(part, "text")) return reason_of_kind(part);
      text += text_of(part, "text");
    }
  } else if (content != block.end() && !content->is_null()) {
    return PlainReason::kNotUnderstood;
  }
  results.push_back({{"role", "tool"}, {"tool_call_id", text_of(block, "tool_use_id")}, {"content", std::move(text)}});
  return std::nullopt;
}

// A message's blocks: one message of its texts, thoughts and calls, then one for each result of a tool.
Refusal add_blocks(const std::string& role, const Json& blocks, Json& messages) {
  Json texts = Json::array(), calls = Json::array(), results = Json::array();
  std::string thoughts;
  for (const Json& block : blocks) {
    if (is_kind(block, "text")) {
      if (!block.contains("text") || !block["text"].is_string()) return PlainReason::kNotUnderstood;
      texts.push_back(block);
    } else if (is_kind(block, "thinking")) {
      thoughts += text_of(block, "thinking");
    } else if (is_kind(block, "tool_use")) {
      calls.push_back(call_of(block));
    } else if (is_kind(block, "tool_result")) {
      if (const Refusal refused = add_result(block, results)) return refused;
    } else {
      return reason_of_kind(block);
    }
  }
  if (!texts.empty() || !calls.empty() || !thoughts.empty()) {
    Json message = {{"role", role}, {"content", texts.empty() ? Json("") : std::move(texts)}};
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    if (!thoughts.empty()) message["reasoning_content"] = std::move(thoughts);
    messages.push_back(std::move(message));
  }
  for (Json& result : results) messages.push_back(std::move(result));
  return std::nullopt;
}

Refusal add_messages(const Json& given, Json& messages) {
  for (const Json& message : given) {
    if (!message.is_object() || !message.contains("content")) return PlainReason::kNotUnderstood;
    const std::string role = text_of(message, "role");
    const Json& content = message["content"];
    if (role.empty() || (!content.is_string() && !content.is_array())) return PlainReason::kNotUnderstood;
    if (content.is_string()) {
      messages.push_back(message);
    } else if (const Refusal refused = add_blocks(role, content, messages)) {
      return refused;
    }
  }
  return std::nullopt;
}

Refusal convert_tools(const Json& body, Json& chat) {
  const auto tools = body.find("tools");
  if (tools == body.end() || tools->is_null()) return std::nullopt;
  if (!tools->is_array()) return PlainReason::kNotUnderstood;
  Json converted = Json::array();
  for (const Json& tool : *tools) {
    if (!tool.is_object()) return PlainReason::kNotUnderstood;
    converted.push_back({{"type", "function"},
                         {"function",
                          {{"name", text_of(tool, "name")},
                           {"description", text_of(tool, "description")},
                           {"parameters", tool.contains("input_schema") ? tool["input_schema"] : Json::object()}}}});
  }
  chat["tools"] = std::move(converted);
  return std::nullopt;
}

void convert_choice(const Json& body, Json& chat) {
  const auto choice = body.find("tool_choice");
  if (choice == body.end() || !choice->is_object()) return;
  const std::string type = text_of(*choice, "type");
  if (type == "auto") chat["tool_choice"] = "auto";
  if (type == "any" || type == "tool") chat["tool_choice"] = "required";
}

}  // namespace

ConvertedChat chat_of_messages(const Json& body) {
  const auto given = body.find("messages");
  if (given == body.end() || !given->is_array()) return PlainReason::kNotUnderstood;
  Json messages = Json::array(), chat = Json::object();
  if (const Refusal refused = add_system(body, messages)) return *refused;
  if (const Refusal refused = add_messages(*given, messages)) return *refused;
  chat["messages"] = std::move(messages);
  if (const Refusal refused = convert_tools(body, chat)) return *refused;
  convert_choice(body, chat);
  chat["max_tokens"] = body.contains("max_tokens") ? body["max_tokens"] : Json(kMostTokens);
  for (const char* name : {"stream", "chat_template_kwargs"}) {
    if (body.contains(name)) chat[name] = body[name];
  }
  return chat;
}

}  // namespace larder::llama
