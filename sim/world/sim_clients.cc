// The clients of a simulated world, and the engine that serves them: on ranks that must decide alike, some steps ahead
// of what it knows (sim_world.h).
#include <algorithm>
#include <utility>

#include "sim/world/sim_world.h"

namespace larder::sim {
namespace {

constexpr std::size_t kMostJobs = 6, kMostHistory = 40;
constexpr std::size_t kMostGateEvents = 200'000;
constexpr int kMostRestarts = 20;            // of one request, whose load-back failed
constexpr std::uint64_t kMostDrafts = 4;     // a decode step has fewer
constexpr std::uint64_t kComparedEvery = 5;  // steps whose pages are compared that ran ahead: one in so many

}  // namespace

std::vector<TokenId> SimWorld::prompt_of(const Arguments& a) const {
  const std::uint64_t unit = std::max<std::uint64_t>(model_.page_size / 4, 1);
  std::vector<TokenId> prompt;
  if (a[1] > 0 && !history_.empty()) {
    prompt = history_[a[0] % history_.size()];
    if (a[1] < kKeepsAll) prompt.resize(a[1] * unit % (prompt.size() + 1));
  }
  // The same words begin alike: shared system prompts, and branches where a conversation is continued differently.
  for (std::uint64_t i = 0; i < a[2] * unit; ++i) {
    prompt.push_back(static_cast<TokenId>((a[3] * 7 + i * (a[3] + 1) + i / 5) % std::min(model_.vocab_size, 64u)));
  }
  prompt.resize(std::clamp<std::size_t>(prompt.size(), 1, spec_.prompt_pages * model_.page_size));
  return prompt;
}

void SimWorld::begin_request(const Arguments& a) {
  if (jobs_.size() >= kMostJobs) return;
  Job job;
  job.prompt = prompt_of(a);
  job.tokens = job.prompt;
  job.new_tokens = a[4];
  if (a[5] > 0) job.tenant = "tenant " + std::to_string(a[5]);
  BeginRequest request;
  request.tokens = job.prompt;
  request.max_new_tokens = job.new_tokens;
  request.salt = job.tenant;
  for (const auto& rank : ranks_) {
    const Result<RequestId> id = rank->cache().begin(request);
    if (!id.is_ok()) return fail("begin: " + id.status().to_string());
    job.ids.push_back(*id);
  }
  ++totals_.begun;
  totals_.prompt_tokens += job.prompt.size();
  jobs_.push_back(std::move(job));
}

std::uint64_t SimWorld::last_token(const Job& job) {
  return job.new_tokens > 0 ? job.prompt.size() + job.new_tokens - 1 : job.prompt.size();
}

bool SimWorld::start(Job& job) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r]->cache().phase(job.ids[r]) == RequestPhase::kPrefetching) return false;
  }
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Result<CachedTokens> cached = ranks_[r]->cache().start(job.ids[r]);
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
    job.computed = job.resumed = ranks_[r]->cache().computed_tokens(job.ids[r]);
    if (job.retracts == 0 && job.computed != cached->cached()) fail("computed and cached tokens differ");
  }
  if (first != StatusCode::kOk) return false;
  job.is_started = true;
  if (job.retracts > 0) return true;  // the answer is that of the first start
  totals_.device_tokens += job.cached.device;
  totals_.host_tokens += job.cached.host;
  totals_.storage_tokens += job.cached.storage;
  return true;
}

bool SimWorld::prepare(Job& job, std::uint64_t until, std::vector<StepGrant>& grants) {
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Cache& cache = ranks_[r]->cache();
    Result<StepGrant> grant = cache.prepare_step(job.ids[r], until);
    const StatusCode code = grant.status().code();
    if (code != StatusCode::kOk && code != StatusCode::kOverloaded) fail("prepare_step: " + grant.status().to_string());
    if (r == 0) first = code;
    if (code != first) fail("ranks disagree: whether a request may go on");
    if (cache.is_starved(job.ids[r]) != ranks_[0]->cache().is_starved(job.ids[0])) {
      fail("ranks disagree: whether a request starves");
    }
    if (grant.is_ok()) grants.push_back(std::move(grant).value());
  }
  if (grants.size() == ranks_.size()) {
    for (const StepGrant& grant : grants) {
      if (grant.until != grants[0].until) fail("ranks disagree: how far a request may go");
    }
    return true;
  }
  if (ranks_[0]->cache().is_starved(job.ids[0])) relieve(job);
  return false;
}

