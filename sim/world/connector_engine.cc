// SPDX-License-Identifier: Apache-2.0
#include "sim/world/connector_engine.h"

#include <algorithm>
#include <utility>

namespace larder::sim {
namespace {

constexpr std::size_t kMostConnectorJobs = 6, kMostKept = 3, kMostStates = 3;
constexpr int kMostFinalTries = 30;  // to save the end of an answer

std::uint64_t last_token(std::size_t prompt, std::uint64_t new_tokens) {
  return new_tokens > 0 ? prompt + new_tokens - 1 : prompt;
}

}  // namespace

template <class T, class Call>
std::optional<std::vector<T>> ConnectorEngine::from_all(const char* what, const Call& call) {
  std::vector<T> all;
  StatusCode first = StatusCode::kOk;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    Result<T> answer = call(r, world_.ranks[r]->connector());
    const StatusCode code = answer.status().code();
    if (code != StatusCode::kOk && code != StatusCode::kOverloaded)
      fail(std::string(what) + ": " + answer.status().to_string());
    if (r == 0) first = code;
    if (code != first) fail(std::string("ranks disagree: ") + what);
    if (answer.is_ok()) all.push_back(std::move(answer).value());
  }
  if (all.size() != world_.ranks.size()) return std::nullopt;
  return all;
}

void ConnectorEngine::hear() {
  std::array<ConnectorEvent, 3> room;
  const std::span<ConnectorEvent> out = std::span(room).first(1 + world_.spec.seed / 2 % room.size());
  told_.resize(world_.ranks.size());
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    for (std::size_t count = out.size(); count == out.size() && world_.failure.empty();) {
      count = world_.ranks[r]->connector().take_events(out);
      for (const ConnectorEvent& event : out.first(count)) {
        if (!told_[r].emplace(event.kind, event.id).second) fail("the same event came twice");
      }
    }
  }
}

template <class Id>
bool ConnectorEngine::may_ask(ConnectorEventKind kind, const std::vector<Id>& ids) {
  if (!hears()) return true;
  hear();
  std::size_t told = 0;
  for (std::size_t r = 0; r < ids.size(); ++r) told += told_[r].contains({kind, ids[r].v}) ? 1 : 0;
  if (told != 0 && told != ids.size()) fail("ranks disagree: of what they tell");
  return told > 0;
}

template <class Id>
void ConnectorEngine::forget(ConnectorEventKind kind, const std::vector<Id>& ids) {
  for (std::size_t r = 0; r < ids.size() && r < told_.size(); ++r) told_[r].erase({kind, ids[r].v});
}

template <class T, class Call>
std::optional<std::vector<T>> ConnectorEngine::results_of(const char* what, const Transfer& transfer,
                                                          const Call& call) {
  if (!may_ask(ConnectorEventKind::kTransfer, transfer)) return std::nullopt;
  auto results = from_all<T>(what, call);
  if (!results && hears()) fail(std::string(what) + ": a transfer that has ended has no result");
  if (results) forget(ConnectorEventKind::kTransfer, transfer);
  return results;
}

// ---- events

void ConnectorEngine::begin(const EventArguments& a) {
  if (jobs_.size() >= kMostConnectorJobs) return;
  Job& job = jobs_.emplace_back();
  job.prompt = prompt_of(a);
  job.tokens = job.prompt;
  job.new_tokens = a[4];
  job.tenant = tenant_of(a[5]);
  ++world_.totals.begun;
  world_.totals.prompt_tokens += job.prompt.size();
  take_over(job);
  look_up(job);
}

void ConnectorEngine::move(const EventArguments& a) {
  end_transfers();
  if (jobs_.empty()) return;
  const std::size_t number = a[0] % jobs_.size();
  (void)move(jobs_[number], std::max<std::uint64_t>(a[1], 1));
  if (!has_ended(jobs_[number], a[1])) return;
  remember(jobs_[number].tokens);
  jobs_[number].is_kept = true;
  ++world_.totals.finished;
  leave(jobs_[number]);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(number));
}

void ConnectorEngine::abort(const EventArguments& a) {
  if (jobs_.empty()) return;
  const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(a[0] % jobs_.size());
  leave(*at);
  jobs_.erase(at);
  ++world_.totals.aborted;
}

