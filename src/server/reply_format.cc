// SPDX-License-Identifier: Apache-2.0
#include "server/reply_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "server/json_reader.h"
#include "server/json_text.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

// The stop string, else the token that ended it.
Json matched_json(const CompletionState& state) {
  if (!state.matched_stop.empty()) return state.matched_stop;
  return state.tokens.empty() ? Json(nullptr) : Json(state.tokens.back());
}

Json finish_json(const CompletionState& state) {
  switch (state.finish) {
    case FinishReason::kRunning: return nullptr;
    case FinishReason::kLength: return {{"type", "length"}, {"length", state.completion_tokens}};
    case FinishReason::kStop: return {{"type", "stop"}, {"matched", matched_json(state)}};
    case FinishReason::kAbort: return {{"type", "abort"}, {"message", "the request was aborted"}};
  }
  return nullptr;
}

Json details_json(const CachedTokens& cached, const std::string& storage_backend) {
  Json details = {{"device", cached.device}, {"host", cached.host}};
  if (storage_backend.empty()) return details;
  details["storage"] = cached.storage;
  details["storage_backend"] = storage_backend;
  return details;
}

// --- /generate ---

class GenerateFormat final : public ReplyFormat {
 public:
  explicit GenerateFormat(GenerateFormatOptions options) : options_(std::move(options)) {}

  void append_event(CompletionState& state, std::string& out) override {
    if (state.ids_json.size() + state.text_json.size() <= kMaxCumulativeBytes) {
      append_cumulative(state, out);
    } else {
      append_tail(state, out);
    }
  }

  void append_end(std::span<const CompletionState>, std::string&) override {}

  std::string body(std::span<const CompletionState> states) override {
    if (!options_.is_batch) return object_text(states[0]);
    std::string out = "[";
    for (const CompletionState& state : states) {
      if (out.size() > 1) out += ",";
      out += object_text(state);
    }
    return out + "]";
  }

 private:
  Json meta_info(const CompletionState& state) const {
    Json meta = {{"id", state.id},
                 {"finish_reason", finish_json(state)},
                 {"prompt_tokens", state.prompt_tokens},
                 {"completion_tokens", state.completion_tokens},
                 {"cached_tokens", state.cached.cached()},
                 {"cached_tokens_details", details_json(state.cached, options_.storage_backend)},
                 {"cached_tokens_stop", stop_json(state.cached)},
                 {"cached_tokens_miss", miss_json(state.cached.miss.for_tenant())},
                 {"e2e_latency", state.e2e_seconds}};
    if (state.completion_tokens > 0) {
      meta["ttft"] = state.ttft_seconds;
      meta["queue_time"] = state.queue_seconds;
    }
    return meta;
  }

  std::string index_text(const CompletionState& state) const {
    return options_.is_batch ? fmt::format("\"index\":{},", state.index) : std::string{};
  }

  std::string object_text(const CompletionState& state) const {
    return fmt::format("{{{}\"text\":\"{}\",\"output_ids\":[{}],\"meta_info\":{}}}", index_text(state), state.text_json,
                       state.ids_json, dump_json(meta_info(state)));
  }

  void append_cumulative(CompletionState& state, std::string& out) const {
    out += "data: " + object_text(state) + "\n\n";
    state.sent_tokens = state.tokens.size();
    mark_text_sent(state, state.text.size());
    state.is_end_sent = state.is_ended();
  }

  void append_tail(CompletionState& state, std::string& out) const {
    const std::size_t first = state.sent_tokens;
    const std::size_t last = std::min(state.tokens.size(), first + kTailTokens);
    const std::size_t text_end = utf8_cut(state.text, state.sent_text, kTailTextBytes);
    std::string ids;
    for (std::size_t i = first; i < last; ++i) {
      if (i > first) ids += ',';
      ids += std::to_string(state.tokens[i]);
    }
    std::string text;
    append_json_escaped(std::string_view(state.text).substr(state.sent_text, text_end - state.sent_text), text);
    const bool is_complete = last == state.tokens.size() && text_end == state.text.size();
    Json meta = meta_info(state);
    if (!is_complete) meta["finish_reason"] = nullptr;
    out += fmt::format("data: {{{}\"text\":\"{}\",\"text_offset\":{},\"output_ids\":[{}],\"output_ids_offset\":{},",
                       index_text(state), text, state.sent_characters, ids, first);
    out += fmt::format("\"meta_info\":{}}}\n\n", dump_json(meta));
    state.sent_tokens = last;
    mark_text_sent(state, text_end);
    state.is_end_sent = is_complete && state.is_ended();
  }

