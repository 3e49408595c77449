// SPDX-License-Identifier: Apache-2.0
// One client's request on its way through the proxy: a slot with as much of its prompt as can be had, llama-server's
// answer, and what of it is kept for the next one.
//
//   prompt ─► a slot ─► restore, if that has more than the slot ─► compute up to each place that is kept, save there
//                                                                  ─► the request itself, its answer as it comes
//
// The client's answer has two header fields more, X-Larder-Reused-Tokens and X-Larder-Reused-From (slot, host,
// storage): llama-server's own count of cached tokens has those in it, too, that it was made to compute just before.
//
// /v1/messages cannot be sent to a slot: llama-server takes the free one that begins most like the prompt. So the
// prompt is computed there but for its last token before the request goes on, and the answer tells whether it was that
// slot. Where that would be wrong and not only slow (--swa-full), and where several tenants are, requests whose slot
// llama-server chooses wait for all slots, in which is nothing then that they may not use.
//
// An answer that counts other tokens of its prompt than were thought is counted, and nothing of its slot is kept; nor
// of one that ends in an error. One that counts fewer cached tokens than its slot was thought to have is the sign that
// llama-server has emptied slots (slot_table.h).
//
// A stream whose prompt is computed for long before the request goes on has its head, and pings, meanwhile. What is
// refused after that comes as an event.
//
// What goes wrong on the way to the request itself costs time and nothing else: the request goes on without.
// After the client has left, its slot is free again, and llama-server keeps of it what it has computed.
//
// Threads: run() blocks on a worker thread; the parts are shared. Cost: of a request whose prompt is in its slot: two
// calls of llama-server for the tokens, and a lookup.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/http_client.h"
#include "server/http_message.h"
#include "server/llama/completion_reply.h"
#include "server/llama/llama_request.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/prefix_store.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/save_points.h"
#include "server/llama/server_identity.h"
#include "server/llama/slot_saver.h"
#include "server/llama/slot_table.h"
#include "server/recent_requests.h"
#include "server/reply_stream.h"
#include "server/trace/trace_recorder.h"

namespace larder::llama {

// What all requests share; it outlives them.
struct RelayParts {
  const SlotFormat& format;
  PrefixStore& store;
  SlotTable& slots;
  SlotSaver& saver;
  FileSystem& files;
  Clock& clock;
  ProxyMetrics& metrics;
  ServerIdentity& identity;
  std::string slot_directory;
  SavePolicy saves;
  std::uint32_t slot_context = 0;  // tokens
  // llama-server moves what is in a slot when its context is full (--context-shift): rows that no prompt gives.
  bool shifts_context = false;
  bool has_full_windows = false;  // llama-server goes back to wherever it has a row (--swa-full)
  struct Trace {
    TraceRecorder* recorder = nullptr;  // null: nothing is recorded
    std::string model;
  } trace;
  RecentRequests& recent;
  std::uint64_t ask_storage_tokens = 256;       // that a slot must lack for storage to be asked
  Nanos ping_every = std::chrono::seconds(10);  // of a stream to which no answer comes yet
  // Also into what was composed, where the window is not whole.
  [[nodiscard]] bool goes_back_anywhere() const { return has_full_windows && format.geometry.window.has_value(); }
};

// llama-server empties the slot, and that is noted.
[[nodiscard]] Status erase_held(LlamaUpstream& upstream, SlotTable::Hold& hold);

class CompletionRelay {
 public:
  // With llama-server's HTTP status, before the client has the end of its answer.
  using BeforeEnd = std::function<void(unsigned http_status)>;
  // client: of this request alone, with the client's own key. reply: the same.
  CompletionRelay(const RelayParts& parts, HttpClient& client, ReplyStream& reply, const HttpRequest& request,
                  BeforeEnd before_end)
      : parts_(parts),
        upstream_(client),
        reply_(reply),
        request_(request),
        before_end_(std::move(before_end)),
        begun_(parts.clock.now()),
        answer_(client, reply, request, parts.clock) {}

  // Answers. checked: what ServerIdentity::check() said. Not ok: llama-server was lost on the way; the client has been
  // told, as far as that is possible.
  [[nodiscard]] Status run(std::optional<std::uint64_t> checked);
  // The same, without a look at the prompt and without a slot: for a llama-server that is given no prefixes. why: of
  // ServerIdentity::check(). is_let_in: llama-server has not refused the client's key; else its salt counts for
  // nothing.
  [[nodiscard]] Status run_as_it_is(const Status& why, bool is_let_in);
  // Of llama-server's answer; 0: it gave none.
  [[nodiscard]] unsigned http_status() const { return answer_.http_status(); }

