// SPDX-License-Identifier: Apache-2.0
#include "sim/world/cache_engine.h"

#include <algorithm>
#include <utility>

namespace larder::sim {
namespace {

constexpr std::size_t kMostJobs = 6;
constexpr std::uint64_t kMostTenants = 6;
constexpr std::size_t kMostGateEvents = 200'000;
constexpr int kMostRestarts = 20;            // of one request, whose load-back failed
constexpr std::uint64_t kMostDrafts = 4;     // a decode step has fewer
constexpr std::uint64_t kComparedEvery = 5;  // steps whose pages are compared that ran ahead: one in so many

bool are_loading(const std::vector<StepGrant>& grants) {
  return std::ranges::any_of(grants, [](const StepGrant& grant) { return grant.gate && !grant.gate->finished(); });
}

}  // namespace

void CacheEngine::begin(const EventArguments& a) {
  if (jobs_.size() >= kMostJobs) return;
  Job job;
  job.prompt = prompt_of(a);
  job.tokens = job.prompt;
  job.new_tokens = a[4];
  job.tenant = tenant_of(a[5]);
  BeginRequest request;
  request.tokens = job.prompt;
  request.max_new_tokens = job.new_tokens;
  (is_adapter(job.tenant) ? request.adapter : request.salt) = job.tenant;
  request.priority = static_cast<std::int32_t>(a[6]);
  if (a[7] > 0) request.will_return = a[7] == 1;
  const bool may_refuse = world_.spec.namespaces <= kMostTenants || world_.spec.requests <= kMostJobs;
  std::size_t refused = 0;
  const bool would_fetch = world_.ranks[0]->cache().would_fetch(request);
  for (const auto& rank : world_.ranks) {
    if (rank->cache().would_fetch(request) != would_fetch) fail("ranks disagree: whether a request would fetch");
    const Result<RequestId> id = rank->cache().begin(request);
    if (id.is_ok() && !would_fetch && rank->cache().phase(*id) == RequestPhase::kPrefetching) {
      fail("a request waits for storage that would not fetch");
    }
    const bool is_full = may_refuse && id.status().code() == StatusCode::kOverloaded;
    if (!id.is_ok() && !is_full) return fail("begin: " + id.status().to_string());
    if (id.is_ok()) job.ids.push_back(*id);
    refused += id.is_ok() ? 0 : 1;
  }
  if (refused > 0 && !job.ids.empty()) return fail("ranks disagree: whether a request may come");
  ++(refused > 0 ? world_.totals.refused : world_.totals.begun);
  if (refused > 0) return;
  world_.totals.prompt_tokens += job.prompt.size();
  jobs_.push_back(std::move(job));
}

std::uint64_t CacheEngine::last_token(const Job& job) {
  return job.new_tokens > 0 ? job.prompt.size() + job.new_tokens - 1 : job.prompt.size();
}

bool CacheEngine::start(Job& job) {
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (world_.ranks[r]->cache().phase(job.ids[r]) == RequestPhase::kPrefetching) return false;
  }
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    const Result<CachedTokens> cached = world_.ranks[r]->cache().start(job.ids[r]);
    const StatusCode code = cached.status().code();
    if (code != StatusCode::kOk && code != StatusCode::kOverloaded) fail("start: " + cached.status().to_string());
    if (r == 0) first = code;
    if (code != first) fail("ranks disagree: whether a request may start");
    if (!cached.is_ok()) continue;
    if (r == 0) job.cached = *cached;
    if (cached->device != job.cached.device || cached->host != job.cached.host ||
        cached->storage != job.cached.storage) {
      fail("ranks disagree: what a request has found");
    }
    job.computed = job.resumed = world_.ranks[r]->cache().computed_tokens(job.ids[r]);
    // What a fork that starts anew finds is its own, as after a retract.
    const bool is_told = job.retracts == 0 && !job.is_fork;
    if (is_told && job.computed != cached->cached()) fail("computed and cached tokens differ");
  }
  if (first != StatusCode::kOk) return false;
  job.is_started = true;
  if (job.retracts > 0) return true;  // the answer is that of the first start
  world_.totals.device_tokens += job.cached.device;
  world_.totals.host_tokens += job.cached.host;
  world_.totals.storage_tokens += job.cached.storage;
  return true;
}

