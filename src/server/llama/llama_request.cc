// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_request.h"

#include <algorithm>
#include <array>

#include "server/json_reader.h"
#include "server/llama/chat_conversion.h"

namespace larder::llama {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, kPlainReasonCount> kReasonNames = {
    "other_route", "other_prompt", "not_understood",   "several_prompts", "media",
    "adapters",    "no_caching",   "too_many_answers", "other_slot",      "unknown_server"};

enum class Kind : std::uint8_t { kCompletion, kChat, kResponses, kMessages, kOtherPrompt, kSlotOnly };
struct Route {
  std::string_view path;
  Kind kind;
};
// With llama.cpp's --api-prefix these have other paths, and go on plainly.
constexpr Route kRoutes[] = {{"/completion", Kind::kCompletion},
                             {"/completions", Kind::kCompletion},
                             {"/v1/completions", Kind::kCompletion},
                             {"/chat/completions", Kind::kChat},
                             {"/v1/chat/completions", Kind::kChat},
                             {"/api/chat", Kind::kChat},  // of older versions
                             {"/infill", Kind::kOtherPrompt},
                             {"/responses", Kind::kResponses},
                             {"/v1/responses", Kind::kResponses},
                             {"/v1/messages", Kind::kMessages},
                             {"/embedding", Kind::kSlotOnly},
                             {"/embeddings", Kind::kSlotOnly},
                             {"/v1/embeddings", Kind::kSlotOnly},
                             {"/rerank", Kind::kSlotOnly},
                             {"/reranking", Kind::kSlotOnly},
                             {"/v1/rerank", Kind::kSlotOnly},
                             {"/v1/reranking", Kind::kSlotOnly},
                             {"/audio/transcriptions", Kind::kSlotOnly},
                             {"/v1/audio/transcriptions", Kind::kSlotOnly}};

const Route* find_route(std::string_view method, std::string_view path) {
  if (method != "POST") return nullptr;
  const auto* found = std::ranges::find(kRoutes, path, &Route::path);
  return found == std::end(kRoutes) ? nullptr : found;
}

bool is_token(const Json& value) {
  return value.is_number_integer() && value >= 0 && value <= std::int64_t{0x7fffffff};
}

// Parts of messages that are neither text nor absent.
bool has_media(const Json& messages) {
  for (const Json& message : messages) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_array()) continue;
    for (const Json& part : message["content"]) {
      if (!part.is_object() || !part.contains("type") || part["type"] != "text") return true;
    }
  }
  return false;
}

// False: it holds something else than the type.
bool read_flag(const Json& body, const char* name, bool& out) {
  const auto found = body.find(name);
  if (found == body.end() || found->is_null()) return true;
  if (!found->is_boolean()) return false;
  out = found->get<bool>();
  return true;
}

// As read_flag(). Who gives a salt that is no text must not share with those who give none.
bool read_salt(const Json& body, std::string& out) {
  const auto found = body.find("cache_salt");
  if (found == body.end() || found->is_null()) return true;
  if (!found->is_string()) return false;
  out = found->get<std::string>();
  return true;
}

bool read_answers(const Json& body, std::uint32_t& out) {
  for (const char* name : {"n_cmpl", "n"}) {
    const auto found = body.find(name);
    if (found == body.end() || found->is_null()) continue;
    if (!found->is_number_integer() || *found < 1 || *found > 1024) return false;
    out = found->get<std::uint32_t>();
    return true;
  }
  return true;
}

// llama-server looks at one of them. nullopt: one is no limit, or none is given.
std::optional<std::uint64_t> read_limit(const Json& body) {
  std::optional<std::uint64_t> most;
  for (const char* name : {"n_predict", "max_completion_tokens", "max_tokens"}) {
    const auto found = body.find(name);
    if (found == body.end()) continue;
    if (!found->is_number_integer() || *found < 0) return std::nullopt;
    most = std::max(most.value_or(0), found->get<std::uint64_t>());
  }
  return most;
}

std::variant<LlamaRequest, PlainReason> with_chat(LlamaRequest request) {
  const Json& chat = request.chat();
  if (!chat.contains("messages") || !chat["messages"].is_array()) return PlainReason::kNotUnderstood;
  if (has_media(chat["messages"])) return PlainReason::kMedia;
  request.prompt = std::monostate{};
  return request;
}

