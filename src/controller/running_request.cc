// SPDX-License-Identifier: Apache-2.0
#include "controller/running_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"

namespace larder {

namespace {

constexpr std::uint64_t kGrowTokens = 64;

std::uint64_t pages_for(const RunningParts& parts, std::uint64_t tokens) {
  return (tokens + parts.model.page_size - 1) / parts.model.page_size;
}

// From one that is copied to the host its slot may be taken after that; one that a request reads may be evicted
// already.
bool are_states_being_copied(const RunningParts& parts) {
  return parts.tree.counts(ComponentKind::kMamba, Tier::kDevice).locked > 0 ||
         parts.device.slots(ComponentKind::kMamba).counts().quarantined > 0;
}

}  // namespace

// ---- its life

void RunningRequest::begin(RequestText& text, PageTable table, std::uint64_t committed,
                           std::vector<PlannedCheckpoint> plan) {
  state_ = RunState::kRunning;
  take_table(std::move(table));
  text.given = text.tokens.size();
  is_agreed_ = true;
  committed_ = committed;
  computed_ = committed * page_size();
  plan_ = std::move(plan);
}

void RunningRequest::begin_fork(RequestText& text, const RunningRequest& from, PageTable table) {
  begin(text, std::move(table), from.committed_, from.plan_);
  computed_ = from.computed_;
}

PageTable RunningRequest::fork_table(std::uint64_t pages) const {
  PageTable table;
  const auto begins = [&](const std::vector<DeviceSlot>& list) {
    return std::vector<DeviceSlot>(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(committed_));
  };
  table.full = begins(table_.full);
  table.full.resize(pages);
  if (!parts_->model.has(ComponentKind::kSwa)) return table;
  table.swa = begins(table_.swa);
  table.swa.resize(pages);
  return table;
}

// Who has a copy of the table before is told of all that is in this one.
void RunningRequest::take_table(PageTable table) {
  table_ = std::move(table);
  table_.follow(table_version_);
  table_.note_all();
}

void RunningRequest::loaded(const Status& outcome) {
  is_agreed_ = outcome.is_ok();
  if (outcome.is_ok()) return;
  state_ = RunState::kFailed;
  if (!gate_) gate_ = std::make_shared<LayerGate>(parts_->model.layer_count());
  gate_->fail(outcome);
}

// What the gate says is this rank's alone.
void RunningRequest::look_at_gate() {
  if (!gate_ || !gate_->finished()) return;
  // An engine that goes on after a failed load has computed from anything: its pages are kept from the tree.
  if (!gate_->ready(parts_->model.layer_count() - 1) && !defect(Defect::kFailedGateCounts)) {
    state_ = RunState::kFailed;
    return;
  }
  if (!parts_->has_ranks) is_agreed_ = true;
  gate_.reset();
}

void RunningRequest::hand_over(const RequestText& text) {
  look_at_gate();
  if (state_ != RunState::kRunning || !parts_->config.enabled) return;
  // A conflict (the same pages are being loaded by another request) only costs the tail: they are there already.
  (void)commit(text, computed_ / page_size(), true);
}

// What is still being copied goes to quarantine by its leases.
void RunningRequest::release(bool leaks) {
  if (state_ == RunState::kIdle) return;
  ledger_.void_all();
  for (std::uint64_t i = committed_; i < table_.full.size() && !leaks; ++i)
    let_go(ComponentKind::kFull, table_.full[i]);
  for (std::uint64_t i = committed_; i < table_.swa.size(); ++i) let_go(ComponentKind::kSwa, table_.swa[i]);
  let_go(ComponentKind::kMamba, table_.state);
  for (const Checkpoint& c : taken_) let_go(ComponentKind::kMamba, c.slot);
  let_go(ComponentKind::kMamba, tracked_.slot);
  // Open steps read the tree's pages, too.
  if (ledger_.has_open()) {
    ledger_.keep(lock_);
  } else {
    parts_->tree.unlock(lock_);
  }
  state_ = RunState::kIdle;
  is_starved_ = false;
  table_version_ = table_.version();
  table_ = PageTable{};
  lock_ = LockHandle{};
  committed_ = computed_ = 0;
  plan_.clear();
  taken_.clear();
  tracked_ = Checkpoint{};
  gate_.reset();
}

void RunningRequest::let_go(ComponentKind c, DeviceSlot slot) {
  if (!slot.valid()) return;
  if (ledger_.has_open() && !defect(Defect::kSlotFreedUnderStep)) {
    ledger_.keep(c, slot);
  } else {
    parts_->room.give_back(c, slot);
  }
}

void RunningRequest::release_limbo() {
  if (!ledger_.has_limbo()) return;
  ledger_.release([this](ComponentKind c, DeviceSlot slot) { parts_->room.give_back(c, slot); },
                  [this](LockHandle& lock) { parts_->tree.unlock(lock); });
}

ComponentCounts RunningRequest::slots() const {
  ComponentCounts counts = ledger_.slots();
  if (state_ == RunState::kIdle) return counts;
  counts[index_of(ComponentKind::kFull)] += static_cast<std::uint32_t>(table_.full.size() - committed_);
  for (std::uint64_t i = committed_; i < table_.swa.size(); ++i) {
    counts[index_of(ComponentKind::kSwa)] += table_.swa[i].valid() ? 1 : 0;
  }
  counts[index_of(ComponentKind::kMamba)] +=
      (table_.state.valid() ? 1 : 0) + (tracked_.slot.valid() ? 1 : 0) + static_cast<std::uint32_t>(taken_.size());
  return counts;
}

// ---- steps

Result<StepGrant> RunningRequest::prepare(const RequestText& text, std::uint64_t until) {
  is_starved_ = false;
  const std::uint64_t from = ledger_.next_from(computed_);
  const std::uint64_t most = pages_for(*parts_, text.final_tokens()) * page_size();
  if (until <= from || from >= most) {
    return invalid_argument("prepare_step: position " + std::to_string(until) + " is not within (" +
                            std::to_string(from) + ", " + std::to_string(most) + "]");
  }
  if (ledger_.is_full()) {
    return overloaded("prepare_step: " + std::to_string(ledger_.open().size()) + " steps are open; complete one");
  }
  until = std::min(until, most);
  // What a conflict kept from the tree is the request's own until it is handed over, and may be what is missing now.
  commit_due(text);
  if (const Status grown = grow(text, until); !grown.is_ok()) {
    until = std::min(until, table_.full.size() * page_size());
    if (until <= from) return grown;
    is_starved_ = false;  // it can go on for a while
  }
  Status window = grant_window(until);
  const std::uint64_t chunk = std::uint64_t{parts_->chunk_pages} * page_size();
  if (!window.is_ok() && until - from > chunk) {  // no more is promised, so there may never be room for it
    until = from + chunk;
    window = grant_window(until);
  }
  LARDER_RETURN_IF_ERROR(window);
  States states;
  LARDER_RETURN_IF_ERROR(grant_states(text, from, until, states));
  StepGrant grant;
  for (const GrantedState& s : states) grant.checkpoints.push_back({s.position, s.slot});
  grant.token.number = ledger_.add(from, until, std::move(states)).number;
  grant.until = until;
  table_.publish();
  grant.pages = &table_;
  grant.gate = gate_;
  return grant;
}

// A little more than is needed where it costs nobody anything: small pages come in groups.
Status RunningRequest::grow(const RequestText& text, std::uint64_t until) {
  const std::uint64_t have = table_.full.size();
  const std::uint64_t need = pages_for(*parts_, until);
  if (need <= have) return Status::ok();
  const DevicePools& device = parts_->device;
  const std::uint64_t group = std::min(pages_for(*parts_, text.final_tokens()), have + pages_for(*parts_, kGrowTokens));
  const std::uint64_t end = std::max(need, std::min(group, have + device.free_slots(ComponentKind::kFull)));
  const auto count = static_cast<std::uint32_t>(end - have);
  Status grown = parts_->room.make_room(seeker_, ComponentKind::kFull, count, true);
  const bool has_room = grown.is_ok();
  // Without room for all of them those that are free are a part, and what was taken stays in the table.
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::optional<DeviceSlot> slot = parts_->device.allocate(ComponentKind::kFull);
    if (!slot) {
      if (has_room) grown = overloaded("prepare_step: no page is free");
      break;
    }
    table_.put(ComponentKind::kFull, table_.full.size(), *slot);
    ++parts_->counters.grown;
  }
  if (!has_room) {
    // Leased slots come by themselves, and so do those in limbo: an engine ends its steps.
    const std::uint32_t coming =
        device.slots(ComponentKind::kFull).counts().quarantined + parts_->in_limbo[index_of(ComponentKind::kFull)];
    is_starved_ = end - table_.full.size() > coming && !parts_->room.is_room_coming(ComponentKind::kFull);
  }
  while (parts_->model.has(ComponentKind::kSwa) && table_.swa.size() < table_.full.size()) {
    table_.put(ComponentKind::kSwa, table_.swa.size(), DeviceSlot{});
  }
  return grown;
}

