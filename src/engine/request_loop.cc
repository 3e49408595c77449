// SPDX-License-Identifier: Apache-2.0
#include "engine/request_loop.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "engine/reference/sampler.h"
#include "engine/tokenizer.h"

namespace larder {
namespace {

// While a request waits for storage its deadline may pass at any time, and the cache looks at deadlines in poll().
constexpr Nanos kDeadlineLook = std::chrono::milliseconds(5);
// While operations are in flight: retries of backups become due without an announcement.
constexpr Nanos kRetryLook = std::chrono::milliseconds(20);
constexpr Nanos kIdleLook = std::chrono::seconds(1);

double seconds(Nanos duration) { return std::chrono::duration<double>(duration).count(); }

// Who is the last to be retracted.
bool matters_more(const Sequence& a, const Sequence& b) {
  return a.request.priority != b.request.priority ? a.request.priority > b.request.priority : a.ticket < b.ticket;
}

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

RequestLoop::RequestLoop(const LoopLimits& limits, const LoopParts& parts) : limits_(limits), parts_(parts) {}

void RequestLoop::add(std::unique_ptr<Sequence> sequence) { line_.add(std::move(sequence)); }

void RequestLoop::cancel(Scheduler::Ticket ticket) {
  leave(ticket, FinishReason::kAbort, cancelled("the client ended the request"));
}

void RequestLoop::finish(Scheduler::Ticket ticket) { leave(ticket, FinishReason::kStop, Status::ok()); }

void RequestLoop::leave(Scheduler::Ticket ticket, FinishReason reason, const Status& status) {
  if (const std::unique_ptr<Sequence> waiting = line_.take(ticket)) {
    end(*waiting, reason, status, false);
    return;
  }
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const std::unique_ptr<Sequence>& s) { return s->ticket == ticket; });
  if (at == running_.end()) return;
  // What it has computed is right, and a client that comes back will ask for the same prefix.
  end(**at, reason, status, true);
  over_.push_back(at->get());
  sweep();
}

void RequestLoop::abort_all(const Status& status) {
  for (const std::unique_ptr<Sequence>& s : line_.take_all()) end(*s, FinishReason::kAbort, status, false);
  for (const std::unique_ptr<Sequence>& s : running_) end(*s, FinishReason::kAbort, status, true);
  running_.clear();
}

void RequestLoop::fail_all(const Status& status) {
  std::vector<std::unique_ptr<Sequence>> all = line_.take_all();
  std::move(running_.begin(), running_.end(), std::back_inserter(all));
  running_.clear();
  over_.clear();
  back_.clear();
  for (const std::unique_ptr<Sequence>& s : all) {
    if (!s->is_over) tell_end(*s, FinishReason::kAbort, status);  // else: the exception came before the sweep
  }
}

bool RequestLoop::start_those_that_wait() {
  const bool has_changed = parts_.cache->poll(Nanos{0});
  begin_waiting();
  return admit() || has_changed;
}

bool RequestLoop::go_on(bool moved) {
  moved |= step();
  if (moved) {
    stalled_turns_ = 0;
    return true;
  }
  return relieve_stall();
}

Nanos RequestLoop::wait_hint() const {
  if (line_.size() > 0) return kDeadlineLook;
  return running_.empty() && parts_.cache->operations_in_flight() == 0 ? kIdleLook : kRetryLook;
}

void RequestLoop::begin_waiting() {
  std::size_t begun_to_fetch = 0, begun_without = 0;
  unbegun_ = nullptr;
  ++turns_;
  std::vector<Sequence*> begins, others;
  for (const std::unique_ptr<Sequence>& s : line_.sequences()) {
    const bool needs_none = s->needs_no_storage || s->tokens.size() < limits_.prefetch_threshold;
    std::size_t& begun = needs_none ? begun_without : begun_to_fetch;
    if (s->id) {
      ++begun;
    } else if (begun < kMaxBegunWaiting) {
      ++begun;
      begins.push_back(s.get());
    } else if (!needs_none) {
      others.push_back(s.get());
    }
  }
  for (Sequence* const s : begins) begin_or_end(*s);
  // It is for those that can start: the others will need what is there by then.
  if (may_start_some() && begun_without < kMaxBegunWaiting) {
    begin_what_needs_no_storage(std::move(others), kMaxBegunWaiting - begun_without);
  }
}

