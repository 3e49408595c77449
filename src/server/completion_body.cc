// SPDX-License-Identifier: Apache-2.0
#include "server/completion_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/nearest_word.h"
#include "engine/tokenizer.h"
#include "server/json_reader.h"
#include "server/json_text.h"

namespace larder {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxNewTokens = std::numeric_limits<std::uint32_t>::max();  // the context is checked later

// What all prompts of a request share.
struct Shared {
  GenerateRequest generate;  // without tokens
  std::vector<std::string> stop_strings;
  std::optional<std::uint64_t> max_new_tokens;  // absent: the default, as far as the context has room
  std::string id;
};

void read_name(JsonReader& in, std::string_view name, std::string& out, std::size_t most_bytes) {
  in.read(name, out);
  if (out.size() <= most_bytes) return;
  in.fail(invalid_argument(
      fmt::format("'{}' has {} bytes: at most {} are taken", in.path_of(name), out.size(), most_bytes)));
}

void read_stops(JsonReader& in, Shared& shared, const ModelSpec& model) {
  in.read_strings("stop", shared.stop_strings);
  if (shared.stop_strings.size() > kMaxStopStrings) {
    in.fail(invalid_argument(fmt::format("'{}' has more than {} strings", in.path_of("stop"), kMaxStopStrings)));
  }
  for (const std::string& stop : shared.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      in.fail(invalid_argument(
          fmt::format("'{}': a stop string has 1 to {} bytes", in.path_of("stop"), kMaxStopStringBytes)));
    }
  }
  in.read_tokens("stop_token_ids", shared.generate.stop_tokens, model.vocab_size);
  if (shared.generate.stop_tokens.size() > kMaxStopTokens) {
    in.fail(
        invalid_argument(fmt::format("'{}' has more than {} token ids", in.path_of("stop_token_ids"), kMaxStopTokens)));
  }
}