bool CacheEngine::prepare(Job& job, std::uint64_t until, std::vector<StepGrant>& grants) {
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    Cache& cache = world_.ranks[r]->cache();
    Result<StepGrant> grant = cache.prepare_step(job.ids[r], until);
    const StatusCode code = grant.status().code();
    if (code != StatusCode::kOk && code != StatusCode::kOverloaded) fail("prepare_step: " + grant.status().to_string());
    if (r == 0) first = code;
    if (code != first) fail("ranks disagree: whether a request may go on");
    if (cache.is_starved(job.ids[r]) != world_.ranks[0]->cache().is_starved(job.ids[0])) {
      fail("ranks disagree: whether a request starves");
    }
    if (grant.is_ok()) grants.push_back(std::move(grant).value());
  }
  if (grants.size() == world_.ranks.size()) {
    for (const StepGrant& grant : grants) {
      if (grant.until != grants[0].until) fail("ranks disagree: how far a request may go");
    }
    return true;
  }
  if (world_.ranks[0]->cache().is_starved(job.ids[0])) relieve(job);
  return false;
}

// Time passes. False: it waits for a step that has yet to run.
bool CacheEngine::let_come(const LayerGate& gate) {
  for (std::size_t i = 0; i < kMostGateEvents && !gate.finished(); ++i) {
    if (!world_.clock.run_next()) break;
  }
  return gate.finished();
}

// The engine waits for what is being loaded back. False: some of it failed, on some rank.
bool CacheEngine::wait_for_gates(const std::vector<StepGrant>& grants) {
  bool is_loaded = true;
  for (const StepGrant& grant : grants) {
    if (!grant.gate) continue;
    if (!let_come(*grant.gate)) fail("a load-back never ends");
    for (std::uint32_t layer = 0; layer < world_.model.layer_count() && is_loaded; ++layer) {
      is_loaded = grant.gate->wait(layer, std::chrono::nanoseconds(1)).is_ok();
    }
  }
  return is_loaded;
}

bool CacheEngine::move(Job& job, std::uint64_t chunk, std::uint64_t leave) {
  // One that runs ahead launches upon what is being loaded.
  if (!job.is_started && (!start(job) || world_.spec.ahead == 0)) return job.is_started;
  const bool launched = job.open.size() <= world_.spec.ahead && launch(job, chunk);
  // Else it goes on with the next; but what waits on the device for a load may be ended at once.
  const bool is_upon_load = launched && job.open.size() == 1 && are_loading(job.open[0].grants);
  if (job.open.empty() || (launched && world_.spec.ahead > 0 && !is_upon_load)) return launched;
  land(job, leave);
  return true;
}

// One that runs ahead does not know yet which drafts count, nor that its request is at its end.
bool CacheEngine::launch(Job& job, std::uint64_t chunk) {
  const std::uint64_t page = world_.model.page_size, unit = std::max<std::uint64_t>(page / 4, 1);
  Launched step;
  step.from = job.open.empty() ? job.computed : job.open.back().until;
  const std::uint64_t known = std::max<std::uint64_t>(job.prompt.size(), job.tokens.size() - 1);
  if (step.from >= (last_token(job) + page - 1) / page * page) return false;
  const std::uint64_t drafts = world_.spec.ahead > 0 ? chunk % kMostDrafts : 0;
  step.until = step.from < known ? std::min(known, step.from + std::min<std::uint64_t>(chunk, 16) * unit)
                                 : step.from + 1 + drafts;
  if (!prepare(job, step.until, step.grants)) return false;
  step.until = step.grants[0].until;
  for (const StepGrant& grant : step.grants) step.tables.push_back(*grant.pages);
  job.open.push_back(std::move(step));
  return true;
}

void CacheEngine::start_again(Job& job) {
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (const Status s = world_.ranks[r]->cache().restart(job.ids[r]); !s.is_ok()) fail("restart: " + s.to_string());
  }
  leave_steps(job);
  if (++job.restarts > kMostRestarts) fail("a request restarts for ever");
  job.is_started = false;
  if (job.retracts == 0 && !job.is_fork) job.tokens = job.prompt;
}

