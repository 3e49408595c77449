// SPDX-License-Identifier: Apache-2.0
#include "server/llama/libllama/llama_calls.h"

#include <fmt/format.h>
#include <server-chat.h>
#include <server-common.h>
#include <server-schema.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "server/json_reader.h"
#include "server/llama/plain_reason.h"

namespace larder::llama {
namespace {

constexpr const char* kReusedHelp = "Prompt tokens that were not computed anew.";

constexpr Nanos kPing = std::chrono::seconds(30);  // a silent stream says that it lives

task_response_type response_type(CallKind kind) {
  switch (kind) {
    case CallKind::kOpenAiCompletion: return TASK_RESPONSE_TYPE_OAI_CMPL;
    case CallKind::kChat: return TASK_RESPONSE_TYPE_OAI_CHAT;
    case CallKind::kResponses: return TASK_RESPONSE_TYPE_OAI_RESP;
    case CallKind::kMessages: return TASK_RESPONSE_TYPE_ANTHROPIC;
    case CallKind::kCompletion:
    case CallKind::kInfill: break;
  }
  return TASK_RESPONSE_TYPE_NONE;
}

const char* name_of(ReusedFrom from) {
  switch (from) {
    case ReusedFrom::kSlot: return "slot";
    case ReusedFrom::kHost: return "host";
    case ReusedFrom::kStorage: return "storage";
    case ReusedFrom::kNothing: break;
  }
  return "nothing";
}

// Who gives a salt that is no text must not share with those who give none.
std::string salt_of(const json& body) {
  if (!body.contains("cache_salt") || body.at("cache_salt").is_null()) return {};
  if (!body.at("cache_salt").is_string()) throw std::invalid_argument("\"cache_salt\" must be text");
  return body.at("cache_salt").get<std::string>();
}

// With prefix, suffix and files around the gap, as models that were trained for it want it.
json infill_body(const CallParts& parts, json body) {
  const llama_vocab* vocabulary = parts.model.vocabulary;
  for (const llama_token token :
       {llama_vocab_fim_pre(vocabulary), llama_vocab_fim_suf(vocabulary), llama_vocab_fim_mid(vocabulary)}) {
    if (token == LLAMA_TOKEN_NULL) throw std::invalid_argument("this model has no tokens for infill");
  }
  for (const char* name : {"input_prefix", "input_suffix"}) {
    if (!body.contains(name)) throw std::invalid_argument(fmt::format("\"{}\" is required", name));
  }
  json extra = json_value(body, "input_extra", json::array());
  const std::string prompt = json_value(body, "prompt", std::string());
  const llama_tokens tokens = common_tokenize(vocabulary, prompt, false, true);
  body["prompt"] = format_prompt_infill(vocabulary, body.at("input_prefix"), body.at("input_suffix"), extra,
                                        static_cast<int>(parts.batch_tokens), json_value(body, "n_predict", -1),
                                        static_cast<int>(parts.context_tokens), false, tokens);
  return body;
}

// Throws: llama.cpp ends a batch with an error for a token that it does not know, and all requests in it.
std::vector<TokenId> token_ids(const LlamaModel& model, const llama_tokens& tokens) {
  const std::int32_t size = llama_vocab_n_tokens(model.vocabulary);
  const auto strange = std::ranges::find_if(tokens, [&](llama_token token) { return token < 0 || token >= size; });
  if (strange != tokens.end()) {
    throw std::invalid_argument(fmt::format("token {} of the prompt: the vocabulary has {}", *strange, size));
  }
  return {tokens.begin(), tokens.end()};
}

// As llama-server says it: clients look for the type, and shorten what they send by the two numbers.
json too_long(std::size_t prompt_tokens, std::uint32_t context_tokens) {
  json error = format_error_response(fmt::format("the prompt has {} tokens: the context has room for {} (--ctx-size)",
                                                 prompt_tokens, context_tokens - 1),
                                     ERROR_TYPE_EXCEED_CONTEXT_SIZE);
  error["n_prompt_tokens"] = prompt_tokens;
  error["n_ctx"] = context_tokens;
  return error;
}

}  // namespace

LlamaModel::LlamaModel(llama_model& loaded, std::string name_of_it, const std::string& chat_template,
                       std::uint32_t slots)
    : model(loaded), vocabulary(llama_model_get_vocab(&loaded)), name(std::move(name_of_it)) {
  defaults.n_parallel = static_cast<std::int32_t>(slots);
  chat.tmpls = common_chat_templates_init(&model, chat_template);
  chat.use_jinja = defaults.use_jinja;
  chat.prefill_assistant = defaults.prefill_assistant;
  chat.reasoning_format = defaults.reasoning_format;
  chat.allow_image = chat.allow_audio = chat.allow_video = false;
  chat.enable_thinking = chat.use_jinja && common_chat_templates_support_enable_thinking(chat.tmpls.get());
  const std::int32_t tokens = llama_vocab_n_tokens(vocabulary);
  for (llama_token token = 0; token < tokens; ++token) {
    if (llama_vocab_is_eog(vocabulary, token)) end_bias.push_back({token, -INFINITY});
  }
}

ServeMetrics::ServeMetrics(MetricsRegistry& registry)
    : requests(registry.counter("larder_serve_requests_total", "Requests for completions.")),
      failed(registry.counter("larder_serve_requests_failed_total", "Requests that were answered by an error.")),
      prompt_tokens(registry.counter("larder_serve_prompt_tokens_total", "Tokens of prompts.")),
      slot_tokens(registry.counter("larder_serve_reused_tokens_total", kReusedHelp, {{"from", "slot"}})),
      host_tokens(registry.counter("larder_serve_reused_tokens_total", kReusedHelp, {{"from", "host"}})),
      storage_tokens(registry.counter("larder_serve_reused_tokens_total", kReusedHelp, {{"from", "storage"}})),
      lookups_failed(registry.counter("larder_serve_lookups_failed_total", "Prompts that could not be looked up.")),
      saves_begun(registry.counter("larder_serve_saves_begun_total", "Sequences that were copied to be kept.")),
      saves(registry.counter("larder_serve_saves_total", "Copied sequences that are done with, kept or not.")),
      saves_failed(registry.counter("larder_serve_saves_failed_total", "Copied sequences that were not kept.")),
      misses(registry) {}

json parsed_body(const std::string& body) {
  const Status checked = check_json_size(body);
  if (!checked.is_ok()) throw std::invalid_argument(checked.message());
  return json::parse(body);
}

namespace {

// Of a chat in whatever form.
json as_chat(CallKind kind, json body) {
  if (kind == CallKind::kResponses) return server_chat_convert_responses_to_chatcmpl(body);
  if (kind == CallKind::kMessages) return server_chat_convert_anthropic_to_oai(body);
  return body;
}

}  // namespace

json understood_body(const CallParts& parts, CallKind kind, json body) {
  if (kind == CallKind::kInfill) return infill_body(parts, std::move(body));
  if (kind == CallKind::kCompletion || kind == CallKind::kOpenAiCompletion) {
    if (!body.contains("prompt")) throw std::invalid_argument("\"prompt\" is required");
    return body;
  }
  json chat = as_chat(kind, std::move(body));
  std::vector<raw_buffer> files;
  return oaicompat_chat_params_parse(chat, parts.model.chat, files);
}

std::vector<server_tokens> prompt_tokens(const LlamaModel& model, const json& understood) {
  return tokenize_input_prompts(model.vocabulary, nullptr, understood.at("prompt"), true, true,
                                mtmd_helper_init_opt_default());
}

void CompletionCall::run() {
  parts_.metrics.requests.increment();
  answer();
  remember();
}

void CompletionCall::answer() {
  reply_.on_gone([results = results_] { results->abandon(); });
  const Status asked = [&] {
    try {
      return ask();
    } catch (const std::exception& error) {
      return invalid_argument(error.what());
    }
  }();
  if (!asked.is_ok()) {
    results_->abandon();  // what was submitted before it
    if (refusal_.is_null()) refusal_ = format_error_response(asked.message(), error_type_of(asked.code()));
    return refuse(refusal_);
  }
  try {
    if (json_value(understood_, "stream", false)) {
      answer_stream();
    } else {
      answer_whole();
    }
  } catch (const std::exception& error) {  // of llama.cpp, while it writes an answer
    results_->abandon();
    refuse(format_error_response(error.what(), ERROR_TYPE_SERVER));
  }
}

Status CompletionCall::ask() {
  original_ = parsed_body(request_.body);
  understood_ = understood_body(parts_, kind_, original_);
  salt_ = salt_of(original_);
  id_ = gen_chatcmplid();
  if (understood_.contains("lora")) throw std::invalid_argument("\"lora\": this server loads no adapters");
  std::vector<server_tokens> prompts = prompt_tokens(parts_.model, understood_);
  for (const server_tokens& prompt : prompts) {
    if (prompt.size() < parts_.context_tokens) continue;
    refusal_ = too_long(prompt.size(), parts_.context_tokens);
    return invalid_argument("the prompt does not fit the context");
  }
  for (server_tokens& prompt : prompts) LARDER_RETURN_IF_ERROR(submit(std::move(prompt)));
  return Status::ok();
}

Status CompletionCall::submit(server_tokens prompt) {
  task_params params = server_schema::eval_llama_cmpl_schema(parts_.model.vocabulary, parts_.model.defaults,
                                                             parts_.model.end_bias, understood_);
  if (params.n_indent > 0) throw std::invalid_argument("\"n_indent\" is not supported");
  params.res_type = response_type(kind_);
  params.oaicompat_cmpl_id = id_;
  params.oaicompat_model = parts_.model.name;
  EngineRequest request;
  request.prompt = token_ids(parts_.model, prompt.get_tokens());
  request.owner = salt_;
  request.may_reuse = may_reuse_ = params.cache_prompt;
  all_prompt_tokens_ += request.prompt.size();
  const auto count = static_cast<std::size_t>(std::max(1, params.n_cmpl));
  if (count > parts_.slots) {
    throw std::invalid_argument(fmt::format("\"n\" is {}: the server has {} slots (--parallel)", count, parts_.slots));
  }
  std::vector<std::shared_ptr<LlamaAnswer>> answers;
  for (std::size_t i = 0; i < count; ++i) {
    server_task task(SERVER_TASK_TYPE_COMPLETION);
    task.index = answers_ + i;
    task.id = static_cast<int>(task.index);
    task.params = params;
    if (i > 0 && params.sampling.seed != LLAMA_DEFAULT_SEED) {
      task.params.sampling.seed += static_cast<std::uint32_t>(i);
    }
    task.tokens = prompt.clone();
    states_.push_back(task.create_state());
    answers.push_back(
        std::make_shared<LlamaAnswer>(parts_.model.model, std::move(task), parts_.context_tokens, results_));
  }
  answers_ += count;
  const std::shared_ptr<TraceRequest> trace = begin_trace(request, count);
  for (const auto& answer : answers) answer->set_trace(trace);
  request.answers.assign(answers.begin(), answers.end());
  answers.clear();  // the last of them ends what is recorded
  if (request.may_reuse && request.prompt.size() < parts_.context_tokens) find_prefix(request);
  const Status submitted = parts_.engine.submit(std::move(request));
  if (trace && !submitted.is_ok()) trace->refuse();
  return submitted;
}

std::shared_ptr<TraceRequest> CompletionCall::begin_trace(const EngineRequest& request, std::size_t answers) const {
  if (parts_.trace == nullptr) return nullptr;
  const TraceSpace space{parts_.model.name, "", request.owner, !request.may_reuse};
  return std::make_shared<TraceRequest>(
      parts_.trace->begin(request.prompt, space, static_cast<std::uint32_t>(answers)));
}

void CompletionCall::find_prefix(EngineRequest& request) {
  const std::uint64_t in_slot = parts_.engine.best(request.prompt, request.owner).tokens;
  request.known = 0;
  request.marks = marks_of(request.prompt);
  const bool asks_storage = request.prompt.size() - in_slot >= parts_.ask_storage_tokens;
  auto looked = parts_.store.find(request.prompt, request.owner, asks_storage);
  if (!looked.is_ok()) return parts_.metrics.lookups_failed.increment();
  const auto found = std::make_shared<const PrefixStore::Found>(std::move(*looked));
  request.known = found->known();
  if (all_prompt_tokens_ == request.prompt.size()) miss_ = found->miss();
  if (found->tokens() >= request.prompt.size()) return;
  request.restorable = found->tokens();
  request.restores_from = found->from_storage() > 0 ? ReusedFrom::kStorage : ReusedFrom::kHost;
  request.load = [&store = parts_.store, found](std::span<const TokenId> prompt) { return store.load(*found, prompt); };
}

// Where the system messages end, as others may have the same ones.
std::vector<std::uint64_t> CompletionCall::marks_of(const std::vector<TokenId>& prompt) const {
  const bool is_chat = kind_ == CallKind::kChat || kind_ == CallKind::kResponses || kind_ == CallKind::kMessages;
  if (!is_chat) return {};
  try {
    json part = as_chat(kind_, original_), system = json::array();
    const std::size_t all = part.at("messages").size();
    for (const json& message : part.at("messages")) {
      const std::string role = json_value(message, "role", std::string());
      if (role != "system" && role != "developer") break;
      system.push_back(message);
    }
    if (system.empty() || system.size() == all) return {};
    part["messages"] = std::move(system);
    part["add_generation_prompt"] = false;
    std::vector<raw_buffer> files;
    const json parsed = oaicompat_chat_params_parse(part, parts_.model.chat, files);
    const std::vector<server_tokens> tokens = prompt_tokens(parts_.model, parsed);
    if (tokens.size() != 1) return {};
    const std::vector<TokenId> ids = token_ids(parts_.model, tokens.front().get_tokens());
    const auto parted = std::ranges::mismatch(ids, prompt);
    return {static_cast<std::uint64_t>(parted.in1 - ids.begin())};
  } catch (const std::exception&) {  // templates may refuse a part of a conversation
    return {};
  }
}

// ---- answers

server_task_result_ptr CompletionCall::next_result() {
  server_task_result_ptr result = results_->pop(kPing);
  if (result && !result->is_error()) result->update(states_.at(result->index));
  return result;
}

void CompletionCall::answer_whole() {
  std::vector<json> whole(answers_);
  while (ended_ < answers_) {
    const server_task_result_ptr result = next_result();
    if (results_->is_abandoned()) return;
    if (!result) continue;
    if (result->is_error()) {
      results_->abandon();
      return refuse(result->to_json());
    }
    whole.at(result->index) = result->to_json();
    ++ended_;
  }
  note_use();
  json all = std::move(whole.front());
  if (whole.size() > 1 && response_type(kind_) == TASK_RESPONSE_TYPE_NONE) {
    json list = json::array();
    list.push_back(std::move(all));
    for (std::size_t i = 1; i < whole.size(); ++i) list.push_back(std::move(whole[i]));
    all = std::move(list);
  } else {
    for (std::size_t i = 1; i < whole.size(); ++i) all["choices"].push_back(std::move(whole[i]["choices"][0]));
  }
  HttpResponse response = head(200);
  response.body = safe_json_to_str(all);
  reply_.respond(std::move(response));
}

void CompletionCall::answer_stream() {
  bool has_begun = false;
  const auto send = [&](std::string text) {
    if (!std::exchange(has_begun, true)) {
      note_use();
      first_event_ = real_clock().now();
      HttpResponse begin = head(200);
      begin.content_type = "text/event-stream";
      reply_.begin(std::move(begin));
    }
    return reply_.write(std::move(text));
  };
  while (ended_ < answers_) {
    const server_task_result_ptr result = next_result();
    if (results_->is_abandoned()) return;
    if (!result) {
      if (has_begun && !send(":\n\n")) return results_->abandon();
      continue;
    }
    if (result->is_error()) {
      results_->abandon();
      if (!has_begun) return refuse(result->to_json());
      parts_.metrics.failed.increment();
      const json error = result->to_json();
      error_ = json_value(error, "message", std::string("it failed"));
      (void)send(error_event(error));
      break;
    }
    if (result->is_stop()) ++ended_;
    const json data = result->to_json();
    if (!data.is_null() && !send(event_of(data))) return results_->abandon();
  }
  const bool has_mark = kind_ == CallKind::kChat || kind_ == CallKind::kOpenAiCompletion;
  if (has_mark && ended_ == answers_) (void)send("data: [DONE]\n\n");
  (void)reply_.end();
}

std::string CompletionCall::error_event(const json& error) const {
  if (kind_ != CallKind::kMessages) return format_oai_sse(json{{"error", error}});
  json event = json{{"event", "error"}};
  event["data"] = error;
  return format_anthropic_sse(event);
}

std::string CompletionCall::event_of(const json& data) const {
  if (kind_ == CallKind::kMessages) return format_anthropic_sse(data);
  if (kind_ == CallKind::kResponses) return format_oai_resp_sse(data);
  return format_oai_sse(data);
}

void CompletionCall::refuse(const json& error) {
  parts_.metrics.failed.increment();
  error_ = json_value(error, "message", std::string("it failed"));
  HttpResponse response;
  response.status = static_cast<unsigned>(json_value(error, "code", 500));
  response.body = safe_json_to_str(json{{"error", error}});
  reply_.respond(std::move(response));
}

HttpResponse CompletionCall::head(unsigned status) const {
  HttpResponse response;
  response.status = status;
  const PromptUse use = results_->use();
  add_reuse(response, use.tokens, name_of(use.from), miss_of(use));
  return response;
}

CachedTokens CompletionCall::reuse() const {
  const PromptUse use = results_->use();
  CachedTokens reuse;
  reuse.prompt = all_prompt_tokens_;
  if (use.from == ReusedFrom::kSlot) reuse.device = use.tokens;
  if (use.from == ReusedFrom::kHost) reuse.host = use.tokens;
  if (use.from == ReusedFrom::kStorage) reuse.storage = use.tokens;
  reuse.miss = miss_of(use);
  return reuse;
}

Miss CompletionCall::miss_of(const PromptUse& use) const {
  if (use.has_failed_load) return {.reason = MissReason::kLoadFailed, .at_token = use.tokens};
  return miss_beyond(miss_, use.tokens);
}

void CompletionCall::note_use() {
  const CachedTokens use = reuse();
  ServeMetrics& metrics = parts_.metrics;
  metrics.prompt_tokens.increment(use.prompt);
  metrics.misses.count("serve", use.miss, use.cached(), use.prompt);
  metrics.slot_tokens.increment(use.device);
  metrics.host_tokens.increment(use.host);
  metrics.storage_tokens.increment(use.storage);
}

void CompletionCall::remember() {
  RecentRequest request;
  request.id = request_.id;
  request.ended_unix_seconds = real_clock().wall_unix_seconds();
  request.cached = reuse();
  if (!may_reuse_) request.passed_on = std::string(plain_reason_name(PlainReason::kNoCaching));
  request.error = error_;
  request.finish = !error_.empty() ? "error" : results_->is_abandoned() ? "left" : "ok";
  const auto seconds = [this](TimePoint at) { return std::chrono::duration<double>(at - begun_).count(); };
  if (first_event_) request.ttft_seconds = seconds(*first_event_);
  request.e2e_seconds = seconds(real_clock().now());
  parts_.recent.add(std::move(request));
}

}  // namespace larder::llama