Status RunningRequest::grant_window(std::uint64_t until) {
  if (!parts_->model.has(ComponentKind::kSwa)) return Status::ok();
  const std::uint64_t first = computed_ / page_size();
  const std::uint64_t end = pages_for(*parts_, until);
  std::uint32_t missing = 0;
  for (std::uint64_t i = first; i < end; ++i) missing += table_.swa[i].valid() ? 0 : 1;
  LARDER_RETURN_IF_ERROR(parts_->room.make_room(seeker_, ComponentKind::kSwa, missing, true));
  for (std::uint64_t i = first; i < end; ++i) {
    if (table_.swa[i].valid()) continue;
    const std::optional<DeviceSlot> slot = parts_->device.allocate(ComponentKind::kSwa);
    if (!slot) return overloaded("prepare_step: no window page is free");  // what was taken stays in the table
    table_.put(ComponentKind::kSwa, i, *slot);
  }
  return Status::ok();
}

// ---- recurrent state on the way

Result<DeviceSlot> RunningRequest::state_slot(bool weak, bool may_wait) {
  if (!weak) LARDER_RETURN_IF_ERROR(parts_->room.make_room(seeker_, ComponentKind::kMamba, 1, may_wait));
  const std::optional<DeviceSlot> slot = parts_->device.allocate(ComponentKind::kMamba);
  if (!slot) return overloaded("prepare_step: no recurrent state is free");
  return *slot;
}