void read_sampling(JsonReader& in, Shared& shared, const ModelSpec& model, const char* seed_name) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  in.read_number("temperature", shared.generate.temperature, 0, kInfinity);
  in.read_number("top_p", shared.generate.top_p, 0, 1);
  if (shared.generate.top_p <= 0) in.fail_type("top_p", "a number in (0, 1]");
  std::int64_t top_k = -1;
  in.read_int("top_k", top_k, -1, std::numeric_limits<std::uint32_t>::max());
  shared.generate.top_k = top_k <= 0 ? 0 : static_cast<std::uint32_t>(top_k);
  in.read("ignore_eos", shared.generate.ignore_eos);
  if (in.has(seed_name)) {
    std::int64_t seed = 0;
    in.read_int(seed_name, seed, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
    shared.generate.seed = static_cast<std::uint64_t>(seed);
  }
  read_stops(in, shared, model);
  in.refuse_unless("min_p", 0);
  in.refuse_unless("frequency_penalty", 0);
  in.refuse_unless("presence_penalty", 0);
  in.refuse_unless("repetition_penalty", 1);
  in.refuse_unless("n", 1);
  for (const char* name : {"json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "stop_regex"}) {
    in.refuse_unless(name, nullptr);
  }
}

void read_max_tokens(JsonReader& in, const char* name, Shared& shared) {
  if (!in.has(name)) return;
  std::uint64_t value = 0;
  in.read_uint(name, value, 1, kMaxNewTokens);
  shared.max_new_tokens = value;
}

// A cache_salt alone is the salt. An extra_key, with or without one, is spelled behind a mark, and so is a cache_salt
// that begins with the mark: what begins with it says where its two parts end, so no two pairs give the same salt.
std::string salt_of(const std::string& salt, const std::string& key) {
  constexpr std::string_view kMark = "extra_key:";
  if (key.empty() && !salt.starts_with(kMark)) return salt;
  return fmt::format("{}{}:{}{}", kMark, salt.size(), salt, key);
}

void read_identity(JsonReader& in, Shared& shared) {
  read_name(in, "lora_path", shared.generate.adapter, kMaxCacheNameBytes);
  std::string salt;
  std::string key;
  read_name(in, "cache_salt", salt, kMaxCacheNameBytes);
  read_name(in, "extra_key", key, kMaxCacheNameBytes);
  shared.generate.salt = salt_of(salt, key);
  if (in.is_ok() && shared.generate.salt.size() > kMaxCacheNameBytes) {
    in.fail(invalid_argument(fmt::format("'{}' and '{}' make one name of {} bytes: at most {} are taken",
                                         in.path_of("cache_salt"), in.path_of("extra_key"), shared.generate.salt.size(),
                                         kMaxCacheNameBytes)));
  }
  std::int64_t priority = 0;
  in.read_int("priority", priority, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max());
  shared.generate.priority = static_cast<std::int32_t>(priority);
  if (!in.has("will_return")) return;
  bool will_return = false;
  in.read("will_return", will_return);
  shared.generate.will_return = will_return;
}

void read_stream(JsonReader& in, CompletionBody& out) {
  in.read("stream", out.is_stream);
  const json* options = in.find("stream_options");
  if (!options) return;
  if (!options->is_object()) return in.fail_type("stream_options", "an object");
  JsonReader stream(*options, "stream_options");
  stream.read("include_usage", out.include_usage);
  in.fail(stream.status());
}

// --- prompts: text, tokens, or lists of either ---

Result<std::vector<TokenId>> prompt_of(const json& value, const std::string& path, const ModelSpec& model) {
  std::vector<TokenId> tokens;
  if (value.is_string()) {
    tokens = encode(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    LARDER_ASSIGN_OR_RETURN(tokens, tokens_of(value, path, model.vocab_size));
  } else {
    return invalid_argument(
        fmt::format("'{}' must be a string or an array of token ids, got {}", path, describe_json(value)));
  }
  if (tokens.empty()) return invalid_argument(fmt::format("'{}' is empty: a prompt has at least one token", path));
  return tokens;
}

bool is_list_of_prompts(const json& value) {
  return value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
}

void add_prompt(std::vector<TokenId> tokens, const ModelSpec& model, const Shared& shared, std::uint64_t default_tokens,
                CompletionBody& out) {
  PromptRequest prompt{shared.generate, shared.stop_strings, shared.id};
  const std::uint64_t room = model.context_length > tokens.size() ? model.context_length - tokens.size() : 1;
  prompt.generate.max_new_tokens = shared.max_new_tokens.value_or(std::min(default_tokens, room));
  prompt.generate.tokens = std::move(tokens);
  out.prompts.push_back(std::move(prompt));
}

Status add_prompts(const json& value, const std::string& path, const ModelSpec& model, const Shared& shared,
                   std::uint64_t default_tokens, CompletionBody& out) {
  out.is_batch = is_list_of_prompts(value);
  const std::size_t count = out.is_batch ? value.size() : 1;
  if (count > kMaxPromptsPerRequest) {
    return invalid_argument(fmt::format("'{}' has {} prompts, at most {}", path, count, kMaxPromptsPerRequest));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const json& item = out.is_batch ? value[i] : value;
    Result<std::vector<TokenId>> tokens = prompt_of(item, out.is_batch ? fmt::format("{}[{}]", path, i) : path, model);
    if (!tokens.is_ok()) return tokens.status();
    add_prompt(std::move(*tokens), model, shared, default_tokens, out);
  }
  if (count > 1) {
    for (PromptRequest& prompt : out.prompts) prompt.id.clear();  // one name does not fit several
  }
  return Status::ok();
}

// --- /generate ---

constexpr std::string_view kSamplingNames[] = {"max_new_tokens",
                                               "stop",
                                               "stop_token_ids",
                                               "stop_regex",
                                               "temperature",
                                               "top_p",
                                               "top_k",
                                               "min_p",
                                               "frequency_penalty",
                                               "presence_penalty",
                                               "repetition_penalty",
                                               "min_new_tokens",
                                               "n",
                                               "json_schema",
                                               "regex",
                                               "ebnf",
                                               "structural_tag",
                                               "ignore_eos",
                                               "skip_special_tokens",
                                               "spaces_between_special_tokens",
                                               "no_stop_trim",
                                               "custom_params",
                                               "stream_interval",
                                               "logit_bias",
                                               "sampling_seed"};

void refuse_unknown_sampling(JsonReader& in, const json& params) {
  for (const auto& [name, value] : params.items()) {
    if (std::find(std::begin(kSamplingNames), std::end(kSamplingNames), name) != std::end(kSamplingNames)) continue;
    in.fail(invalid_argument(fmt::format("unknown sampling parameter 'sampling_params.{}'{}", cut_text(name),
                                         did_you_mean(name, kSamplingNames))));
  }
}

Status read_sampling_params(const json& params, Shared& shared, const ModelSpec& model) {
  JsonReader in(params, "sampling_params");
  read_max_tokens(in, "max_new_tokens", shared);
  read_sampling(in, shared, model, "sampling_seed");
  in.refuse_unless("min_new_tokens", 0);
  in.refuse_unless("no_stop_trim", false);
  in.refuse_unless("custom_params", nullptr);
  refuse_unknown_sampling(in, params);
  return in.status();
}

// --- chat ---

Result<std::string> content_of(const json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return std::string{};
  const Status wrong = invalid_argument(
      fmt::format("'{}' must be a string or an array of text parts, got {}", path, describe_json(value)));
  if (!value.is_array()) return wrong;
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const json& part = value[i];
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return invalid_argument(fmt::format("'{}[{}]' must be {{\"type\": \"text\", \"text\": string}}", path, i));
    }
    out += part["text"].get<std::string>();
  }
  return out;
}

