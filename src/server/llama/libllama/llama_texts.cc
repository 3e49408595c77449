// SPDX-License-Identifier: Apache-2.0
#include "server/llama/libllama/llama_texts.h"

#include <server-common.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/api_error.h"

namespace larder::llama {
namespace {

json tokenize(const CallParts& parts, const json& body) {
  if (!body.contains("content")) throw std::invalid_argument("\"content\" is required");
  const bool add_special = json_value(body, "add_special", false), parse = json_value(body, "parse_special", true);
  const llama_tokens tokens = tokenize_mixed(parts.model.vocabulary, body.at("content"), add_special, parse);
  json list = json::array();
  const bool has_pieces = json_value(body, "with_pieces", false);
  for (const llama_token token : tokens) {
    if (!has_pieces) {
      list.push_back(token);
      continue;
    }
    const std::string piece = common_token_to_piece(parts.model.vocabulary, token);
    json entry = json{{"id", token}};
    if (is_valid_utf8(piece)) {
      entry["piece"] = piece;
    } else {
      json bytes = json::array();
      for (const char c : piece) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
      entry["piece"] = std::move(bytes);
    }
    list.push_back(std::move(entry));
  }
  json out = json::object();
  out["tokens"] = std::move(list);
  return out;
}

json detokenize(const CallParts& parts, const json& body) {
  if (!body.contains("tokens")) throw std::invalid_argument("\"tokens\" is required");
  const llama_tokens tokens = body.at("tokens").get<llama_tokens>();
  const std::int32_t size = llama_vocab_n_tokens(parts.model.vocabulary);
  const auto is_strange = [size](llama_token token) { return token < 0 || token >= size; };
  if (std::ranges::any_of(tokens, is_strange)) throw std::invalid_argument("a token is not of this vocabulary");
  return json{{"content", tokens_to_str(parts.model.vocabulary, tokens)}};
}

json models(const CallParts& parts) {
  const LlamaModel& model = parts.model;
  json meta = json{{"n_vocab", llama_vocab_n_tokens(model.vocabulary)},    {"n_ctx", parts.context_tokens},
                   {"n_ctx_train", llama_model_n_ctx_train(&model.model)}, {"n_embd", llama_model_n_embd(&model.model)},
                   {"n_params", llama_model_n_params(&model.model)},       {"size", llama_model_size(&model.model)}};
  json one = json{{"id", model.name}, {"object", "model"}, {"created", 0}, {"owned_by", "larder"}};
  one["meta"] = std::move(meta);
  json data = json::array();
  data.push_back(std::move(one));
  json out = json{{"object", "list"}};
  out["data"] = std::move(data);
  return out;
}

json props(const CallParts& parts) {
  const LlamaModel& model = parts.model;
  json settings = json{{"n_ctx", parts.context_tokens}};
  json out = json{{"total_slots", parts.slots},
                  {"model_alias", model.name},
                  {"chat_template", common_chat_templates_source(model.chat.tmpls.get())},
                  {"bos_token", common_token_to_piece(model.vocabulary, llama_vocab_bos(model.vocabulary), true)},
                  {"eos_token", common_token_to_piece(model.vocabulary, llama_vocab_eos(model.vocabulary), true)},
                  {"build_info", "larder serve"}};
  out["default_generation_settings"] = std::move(settings);
  return out;
}

json count_tokens(const CallParts& parts, const std::string& body) {
  const json understood = understood_body(parts, CallKind::kMessages, parsed_body(body));
  const std::vector<server_tokens> prompts = prompt_tokens(parts.model, understood);
  return json{{"input_tokens", prompts.front().size()}};
}

std::string prompt_of_chat(const CallParts& parts, const std::string& body) {
  const json understood = understood_body(parts, CallKind::kChat, parsed_body(body));
  return understood.at("prompt").get<std::string>();
}

std::optional<json> text_of(const CallParts& parts, const HttpRequest& request) {
  const std::string_view path = request.path;
  if (request.method == "GET") {
    if (path == "/v1/models" || path == "/models") return models(parts);
    if (path == "/props") return props(parts);
    return std::nullopt;
  }
  if (request.method != "POST") return std::nullopt;
  if (path == "/tokenize") return tokenize(parts, parsed_body(request.body));
  if (path == "/detokenize") return detokenize(parts, parsed_body(request.body));
  if (path == "/v1/messages/count_tokens") return count_tokens(parts, request.body);
  if (path != "/apply-template") return std::nullopt;
  return json{{"prompt", prompt_of_chat(parts, request.body)}};
}

}  // namespace

std::optional<HttpResponse> answer_text(const CallParts& parts, const HttpRequest& request) {
  try {
    const std::optional<json> text = text_of(parts, request);
    if (!text) return std::nullopt;
    HttpResponse response;
    response.body = safe_json_to_str(*text);
    return response;
  } catch (const std::exception& error) {
    return error_response(400, error.what());
  }
}

Result<std::string> ExplainedModel::apply_template(std::string_view body) {
  try {
    return prompt_of_chat(parts_, std::string(body));
  } catch (const std::exception& error) {
    return invalid_argument(error.what());
  }
}

Result<std::vector<TokenId>> ExplainedModel::tokenize(std::string_view text) {
  try {
    const llama_tokens tokens = tokenize_mixed(parts_.model.vocabulary, std::string(text), true, true);
    return std::vector<TokenId>(tokens.begin(), tokens.end());
  } catch (const std::exception& error) {
    return invalid_argument(error.what());
  }
}

}  // namespace larder::llama