Status RunningRequest::grant_states(const RequestText& text, std::uint64_t from, std::uint64_t until, States& out) {
  if (!parts_->model.has(ComponentKind::kMamba) || !parts_->config.enabled) return Status::ok();
  const Status planned = grant_planned(from, until, false, out);
  if (!planned.is_ok()) {
    // All or nothing: two requests that each kept a part could wait for each other.
    for (const GrantedState& s : out) parts_->room.give_back(ComponentKind::kMamba, s.slot);
    return planned;
  }
  (void)grant_planned(from, until, true, out);
  grant_tracked(text, from, until, out);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return Status::ok();
}

// A strong checkpoint is worth one refusal while states are being copied, which will free their slots. Then a victim
// goes without a copy, because a checkpoint is a gain and the request must go on; and if there is none, so does the
// request. Later ones first: the farthest saves the most.
Status RunningRequest::grant_planned(std::uint64_t from, std::uint64_t until, bool weak, States& out) {
  for (auto planned = plan_.rbegin(); planned != plan_.rend(); ++planned) {
    const std::uint64_t position = planned->page * page_size();
    if (position > until || position <= from || planned->weak != weak) continue;
    const bool may_wait = !weak && has_promised_state(out) && held_for_ < planned->page;
    Result<DeviceSlot> slot = state_slot(weak, may_wait);
    if (slot.is_ok()) {
      out.push_back({position, *slot, false, planned->origin});
    } else if (may_wait && are_states_being_copied(*parts_)) {
      held_for_ = planned->page;
      return slot.status();
    }
  }
  return Status::ok();
}

// The cache promised each request three states: the working one and two more. A request that has them takes what can be
// had and waits for none.
bool RunningRequest::has_promised_state(const States& granted) const {
  std::size_t held = taken_.size() + granted.size() + (tracked_.slot.valid() ? 1 : 0);
  for (const OpenStep& step : ledger_.open()) held += step.states.size();
  return held < 2;
}