std::variant<LlamaRequest, PlainReason> with_prompt(LlamaRequest request) {
  const auto found = request.body.find("prompt");
  if (found == request.body.end()) return PlainReason::kNotUnderstood;
  const Json* prompt = &*found;
  const bool is_list = prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number();
  if (is_list) prompt = &prompt->front();  // of one prompt, as some clients send it always
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  } else if (prompt->is_object()) {
    return PlainReason::kMedia;
  } else if (prompt->is_array() && !prompt->empty() && std::ranges::all_of(*prompt, is_token)) {
    request.prompt = prompt->get<std::vector<TokenId>>();
  } else {
    return prompt->is_array() ? PlainReason::kSeveralPrompts : PlainReason::kNotUnderstood;
  }
  return request;
}

// Fills in `converted`, if the route has another interface. nullopt: done.
std::optional<PlainReason> convert(Kind kind, LlamaRequest& request) {
  if (kind != Kind::kResponses && kind != Kind::kMessages) return std::nullopt;
  ConvertedChat chat = kind == Kind::kResponses ? chat_of_responses(request.body) : chat_of_messages(request.body);
  if (const auto* reason = std::get_if<PlainReason>(&chat)) return *reason;
  request.converted = std::move(std::get<Json>(chat));
  return std::nullopt;
}

// null: it is no object, or has more than is read here.
Json parse_body(std::string_view text) {
  if (!check_json_size(text).is_ok()) return {};
  Json body = Json::parse(text, nullptr, false);
  return body.is_object() ? std::move(body) : Json();
}

}  // namespace

std::string_view plain_reason_name(PlainReason reason) { return kReasonNames[static_cast<std::size_t>(reason)]; }

RouteUse route_use(std::string_view method, std::string_view path) {
  return find_route(method, path) == nullptr ? RouteUse::kNone : RouteUse::kSlot;
}

bool route_takes_slot(std::string_view method, std::string_view path) {
  const Route* route = find_route(method, path);
  return route != nullptr && route->kind != Kind::kMessages;
}

std::variant<LlamaRequest, PlainReason> parse_llama_request(std::string_view method, std::string_view path,
                                                            std::string_view body) {
  const Route* route = find_route(method, path);
  if (route == nullptr || route->kind == Kind::kSlotOnly) return PlainReason::kOtherRoute;
  if (route->kind == Kind::kOtherPrompt) return PlainReason::kOtherPrompt;
  LlamaRequest request;
  request.body = parse_body(body);
  if (request.body.is_null()) return PlainReason::kNotUnderstood;
  if (const auto reason = convert(route->kind, request)) return *reason;
  request.takes_slot = route->kind != Kind::kMessages;
  const Json& counts = request.chat();  // what llama-server looks at
  bool caches = true;
  const bool is_understood = read_flag(counts, "cache_prompt", caches) &&
                             read_flag(counts, "stream", request.streams) && read_answers(counts, request.answers);
  if (!is_understood) return PlainReason::kNotUnderstood;
  if (!caches) return PlainReason::kNoCaching;
  if (counts.contains("lora")) return PlainReason::kAdapters;
  request.most_tokens = read_limit(counts);
  if (!read_salt(request.body, request.salt)) return PlainReason::kNotUnderstood;
  return route->kind == Kind::kCompletion ? with_prompt(std::move(request)) : with_chat(std::move(request));
}

std::string LlamaRequest::text_for_slot(std::uint32_t slot, bool uses_slot) const {
  Json out = body;
  out["id_slot"] = slot;
  out["cache_prompt"] = uses_slot;
  out["n_cache_reuse"] = 0;
  return dump_json(out);
}

std::string LlamaRequest::system_part() const {
  if (!is_chat()) return {};
  const Json& messages = chat()["messages"];
  const auto is_system = [](const Json& message) {
    const auto role = message.is_object() ? message.find("role") : message.end();
    return role != message.end() && (*role == "system" || *role == "developer");
  };
  const auto end = std::ranges::find_if_not(messages, is_system);
  if (end == messages.begin() || end == messages.end()) return {};
  Json out = chat();
  out["messages"] = Json(std::vector<Json>(messages.begin(), end));
  out["add_generation_prompt"] = false;
  out.erase("continue_final_message");
  return dump_json(out);
}

std::optional<PlainRequest> parse_plain_request(std::string_view text) {
  PlainRequest out;
  out.body = parse_body(text);
  if (out.body.is_null()) return std::nullopt;
  (void)read_answers(out.body, out.answers);  // what is no number of answers is llama-server's to refuse
  out.has_adapters = out.body.contains("lora");
  std::string salt;
  out.salt = read_salt(out.body, salt) ? std::optional(std::move(salt)) : std::nullopt;
  return out;
}

std::string PlainRequest::text(std::optional<std::uint32_t> slot, bool uses_slot) const {
  Json out = body;
  if (slot) out["id_slot"] = *slot;
  if (!uses_slot) out["cache_prompt"] = false;
  out["n_cache_reuse"] = 0;
  return dump_json(out);
}

}  // namespace larder::llama