void ConnectorEngine::retract(const EventArguments& a) {
  if (!jobs_.empty()) preempt(jobs_[a[0] % jobs_.size()]);
}

// The oldest request moves first: newer ones let blocks go for it, and must not take these blocks again before it.
bool ConnectorEngine::move_all() {
  bool any = end_transfers();
  for (std::size_t i = 0; i < jobs_.size();) {
    const std::size_t jobs = jobs_.size();
    const Phase before = jobs_[i].phase;
    const std::uint64_t computed = jobs_[i].computed;
    move({i, 16});
    if (jobs_.size() < jobs) {
      any = true;
      continue;
    }
    any = any || jobs_[i].phase != before || jobs_[i].computed != computed;
    ++i;
  }
  return any;
}

void ConnectorEngine::let_go() {
  for (Kept& kept : std::exchange(kept_, {})) books_.give_all(kept.blocks);
}

void ConnectorEngine::drop_all() {
  world_.totals.dropped += jobs_.size();
  jobs_.clear();
  leaving_.clear();
  kept_.clear();
  told_.clear();
}

// ---- requests

bool ConnectorEngine::move(Job& job, std::uint64_t chunk) {
  const bool has_saved = end_saves(job);
  switch (job.phase) {
    case Phase::kLooking: return look(job, chunk);
    case Phase::kLoading: return end_load(job);
    case Phase::kRunning: return compute(job, chunk) || has_saved;
  }
  return false;
}

bool ConnectorEngine::has_ended(Job& job, std::uint64_t chunk) {
  if (job.phase != Phase::kRunning || job.computed != last_token(job.prompt.size(), job.new_tokens)) return false;
  return save(job, chunk % 5 == 0) || ++job.final_tries > kMostFinalTries;
}

void ConnectorEngine::take_over(Job& job) {
  std::uint64_t most = 0;
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (it->tenant != job.tenant) continue;
    const auto [mine, its] = std::mismatch(job.prompt.begin(), job.prompt.end(), it->tokens.begin(), it->tokens.end());
    const std::uint64_t common = std::min<std::uint64_t>(
        static_cast<std::uint64_t>(mine - job.prompt.begin()) / page_size(), it->blocks.full_pages());
    if (common > most) most = common, best = it;
  }
  if (best == kept_.end()) return;
  job.blocks = std::move(best->blocks);
  kept_.erase(best);
  books_.cut(job.blocks, most);
}

void ConnectorEngine::look_up(Job& job) {
  job.has = job.blocks.full_pages();
  LookupRequest request;
  request.tokens = job.prompt;
  (is_adapter(job.tenant) ? request.adapter : request.salt) = job.tenant;
  request.has.pages = job.has;
  request.has.window_pages = world_.model.has(ComponentKind::kSwa) ? job.has - job.blocks.window_begin(job.has) : 0;
  request.asks_storage = job.prompt.size() % 8 != 0;
  for (const auto& rank : world_.ranks) {
    const Result<LookupId> id = rank->connector().lookup(request);
    if (!id.is_ok()) return fail("lookup: " + id.status().to_string());
    job.lookups.push_back(*id);
  }
}

void ConnectorEngine::release(Job& job) {
  for (std::size_t r = 0; r < job.lookups.size(); ++r) world_.ranks[r]->connector().release(job.lookups[r]);
  forget(ConnectorEventKind::kLookup, job.lookups);
  job.lookups.clear();
}

bool ConnectorEngine::look(Job& job, std::uint64_t chunk) {
  if (!may_ask(ConnectorEventKind::kLookup, job.lookups)) return false;
  const auto found = from_all<LookupResult>(
      "points", [&](std::size_t r, Connector& connector) { return connector.points(job.lookups.at(r)); });
  if (!found) forget(ConnectorEventKind::kLookup, job.lookups);  // it is told of again
  if (!found) return false;
  const std::vector<LoadPoint>& points = found->front().points;
  for (const LookupResult& result : *found) {
    const auto same = [](const LoadPoint& a, const LoadPoint& b) {
      return a.pages == b.pages && a.full_from == b.full_from && a.window_from == b.window_from &&
             a.has_state == b.has_state;
    };
    if (!std::equal(points.begin(), points.end(), result.points.begin(), result.points.end(), same)) {
      fail("ranks disagree: which points there are");
    }
  }
  const std::uint64_t own = own_point(job);
  if (points.empty() || points.back().pages <= own) {
    resume(job, own);
    return true;
  }
  const LoadPoint& point = chunk % 4 == 0 ? points[chunk / 4 % points.size()] : points.back();
  if (!begin_load(job, point)) return false;
  const std::uint64_t from_storage = std::min(found->front().from_storage, point.pages - point.full_from);
  world_.totals.storage_tokens += from_storage * page_size();
  world_.totals.host_tokens += (point.pages - point.full_from - from_storage) * page_size();
  world_.totals.device_tokens += point.full_from * page_size();
  if (chunk % 2 == 0) release(job);
  return true;
}