// The end of the output: the last page boundary beyond the prompt. The one before it is kept until the new one is
// confirmed, because draft tokens may be rejected. A step that nothing can roll back but its own failure uses the slot
// again when no other is free. No token waits for it.
void RunningRequest::grant_tracked(const RequestText& text, std::uint64_t from, std::uint64_t until, States& out) {
  const std::uint64_t boundary = until / page_size() * page_size();
  const std::uint64_t plan_end = text.given / page_size() * page_size();
  if (boundary <= from || boundary <= plan_end) return;
  const bool is_safe = until - from == 1 && !ledger_.has_open();
  const bool weak = !has_promised_state(out) || (tracked_.slot.valid() && is_safe);
  Result<DeviceSlot> slot = state_slot(weak, false);
  if (slot.is_ok()) {
    out.push_back({boundary, *slot, true});
  } else if (tracked_.slot.valid() && is_safe) {
    out.push_back({boundary, tracked_.slot, true});
    tracked_ = Checkpoint{};
  }
}

// Only what the engine got to: a step may compute less than was prepared. What it did not get to nobody else knows of.
void RunningRequest::collect_states(OpenStep step) {
  for (const GrantedState& s : step.states) {
    if (s.position > computed_) {
      parts_->room.give_back(ComponentKind::kMamba, s.slot);
    } else if (s.is_tracked) {
      let_go(ComponentKind::kMamba, tracked_.slot);
      tracked_ = {s.position / page_size(), s.slot};
    } else {
      taken_.push_back({s.position / page_size(), s.slot, s.origin});
    }
  }
  while (!plan_.empty() && plan_.front().page * page_size() <= computed_) plan_.erase(plan_.begin());
}

void RunningRequest::end_void(OpenStep step) {
  for (const GrantedState& s : step.states) parts_->room.give_back(ComponentKind::kMamba, s.slot);
  release_limbo();
}

Status RunningRequest::complete(RequestText& text, std::uint64_t number, std::span<const TokenId> tokens) {
  const OpenStep* step = ledger_.find(number);
  if (step == nullptr) return not_found("complete_step: step " + std::to_string(number) + " has ended, or never was");
  if (step->is_void) {
    end_void(ledger_.take(number));
    return conflict("complete_step: the tokens do not count: the request let them go, or cancelled an earlier step");
  }
  if (!ledger_.is_first(number)) return invalid_argument("complete_step: an earlier step of the request is open");
  if (tokens.size() <= computed_ || tokens.size() > step->until) {
    return invalid_argument("complete_step: " + std::to_string(tokens.size()) + " tokens are not within (" +
                            std::to_string(computed_) + ", " + std::to_string(step->until) + "], what was prepared");
  }
  const auto at = static_cast<std::ptrdiff_t>(computed_);
  const auto known = static_cast<std::ptrdiff_t>(std::min(tokens.size(), text.tokens.size()));
  const auto other = std::mismatch(tokens.begin() + at, tokens.begin() + known, text.tokens.begin() + at).first;
  if (other != tokens.begin() + known) {
    return invalid_argument("complete_step: token " + std::to_string(other - tokens.begin()) +
                            " is not the one that the request has there, from its prompt or from before it was "
                            "retracted: an answer that begins anew is another request");
  }
  // Later steps were built on the tokens that are missing now.
  if (tokens.size() < step->until) ledger_.void_after(number);
  OpenStep done = ledger_.take(number);
  if (tokens.size() > text.tokens.size()) {
    text.tokens.insert(text.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(text.tokens.size()),
                       tokens.end());
  }
  computed_ = tokens.size();
  collect_states(std::move(done));
  look_at_gate();
  if (parts_->config.enabled) {
    commit_due(text);
  } else {
    drop_window();
  }
  release_limbo();
  return Status::ok();
}

// Steps are built on each other: those after it cannot be completed any more. They may still run, so they stay open.
Status RunningRequest::cancel(std::uint64_t number) {
  const OpenStep* step = ledger_.find(number);
  if (step == nullptr) {
    return not_found("cancel_step: step " + std::to_string(number) + " has ended, or never was");
  }
  if (!step->is_void) ledger_.void_after(number);  // else those that are not void were built on something else
  end_void(ledger_.take(number));
  return Status::ok();
}

// ---- to the tree

// Whole pages of the prompt at once, those of the output a chunk at a time: so they are shared while the request runs,
// and no node grows longer than one. The last page of the output waits for the state at it, which follows at the end.
// A conflict only postpones: the pages stay the request's own until the next step.
void RunningRequest::commit_due(const RequestText& text) {
  if (!parts_->config.enabled || state_ != RunState::kRunning) return;
  const std::uint64_t pages = computed_ / page_size();
  if (committed_ < text.given / page_size()) {
    if (pages > committed_) (void)commit(text, pages, false);
  } else if (pages >= committed_ + parts_->chunk_pages) {
    (void)commit(text, pages - (parts_->model.has(ComponentKind::kMamba) ? 1 : 0), false);
  }
}