// The engine waits for what is being loaded back: time passes. False: some of it failed, on some rank.
bool SimWorld::wait_for_gates(const std::vector<StepGrant>& grants) {
  bool is_loaded = true;
  for (const StepGrant& grant : grants) {
    if (!grant.gate) continue;
    for (std::size_t i = 0; i < kMostGateEvents && !grant.gate->finished(); ++i) {
      if (!clock_.run_next()) break;
    }
    if (!grant.gate->finished()) fail("a load-back never ends");
    for (std::uint32_t layer = 0; layer < model_.layer_count() && is_loaded; ++layer) {
      is_loaded = grant.gate->wait(layer, std::chrono::nanoseconds(1)).is_ok();
    }
  }
  return is_loaded;
}

bool SimWorld::move(Job& job, std::uint64_t chunk, std::uint64_t leave) {
  if (!job.is_started) return start(job);
  const bool launched = job.open.size() <= spec_.ahead && launch(job, chunk);
  if (job.open.empty() || (launched && spec_.ahead > 0)) return launched;
  land(job, leave);
  return true;
}

// One that runs ahead does not know yet which drafts count, nor that its request is at its end.
bool SimWorld::launch(Job& job, std::uint64_t chunk) {
  const std::uint64_t page = model_.page_size, unit = std::max<std::uint64_t>(page / 4, 1);
  Launched step;
  step.from = job.open.empty() ? job.computed : job.open.back().until;
  const std::uint64_t known = std::max<std::uint64_t>(job.prompt.size(), job.tokens.size() - 1);
  if (step.from >= (last_token(job) + page - 1) / page * page) return false;
  const std::uint64_t drafts = spec_.ahead > 0 ? chunk % kMostDrafts : 0;
  step.until = step.from < known ? std::min(known, step.from + std::min<std::uint64_t>(chunk, 16) * unit)
                                 : step.from + 1 + drafts;
  if (!prepare(job, step.until, step.grants)) return false;
  step.until = step.grants[0].until;
  for (const StepGrant& grant : step.grants) step.tables.push_back(*grant.pages);
  job.open.push_back(std::move(step));
  return true;
}

void SimWorld::start_again(Job& job) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (const Status s = ranks_[r]->cache().restart(job.ids[r]); !s.is_ok()) fail("restart: " + s.to_string());
  }
  leave_steps(job);
  if (++job.restarts > kMostRestarts) fail("a request restarts for ever");
  job.is_started = false;
  if (job.retracts == 0) job.tokens = job.prompt;
}

// Steps that were built on drafts that do not count have run already when that is known; then the engine takes its
// working state back.
void SimWorld::land(Job& job, std::uint64_t leave) {
  const Launched step = std::move(job.open.front());
  job.open.erase(job.open.begin());
  if (!wait_for_gates(step.grants)) {
    job.open.insert(job.open.begin(), step);
    return start_again(job);
  }
  const std::uint64_t last = last_token(job);
  const std::uint64_t until = std::min(step.until - std::min(leave, step.until - step.from - 1), last);
  while (job.tokens.size() < until) job.tokens.push_back(next_token(job.tokens, model_.vocab_size));
  const std::vector<Launched> wrong = until < step.until ? std::exchange(job.open, {}) : std::vector<Launched>{};
  const bool is_compared =
      step.from == job.resumed || until == last || (spec_.ahead > 0 && step.from % kComparedEvery == 0);
  std::vector<TokenId> content = job.tokens;
  const std::vector<TokenId> drafts(step.until, static_cast<TokenId>(step.from % model_.vocab_size));
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Cache& cache = ranks_[r]->cache();
    if (is_compared) check_restored(job, step, r);
    compute(step, r, content, until, job.tenant);
    for (const Launched& later : wrong) compute(later, r, drafts, later.until, job.tenant);
    const DeviceSlot state = step.tables[r].state;
    if (state.valid()) ranks_[r]->pattern().write(ComponentKind::kMamba, content, until, job.tenant, state);
    const Status done = cache.complete_step(step.grants[r].token, std::span<const TokenId>(job.tokens).first(until));
    if (!done.is_ok()) fail("complete_step: " + done.to_string());
    for (const Launched& later : wrong) {
      if (const Status s = cache.cancel_step(later.grants[r].token); !s.is_ok()) fail("cancel_step: " + s.to_string());
    }
  }
  job.computed = until;
  if (job.computed >= job.prompt.size() && job.tokens.size() == job.computed) {
    job.tokens.push_back(next_token(job.tokens, model_.vocab_size));
  }
}