// Steps that were built on drafts that do not count have run already when that is known; then the engine takes its
// working state back.
void CacheEngine::land(Job& job, std::uint64_t leave) {
  const std::uint64_t last = last_token(job);
  const std::uint64_t from = job.open[0].from, end = job.open[0].until;
  const std::uint64_t until = std::min(end - std::min(leave, end - from - 1), last);
  // An engine that runs ahead may end a chunk of a prompt when it is launched, and need not wait for what is loaded.
  const bool is_early = world_.spec.ahead > 0 && until == end && until <= job.prompt.size() && from % 3 != 1;
  if (!is_early) {
    run_late_steps();
    if (job.open.empty()) return;  // what it was built on has not come
    if (!wait_for_gates(job.open[0].grants)) return start_again(job);
  }
  const Launched step = std::move(job.open.front());
  job.open.erase(job.open.begin());
  while (job.tokens.size() < until) job.tokens.push_back(next_token(job.tokens, world_.model.vocab_size));
  const std::vector<Launched> wrong = until < step.until ? std::exchange(job.open, {}) : std::vector<Launched>{};
  const bool is_compared =
      step.from == job.resumed || until == last || (world_.spec.ahead > 0 && step.from % kComparedEvery == 0);
  const std::vector<TokenId> content = job.tokens;
  if (is_early) {
    const auto over = std::make_shared<DeviceEvent>();
    late_.push_back({step, content, job.tenant, over, is_compared, job.ids[0], job.begun()});
  }
  check_last_page(job, step);
  const std::vector<TokenId> drafts(step.until, static_cast<TokenId>(step.from % world_.model.vocab_size));
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    Cache& cache = world_.ranks[r]->cache();
    if (is_compared && !is_early) check_restored(job.tokens, job.tenant, step, r);
    if (!is_early) compute(step, r, content, until, job.tenant);
    for (const Launched& later : wrong) compute(later, r, drafts, later.until, job.tenant);
    const DeviceSlot state = step.tables[r].state;
    if (state.valid() && !is_early)
      world_.ranks[r]->pattern().write(ComponentKind::kMamba, content, until, job.tenant, state);
    if (!wrong.empty()) write_last_page(step, r, content, until, job.tenant);
    const Status done = cache.complete_step(step.grants[r].token, std::span<const TokenId>(job.tokens).first(until),
                                            is_early ? late_.back().over : nullptr);
    if (!done.is_ok()) fail("complete_step: " + done.to_string());
    for (const Launched& later : wrong) {
      if (const Status s = cache.cancel_step(later.grants[r].token); !s.is_ok()) fail("cancel_step: " + s.to_string());
    }
  }
  job.computed = until;
  job.written = content;
  if (job.computed >= job.prompt.size() && job.tokens.size() == job.computed) {
    job.tokens.push_back(next_token(job.tokens, world_.model.vocab_size));
  }
}

// It is slow: copies that wait for it, and those that should, meet what it has yet to write.
void CacheEngine::device_runs() {
  if (++looks_ % 3 == 0) run_late_steps();
}

void CacheEngine::run_late_steps() {
  for (const Late& late : std::exchange(late_, {})) {
    run_late(late);
    late.over->fire();
    ++world_.totals.late_steps;
  }
}

void CacheEngine::run_late(const Late& late) {
  const Launched& step = late.step;
  if (late.is_void) return scribble(step);
  const bool is_upon_load = are_loading(step.grants);
  if (is_upon_load) ++world_.totals.late_loads;
  const bool is_loaded = wait_for_gates(step.grants);
  const std::vector<TokenId> anything(step.until, static_cast<TokenId>(step.from % world_.model.vocab_size));
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (is_loaded && (late.is_compared || is_upon_load)) check_restored(late.content, late.tenant, step, r);
    compute(step, r, is_loaded ? late.content : anything, step.until, late.tenant);
  }
  if (is_loaded) return;
  for (Job& job : jobs_) {
    if (job.ids[0] == late.request && job.is_started && job.begun() == late.begun) start_again(job);
  }
}