std::uint64_t ConnectorEngine::own_point(const Job& job) const {
  const ModelSpec& model = world_.model;
  for (std::uint64_t p = std::min(job.has, (job.prompt.size() - 1) / page_size()); p > 0; --p) {
    const bool has_window =
        !model.has(ComponentKind::kSwa) || job.blocks.window_begin(p) + model.window_pages_at(p) <= p;
    if (has_window && (!model.has(ComponentKind::kMamba) || job.blocks.states.contains(p))) return p;
  }
  return 0;
}

void ConnectorEngine::resume(Job& job, std::uint64_t pages) {
  release(job);
  books_.cut(job.blocks, pages);
  job.computed = pages * page_size();
  job.phase = Phase::kRunning;
}

// ---- memory

bool ConnectorEngine::evict(const Job& job) {
  if (!kept_.empty()) {
    books_.give_all(kept_.front().blocks);
    kept_.erase(kept_.begin());
    return true;
  }
  for (std::size_t i = jobs_.size(); i-- > 0 && &jobs_[i] != &job;) {
    if (jobs_[i].blocks.full.empty() && jobs_[i].blocks.window.empty() && jobs_[i].blocks.states.empty()) continue;
    ++world_.totals.starved;
    preempt(jobs_[i]);
    return true;
  }
  return false;
}

bool ConnectorEngine::make_room(const Job& job, std::uint64_t full_from, std::uint64_t window_from, std::uint64_t end,
                                EngineBlocks& blocks) {
  while (!books_.fill_up(blocks, full_from, window_from, end)) {
    if (!evict(job)) return false;
  }
  return true;
}

// It begins again, with what it looks up then.
void ConnectorEngine::preempt(Job& job) {
  Job left = job;
  leave(left);
  Job again;
  again.prompt = std::move(job.prompt);
  again.tokens = std::move(job.tokens);
  again.new_tokens = job.new_tokens;
  again.tenant = std::move(job.tenant);
  again.preempted = job.preempted + 1;
  job = std::move(again);
  ++world_.totals.retracts;
  look_up(job);
}

void ConnectorEngine::leave(Job& job) {
  release(job);
  leaving_.push_back(std::move(job));
  end_transfers();
}

