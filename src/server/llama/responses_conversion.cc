// SPDX-License-Identifier: Apache-2.0
// /v1/responses as /v1/chat/completions.
#include <optional>
#include <string>
#include <utility>

#include "server/llama/chat_conversion.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;
using Refusal = std::optional<PlainReason>;  // nullopt: converted

bool has_string(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_string();
}

bool has_array(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_array();
}

bool is_text(const Json& object, const char* name, std::string_view value) {
  return has_string(object, name) && object[name] == value;
}

PlainReason reason_of_kind(const Json& part) {
  if (!has_string(part, "type")) return PlainReason::kNotUnderstood;
  const auto& type = part["type"].get_ref<const std::string&>();
  return type.find("image") != type.npos || type.find("audio") != type.npos || type.find("file") != type.npos
             ? PlainReason::kMedia
             : PlainReason::kOtherPrompt;
}

// Assistant messages, calls and thoughts that follow one another are one message.
Json* open_assistant(Json& messages) {
  return !messages.empty() && messages.back()["role"] == "assistant" ? &messages.back() : nullptr;
}

// Texts of a message's parts; `also`: the other type of part that is text.
Refusal read_parts(const Json& content, std::string_view also, Json& out) {
  out = Json::array();
  for (const Json& part : content) {
    if (!is_text(part, "type", "input_text") && !is_text(part, "type", also)) return reason_of_kind(part);
    if (!has_string(part, "text")) return PlainReason::kNotUnderstood;
    out.push_back({{"type", "text"}, {"text", part["text"]}});
  }
  return std::nullopt;
}

Refusal add_message(Json item, Json& messages) {
  const bool is_answer = item["role"] == "assistant";
  // llama-server does not take an assistant's message that does not say its type.
  if (is_answer && !is_text(item, "type", "message")) return PlainReason::kNotUnderstood;
  Json parts;
  if (const Refusal refused = read_parts(item["content"], is_answer ? "output_text" : "input_text", parts)) {
    return refused;
  }
  if (Json* before = is_answer ? open_assistant(messages) : nullptr) {
    if (!has_array(*before, "content")) (*before)["content"] = Json::array();
    for (Json& part : parts) (*before)["content"].push_back(std::move(part));
    return std::nullopt;
  }
  item.erase("type");
  item.erase("status");
  item["content"] = std::move(parts);
  messages.push_back(std::move(item));
  return std::nullopt;
}

void add_call(const Json& item, Json& messages) {
  Json call = {{"type", "function"},
               {"id", item["call_id"]},
               {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}};
  if (Json* before = open_assistant(messages)) {
    if (!has_array(*before, "tool_calls")) (*before)["tool_calls"] = Json::array();
    (*before)["tool_calls"].push_back(std::move(call));
    return;
  }
  messages.push_back({{"role", "assistant"}, {"tool_calls", Json::array({std::move(call)})}});
}

Refusal add_result(const Json& item, Json& messages) {
  Json content = item["output"];
  if (content.is_array()) {
    for (Json& part : content) {
      if (!is_text(part, "type", "input_text")) return reason_of_kind(part);
      if (!has_string(part, "text")) return PlainReason::kNotUnderstood;
      part["type"] = "text";
    }
  } else if (!content.is_string()) {
    return PlainReason::kNotUnderstood;
  }
  messages.push_back({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(content)}});
  return std::nullopt;
}

Refusal add_thought(const Json& item, Json& messages) {
  if (!has_array(item, "content") || item["content"].empty() || !has_string(item["content"][0], "text")) {
    return PlainReason::kNotUnderstood;
  }
  const Json& text = item["content"][0]["text"];
  if (Json* before = open_assistant(messages)) {
    (*before)["reasoning_content"] = text;
  } else {
    messages.push_back({{"role", "assistant"}, {"content", Json::array()}, {"reasoning_content", text}});
  }
  return std::nullopt;
}

Refusal add_item(Json item, Json& messages) {
  if (!item.is_object()) return PlainReason::kNotUnderstood;
  if (has_string(item, "content")) {
    item["content"] = Json::array({{{"type", "input_text"}, {"text", item["content"]}}});
  }
  for (const char* role : {"user", "system", "developer", "assistant"}) {
    if (has_array(item, "content") && is_text(item, "role", role)) return add_message(std::move(item), messages);
  }
  if (item.contains("role")) return PlainReason::kNotUnderstood;
  if (is_text(item, "type", "function_call")) {
    if (!has_string(item, "arguments") || !has_string(item, "call_id") || !has_string(item, "name")) {
      return PlainReason::kNotUnderstood;
    }
    add_call(item, messages);
    return std::nullopt;
  }
  if (is_text(item, "type", "function_call_output") && has_string(item, "call_id") && item.contains("output")) {
    return add_result(item, messages);
  }
  if (is_text(item, "type", "reasoning") && has_array(item, "summary")) return add_thought(item, messages);
  return PlainReason::kOtherPrompt;
}

Refusal add_messages(const Json& body, Json& messages) {
  if (const auto told = body.find("instructions"); told != body.end()) {
    if (!told->is_string() && !told->is_null()) return PlainReason::kNotUnderstood;
    messages.push_back({{"role", "system"}, {"content", told->is_string() ? told->get<std::string>() : ""}});
  }
  const Json& input = body["input"];
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return std::nullopt;
  }
  if (!input.is_array()) return PlainReason::kNotUnderstood;
  for (const Json& item : input) {
    if (const Refusal refused = add_item(item, messages)) return refused;
  }
  return std::nullopt;
}

// llama-server leaves tools out that are no functions.
Refusal convert_tools(const Json& body, Json& chat) {
  const auto tools = body.find("tools");
  if (tools == body.end()) return std::nullopt;
  if (!tools->is_array()) return PlainReason::kNotUnderstood;
  Json converted = Json::array();
  for (Json tool : *tools) {
    if (!tool.is_object()) return PlainReason::kNotUnderstood;
    if (!is_text(tool, "type", "function")) continue;
    tool.erase("type");
    if (!tool.contains("strict")) tool["strict"] = true;
    converted.push_back({{"type", "function"}, {"function", std::move(tool)}});
  }
  chat.erase("tools");
  if (!converted.empty()) chat["tools"] = std::move(converted);
  return std::nullopt;
}

}  // namespace

ConvertedChat chat_of_responses(const Json& body) {
  if (!body.contains("input")) return PlainReason::kNotUnderstood;
  if (const auto before = body.find("previous_response_id"); before != body.end()) {
    if (!before->is_null() && *before != "") return PlainReason::kNotUnderstood;
  }
  Json messages = Json::array(), chat = body;
  if (const Refusal refused = add_messages(body, messages)) return *refused;
  chat.erase("input");
  chat.erase("instructions");
  chat["messages"] = std::move(messages);
  if (const Refusal refused = convert_tools(body, chat)) return *refused;
  if (body.contains("max_output_tokens")) {
    chat.erase("max_output_tokens");
    chat["max_tokens"] = body["max_output_tokens"];
  }
  if (const auto reasoning = body.find("reasoning"); reasoning != body.end()) {
    if (reasoning->is_object() && reasoning->contains("effort")) chat["reasoning_effort"] = (*reasoning)["effort"];
    chat.erase("reasoning");
  }
  return chat;
}

}  // namespace larder::llama