// Whole pages: what is beyond the tokens of the step is written again by the one that gets there.
void SimWorld::compute(const Launched& step, std::size_t rank, std::span<const TokenId> content, std::uint64_t until,
                       const std::string& tenant) {
  const Pattern& pattern = ranks_[rank]->pattern();
  const PageTable& table = step.tables[rank];
  for (std::uint64_t page = step.from / model_.page_size; page * model_.page_size < step.until; ++page) {
    const std::uint64_t tokens = (page + 1) * model_.page_size;
    pattern.write(ComponentKind::kFull, content, tokens, tenant, table.full[page]);
    if (model_.has(ComponentKind::kSwa)) pattern.write(ComponentKind::kSwa, content, tokens, tenant, table.swa[page]);
  }
  if (!model_.has(ComponentKind::kMamba)) return;
  for (const StateSnapshotSlot& snapshot : step.grants[rank].snapshots) {
    pattern.write(ComponentKind::kMamba, content, snapshot.position, tenant, snapshot.slot);
  }
  pattern.write(ComponentKind::kMamba, content, until, tenant, table.state);
}

void SimWorld::retract(Job& job) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (const Status s = ranks_[r]->cache().retract(job.ids[r]); !s.is_ok()) fail("retract: " + s.to_string());
  }
  ++totals_.retracts;
  ++job.retracts;
  job.is_started = false;
  leave_steps(job);
}

// The youngest of those behind it; the first of all is never retracted, so somebody always ends.
void SimWorld::relieve(const Job& starved) {
  for (std::size_t i = jobs_.size(); i-- > 0 && &jobs_[i] != &starved;) {
    if (!jobs_[i].is_started) continue;
    ++totals_.starved;
    return retract(jobs_[i]);
  }
}

void SimWorld::leave_steps(Job& job) {
  totals_.steps_left += job.open.size();
  std::move(job.open.begin(), job.open.end(), std::back_inserter(left_));
  job.open.clear();
}

// It has run until now, upon anything.
void SimWorld::end_left_step() {
  if (left_.empty()) return;
  const Launched step = std::move(left_.front());
  left_.erase(left_.begin());
  const std::vector<TokenId> content(step.until, static_cast<TokenId>(step.from % model_.vocab_size));
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    compute(step, r, content, step.until, "");
    Cache& cache = ranks_[r]->cache();
    const StepToken token = step.grants[r].token;
    const Status ended = step.from % 2 == 0 ? cache.cancel_step(token) : cache.complete_step(token, content);
    if (ended.code() != (step.from % 2 == 0 ? StatusCode::kOk : StatusCode::kConflict)) {
      fail("a step that its request let go: " + ended.to_string());
    }
  }
}

void SimWorld::check_page(const Job& job, ComponentKind c, std::uint64_t tokens, DeviceSlot slot, SimRank& rank) {
  ++totals_.checked_pages;
  if (!slot.valid()) return fail("a restored page of " + std::string(component_name(c)) + " has no slot");
  const std::string wrong = rank.pattern().check(c, job.tokens, tokens, job.tenant, slot);
  if (!wrong.empty()) fail(wrong);
}

void SimWorld::check_restored(const Job& job, const Launched& step, std::size_t r) {
  const std::uint64_t pages = step.from / model_.page_size;
  const PageTable& table = step.tables[r];
  if (pages == 0) return;
  for (std::uint64_t i = 0; i < pages; ++i) {
    check_page(job, ComponentKind::kFull, (i + 1) * model_.page_size, table.full[i], *ranks_[r]);
  }
  for (std::uint64_t i = pages - model_.window_pages_at(pages); model_.has(ComponentKind::kSwa) && i < pages; ++i) {
    check_page(job, ComponentKind::kSwa, (i + 1) * model_.page_size, table.swa[i], *ranks_[r]);
  }
  if (model_.has(ComponentKind::kMamba)) {
    check_page(job, ComponentKind::kMamba, step.from, table.state, *ranks_[r]);
  }
}

void SimWorld::end_if_done(std::size_t number) {
  Job& job = jobs_[number];
  if (!job.is_started || job.computed != last_token(job)) return;
  const std::size_t place = history_.size() < kMostHistory ? history_.size() : totals_.finished % kMostHistory;
  if (place == history_.size()) history_.emplace_back();
  history_[place] = job.tokens;
  for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->cache().finish(job.ids[r]);
  leave_steps(job);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(number));
  ++totals_.finished;
}

void SimWorld::drop_jobs() {
  totals_.dropped += jobs_.size();
  jobs_.clear();
}

}  // namespace larder::sim
