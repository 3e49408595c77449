// SPDX-License-Identifier: Apache-2.0
// The request loop without its thread: admission, steps, sampling, ends (internal to engine/).
//
// Purpose: one turn() = completions applied -> requests begun and started -> one engine step -> tokens out. A class of
// its own, so that tests drive it turn by turn with fakes. Step: every sequence that decodes (one token each), and
// prefill chunks of together at most `chunk_tokens`, in the order in which requests started. Progress: each turn moves
// something, or something is in flight that will (a copy, a storage operation, a deadline). If neither is so for
// kStalledTurns turns, one request is failed with kOverloaded: rather an error than a hang. A request that the cache
// has no place for (begin) waits, too, and holds up nobody. Cost of a turn beside its step: a look at each request that
// waits, kMaxBegunWaiting begins of each kind, WaitingLine::kLookAhead tries to start, and matches of kTokensLookedAt.
//
// Who needs nothing from storage, because its prompt is short or is there already, does not wait behind those that
// fetch, however many they are: it is begun beside them, and starts if there is room. That starves none of these: each
// has its place in the line from its arrival on, is tried before all behind it as soon as it has waited for storage as
// long as its policy says, and is then passed over WaitingLine::kMaxOvertakes times at most. And as each of those that
// fetch starts in the end, each behind them is begun in the end.
//
// Retraction: requests start with room for their prompts and a little output, so the device may fill while they run.
// Then one that needs a page takes it from one that matters less: of a lower priority, or else submitted later. That
// one goes back to the head of the line with all its tokens, and nobody overtakes it there. The one that matters most
// is never retracted, and alone it fits: so someone always ends. While one is starved, nobody starts.
//
// Threads: confined to the loop thread. Callbacks of requests run inside its methods and must not call it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/cache.h"
#include "engine/reference/reference_engine.h"
#include "engine/request_metrics.h"
#include "engine/sequence.h"
#include "engine/waiting_line.h"

namespace larder {

struct LoopParts {  // all outlive the loop
  Cache* cache = nullptr;
  ReferenceEngine* engine = nullptr;
  const ModelSpec* model = nullptr;
  Clock* clock = nullptr;
  RequestMetrics* metrics = nullptr;  // may be null
};
struct LoopLimits {
  std::uint32_t running = 8;             // requests
  std::uint32_t chunk_tokens = 1024;     // prefill per step
  std::uint64_t seed = 1;                // of requests that name none
  std::uint32_t prefetch_threshold = 0;  // tokens: shorter ones ask no storage (CacheConfig)
};

class RequestLoop {
 public:
  // Begun in the cache while they wait, so that their prefetch runs: enough to keep storage busy, few enough that what
  // is fetched is still there when their turn comes. As many again that need nothing from storage.
  static constexpr std::size_t kMaxBegunWaiting = 64;
  // Of prompts beyond these, in a turn: whether they need storage. Those that were looked at least lately come first,
  // so new ones do; and one in any case.
  static constexpr std::uint64_t kTokensLookedAt = 65'536;
  static constexpr std::uint32_t kMaxRestarts = 3;
  static constexpr std::uint32_t kStalledTurns = 3;
  static constexpr std::uint32_t kMaxStallRetracts = 3;  // of one request, before it fails

  RequestLoop(const LoopLimits& limits, const LoopParts& parts);

  void add(std::unique_ptr<Sequence> sequence);
  // The request's last update says kAbort. Unknown tickets (already over) are ignored.
  void cancel(Scheduler::Ticket ticket);
  // As cancel(), of a request whose client has all that it wants: the last update says kStop, and ok.
  void finish(Scheduler::Ticket ticket);
  // Every request ends with `status`.
  void abort_all(const Status& status);
  // The same after an exception out of this class: calls neither cache nor engine. Nothing else may be called after it.
  void fail_all(const Status& status);
  // True: something moved, call again at once. False: wait in cache.poll(wait_hint()) first.
  bool turn() { return go_on(start_those_that_wait()); }
  // Its two parts: until the step, and from it on, with what the first one said. Between them, waiting() tells how many
  // could not start.
  [[nodiscard]] bool start_those_that_wait();
  [[nodiscard]] bool go_on(bool moved);
  // How long nothing can become due that a completion or wake() would not announce.
  [[nodiscard]] Nanos wait_hint() const;

  [[nodiscard]] std::size_t running() const { return running_.size(); }
  [[nodiscard]] std::size_t waiting() const { return line_.size(); }
  struct Totals {  // since the start
    // prompt_tokens, cached: of requests whose first step has succeeded. Before that a load may fail, and the request
    // start again with less.
    std::uint64_t prompt_tokens = 0, completion_tokens = 0;
    CachedTokens cached;
    std::uint64_t steps = 0, restarts = 0, stalls = 0, retracts = 0;
    std::size_t most_running = 0;
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  struct Share {  // one sequence's part of a step
    Sequence* sequence = nullptr;
    std::uint64_t chunk = 0;  // tokens
    StepGrant grant;
    std::vector<StateSnapshot> snapshots;
  };
  enum class Prepared : std::uint8_t { kYes, kSkipped, kFailed };

  void leave(Scheduler::Ticket ticket, FinishReason reason, const Status& status);
  void begin_waiting();
  // Of `others`, which are not begun: those that need nothing from storage, `places` at most.
  void begin_what_needs_no_storage(std::vector<Sequence*> others, std::size_t places);
  // It may be over, and gone, after this.
  void begin_or_end(Sequence& sequence);
  [[nodiscard]] Status begin(Sequence& sequence);
  [[nodiscard]] static BeginRequest begin_request(const Sequence& sequence);
  [[nodiscard]] bool may_start_some() const { return !is_starved_ && running_.size() < limits_.running; }
  bool admit();
  [[nodiscard]] StartAnswer try_start(Sequence& sequence);
  [[nodiscard]] std::vector<Share> plan_step();
  [[nodiscard]] Prepared prepare(Sequence& sequence, std::uint64_t chunk, std::vector<Share>& shares);
  // Retracts the least important running request that matters less than `starved` and has no share of this step.
  [[nodiscard]] bool retract_for(const Sequence& starved, const std::vector<Share>& shares);
  [[nodiscard]] bool retract(Sequence& sequence);
  bool step();
  void apply(Share& share, const StepResult& result);
  void count_prompt(Sequence& sequence);
  // Null: there are none, or this is no user's request.
  [[nodiscard]] RequestMetrics* metrics_of(const Sequence& sequence) const;
  void sample(Sequence& sequence, const StepResult& result);
  void restart(Sequence& sequence, const Status& why);
  bool relieve_stall();
  void fail_unbegun();
  // The request is over: tells it, and forgets it in the cache. `keep`: what it computed stays cached.
  void end(Sequence& sequence, FinishReason reason, Status status, bool keep);
  void tell_end(Sequence& sequence, FinishReason reason, Status status);
  // With the tokens that no update has brought yet.
  void send(Sequence& sequence, GenerateUpdate update);
  // Drops the sequences of running_ that ended or go back to the line.
  void sweep();

  // const after construction
  const LoopLimits limits_;
  const LoopParts parts_;

  // owned by the loop thread
  WaitingLine line_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order of their start
  std::vector<Sequence*> over_;                     // of running_: ended in this turn
  std::vector<Sequence*> back_;                     // of running_: to be started again
  WaitingLine::Outcome last_admission_;             // only who was refused
  bool is_starved_ = false;                         // one of running_ is, and nobody could be retracted for it
  bool waits_for_storage_ = false;                  // one that the last admission looked at does
  Sequence* unbegun_ = nullptr;                     // the first that the cache refused to begin, of this turn
  Status unbegun_refusal_;                          // ... and why
  std::uint64_t next_start_ = 1;
  std::uint64_t turns_ = 0;
  std::uint32_t stalled_turns_ = 0;
  Status last_refusal_;  // why the head could not start
  Totals totals_;
};

}  // namespace larder