// Whole pages: what is beyond the tokens of the step is written again by the one that gets there.
void CacheEngine::compute(const Launched& step, std::size_t rank, std::span<const TokenId> content, std::uint64_t until,
                          const std::string& tenant) {
  const Pattern& pattern = world_.ranks[rank]->pattern();
  const PageTable& table = step.tables[rank];
  for (std::uint64_t page = step.from / world_.model.page_size; page * world_.model.page_size < step.until; ++page) {
    const std::uint64_t tokens = (page + 1) * world_.model.page_size;
    pattern.write(ComponentKind::kFull, content, tokens, tenant, table.full[page]);
    if (world_.model.has(ComponentKind::kSwa))
      pattern.write(ComponentKind::kSwa, content, tokens, tenant, table.swa[page]);
  }
  if (!world_.model.has(ComponentKind::kMamba)) return;
  for (const CheckpointSlot& snapshot : step.grants[rank].checkpoints) {
    pattern.write(ComponentKind::kMamba, content, snapshot.position, tenant, snapshot.slot);
  }
  pattern.write(ComponentKind::kMamba, content, until, tenant, table.state);
}

// The engine goes back to the tokens that count: what drafts have written behind them in their last page is void.
void CacheEngine::write_last_page(const Launched& step, std::size_t rank, std::span<const TokenId> content,
                                  std::uint64_t until, const std::string& tenant) {
  const std::uint64_t page = until / world_.model.page_size, end = (page + 1) * world_.model.page_size;
  if (until % world_.model.page_size == 0) return;
  const Pattern& pattern = world_.ranks[rank]->pattern();
  pattern.write(ComponentKind::kFull, content, end, tenant, step.tables[rank].full[page]);
  if (!world_.model.has(ComponentKind::kSwa)) return;
  pattern.write(ComponentKind::kSwa, content, end, tenant, step.tables[rank].swa[page]);
}

// A fork has a copy of the page that is not full, too.
void CacheEngine::check_last_page(const Job& job, const Launched& step) {
  if (job.written.empty() || step.from != job.resumed || step.from % world_.model.page_size == 0) return;
  const std::uint64_t page = step.from / world_.model.page_size, end = (page + 1) * world_.model.page_size;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (step.grants[r].gate) continue;  // it failed
    check_page(r, ComponentKind::kFull, job.written, end, job.tenant, step.tables[r].full[page]);
    if (!world_.model.has(ComponentKind::kSwa)) continue;
    check_page(r, ComponentKind::kSwa, job.written, end, job.tenant, step.tables[r].swa[page]);
  }
}

void CacheEngine::scribble(const Launched& step) {
  const std::vector<TokenId> anything(step.until, static_cast<TokenId>(step.from % world_.model.vocab_size));
  const std::uint64_t page_size = world_.model.page_size;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    const Pattern& pattern = world_.ranks[r]->pattern();
    const PageTable& table = step.tables[r];
    for (std::uint64_t page = (step.from + page_size - 1) / page_size; page * page_size < step.until; ++page) {
      pattern.write(ComponentKind::kFull, anything, step.until, "", table.full[page]);
      if (world_.model.has(ComponentKind::kSwa)) {
        pattern.write(ComponentKind::kSwa, anything, step.until, "", table.swa[page]);
      }
    }
    for (const CheckpointSlot& snapshot : step.grants[r].checkpoints) {
      pattern.write(ComponentKind::kMamba, anything, step.until, "", snapshot.slot);
    }
  }
}

void CacheEngine::cancel(const Launched& step, bool runs_later) {
  std::shared_ptr<DeviceEvent> over;
  if (runs_later) {
    over = std::make_shared<DeviceEvent>();
    Late late;
    late.step = step;
    late.over = over;
    late.is_void = true;
    late_.push_back(std::move(late));
  }
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    const Status s = world_.ranks[r]->cache().cancel_step(step.grants[r].token, over);
    if (!s.is_ok()) fail("cancel_step: " + s.to_string());
  }
  ++world_.totals.cancelled;
}

void CacheEngine::retract(Job& job) {
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (const Status s = world_.ranks[r]->cache().retract(job.ids[r]); !s.is_ok()) fail("retract: " + s.to_string());
  }
  ++world_.totals.retracts;
  ++job.retracts;
  job.is_started = false;
  leave_steps(job);
}

