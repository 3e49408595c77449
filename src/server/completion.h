// SPDX-License-Identifier: Apache-2.0
// One HTTP request's completions: from parsed prompts to an answer, whole or streamed.
//
// Purpose: submits the prompts, gathers the scheduler's updates, and feeds a ReplyFormat. A client that leaves cancels
// what it asked for; a client that reads slowly gets fewer, larger events (they are cumulative), never a growing queue.
//
// Picture:
//   scheduler thread: update ──► inbox (one short lock) ──► exchange->post(advance)      at most one post outstanding
//   the strand:       advance: text, stop strings ──► all ended? respond   (whole answer)
//                                                └──► pump: one event at a time, the next when it is written  (stream)
//
// Threads: start() and advance() on the exchange's strand; cut_off() and OpenCompletions: any; the scheduler's callback
// touches only the inbox.
// Lifetime: kept alive by the scheduler's callbacks and by the exchange until the answer is complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/ranked_mutex.h"
#include "engine/scheduler.h"
#include "engine/tokenizer.h"
#include "server/http_listener.h"
#include "server/recent_requests.h"
#include "server/trace/trace_recorder.h"

namespace larder {

// One prompt to complete.
struct PromptRequest {
  GenerateRequest generate;
  std::vector<std::string> stop_strings;
  std::string id;  // the client's own name for it; empty: we make one
};

// How far one prompt has come. Owned by the strand.
struct CompletionState {
  std::size_t index = 0;  // of the prompt in its HTTP request
  std::string id;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::vector<TokenId> tokens;  // all of them
  std::string ids_json;         // "1,2,3": tokens, ready for a cumulative event
  std::string text;             // all of it, valid UTF-8
  std::string text_json;        // text, escaped
  CachedTokens cached;
  FinishReason finish = FinishReason::kRunning;
  std::string matched_stop;  // the stop string that ended it
  Status status;             // not ok: it failed
  double ttft_seconds = 0, queue_seconds = 0, e2e_seconds = 0;

  // What a stream has sent.
  std::size_t sent_tokens = 0, sent_text = 0;  // bytes
  std::size_t sent_characters = 0;             // of sent_text; /generate counts them
  bool is_head_sent = false, is_end_sent = false;

  [[nodiscard]] bool is_ended() const { return finish != FinishReason::kRunning || !status.is_ok(); }
  [[nodiscard]] bool has_news() const { return !is_end_sent && (is_ended() || sent_tokens < tokens.size()); }
};

// Turns states into bytes. Strand only.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // Appends "data: {...}\n\n" for what is new in `state`, and moves its sent_ marks. May leave something for the next
  // call when a line would become too long.
  virtual void append_event(CompletionState& state, std::string& out) = 0;
  // Appended once, when everything has ended, before "data: [DONE]".
  virtual void append_end(std::span<const CompletionState> states, std::string& out) = 0;
  // The whole answer of a request that does not stream.
  [[nodiscard]] virtual std::string body(std::span<const CompletionState> states) = 0;
};

// What every completion needs; the scheduler and the clock outlive them all.
struct CompletionContext {
  Scheduler* scheduler = nullptr;
  Clock* clock = nullptr;
  std::shared_ptr<std::atomic<std::uint64_t>> next_id;  // relaxed: only unique
  std::shared_ptr<RecentRequests> recent;               // gets each prompt that has ended; null: nobody wants them
  TraceRecorder* trace = nullptr;                       // of what start() submits; null: nothing is recorded
};

class Completion;

// Those that may not have ended, for whoever stops the server. Keeps none of them alive.
class OpenCompletions {
 public:
  void add(const std::shared_ptr<Completion>& completion) LARDER_EXCLUDES(mutex_);
  // Each ends as by its own cut_off().
  void cut_off(const Status& why) LARDER_EXCLUDES(mutex_);

 private:
  RankedMutex mutex_{LockRank::kServer};
  std::vector<std::weak_ptr<Completion>> open_ LARDER_GUARDED_BY(mutex_);  // at most twice those there were at once
  std::size_t next_sweep_ LARDER_GUARDED_BY(mutex_) = 64;                  // of those that are gone: at that size
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(CompletionContext context, std::shared_ptr<HttpExchange> exchange, std::unique_ptr<ReplyFormat> format,
             bool is_stream);

  // Strand. Submits every prompt, or none: an error has been answered then.
  void start(std::vector<PromptRequest> prompts);
  // Any thread, after start() was posted. Ends what has not ended with `why`, which the client is told.
  void cut_off(const Status& why);

 private:
  struct Item {
    std::size_t index = 0;
    GenerateUpdate update;
  };
  struct Prompt {  // strand; beside its CompletionState
    std::optional<Scheduler::Ticket> ticket;
    std::vector<std::string> stop_strings;
    std::string held;  // text not passed on yet: may be the beginning of a stop string
    TextDecoder decoder;
    TraceRequest trace;
  };

  void receive(std::size_t index, const GenerateUpdate& update);  // scheduler thread
  void advance();
  void absorb(const Item& item);
  void absorb_tokens(std::size_t index, std::span<const TokenId> tokens);
  // True: a stop string was found; the text ends before it.
  bool pass_text(std::size_t index, bool is_end);
  void end_prompt(std::size_t index);
  void remember(const CompletionState& state);
  void pump();
  void fail(const Status& why);
  void answer_failure();
  void cancel_all();
  [[nodiscard]] bool all_ended() const;

  const CompletionContext context_;
  const bool is_stream_;
  const TimePoint begun_;

  const std::shared_ptr<HttpExchange> exchange_;

  // owned by the strand
  std::unique_ptr<ReplyFormat> format_;
  std::vector<CompletionState> states_;
  std::vector<Prompt> prompts_;
  bool is_begun_ = false;  // the stream's head is out
  bool is_writing_ = false;
  bool is_over_ = false;  // answered, failed or gone: nothing more is sent

  RankedMutex mutex_{LockRank::kServer};
  std::vector<Item> inbox_ LARDER_GUARDED_BY(mutex_);  // bounded by the tokens asked for
  bool is_posted_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder
