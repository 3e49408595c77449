// A running request, step by step: slots for the tokens to come, snapshots of recurrent state, and handing whole pages
// to the tree (steps 4 and 5 of a prefix's life).
#include <algorithm>

#include "controller/cache_impl.h"

namespace larder {

Result<StepGrant> CacheImpl::prepare_step(RequestId id, std::uint64_t until) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("prepare_step: no such request");
  if (r->phase == RequestPhase::kLoading) return overloaded("prepare_step: the checkpoint is still being copied");
  if (r->phase != RequestPhase::kRunning) return invalid_argument("prepare_step: the request has not started");
  if (until <= r->computed || until > r->table.full.size() * page_size()) {
    return invalid_argument("prepare_step: position " + std::to_string(until) + " is not within (" +
                            std::to_string(r->computed) + ", " + std::to_string(r->table.full.size() * page_size()) +
                            "]");
  }
  drop_granted(*r);  // of a step that was prepared and did not complete
  // What a conflict kept from the tree is the request's own until it is handed over, and may be what is missing now.
  commit_due(*r);
  LARDER_RETURN_IF_ERROR(grant_window(*r, until));
  LARDER_RETURN_IF_ERROR(grant_snapshots(*r, until));
  r->prepared = until;
  StepGrant grant;
  grant.pages = &r->table;
  grant.snapshots = r->granted;
  grant.gate = r->gate;
  return grant;
}

Status CacheImpl::grant_window(Request& r, std::uint64_t until) {
  if (!model_.has(ComponentKind::kSwa)) return Status::ok();
  const std::uint64_t first = r.computed / page_size();
  const std::uint64_t end = (until + page_size() - 1) / page_size();
  std::uint32_t missing = 0;
  for (std::uint64_t i = first; i < end; ++i) missing += r.table.swa[i].valid() ? 0 : 1;
  LARDER_RETURN_IF_ERROR(make_device_room_for(r, ComponentKind::kSwa, missing, true));
  for (std::uint64_t i = first; i < end; ++i) {
    if (r.table.swa[i].valid()) continue;
    const std::optional<DeviceSlot> slot = device_.allocate(ComponentKind::kSwa);
    if (!slot) return overloaded("prepare_step: no window page is free");  // what was taken stays in the table
    r.table.swa[i] = *slot;
  }
  return Status::ok();
}

Result<DeviceSlot> CacheImpl::snapshot_slot(Request& r, bool weak, bool may_wait) {
  if (!weak) LARDER_RETURN_IF_ERROR(make_device_room_for(r, ComponentKind::kMamba, 1, may_wait));
  const std::optional<DeviceSlot> slot = device_.allocate(ComponentKind::kMamba);
  if (!slot) return overloaded("prepare_step: no recurrent state is free");
  return *slot;
}

Status CacheImpl::grant_snapshots(Request& r, std::uint64_t until) {
  if (!model_.has(ComponentKind::kMamba) || !config_.enabled) return Status::ok();
  const Status planned = grant_planned(r, until, false);
  if (!planned.is_ok()) {
    drop_granted(r);  // all or nothing: two requests that each kept a part could wait for each other
    return planned;
  }
  (void)grant_planned(r, until, true);
  grant_tracked(r, until);
  std::sort(r.granted.begin(), r.granted.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return Status::ok();
}

// From one that is copied to the host its slot may be taken after that; one that a request reads may be evicted
// already.
bool CacheImpl::are_states_being_copied() const {
  return tree_.counts(ComponentKind::kMamba, Tier::kDevice).locked > 0 ||
         device_.slots(ComponentKind::kMamba).counts().quarantined > 0;
}

// A strong checkpoint is worth one refusal while states are being copied, which will free their slots. Then a victim
// goes without a copy, because a checkpoint is a gain and the request must go on; and if there is none, so does the
// request. Later ones first: the farthest saves the most.
Status CacheImpl::grant_planned(Request& r, std::uint64_t until, bool weak) {
  for (auto planned = r.plan.rbegin(); planned != r.plan.rend(); ++planned) {
    const std::uint64_t position = planned->page * page_size();
    if (position > until || position <= r.computed || planned->weak != weak) continue;
    const bool may_wait = !weak && has_promised_state(r) && r.held_for < planned->page;
    Result<DeviceSlot> slot = snapshot_slot(r, weak, may_wait);
    if (slot.is_ok()) {
      r.granted.push_back({position, *slot});
    } else if (may_wait && are_states_being_copied()) {
      r.held_for = planned->page;
      return slot.status();
    }
  }
  return Status::ok();
}

// check_admission() promised three states: the working one and two more. A request that has them takes what can be had
// and waits for none.
bool CacheImpl::has_promised_state(const Request& r) const {
  return r.taken.size() + r.granted.size() + (r.tracked.slot.valid() ? 1 : 0) < 2;
}

// The end of the output: the last page boundary beyond the prompt, in one slot that is used again and again. No token
// waits for it.
void CacheImpl::grant_tracked(Request& r, std::uint64_t until) {
  const std::uint64_t boundary = until / page_size() * page_size();
  const std::uint64_t plan_end = r.prompt / page_size() * page_size();
  if (boundary <= r.computed || boundary <= plan_end) return;
  if (!r.tracked.slot.valid()) {
    Result<DeviceSlot> slot = snapshot_slot(r, !has_promised_state(r), false);
    if (!slot.is_ok()) return;
    r.tracked.slot = *slot;
  }
  r.granted.push_back({boundary, r.tracked.slot});
}

void CacheImpl::drop_granted(Request& r) {
  for (const StateSnapshotSlot& s : r.granted) {
    if (s.slot == r.tracked.slot) {
      r.tracked.page = 0;  // the step may have written its state there, or a part of it
    } else {
      return_device(ComponentKind::kMamba, std::span<const DeviceSlot>(&s.slot, 1));
    }
  }
  r.granted.clear();
}

// Only what the engine got to: a step may compute less than was prepared.
void CacheImpl::collect_snapshots(Request& r) {
  std::erase_if(r.granted, [&](const StateSnapshotSlot& s) {
    if (s.position > r.computed) return false;
    if (s.slot == r.tracked.slot) {
      r.tracked.page = s.position / page_size();
    } else {
      r.taken.push_back({s.position / page_size(), s.slot});
    }
    return true;
  });
  drop_granted(r);
  while (!r.plan.empty() && r.plan.front().page * page_size() <= r.computed) r.plan.erase(r.plan.begin());
}

Status CacheImpl::complete_step(RequestId id, std::span<const TokenId> tokens) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("complete_step: no such request");
  if (r->phase != RequestPhase::kRunning) return invalid_argument("complete_step: the request is not running");
  if (tokens.size() <= r->computed || tokens.size() > r->prepared) {
    return invalid_argument("complete_step: " + std::to_string(tokens.size()) + " tokens are not within (" +
                            std::to_string(r->computed) + ", " + std::to_string(r->prepared) + "], what was prepared");
  }
  if (tokens.size() > r->tokens.size()) {
    r->tokens.insert(r->tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(r->tokens.size()), tokens.end());
  }
  r->computed = tokens.size();
  collect_snapshots(*r);
  if (r->gate && r->gate->finished()) {
    // An engine that goes on after a failed load has computed from anything: its pages are kept from the tree.
    r->failed = r->failed || !r->gate->ready(model_.layer_count() - 1);
    if (!r->failed) r->gate.reset();
  }
  if (config_.enabled) {
    commit_due(*r);
  } else {
    drop_window(*r);
  }
  return Status::ok();
}

// Whole pages of the prompt at once, those of the output a chunk at a time: so they are shared while the request runs,
// and no node grows longer than one. The last page of the output waits for the state at it, which follows at the end.
// A conflict only postpones: the pages stay the request's own until the next step.
void CacheImpl::commit_due(Request& r) {
  if (!config_.enabled || r.failed) return;
  const std::uint64_t pages = r.computed / page_size();
  if (r.committed < r.prompt / page_size()) {
    if (pages > r.committed) (void)commit(r, pages);
  } else if (pages >= r.committed + chunk_pages_) {
    (void)commit(r, pages - (model_.has(ComponentKind::kMamba) ? 1 : 0));
  }
}

void CacheImpl::hand_over(Request& r) {
  if (r.phase != RequestPhase::kRunning || !config_.enabled || r.failed || !ops_.parted().is_ok()) return;
  drop_granted(r);  // a step that was prepared and did not complete may have written there
  // A conflict (the same pages are being loaded by another request) only costs the tail: they are there already.
  (void)commit(r, r.computed / page_size());
}

// With the cache off nothing takes the pages over, so those that left the window are freed here.
void CacheImpl::drop_window(Request& r) {
  if (!model_.has(ComponentKind::kSwa)) return;
  const std::uint64_t pages = r.computed / page_size();
  const std::uint64_t keep = pages - model_.window_pages_at(pages);
  for (std::uint64_t i = keep; i-- > 0 && r.table.swa[i].valid();) {
    return_device(ComponentKind::kSwa, std::span<const DeviceSlot>(&r.table.swa[i], 1));
    r.table.swa[i] = DeviceSlot{};
  }
}

Status CacheImpl::commit(Request& r, std::uint64_t pages) {
  std::vector<Checkpoint> checkpoints;
  for (const Checkpoint& c : r.taken) {
    if (c.page <= pages) checkpoints.push_back(c);
  }
  const bool with_tracked = r.tracked.slot.valid() && r.tracked.page == pages && pages > 0;
  if (with_tracked) checkpoints.push_back(r.tracked);
  if (pages <= r.committed) return Status::ok();
  const std::uint64_t fresh = pages - r.committed;
  ExtendRequest request;
  request.from = r.committed;
  request.tokens = std::span<const TokenId>(r.tokens).subspan(r.committed * page_size(), fresh * page_size());
  request.full = std::span<const DeviceSlot>(r.table.full).subspan(r.committed, fresh);
  if (model_.has(ComponentKind::kSwa)) {
    request.swa = std::span<const DeviceSlot>(r.table.swa).subspan(r.committed, fresh);
  }
  request.checkpoints = checkpoints;
  request.priority = r.priority;
  Result<InsertResult> inserted = tree_.extend(r.lock, request);
  if (!inserted.is_ok()) {
    if (inserted.status().code() != StatusCode::kConflict) ++counters_.internal_errors;
    return inserted.status();
  }
  std::erase_if(r.taken, [&](const Checkpoint& c) { return c.page <= pages; });
  if (with_tracked) r.tracked = Checkpoint{};
  const NodeId node = inserted->node;
  refresh_table(r, node, r.committed, pages);
  maybe_backup(node, std::exchange(r.committed, pages));
  return Status::ok();
}

// The tree may have kept its own pages instead of the request's: the same bytes, by exactness of the engine.
void CacheImpl::refresh_table(Request& r, NodeId node, std::uint64_t from, std::uint64_t to) {
  std::vector<PageLocation> at;
  tree_.locate(node, ComponentKind::kFull, from, to, at);
  for (std::uint64_t i = 0; i < at.size(); ++i) r.table.full[from + i] = at[i].device;
  if (!model_.has(ComponentKind::kSwa)) return;
  const std::uint64_t window = to - model_.window_pages_at(to);
  for (std::uint64_t i = from - model_.window_pages_at(from); i < window; ++i) r.table.swa[i] = DeviceSlot{};
  at.clear();
  tree_.locate(node, ComponentKind::kSwa, window, to, at);
  for (std::uint64_t i = 0; i < at.size(); ++i) {
    // Pages before `from` may still be loading: the table has them from the load already.
    if (window + i >= from || at[i].device.valid()) r.table.swa[window + i] = at[i].device;
  }
}

}  // namespace larder