// With the cache off nothing takes the pages over, so those that left the window are let go here.
void RunningRequest::drop_window() {
  if (!parts_->model.has(ComponentKind::kSwa)) return;
  const std::uint64_t pages = computed_ / page_size();
  const std::uint64_t keep = pages - parts_->model.window_pages_at(pages);
  for (std::uint64_t i = keep; i-- > 0 && table_.swa[i].valid();) {
    let_go(ComponentKind::kSwa, table_.swa[i]);
    table_.put(ComponentKind::kSwa, i, DeviceSlot{});
  }
}

Status RunningRequest::commit(const RequestText& text, std::uint64_t pages, bool is_last) {
  if (pages <= committed_) return Status::ok();
  // What was to be loaded may not come, here or on another rank, where the request then fails: the trees would part. (A
  // page that is being loaded the tree would refuse itself; of the copy of a checkpoint it knows nothing.)
  if (!is_agreed_) return conflict("commit: what the pages were computed from may not be there, or not on every rank");
  std::vector<Checkpoint> checkpoints;
  for (const Checkpoint& c : taken_) {
    if (c.page <= pages) checkpoints.push_back(c);
  }
  // At the end also an earlier one: a later boundary was reached without a slot, or its step did not complete.
  const bool with_tracked = tracked_.slot.valid() && tracked_.page > committed_ &&
                            (is_last ? tracked_.page <= pages : tracked_.page == pages);
  if (with_tracked) checkpoints.push_back(tracked_);
  for (Checkpoint& c : checkpoints) c.origin.kind = kind_in_turn(c.origin.kind, text.turn);
  const std::uint64_t fresh = pages - committed_;
  ExtendRequest request;
  request.from = committed_;
  request.tokens = std::span<const TokenId>(text.tokens).subspan(committed_ * page_size(), fresh * page_size());
  request.full = std::span<const DeviceSlot>(table_.full).subspan(committed_, fresh);
  if (parts_->model.has(ComponentKind::kSwa)) {
    request.swa = std::span<const DeviceSlot>(table_.swa).subspan(committed_, fresh);
  }
  request.checkpoints = checkpoints;
  request.priority = text.priority;
  const bool keeps = ledger_.has_open() && !defect(Defect::kSlotFreedUnderStep);
  Result<InsertResult> inserted = parts_->room.extend(lock_, request, keeps ? &ledger_ : nullptr);
  if (!inserted.is_ok()) {
    if (inserted.status().code() != StatusCode::kConflict) ++parts_->counters.internal_errors;
    return inserted.status();
  }
  std::erase_if(taken_, [&](const Checkpoint& c) { return c.page <= pages; });
  if (with_tracked) tracked_ = Checkpoint{};
  const NodeId node = inserted->node;
  refresh_table(node, committed_, pages);
  parts_->room.committed(node, std::exchange(committed_, pages));
  return Status::ok();
}

// The tree may have kept its own pages instead of the request's: the same bytes, by exactness of the engine.
void RunningRequest::refresh_table(NodeId node, std::uint64_t from, std::uint64_t to) {
  std::vector<PageLocation> at;
  parts_->tree.locate(node, ComponentKind::kFull, from, to, at);
  for (std::uint64_t i = 0; i < at.size(); ++i) table_.put(ComponentKind::kFull, from + i, at[i].device);
  if (!parts_->model.has(ComponentKind::kSwa)) return;
  const std::uint64_t window = to - parts_->model.window_pages_at(to);
  for (std::uint64_t i = from - parts_->model.window_pages_at(from); i < window; ++i) {
    table_.put(ComponentKind::kSwa, i, DeviceSlot{});
  }
  at.clear();
  parts_->tree.locate(node, ComponentKind::kSwa, window, to, at);
  for (std::uint64_t i = 0; i < at.size(); ++i) {
    // Pages before `from` may still be loading: the table has them from the load already.
    if (window + i >= from || at[i].device.valid()) table_.put(ComponentKind::kSwa, window + i, at[i].device);
  }
}

}  // namespace larder