void RequestLoop::begin_what_needs_no_storage(std::vector<Sequence*> others, std::size_t places) {
  std::ranges::stable_sort(others, {}, &Sequence::looked_at);
  std::uint64_t tokens = 0;
  for (Sequence* const s : others) {
    if (places == 0 || tokens >= kTokensLookedAt) return;
    tokens += s->prompt;
    s->looked_at = turns_;
    if (parts_.cache->would_fetch(begin_request(*s))) continue;
    --places;
    s->needs_no_storage = true;
    begin_or_end(*s);
  }
}

void RequestLoop::begin_or_end(Sequence& sequence) {
  const Status status = begin(sequence);
  if (status.is_ok()) return;
  if (status.code() == StatusCode::kOverloaded) {  // later: what is in use now comes free when others end
    sequence.needs_no_storage = false;
    if (unbegun_ == nullptr) {
      unbegun_ = &sequence;
      unbegun_refusal_ = status;
    }
    return;
  }
  end(sequence, FinishReason::kAbort, status, false);
  (void)line_.take(sequence.ticket);
}

BeginRequest RequestLoop::begin_request(const Sequence& sequence) {
  BeginRequest request;
  request.tokens = std::span<const TokenId>(sequence.tokens).first(sequence.prompt);
  request.max_new_tokens = sequence.request.max_new_tokens;
  request.adapter = sequence.request.adapter;
  request.salt = sequence.request.salt;
  request.priority = sequence.request.priority;
  request.will_return = sequence.request.will_return;
  return request;
}

Status RequestLoop::begin(Sequence& sequence) {
  LARDER_ASSIGN_OR_RETURN(sequence.id, parts_.cache->begin(begin_request(sequence)));
  return Status::ok();
}

bool RequestLoop::admit() {
  waits_for_storage_ = false;
  if (!may_start_some() || line_.size() == 0) {
    last_admission_ = {};
    return false;
  }
  WaitingLine::Outcome outcome =
      line_.admit(limits_.running - running_.size(), [&](Sequence& s) { return try_start(s); });
  const bool moved = !outcome.started.empty() || !outcome.failed.empty();
  std::move(outcome.started.begin(), outcome.started.end(), std::back_inserter(running_));
  outcome.started.clear();
  totals_.most_running = std::max(totals_.most_running, running_.size());
  outcome.failed.clear();  // try_start told them
  last_admission_ = std::move(outcome);
  return moved;
}

StartAnswer RequestLoop::try_start(Sequence& sequence) {
  // Refused at begin(), or beyond kMaxBegunWaiting: its turn to begin will come. Passed over without holding up those
  // behind it: they may have what it waits for.
  if (!sequence.id) return StartAnswer::kWaitsForStorage;
  if (parts_.cache->phase(*sequence.id) == RequestPhase::kPrefetching) {
    waits_for_storage_ = true;
    return StartAnswer::kWaitsForStorage;
  }
  const Result<CachedTokens> started = parts_.cache->start(*sequence.id);
  if (!started.is_ok() && started.status().code() == StatusCode::kOverloaded) {
    if (parts_.cache->waits_for_storage(*sequence.id)) {
      waits_for_storage_ = true;
      return StartAnswer::kAsksStorage;
    }
    last_refusal_ = started.status();
    return StartAnswer::kNoRoom;
  }
  if (!started.is_ok()) {
    end(sequence, FinishReason::kAbort, started.status(), false);
    return StartAnswer::kFailed;
  }
  sequence.cached = *started;
  sequence.computed = parts_.cache->computed_tokens(*sequence.id);
  if (sequence.start_order == 0) {
    sequence.queue_seconds = seconds(parts_.clock->now() - sequence.submitted);
    if (RequestMetrics* const metrics = metrics_of(sequence)) metrics->started(sequence.queue_seconds);
  }
  sequence.start_order = next_start_++;
  return StartAnswer::kStarted;
}