Result<std::vector<ChatMessage>> messages_of(const json& value) {
  if (!value.is_array() || value.empty()) {
    return invalid_argument("'messages' must be a non-empty array of objects, got " + describe_json(value));
  }
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!value[i].is_object()) {
      return invalid_argument(fmt::format("'{}' must be an object, got {}", path, describe_json(value[i])));
    }
    JsonReader in(value[i], path);
    ChatMessage message;
    in.read("role", message.role);
    if (in.is_ok() && message.role.empty()) in.fail_type("role", "a string such as \"user\"");
    if (!in.is_ok()) return in.status();
    if (in.find("content") == nullptr && message.role != "assistant") {  // an answer may have called tools alone
      return invalid_argument(fmt::format("'{}.content' is missing", path));
    }
    LARDER_ASSIGN_OR_RETURN(message.content, content_of(value[i].value("content", json()), path + ".content"));
    messages.push_back(std::move(message));
  }
  return messages;
}

void read_openai_common(JsonReader& in, Shared& shared, CompletionBody& out, const ModelSpec& model) {
  std::string ignored;
  in.read("model", ignored);
  read_name(in, "rid", shared.id, kMaxRequestNameBytes);
  shared.generate.temperature = 1;  // OpenAI's default
  read_max_tokens(in, "max_tokens", shared);
  read_sampling(in, shared, model, "seed");
  in.refuse_unless("best_of", 1);
  in.read("return_cached_tokens_details", out.wants_cached_details);
  read_identity(in, shared);
  read_stream(in, out);
}

}  // namespace

Result<CompletionBody> parse_generate_body(std::string_view text, const ModelSpec& model) {
  LARDER_ASSIGN_OR_RETURN(json document, parse_json_object(text));
  JsonReader in(document);
  CompletionBody out;
  Shared shared;
  if (const json* params = in.find("sampling_params")) {
    if (params->is_object()) {
      in.fail(read_sampling_params(*params, shared, model));
    } else {
      in.fail_type("sampling_params", "an object");
    }
  }
  read_name(in, "rid", shared.id, kMaxRequestNameBytes);
  read_identity(in, shared);
  read_stream(in, out);
  in.refuse_unless("return_logprob", false);
  in.refuse_unless("return_hidden_states", false);
  for (const char* name : {"input_embeds", "image_data", "video_data", "audio_data", "session_params"}) {
    in.refuse_unless(name, nullptr);
  }
  if (!in.is_ok()) return in.status();
  const json* prompt_text = in.find("text");
  const json* prompt_ids = in.find("input_ids");
  if (!prompt_text == !prompt_ids) {
    return invalid_argument(prompt_text ? "send 'text' or 'input_ids', not both"
                                        : "no prompt: send 'text' (a string) or 'input_ids' (an array of token ids)");
  }
  const bool holds_text = prompt_text && (prompt_text->is_string() || prompt_text->is_array());
  if (prompt_text && (!holds_text || (prompt_text->is_array() && !is_list_of_prompts(*prompt_text)))) {
    return invalid_argument("'text' must be a string or an array of strings, got " + describe_json(*prompt_text));
  }
  if (prompt_ids && !prompt_ids->is_array()) {
    return invalid_argument("'input_ids' must be an array of token ids, got " + describe_json(*prompt_ids));
  }
  LARDER_RETURN_IF_ERROR(add_prompts(prompt_text ? *prompt_text : *prompt_ids, prompt_text ? "text" : "input_ids",
                                     model, shared, kDefaultNewTokens, out));
  return out;
}

Result<CompletionBody> parse_completions_body(std::string_view text, const ModelSpec& model) {
  LARDER_ASSIGN_OR_RETURN(json document, parse_json_object(text));
  JsonReader in(document);
  CompletionBody out;
  Shared shared;
  read_openai_common(in, shared, out, model);
  in.refuse_unless("echo", false);
  in.refuse_unless("suffix", nullptr);
  in.refuse_unless("logprobs", nullptr);
  if (!in.is_ok()) return in.status();
  const json* prompt = in.find("prompt");
  if (!prompt) return invalid_argument("no prompt: send 'prompt' (a string, or an array of token ids)");
  LARDER_RETURN_IF_ERROR(add_prompts(*prompt, "prompt", model, shared, kDefaultCompletionTokens, out));
  return out;
}

Result<CompletionBody> parse_chat_body(std::string_view text, const ModelSpec& model) {
  LARDER_ASSIGN_OR_RETURN(json document, parse_json_object(text));
  JsonReader in(document);
  CompletionBody out;
  Shared shared;
  read_openai_common(in, shared, out, model);
  read_max_tokens(in, "max_completion_tokens", shared);
  in.refuse_unless("logprobs", false);
  in.refuse_unless("tools", nullptr);
  in.refuse_unless("functions", nullptr);
  in.refuse_unless("response_format", json{{"type", "text"}});
  if (!in.is_ok()) return in.status();
  const json* messages = in.find("messages");
  if (!messages) return invalid_argument("no 'messages': send an array of {\"role\", \"content\"} objects");
  LARDER_ASSIGN_OR_RETURN(std::vector<ChatMessage> read, messages_of(*messages));
  Result<std::vector<TokenId>> tokens = encode_chat(read);
  if (!tokens.is_ok()) return invalid_argument("'messages': " + tokens.status().message());
  add_prompt(std::move(*tokens), model, shared, kDefaultNewTokens, out);
  return out;
}

}  // namespace larder
