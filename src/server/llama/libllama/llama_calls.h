// SPDX-License-Identifier: Apache-2.0
// Requests for completions: from the body of any API to prompts, prefixes and answers.
//
//   body ─► (responses, messages ─► chat) ─► template ─► tokens ─► find() in host memory and storage ─► engine
//        ◄─ JSON, or events ◄────────────── results ◄──────────────────────────────────────────────────┘
//
// Threads: one object a request, on the thread that carries it; LlamaModel and CallParts are shared and constant.
#pragma once

#include <chat.h>
#include <common.h>
#include <llama.h>
#include <server-task.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/http_message.h"
#include "server/llama/completion_front.h"
#include "server/llama/libllama/llama_answer.h"
#include "server/llama/libllama/llama_engine.h"
#include "server/llama/prefix_store.h"
#include "server/recent_requests.h"
#include "server/reply_stream.h"
#include "server/trace/trace_recorder.h"

namespace larder::llama {

// What of a model requests need; constant.
struct LlamaModel {
  // Throws std::exception: the chat template is wrong.
  LlamaModel(llama_model& loaded, std::string name, const std::string& chat_template, std::uint32_t slots);

  llama_model& model;
  const llama_vocab* vocabulary;
  std::string name;
  common_params defaults;  // of requests
  server_chat_params chat;
  std::vector<llama_logit_bias> end_bias;  // for ignore_eos
};

struct ServeMetrics {
  explicit ServeMetrics(MetricsRegistry& registry);
  Counter &requests, &failed, &prompt_tokens, &slot_tokens, &host_tokens, &storage_tokens, &lookups_failed,
      &saves_begun, &saves, &saves_failed;
  MissCounts misses;
};

struct CallParts {
  LlamaModel& model;
  LlamaEngine& engine;
  PrefixStore& store;
  ServeMetrics& metrics;
  RecentRequests& recent;
  TraceRecorder* trace = nullptr;  // null: nothing is recorded
  std::uint32_t context_tokens = 0, slots = 0, batch_tokens = 0;
  std::uint64_t ask_storage_tokens = 0;
};

enum class CallKind : unsigned char { kCompletion, kOpenAiCompletion, kChat, kResponses, kMessages, kInfill };

// Throws std::exception with what is wrong: no JSON, or more values or levels than are read.
[[nodiscard]] json parsed_body(const std::string& body);

// A body as one for a completion: with `prompt`, as the model is given it. Throws std::exception with what is wrong.
[[nodiscard]] json understood_body(const CallParts& parts, CallKind kind, json body);

// The tokens of each prompt of it. Throws.
[[nodiscard]] std::vector<server_tokens> prompt_tokens(const LlamaModel& model, const json& understood);

class CompletionCall {
 public:
  CompletionCall(CallParts parts, CallKind kind, ReplyStream& reply, const HttpRequest& request)
      : parts_(parts),
        kind_(kind),
        reply_(reply),
        request_(request),
        begun_(real_clock().now()),
        results_(std::make_shared<AnswerResults>()) {}
  // Answers it, whatever happens.
  void run();

 private:
  void answer();
  [[nodiscard]] Status ask();
  [[nodiscard]] Status submit(server_tokens prompt);
  void find_prefix(EngineRequest& request);
  // The request as a trace has it, which its answers end; null: nothing is recorded.
  [[nodiscard]] std::shared_ptr<TraceRequest> begin_trace(const EngineRequest& request, std::size_t answers) const;
  [[nodiscard]] std::vector<std::uint64_t> marks_of(const std::vector<TokenId>& prompt) const;
  void answer_whole();
  void answer_stream();
  [[nodiscard]] server_task_result_ptr next_result();
  [[nodiscard]] std::string event_of(const json& data) const;
  [[nodiscard]] std::string error_event(const json& error) const;
  void refuse(const json& error);
  [[nodiscard]] HttpResponse head(unsigned status) const;
  // What was there before this request, and why not more.
  [[nodiscard]] CachedTokens reuse() const;
  [[nodiscard]] Miss miss_of(const PromptUse& use) const;
  void note_use();
  // For /larder/recent, when the answer is over.
  void remember();

  const CallParts parts_;
  const CallKind kind_;
  ReplyStream& reply_;
  const HttpRequest& request_;
  const TimePoint begun_;
  std::optional<TimePoint> first_event_;
  std::string error_;  // that the client was told
  const std::shared_ptr<AnswerResults> results_;
  json understood_, original_;
  json refusal_;  // null: what the status says
  std::string salt_, id_;
  std::vector<task_result_state> states_;  // by index
  std::size_t answers_ = 0, ended_ = 0;
  std::uint64_t all_prompt_tokens_ = 0;
  bool may_reuse_ = true;  // "cache_prompt"
  Miss miss_;              // of the first prompt
};

}  // namespace larder::llama