std::vector<RequestLoop::Share> RequestLoop::plan_step() {
  std::vector<Share> shares;
  shares.reserve(running_.size());
  is_starved_ = false;
  std::uint64_t budget = limits_.chunk_tokens;
  std::vector<Sequence*> order;  // of their start; decodes: who matters most, who may take from those behind it
  for (const std::unique_ptr<Sequence>& s : running_) order.push_back(s.get());
  const auto decodes = [](const Sequence* s) { return s->unfed() == 1 && s->computed >= s->prompt; };
  const auto prefills = std::stable_partition(order.begin(), order.end(), decodes);
  std::sort(order.begin(), prefills, [](const Sequence* a, const Sequence* b) { return matters_more(*a, *b); });
  const auto first_prefill = static_cast<std::size_t>(prefills - order.begin());
  for (std::size_t i = 0; i < order.size(); ++i) {
    Sequence* const s = order[i];
    const bool is_decode = i < first_prefill;  // first: prefill never holds them up
    if (std::find(back_.begin(), back_.end(), s) != back_.end()) continue;
    const std::uint64_t chunk = is_decode ? 1 : std::min(s->unfed(), budget);
    // A sliver of a chunk costs a whole pass over the weights; it waits for the next step, which it will lead.
    const bool is_sliver = chunk < std::min<std::uint64_t>(s->unfed(), parts_.model->page_size);
    if (chunk == 0 || (!is_decode && is_sliver && budget < limits_.chunk_tokens)) continue;
    if (prepare(*s, chunk, shares) == Prepared::kYes && !is_decode) budget -= chunk;
  }
  sweep();
  return shares;
}

RequestLoop::Prepared RequestLoop::prepare(Sequence& sequence, std::uint64_t chunk, std::vector<Share>& shares) {
  assert(sequence.id);
  Result<StepGrant> grant = parts_.cache->prepare_step(*sequence.id, sequence.computed + chunk);
  while (!grant.is_ok() && parts_.cache->is_starved(*sequence.id) && retract_for(sequence, shares)) {
    grant = parts_.cache->prepare_step(*sequence.id, sequence.computed + chunk);
  }
  if (!grant.is_ok()) {
    if (grant.status().code() == StatusCode::kOverloaded) {
      last_refusal_ = grant.status();
      is_starved_ |= parts_.cache->is_starved(*sequence.id);
      return Prepared::kSkipped;
    }
    end(sequence, FinishReason::kAbort, grant.status(), false);
    over_.push_back(&sequence);
    return Prepared::kFailed;
  }
  Share share;
  share.sequence = &sequence;
  share.chunk = grant->until - sequence.computed;  // less at the end of what the device has
  share.grant = std::move(grant).value();
  for (const CheckpointSlot& s : share.grant.checkpoints) share.snapshots.push_back({s.position, s.slot});
  shares.push_back(std::move(share));
  return Prepared::kYes;
}

bool RequestLoop::retract_for(const Sequence& starved, const std::vector<Share>& shares) {
  Sequence* victim = nullptr;
  for (const std::unique_ptr<Sequence>& s : running_) {
    const bool is_in_step =
        std::any_of(shares.begin(), shares.end(), [&](const Share& x) { return x.sequence == s.get(); });
    const bool is_gone = std::find(back_.begin(), back_.end(), s.get()) != back_.end() ||
                         std::find(over_.begin(), over_.end(), s.get()) != over_.end();
    if (is_in_step || is_gone || !matters_more(starved, *s)) continue;
    if (victim == nullptr || matters_more(*victim, *s)) victim = s.get();
  }
  return victim != nullptr && retract(*victim);
}

bool RequestLoop::retract(Sequence& s) {
  assert(s.id);
  if (!parts_.cache->retract(*s.id).is_ok()) return false;
  ++totals_.retracts;
  s.restarts = 0;  // as the cache does
  s.computed = 0;
  s.overtaken = WaitingLine::kMaxOvertakes;
  s.needs_no_storage = false;
  back_.push_back(&s);
  return true;
}