bool ConnectorEngine::end_transfers() {
  bool any = false;
  for (std::size_t i = leaving_.size(); i-- > 0;) {
    Job& job = leaving_[i];
    if (!job.load.empty()) {
      const auto results = results_of<LoadResult>(
          "load", job.load, [&](std::size_t r, Connector& connector) { return connector.load_result(job.load[r]); });
      if (results) job.load.clear();
    }
    any = end_saves(job) || any;
    if (!job.load.empty() || !job.saves.empty()) continue;
    any = true;
    if (job.is_kept) {
      books_.cut(job.blocks, job.computed / page_size());
      kept_.push_back({std::move(job.tokens), std::move(job.tenant), std::move(job.blocks)});
    } else {
      books_.give_all(job.blocks);
    }
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  while (kept_.size() > kMostKept) {
    books_.give_all(kept_.front().blocks);
    kept_.erase(kept_.begin());
  }
  return any;
}

// ---- loads

bool ConnectorEngine::begin_load(Job& job, const LoadPoint& point) {
  if (!make_room(job, point.full_from, point.window_from, point.pages, job.blocks)) return false;
  PageNeeds needs{point.full_from, point.window_from, point.pages, {}};
  if (point.has_state) {
    needs.states.push_back(point.pages);
    while (!job.blocks.states.contains(point.pages)) {
      if (const std::optional<DeviceSlot> slot = books_.take(ComponentKind::kMamba)) {
        job.blocks.states[point.pages] = *slot;
      } else if (!evict(job)) {
        return false;
      }
    }
  }
  auto begun = from_all<TransferId>("load", [&](std::size_t r, Connector& connector) {
    SimRank& rank = *world_.ranks[r];
    const BlockPlaces places(world_.model, rank, job.blocks, needs);
    LoadRequest request;
    request.lookup = job.lookups[r];
    request.pages = point.pages;
    if (rank.is_copy_to_fail(CopyDirection::kHostToDevice)) {
      request.writer = [](PoolName, std::uint64_t, std::span<const ConstBytes>) {
        return unavailable("simulated: the copy failed");
      };
    } else {
      request.places = places.places();
    }
    return connector.load(request);
  });
  if (!begun) return false;
  job.load = std::move(*begun);
  job.point = point;
  job.phase = Phase::kLoading;
  return true;
}

bool ConnectorEngine::end_load(Job& job) {
  const auto results = results_of<LoadResult>(
      "load", job.load, [&](std::size_t r, Connector& connector) { return connector.load_result(job.load[r]); });
  if (!results) return false;
  job.load.clear();
  const bool is_well = results->front().status.is_ok();
  for (const LoadResult& result : *results) {
    if (result.status.is_ok() != is_well) fail("ranks disagree: whether a load is well");
  }
  if (is_well) {
    ++world_.totals.loads;
    check_loaded(job);
    job.saved = job.point.pages;
    resume(job, job.point.pages);
    return true;
  }
  // What it was to bring may be anything now.
  EngineBlocks& blocks = job.blocks;
  for (std::uint64_t page = job.point.window_from; page < blocks.window.size(); ++page) {
    books_.give(ComponentKind::kSwa, std::exchange(blocks.window[page], DeviceSlot{}));
  }
  if (job.point.has_state) {
    books_.give(ComponentKind::kMamba, blocks.states.at(job.point.pages));
    blocks.states.erase(job.point.pages);
  }
  resume(job, own_point(job));
  return true;
}

void ConnectorEngine::check_loaded(const Job& job) {
  const LoadPoint& point = job.point;
  for (std::size_t r = 0; r < world_.ranks.size(); ++r) {
    const auto check = [&](ComponentKind c, std::uint64_t end, DeviceSlot slot) {
      check_page(r, c, job.tokens, end * page_size(), job.tenant, slot);
    };
    for (std::uint64_t i = 0; i < point.pages; ++i) check(ComponentKind::kFull, i + 1, job.blocks.full[i]);
    if (world_.model.has(ComponentKind::kSwa)) {
      const std::uint64_t window = point.pages - world_.model.window_pages_at(point.pages);
      for (std::uint64_t i = window; i < point.pages; ++i) check(ComponentKind::kSwa, i + 1, job.blocks.window[i]);
    }
    if (world_.model.has(ComponentKind::kMamba)) {
      const auto state = job.blocks.states.find(point.pages);
      check(ComponentKind::kMamba, point.pages, state == job.blocks.states.end() ? DeviceSlot{} : state->second);
    }
  }
}

// ---- steps

bool ConnectorEngine::compute(Job& job, std::uint64_t chunk) {
  const std::uint64_t last = last_token(job.prompt.size(), job.new_tokens);
  if (job.computed >= last) return false;
  const std::uint64_t unit = std::max<std::uint64_t>(page_size() / 4, 1);
  const std::uint64_t until =
      job.computed < job.prompt.size()
          ? std::min<std::uint64_t>(job.prompt.size(), job.computed + std::min<std::uint64_t>(chunk, 16) * unit)
          : std::min(last, job.computed + 1 + chunk % 4);
  const std::uint64_t from = job.computed / page_size(), end = (until + page_size() - 1) / page_size();
  if (!make_room(job, from, from, end, job.blocks)) return false;
  while (job.tokens.size() < until) job.tokens.push_back(next_token(job.tokens, world_.model.vocab_size));
  for (const auto& rank : world_.ranks) {
    for (std::uint64_t page = from; page < end; ++page) {
      const std::uint64_t tokens = (page + 1) * page_size();
      rank->pattern().write(ComponentKind::kFull, job.tokens, tokens, job.tenant, job.blocks.full[page]);
      if (!world_.model.has(ComponentKind::kSwa)) continue;
      rank->pattern().write(ComponentKind::kSwa, job.tokens, tokens, job.tenant, job.blocks.window[page]);
    }
  }
  job.computed = until;
  take_snapshot(job, chunk);
  if (chunk % 4 != 0) (void)save(job, chunk % 5 == 0);
  return true;
}

// Of its state, at a page boundary. What no transfer is about makes room for it.
void ConnectorEngine::take_snapshot(Job& job, std::uint64_t chunk) {
  const std::uint64_t point = job.computed / page_size();
  std::map<std::uint64_t, DeviceSlot>& states = job.blocks.states;
  const bool is_wanted = world_.model.has(ComponentKind::kMamba) && point * page_size() == job.computed &&
                         (chunk % 3 != 0 || job.computed == job.prompt.size());
  if (!is_wanted || states.contains(point)) return;
  while (states.size() >= kMostStates && job.saves.empty()) {
    std::erase(job.fresh_states, states.begin()->first);
    books_.give(ComponentKind::kMamba, states.begin()->second);
    states.erase(states.begin());
  }
  const std::optional<DeviceSlot> slot = books_.take(ComponentKind::kMamba);
  if (!slot) return;
  states[point] = *slot;
  job.fresh_states.push_back(point);
  for (const auto& rank : world_.ranks) {
    rank->pattern().write(ComponentKind::kMamba, job.tokens, job.computed, job.tenant, *slot);
  }
}

// ---- saves

bool ConnectorEngine::save(Job& job, bool may_wait) {
  const std::uint64_t to = job.computed / page_size();
  const std::uint64_t from = std::min(to, job.saves.empty() ? job.saved : job.saves.back().to);
  if (to == 0 || (from == to && job.fresh_states.empty())) return true;
  if (job.saves.size() >= kMostSaves) return false;
  std::uint64_t window_from = to;
  if (world_.model.has(ComponentKind::kSwa)) {
    window_from = std::max(job.blocks.window_begin(to), std::min(from, to - world_.model.window_pages_at(to)));
  }
  const PageNeeds needs{from, window_from, to, job.fresh_states};
  auto begun = from_all<TransferId>("save", [&](std::size_t r, Connector& connector) {
    SimRank& rank = *world_.ranks[r];
    const BlockPlaces places(world_.model, rank, job.blocks, needs);
    SaveRequest request;
    request.tokens = job.tokens;
    (is_adapter(job.tenant) ? request.adapter : request.salt) = job.tenant;
    request.from = from;
    request.to = to;
    request.window_pages = to - window_from;
    request.states = needs.states;
    request.may_wait = may_wait;
    if (rank.is_copy_to_fail(CopyDirection::kDeviceToHost)) {
      request.reader = [](PoolName, std::uint64_t, std::span<const Segment>) {
        return unavailable("simulated: the copy failed");
      };
    } else {
      request.places = places.places();
    }
    return connector.save(request);
  });
  if (!begun) return false;
  job.saves.push_back({std::move(*begun), to});
  job.fresh_states.clear();
  return true;
}

bool ConnectorEngine::end_saves(Job& job) {
  bool any = false;
  for (; !job.saves.empty(); any = true) {
    const Saving& saving = job.saves.front();
    const auto results = results_of<SaveResult>(
        "save", saving.ids, [&](std::size_t r, Connector& connector) { return connector.save_result(saving.ids[r]); });
    if (!results) return any;
    const SaveResult& result = results->front();
    for (const SaveResult& other : *results) {
      if (other.stop != result.stop || other.kept != result.kept) fail("ranks disagree: what a save has kept");
    }
    switch (result.stop) {
      case SaveStop::kNone:
        if (result.kept != saving.to) fail("a save that is whole has kept " + std::to_string(result.kept) + " pages");
        [[fallthrough]];
      case SaveStop::kNoRoom:
        job.saved = std::max(job.saved, result.kept);
        ++world_.totals.saves;
        break;
      case SaveStop::kParentMissing: job.saved = 0; break;
      case SaveStop::kCopyFailed: break;
    }
    job.saves.erase(job.saves.begin());
  }
  return any;
}

}  // namespace larder::sim