// The youngest of those behind it; the first of all is never retracted, so somebody always ends.
void CacheEngine::relieve(const Job& starved) {
  for (std::size_t i = jobs_.size(); i-- > 0 && &jobs_[i] != &starved;) {
    if (!jobs_[i].is_started) continue;
    ++world_.totals.starved;
    return retract(jobs_[i]);
  }
}

void CacheEngine::leave_steps(Job& job) {
  world_.totals.steps_left += job.open.size();
  std::move(job.open.begin(), job.open.end(), std::back_inserter(left_));
  job.open.clear();
}

// It has run until now, upon anything.
void CacheEngine::end_left_step() {
  if (left_.empty()) return;
  run_late_steps();
  const Launched step = std::move(left_.front());
  left_.erase(left_.begin());
  const std::vector<TokenId> content(step.until, static_cast<TokenId>(step.from % world_.model.vocab_size));
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    if (!step.has_run) compute(step, r, content, step.until, "");
    Cache& cache = world_.ranks[r]->cache();
    const StepToken token = step.grants[r].token;
    const Status ended = step.from % 2 == 0 ? cache.cancel_step(token) : cache.complete_step(token, content);
    if (ended.code() != (step.from % 2 == 0 ? StatusCode::kOk : StatusCode::kConflict)) {
      fail("a step that its request let go: " + ended.to_string());
    }
  }
}

void CacheEngine::check_restored(std::span<const TokenId> tokens, const std::string& tenant, const Launched& step,
                                 std::size_t r) {
  const std::uint64_t pages = step.from / world_.model.page_size;
  const PageTable& table = step.tables[r];
  if (pages == 0) return;
  for (std::uint64_t i = 0; i < pages; ++i) {
    check_page(r, ComponentKind::kFull, tokens, (i + 1) * world_.model.page_size, tenant, table.full[i]);
  }
  for (std::uint64_t i = pages - world_.model.window_pages_at(pages);
       world_.model.has(ComponentKind::kSwa) && i < pages; ++i) {
    check_page(r, ComponentKind::kSwa, tokens, (i + 1) * world_.model.page_size, tenant, table.swa[i]);
  }
  if (world_.model.has(ComponentKind::kMamba)) {
    check_page(r, ComponentKind::kMamba, tokens, step.from, tenant, table.state);
  }
}

void CacheEngine::end_if_done(std::size_t number) {
  Job& job = jobs_[number];
  if (!job.is_started || job.computed != last_token(job)) return;
  remember(job.tokens);
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) world_.ranks[r]->cache().finish(job.ids[r]);
  leave_steps(job);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(number));
  ++world_.totals.finished;
}

// ---- events

void CacheEngine::move(const EventArguments& a) {
  if (jobs_.empty()) return;
  const std::size_t number = a[0] % jobs_.size();
  (void)move(jobs_[number], std::max<std::uint64_t>(a[1], 1), a[2]);
  end_if_done(number);
  if (world_.totals.events % 3 == 0) end_left_step();
}

void CacheEngine::abort(const EventArguments& a) {
  if (jobs_.empty()) return;
  const std::size_t number = a[0] % jobs_.size();
  // What it is built on has come by then, or failed to, and nobody has polled since.
  for (const Late& late : late_) {
    if (late.request != jobs_[number].ids[0]) continue;
    for (const StepGrant& grant : late.step.grants) (void)(grant.gate && let_come(*grant.gate));
  }
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) world_.ranks[r]->cache().abort(jobs_[number].ids[r]);
  leave_steps(jobs_[number]);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(number));
  ++world_.totals.aborted;
}

void CacheEngine::retract(const EventArguments& a) {
  if (jobs_.empty()) return;
  Job& job = jobs_[a[0] % jobs_.size()];
  if (job.is_started) retract(job);
}