bool RequestLoop::step() {
  std::vector<Share> shares = plan_step();
  if (shares.empty()) return false;
  std::vector<SequenceStep> steps;
  steps.reserve(shares.size());
  for (const Share& share : shares) {
    SequenceStep s;
    s.tokens = std::span<const TokenId>(share.sequence->tokens).subspan(share.sequence->computed, share.chunk);
    s.start = share.sequence->computed;
    s.pages = share.grant.pages;
    s.snapshots = share.snapshots;
    s.gate = share.grant.gate.get();
    steps.push_back(s);
  }
  const std::vector<StepResult> results = parts_.engine->step(steps);
  ++totals_.steps;
  for (std::size_t i = 0; i < shares.size(); ++i) apply(shares[i], results[i]);
  sweep();
  return true;
}

void RequestLoop::apply(Share& share, const StepResult& result) {
  Sequence& s = *share.sequence;
  if (!result.status.is_ok()) {
    (void)parts_.cache->cancel_step(share.grant.token);
    restart(s, result.status);
    return;
  }
  if (!s.is_counted) count_prompt(s);
  assert(s.id);
  s.computed += share.chunk;
  const Status completed =
      parts_.cache->complete_step(share.grant.token, std::span<const TokenId>(s.tokens).first(s.computed));
  if (!completed.is_ok()) {
    (void)parts_.cache->cancel_step(share.grant.token);  // refused: it is open still
    end(s, FinishReason::kAbort, completed, false);
    over_.push_back(&s);
    return;
  }
  if (s.unfed() > 0) return;  // a chunk of the prompt: nothing to sample yet
  if (s.request.max_new_tokens == 0) {
    end(s, FinishReason::kLength, Status::ok(), true);
    over_.push_back(&s);
    return;
  }
  sample(s, result);
}

RequestMetrics* RequestLoop::metrics_of(const Sequence& s) const {
  return s.request.is_probe ? nullptr : parts_.metrics;
}

// Now that what was loaded is there: a start whose load failed has reused nothing.
void RequestLoop::count_prompt(Sequence& s) {
  s.is_counted = true;
  if (s.request.is_probe) return;
  totals_.prompt_tokens += s.prompt;
  totals_.cached.prompt += s.cached.prompt;
  totals_.cached.device += s.cached.device;
  totals_.cached.host += s.cached.host;
  totals_.cached.storage += s.cached.storage;
  if (parts_.metrics != nullptr) parts_.metrics->computes(s.cached);
}

void RequestLoop::sample(Sequence& s, const StepResult& result) {
  SamplingParams params;
  params.temperature = s.request.temperature;
  params.top_p = s.request.top_p;
  params.top_k = s.request.top_k;
  params.seed = s.request.seed.value_or(limits_.seed + s.ticket);
  const TokenId token = sample_token(result.logits, params, s.tokens.size());
  s.tokens.push_back(token);
  if (!s.request.is_probe) ++totals_.completion_tokens;
  const TimePoint now = parts_.clock->now();
  if (s.completion() == 1) s.ttft_seconds = seconds(now - s.submitted);
  if (RequestMetrics* const metrics = metrics_of(s)) {
    metrics->token(s.completion() == 1, s.completion() == 1 ? s.ttft_seconds : seconds(now - s.last_token));
  }
  s.last_token = now;

  const bool is_stop =
      (token == TokenizerSpec::kEos && !s.request.ignore_eos) || contains(s.request.stop_tokens, token);
  if (is_stop || s.completion() >= s.request.max_new_tokens) {
    end(s, is_stop ? FinishReason::kStop : FinishReason::kLength, Status::ok(), true);
    over_.push_back(&s);
    return;
  }
  send(s, GenerateUpdate{});
}

