// SPDX-License-Identifier: Apache-2.0
// One answer of a completion: samples by llama.cpp's samplers and grammars, cuts at stop words, and hands on results in
// the types of llama.cpp's server, which write them in the form of each API.
//
//   engine's thread: begin, next..., end ──► AnswerResults ──► the request's thread: pop(), to_json()
//
// Threads: AnswerWriter's methods on the engine's; an AnswerResults is shared with one thread that waits for results.
#pragma once

#include <sampling.h>
#include <server-task.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/ranked_mutex.h"
#include "server/llama/libllama/llama_engine.h"
#include "server/trace/trace_recorder.h"

namespace larder::llama {

// As llama.cpp's server names it.
[[nodiscard]] error_type error_type_of(StatusCode code);

// What the answers of one request have to say, in the order in which they say it.
class AnswerResults {
 public:
  void push(server_task_result_ptr result) LARDER_EXCLUDES(mutex_);
  // nullptr: nothing within `limit`, or the client is gone.
  [[nodiscard]] server_task_result_ptr pop(Nanos limit) LARDER_EXCLUDES(mutex_);
  // The client is gone. Any thread.
  void abandon() LARDER_EXCLUDES(mutex_);
  [[nodiscard]] bool is_abandoned() const { return is_abandoned_.load(std::memory_order_relaxed); }
  void note_use(const PromptUse& use) LARDER_EXCLUDES(mutex_);
  [[nodiscard]] PromptUse use() const LARDER_EXCLUDES(mutex_);

 private:
  mutable RankedMutex mutex_{LockRank::kInbox};
  RankedCondition changed_;
  std::deque<server_task_result_ptr> results_ LARDER_GUARDED_BY(mutex_);
  std::optional<PromptUse> use_ LARDER_GUARDED_BY(mutex_);
  std::atomic<bool> is_abandoned_{false};  // relaxed: a hint
};

class LlamaAnswer final : public AnswerWriter {
 public:
  // Throws std::exception for what llama.cpp does not take: a grammar, say. task: its tokens are the prompt.
  LlamaAnswer(const llama_model& model, server_task task, std::uint32_t context_tokens,
              std::shared_ptr<AnswerResults> results);
  ~LlamaAnswer() override;  // tells its end if nobody has: a client must not wait for ever
  LlamaAnswer(const LlamaAnswer&) = delete;
  LlamaAnswer& operator=(const LlamaAnswer&) = delete;

  // Before the engine has it: told of each token. Its answers share it, and its end is that of the last of them.
  void set_trace(std::shared_ptr<TraceRequest> trace) { trace_ = std::move(trace); }
  [[nodiscard]] bool is_gone() const override { return results_->is_abandoned(); }
  void begin(const PromptUse& use) override;
  [[nodiscard]] std::optional<TokenId> next(llama_context& context, std::int32_t row) override;
  void end(const Status& status) override;

 private:
  [[nodiscard]] completion_token_output sample(llama_context& context, std::int32_t row);
  void add_probabilities(llama_context& context, std::int32_t row, bool special, completion_token_output& out);
  void add_text(completion_token_output& out);
  [[nodiscard]] std::size_t find_stop(const std::string& text, std::size_t last_piece, bool is_whole);
  void check_limits(const completion_token_output& out);
  void send_piece(const completion_token_output& out);
  [[nodiscard]] server_task_result_ptr whole();

  const llama_vocab* const vocabulary_;
  server_task task_;
  const std::uint32_t context_tokens_;
  const std::shared_ptr<AnswerResults> results_;
  std::shared_ptr<TraceRequest> trace_;  // null: nothing is recorded
  const common_sampler_ptr sampler_;
  server_slot_stats stats_;
  const std::string prompt_text_;
  std::string text_, stop_word_;
  std::size_t sent_ = 0;  // bytes of text_
  llama_tokens tokens_;
  std::vector<completion_token_output> probabilities_;
  stop_type stop_ = STOP_TYPE_NONE;
  bool is_truncated_ = false, has_new_line_ = false, is_over_ = false;
};

}  // namespace larder::llama
