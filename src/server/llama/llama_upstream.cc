// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_upstream.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_reader.h"

namespace larder::llama {
namespace {

using PlainJson = nlohmann::json;

constexpr std::size_t kShownBytes = 500;

// llama-server's error texts, or the beginning of what else it said.
std::string words_of(const HttpReply& reply) {
  const PlainJson body = PlainJson::parse(reply.body, nullptr, false);
  const auto error = body.is_object() ? body.find("error") : body.end();
  if (error != body.end() && error->is_object() && error->contains("message") && (*error)["message"].is_string()) {
    return (*error)["message"].get<std::string>();
  }
  return reply.body.substr(0, kShownBytes);
}

Result<PlainJson> answer_of(std::string_view what, const Result<HttpReply>& reply) {
  if (!reply.is_ok()) return reply.status();
  if (reply->status == 200) {
    PlainJson body = PlainJson::parse(reply->body, nullptr, false);
    if (!body.is_discarded()) return body;
    return unsupported(fmt::format("llama-server: {}: the answer is not JSON", what));
  }
  std::string text = fmt::format("llama-server: {}: HTTP {}: {}", what, reply->status, words_of(*reply));
  if (reply->status == 401) text += "; give its key with --upstream-key-file FILE";
  switch (reply->status) {
    case 400: return invalid_argument(text);
    case 503: return overloaded(text);
    case 500: return unavailable(text);
    default: return unsupported(text);
  }
}

// A member at a JSON pointer; nullptr: it is not there.
const PlainJson* at(const PlainJson& body, const char* pointer) {
  const PlainJson::json_pointer path(pointer);
  return body.contains(path) ? &body.at(path) : nullptr;
}

std::string text_at(const PlainJson& body, const char* pointer) {
  const PlainJson* found = at(body, pointer);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

std::uint64_t size_at(const PlainJson& body, const char* pointer) {
  const PlainJson* found = at(body, pointer);
  return found != nullptr && found->is_number() && *found >= 0 ? found->get<std::uint64_t>() : 0;
}

Status other_shape(std::string_view what) {
  return unsupported(
      fmt::format("llama-server: {}: the answer has another shape than the one of the versions that "
                  "are known",
                  what));
}

constexpr std::string_view kMarkerBegin = "<__media_", kMarkerEnd = "__>";
constexpr std::size_t kLeastDrawn = 16;  // characters; llama-server draws 32

}  // namespace

bool tells_starts_apart(const UpstreamFacts& facts) {
  const std::string_view drawn = facts.instance;
  if (!drawn.starts_with(kMarkerBegin) || !drawn.ends_with(kMarkerEnd)) return false;
  return drawn.size() >= kMarkerBegin.size() + kLeastDrawn + kMarkerEnd.size();
}

std::string tokens_text(std::span<const TokenId> tokens) {
  std::string out = "[";
  out.reserve(tokens.size() * 7);
  for (const TokenId token : tokens) {
    if (out.size() > 1) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", token);
  }
  return out += ']';
}

Status LlamaUpstream::check_health() {
  const Result<PlainJson> body = answer_of("GET /health", client_.request("GET", "/health"));
  return body.is_ok() ? Status::ok() : body.status();
}

Result<UpstreamFacts> LlamaUpstream::facts() {
  const Result<HttpReply> reply = client_.request("GET", "/props");
  is_let_in_ = !reply.is_ok() || reply->status != 401;
  LARDER_ASSIGN_OR_RETURN(const PlainJson body, answer_of("GET /props", reply));
  UpstreamFacts facts;
  facts.model_path = text_at(body, "/model_path");
  facts.build = text_at(body, "/build_info");
  facts.instance = text_at(body, "/media_marker");
  const PlainJson* sleeps = at(body, "/is_sleeping");
  facts.is_sleeping = sleeps != nullptr && *sleeps == true;
  facts.slots = static_cast<std::uint32_t>(size_at(body, "/total_slots"));
  facts.slot_context = static_cast<std::uint32_t>(size_at(body, "/default_generation_settings/n_ctx"));
  if (facts.slots == 0 || facts.slot_context == 0) return other_shape("GET /props");
  return facts;
}

Result<std::string> LlamaUpstream::adapters() {
  LARDER_ASSIGN_OR_RETURN(const PlainJson body,
                          answer_of("GET /lora-adapters", client_.request("GET", "/lora-adapters")));
  return body.dump(-1, ' ', false, PlainJson::error_handler_t::replace);
}

Result<std::vector<TokenId>> LlamaUpstream::tokenize(std::string_view text) {
  const PlainJson question = {{"content", text}, {"add_special", true}, {"parse_special", true}};
  LARDER_ASSIGN_OR_RETURN(const auto body,
                          answer_of("POST /tokenize", client_.request("POST", "/tokenize", dump_json(question))));
  const PlainJson* tokens = at(body, "/tokens");
  if (tokens == nullptr || !tokens->is_array()) return other_shape("POST /tokenize");
  std::vector<TokenId> out;
  out.reserve(tokens->size());
  for (const PlainJson& token : *tokens) {
    if (!token.is_number_integer() || token < 0) return other_shape("POST /tokenize");
    out.push_back(token.get<TokenId>());
  }
  return out;
}

Result<std::string> LlamaUpstream::apply_template(std::string_view body) {
  LARDER_ASSIGN_OR_RETURN(const auto answer,
                          answer_of("POST /apply-template", client_.request("POST", "/apply-template", body)));
  const PlainJson* prompt = at(answer, "/prompt");
  if (prompt == nullptr || !prompt->is_string()) return other_shape("POST /apply-template");
  return prompt->get<std::string>();
}

Result<std::uint64_t> LlamaUpstream::prefill(std::uint32_t slot, std::span<const TokenId> prompt) {
  const std::string body = fmt::format(
      R"({{"prompt":{},"n_predict":0,"cache_prompt":true,"n_cache_reuse":0,"id_slot":{}}})", tokens_text(prompt), slot);
  LARDER_ASSIGN_OR_RETURN(const auto answer,
                          answer_of("POST /completion", client_.request("POST", "/completion", body)));
  if (at(answer, "/timings/cache_n") == nullptr) return other_shape("POST /completion");
  return size_at(answer, "/timings/cache_n");
}

Result<Continuation> LlamaUpstream::continue_greedily(std::uint32_t slot, std::span<const TokenId> prompt,
                                                      std::uint32_t count) {
  const std::string body =
      fmt::format(R"({{"prompt":{},"n_predict":{},"cache_prompt":true,"n_cache_reuse":0,"id_slot":{},"temperature":0,)"
                  R"("samplers":["top_k"],"top_k":1,"ignore_eos":true,"n_probs":1,"return_tokens":true}})",
                  tokens_text(prompt), count, slot);
  LARDER_ASSIGN_OR_RETURN(const auto answer,
                          answer_of("POST /completion", client_.request("POST", "/completion", body)));
  const PlainJson* probabilities = at(answer, "/completion_probabilities");
  if (probabilities == nullptr || !probabilities->is_array() || at(answer, "/timings/cache_n") == nullptr) {
    return other_shape("POST /completion");
  }
  Continuation out;
  out.cached = size_at(answer, "/timings/cache_n");
  for (const PlainJson& one : *probabilities) {
    const PlainJson *token = at(one, "/id"), *value = at(one, "/logprob");
    if (token == nullptr || !token->is_number_integer() || value == nullptr || !value->is_number()) {
      return other_shape("POST /completion");
    }
    out.tokens.push_back(token->get<TokenId>());
    out.log_probabilities.push_back(value->get<double>());
  }
  return out;
}

Status LlamaUpstream::slot_action(std::uint32_t slot, std::string_view action, std::string_view name) {
  const std::string target = fmt::format("/slots/{}?action={}", slot, action);
  const PlainJson question = name.empty() ? PlainJson::object() : PlainJson{{"filename", name}};
  const auto answer = answer_of("POST " + target, client_.request("POST", target, dump_json(question)));
  return answer.is_ok() ? Status::ok() : answer.status();
}

Status LlamaUpstream::save_slot(std::uint32_t slot, std::string_view name) { return slot_action(slot, "save", name); }
Status LlamaUpstream::restore_slot(std::uint32_t slot, std::string_view name) {
  return slot_action(slot, "restore", name);
}
Status LlamaUpstream::erase_slot(std::uint32_t slot) { return slot_action(slot, "erase", {}); }

}  // namespace larder::llama