// It says something else from here on.
void CacheEngine::fork(const EventArguments& a) {
  if (jobs_.empty() || jobs_.size() >= kMostJobs) return;
  const Job& from = jobs_[a[0] % jobs_.size()];
  if (!from.is_started) return;
  Job fork = from;
  fork.ids.clear();
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    Cache& cache = world_.ranks[r]->cache();
    const Result<RequestId> id = cache.fork(from.ids[r]);
    if (r == 0) first = id.status().code();
    if (id.status().code() != first) return fail("ranks disagree: whether a request may be forked");
    if (!id.is_ok()) continue;
    fork.ids.push_back(*id);
    if (cache.computed_tokens(*id) != from.computed) fail("a fork is not where the request was");
  }
  // A step is open, or what it is built on has not come.
  const bool may_not = !from.open.empty() || !late_.empty() || from.computed == from.resumed;
  if (first != StatusCode::kOk && first != StatusCode::kOverloaded &&
      !(may_not && first == StatusCode::kInvalidArgument)) {
    fail("fork: the answer is " + std::string(status_code_name(first)));
  }
  if (first != StatusCode::kOk) return;
  fork.open.clear();
  fork.cached = {};
  fork.is_fork = true;
  fork.resumed = fork.computed;
  fork.restarts = fork.retracts = 0;
  if (fork.tokens.size() > std::max<std::size_t>(fork.computed, fork.prompt.size())) {
    fork.tokens.back() = (fork.tokens.back() + 1) % world_.model.vocab_size;
  }
  ++world_.totals.begun;
  ++world_.totals.forks;
  jobs_.push_back(std::move(fork));
}

// Of the steps after it some are ended later: each has run, upon anything.
void CacheEngine::cancel(const EventArguments& a) {
  if (jobs_.empty()) return;
  Job& job = jobs_[a[0] % jobs_.size()];
  if (job.open.empty()) return;
  const auto at = job.open.begin() + static_cast<std::ptrdiff_t>(a[1] % job.open.size());
  std::vector<Launched> gone(at, job.open.end());
  job.open.erase(at, job.open.end());
  const bool runs_later = a[2] % 3 == 1;
  if (!runs_later) run_late_steps();
  cancel(gone[0], runs_later);
  for (std::size_t i = 1; i < gone.size(); ++i) {
    if (a[2] % 2 == 0 || runs_later) {  // an engine runs its steps in their order
      cancel(gone[i], runs_later);
    } else {
      scribble(gone[i]);
      gone[i].has_run = true;
      left_.push_back(std::move(gone[i]));
    }
  }
}

void CacheEngine::has_parted() {
  run_late_steps();
  const auto check = [this](const Status& status) {
    if (status.code() != StatusCode::kUnavailable) fail("a rank on its own decides: " + status.to_string());
  };
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    Cache& cache = world_.ranks[r]->cache();
    BeginRequest request;
    const std::vector<TokenId> prompt = {1};
    request.tokens = prompt;
    check(cache.begin(request).status());
    for (const Job& job : jobs_) {
      check(cache.start(job.ids[r]).status());
      check(cache.prepare_step(job.ids[r], job.tokens.size()).status());
      check(cache.fork(job.ids[r]).status());
      check(cache.retract(job.ids[r]));
      for (const Launched& step : job.open) check(cache.complete_step(step.grants[r].token, job.tokens));
      cache.abort(job.ids[r]);
    }
  }
  world_.totals.dropped += jobs_.size();
  jobs_.clear();
  while (!left_.empty()) end_left_step();
}

void CacheEngine::explain(const EventArguments& a) {
  const std::vector<TokenId> prompt = prompt_of({a[0], a[1] + 1, 1, 0, 0, 0});
  BeginRequest request;
  request.tokens = prompt;
  world_.ranks[0]->cache().explain(request, [](const Explanation&) {});
}

void CacheEngine::set_policies(PrefetchPolicy prefetch, WritePolicy write) {
  for (const auto& rank : world_.ranks) rank->cache().set_policies(prefetch, write);
}

bool CacheEngine::move_all() {
  bool any = false;
  for (std::size_t i = jobs_.size(); i > 0; --i) {
    any = move(jobs_[i - 1], 16, 0) || any;
    end_if_done(i - 1);
  }
  end_left_step();
  return any;
}

void CacheEngine::let_go() {
  while (!left_.empty()) end_left_step();
}

void CacheEngine::drop_all() {
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    for (Job& job : jobs_) world_.ranks[r]->cache().abort(job.ids[r]);
  }
  world_.totals.dropped += jobs_.size();
  jobs_.clear();
  left_.clear();  // the device ends with its process
  late_.clear();
}

}  // namespace larder::sim