 private:
  [[nodiscard]] Status answer();
  [[nodiscard]] Status run_plainly(PlainReason reason);
  // In the slot that is held, if there is one. has_prompt: whether the route is one for prompts.
  [[nodiscard]] Status go_on_plainly(const std::optional<PlainRequest>& plain, bool has_prompt);
  // The same, with all slots: whichever llama-server takes for it has nothing that it may not use.
  [[nodiscard]] Status run_alone(const std::optional<PlainRequest>& plain);
  // Whether what is in a slot that is held may be used by a request whose prompt is not known.
  [[nodiscard]] bool may_use(SlotTable::Hold& hold);
  // After its answer: what it has left in the slot.
  void note_plain(const PlainRequest& plain, bool is_answered);
  [[nodiscard]] Status run_cached(const LlamaRequest& asked);
  // The same, in the slot that is held.
  [[nodiscard]] Status run_in_slot(const LlamaRequest& asked, const std::vector<TokenId>& prompt);
  // The prompt's tokens; nothing: llama-server will say what is wrong with it.
  [[nodiscard]] std::optional<std::vector<TokenId>> tokens_of(const LlamaRequest& asked);
  // Chooses what of the prompt the slot begins with, and puts it there; how many tokens others have kept of it.
  [[nodiscard]] std::uint64_t prepare_slot(const LlamaRequest& asked, std::span<const TokenId> prompt);
  // How many of them are in the slot when this returns. reuse: learns where they came from, or why they did not.
  [[nodiscard]] std::uint64_t restore(std::span<const TokenId> prompt, const PrefixStore::Found& found,
                                      std::uint64_t resume, CachedTokens& reuse);
  // In a context that all slots share, what the idle ones hold may be in the way. False: there are none.
  [[nodiscard]] bool empty_free_slots();
  // ... and would be, once the prompt and some of its answer are computed.
  void make_room(const LlamaRequest& asked, std::span<const TokenId> prompt);
  // The slot's file, and its name.
  [[nodiscard]] Result<std::string> write_file(const PrefixStore::Found& found, std::span<const TokenId> prompt);
  // Computes the prompt as far as places are to be kept, and saves there.
  void save_before(const LlamaRequest& asked, std::span<const TokenId> prompt, std::uint64_t known);
  // False, and in the log: nobody knows what the slot holds.
  [[nodiscard]] bool empty_slot();
  // The client's answer: slots are not as its request needs them. What run() returns.
  [[nodiscard]] Status give_up(const Status& why);
  [[nodiscard]] std::vector<std::uint64_t> marks_of(const LlamaRequest& asked, std::span<const TokenId> prompt);
  // A part of the prompt was not computed to its end.
  void note_broken_off(std::span<const TokenId> prompt);
  // False: llama-server may not be the one any more that it was when the request came.
  [[nodiscard]] bool is_current() const { return parts_.identity.is_current(checked_); }
  // The same, and llama-server has been asked.
  [[nodiscard]] bool is_still() { return parts_.identity.is_still(checked_, upstream_); }
  // What a computation before the request has found in the slot.
  void note_cached(std::uint64_t cached);
  // llama-server has computed anew what the slot was thought to have.
  void note_lost(std::uint64_t cached);
  // In the slot, now that the answer is over.
  void note_size(const Result<unsigned>& sent);
  // That an answer to a prompt that is not known has left in a slot, at most; 0: there was none.
  [[nodiscard]] std::uint64_t tokens_left(const Result<unsigned>& sent) const;
  // Computes and saves up to `end`; false: not done, and no further place is tried.
  [[nodiscard]] bool save_at(std::span<const TokenId> prompt, std::uint64_t end, const std::string& salt);
  // As SlotSaver::save(). False: nothing is kept.
  [[nodiscard]] bool save_slot(std::span<const TokenId> prompt, const std::string& salt, bool has_answer);
  // certain: the tokens of the prompt that the slot must have for the save to be taken.
  void save_answer(std::span<const TokenId> prompt, std::span<const TokenId> certain, std::uint64_t known,
                   const std::string& salt);
  // Makes the slot the one that llama-server takes for the prompt.
  void lead_here(std::span<const TokenId> prompt);
  // After the answer: nothing is known of any slot if it was made elsewhere. answered: with 200, to its end.
  void check_slot(std::span<const TokenId> prompt, bool answered);
  // Whether the answer is one to the prompt, as far as its length tells.
  [[nodiscard]] bool is_answer_to(const LlamaRequest& asked, std::span<const TokenId> prompt);
  [[nodiscard]] Result<SlotTable::Hold> take_slot(const SlotTable::Wish& wish);
  // What the trace has of the request, when its answer is over.
  void record(std::span<const TokenId> prompt, const Result<unsigned>& sent);
  // In the metrics, once it is certain.
  void count_reuse();
  // For /larder/recent, when the answer is over.
  void remember(const Status& status);
  // Sends the request with `body`, and its answer on to the client. Its HTTP status.
  [[nodiscard]] Result<unsigned> forward(std::string body);

  const RelayParts& parts_;
  LlamaUpstream upstream_;
  ReplyStream& reply_;
  const HttpRequest& request_;
  const BeforeEnd before_end_;
  const TimePoint begun_;
  CompletionReply answer_;

  bool is_proven_ = false;    // llama-server, when the request came
  bool is_anothers_ = false;  // llama-server has no slot that we composed
  std::uint64_t checked_ = 0;
  std::string prompt_text_;        // of a chat
  std::uint64_t most_answer_ = 0;  // tokens that it may have
  TraceRequest trace_;
  SlotTable::Hold hold_;
  std::uint64_t resume_ = 0;  // tokens in the slot that are the prompt's
  // What was there before this request, which the client is told, and why not more. nullopt: nobody has looked.
  std::optional<CachedTokens> reuse_;
  std::string_view passed_on_;       // why not; empty: somebody has, or it has no prompt
  bool is_counted_ = false;          // it, in the metrics
  std::uint64_t prompt_tokens_ = 0;  // of a prompt that was looked at
};

}  // namespace larder::llama