// A load-back that failed costs a recomputation; an engine that refuses the sequence, or fails it again and again, ends
// it.
void RequestLoop::restart(Sequence& s, const Status& why) {
  assert(s.id);
  ++totals_.restarts;
  ++s.restarts;
  Status status = why;
  if (why.code() != StatusCode::kInvalidArgument && s.restarts <= kMaxRestarts) status = parts_.cache->restart(*s.id);
  if (status.is_ok()) {
    s.computed = 0;
    back_.push_back(&s);
    return;
  }
  end(s, FinishReason::kAbort, status, false);
  over_.push_back(&s);
}

bool RequestLoop::relieve_stall() {
  const bool something_will_come = parts_.cache->operations_in_flight() > 0 || waits_for_storage_;
  const bool has_work = !running_.empty() || last_admission_.refused != nullptr || unbegun_ != nullptr;
  if (something_will_come || !has_work) {
    stalled_turns_ = 0;
    return false;
  }
  if (++stalled_turns_ < kStalledTurns) return false;
  stalled_turns_ = 0;
  ++totals_.stalls;
  if (running_.empty() && last_admission_.refused == nullptr) {
    fail_unbegun();
    return true;
  }
  // Every running request was skipped, or the first in line does not fit although nothing runs.
  Sequence* victim = last_admission_.refused;
  for (const std::unique_ptr<Sequence>& s : running_) {
    if (running_.front() == s || s->start_order > victim->start_order) victim = s.get();
  }
  if (running_.size() > 1 && victim->stall_retracts < kMaxStallRetracts && retract(*victim)) {
    ++victim->stall_retracts;
    sweep();
    return true;
  }
  const Status status = overloaded(
      "the device has no room for this request and nothing is left that could free some: " + last_refusal_.message() +
      " (raise --max-total-tokens or --max-mamba-cache-size)");
  end(*victim, FinishReason::kAbort, status, true);
  if (!running_.empty()) {
    over_.push_back(victim);
    sweep();
  } else {
    (void)line_.take(victim->ticket);
  }
  return true;
}

// Nothing runs or is under way, and still the cache has no place for a request: others than this loop have them all.
void RequestLoop::fail_unbegun() {
  Sequence* victim = std::exchange(unbegun_, nullptr);
  end(*victim, FinishReason::kAbort, unbegun_refusal_, false);
  (void)line_.take(victim->ticket);
}

void RequestLoop::end(Sequence& s, FinishReason reason, Status status, bool keep) {
  if (s.id) {
    if (keep) {
      parts_.cache->finish(*s.id);
    } else {
      parts_.cache->abort(*s.id);
    }
    s.id.reset();
  }
  tell_end(s, reason, std::move(status));
}

void RequestLoop::tell_end(Sequence& s, FinishReason reason, Status status) {
  const bool is_failed = !status.is_ok();
  GenerateUpdate update;
  update.finish = reason;
  update.status = std::move(status);
  s.is_over = true;
  if (RequestMetrics* const metrics = metrics_of(s)) {
    metrics->ended(is_failed, seconds(parts_.clock->now() - s.submitted));
  }
  send(s, std::move(update));
}

void RequestLoop::send(Sequence& s, GenerateUpdate update) {
  update.new_tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt + s.told), s.tokens.end());
  s.told = s.completion();
  update.cached = s.cached;
  update.completion_tokens = s.completion();
  update.ttft_seconds = s.ttft_seconds;
  update.queue_seconds = s.queue_seconds;
  if (!s.update) return;
  try {
    s.update(update);
  } catch (...) {  // the server's own code: it must not end the loop for everybody else
    if (parts_.metrics != nullptr) parts_.metrics->callback_threw();
  }
}

void RequestLoop::sweep() {
  for (const std::vector<Sequence*>* gone : {&over_, &back_}) {
    for (Sequence* s : *gone) {
      const auto at = std::find_if(running_.begin(), running_.end(),
                                   [&](const std::unique_ptr<Sequence>& r) { return r.get() == s; });
      if (at == running_.end()) continue;
      std::unique_ptr<Sequence> owned = std::move(*at);
      running_.erase(at);
      if (gone == &back_) line_.add_first(std::move(owned));
    }
  }
  over_.clear();
  back_.clear();
}

}  // namespace larder