  // Clients cut text by characters, not by bytes: counts code points, whose further bytes are 10xxxxxx.
  static void mark_text_sent(CompletionState& state, std::size_t end) {
    const std::string_view sent = std::string_view(state.text).substr(state.sent_text, end - state.sent_text);
    state.sent_characters += static_cast<std::size_t>(
        std::count_if(sent.begin(), sent.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    state.sent_text = end;
  }

  const GenerateFormatOptions options_;
};

// --- OpenAI ---

class OpenAiFormat final : public ReplyFormat {
 public:
  explicit OpenAiFormat(OpenAiFormatOptions options) : options_(std::move(options)) {}

  void append_event(CompletionState& state, std::string& out) override {
    if (!state.is_head_sent && options_.is_chat) {
      append_chunk(state, {{"role", "assistant"}, {"content", ""}}, false, out);
    }
    state.is_head_sent = true;
    const std::size_t end = utf8_cut(state.text, state.sent_text, kTailTextBytes);
    const std::string text = state.text.substr(state.sent_text, end - state.sent_text);
    state.sent_text = end;
    const bool has_more = end < state.text.size();
    if (!has_more) state.sent_tokens = state.tokens.size();
    const bool is_end = state.is_ended() && !has_more;
    if (text.empty() && !is_end) return;
    if (options_.is_chat) {
      if (!text.empty()) append_chunk(state, {{"content", text}}, false, out);
      if (is_end) append_chunk(state, Json::object(), true, out);
    } else {
      append_text_chunk(state, text, is_end, out);
    }
    state.is_end_sent = is_end;
  }

  void append_end(std::span<const CompletionState> states, std::string& out) override {
    if (!options_.include_usage) return;
    Json chunk = head(states[0], true);
    chunk["choices"] = Json::array();
    chunk["usage"] = usage(states);
    out += "data: " + dump_json(chunk) + "\n\n";
  }

  std::string body(std::span<const CompletionState> states) override {
    Json reply = head(states[0], false);
    reply["choices"] = Json::array();
    for (const CompletionState& state : states) {
      Json choice = {{"index", state.index}};
      if (options_.is_chat) {
        choice["message"] = {{"role", "assistant"}, {"content", state.text}};
      } else {
        choice["text"] = state.text;
      }
      choice["logprobs"] = nullptr;
      finish_choice(state, true, choice);
      reply["choices"].push_back(std::move(choice));
    }
    reply["usage"] = usage(states);
    add_details(states[0], reply);
    return dump_json(reply);
  }

 private:
  Json head(const CompletionState& first, bool is_chunk) const {
    const std::string_view object = !options_.is_chat ? "text_completion"
                                    : is_chunk        ? "chat.completion.chunk"
                                                      : "chat.completion";
    return {{"id", (options_.is_chat ? "chatcmpl-" : "cmpl-") + request_id(first)},
            {"object", object},
            {"created", options_.created_unix_seconds},
            {"model", options_.model}};
  }

  // One id for all choices of a request: that of its first prompt.
  std::string request_id(const CompletionState& first) const {
    if (id_.empty()) id_ = first.id;
    return id_;
  }

  static void finish_choice(const CompletionState& state, bool is_end, Json& choice) {
    choice["finish_reason"] = is_end ? Json(finish_name(state.finish)) : Json(nullptr);
    if (is_end) choice["matched_stop"] = state.finish == FinishReason::kStop ? matched_json(state) : Json(nullptr);
  }

  void append_chunk(const CompletionState& state, Json delta, bool is_end, std::string& out) const {
    Json chunk = head(state, true);
    Json choice = {{"index", state.index}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    finish_choice(state, is_end, choice);
    chunk["choices"] = Json::array({std::move(choice)});
    chunk["usage"] = nullptr;  // bench_serving asks for the key in every chunk
    if (is_end) add_details(state, chunk);
    out += "data: " + dump_json(chunk) + "\n\n";
  }

  void append_text_chunk(const CompletionState& state, const std::string& text, bool is_end, std::string& out) const {
    Json chunk = head(state, true);
    Json choice = {{"index", state.index}, {"text", text}, {"logprobs", nullptr}};
    finish_choice(state, is_end, choice);
    chunk["choices"] = Json::array({std::move(choice)});
    chunk["usage"] = nullptr;
    if (is_end) add_details(state, chunk);
    out += "data: " + dump_json(chunk) + "\n\n";
  }

  // In a chunk with choices: SGLang's client of /v1/completions looks for choices in every chunk.
  void add_details(const CompletionState& state, Json& answer) const {
    if (!options_.wants_cached_details || state.index != 0) return;
    answer["sglext"] = {{"cached_tokens_details", details_json(state.cached, options_.storage_backend)}};
  }

  static Json usage(std::span<const CompletionState> states) {
    std::uint64_t prompt = 0;
    std::uint64_t completion = 0;
    std::uint64_t cached = 0;
    for (const CompletionState& state : states) {
      prompt += state.prompt_tokens;
      completion += state.completion_tokens;
      cached += state.cached.cached();
    }
    return {{"prompt_tokens", prompt},
            {"completion_tokens", completion},
            {"total_tokens", prompt + completion},
            {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  }

  const OpenAiFormatOptions options_;
  mutable std::string id_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_generate_format(GenerateFormatOptions options) {
  return std::make_unique<GenerateFormat>(std::move(options));
}

std::unique_ptr<ReplyFormat> make_openai_format(OpenAiFormatOptions options) {
  return std::make_unique<OpenAiFormat>(std::move(options));
}

nlohmann::ordered_json stop_json(const CachedTokens& cached) {
  if (cached.reason == StopReason::kNone) return nullptr;
  return {{"reason", stop_reason_name(cached.reason)}, {"component", component_name(cached.component)}};
}

nlohmann::ordered_json miss_json(const Miss& miss) {
  if (miss.reason == MissReason::kNone) return nullptr;
  nlohmann::ordered_json out = {{"reason", miss_reason_name(miss.reason)},
                                {"at_token", miss.at_token},
                                {"component", component_name(miss.component)}};
  if (miss.is_loss()) {
    out["tier"] = lost_from_name(miss.tier);
    if (miss.ago) out["seconds_ago"] = std::chrono::duration<double>(*miss.ago).count();
    if (miss.by.v != 0) out["for_request"] = miss.by.v;
  }
  out["text"] = miss_sentence(miss);
  return out;
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning: return "";
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kAbort: return "abort";
  }
  return "";
}

}  // namespace larder
