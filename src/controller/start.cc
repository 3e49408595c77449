// From a ready request to a running one: restore point, reservation, load-back (steps 1 and 3 of a prefix's life).
#include <algorithm>

#include "controller/cache_impl.h"
#include "controller/checkpoint_plan.h"

namespace larder {

bool CacheImpl::Restore::loads() const {
  const auto on_host_only = [](const PageLocation& l) { return !l.device.valid(); };
  return device_pages < pages || std::any_of(window.begin(), window.end(), on_host_only) ||
         (state.host.valid() && !state.device.valid());
}

Result<CacheImpl::Restore> CacheImpl::choose_restore(Request& r, NodeId& node) {
  Restore restore;
  node = tree_.root(r.space);
  // Neither host nor device could give it its prefix intact: it computes all of it.
  if (!config_.enabled || r.restarts > 1) return restore;
  const bool device_only = r.restarts > 0;
  const std::uint64_t limit = reusable_pages(r);
  prefetcher_.take_arrived(r.id);
  const MatchResult match = tree_.match(r.space, reusable_tokens(r));
  if (match.meets_load) return overloaded("start: this prefix is being loaded; wait for it");
  if (r.restarts == 0 && prefetcher_.asks_again(r.id, match.any.at.pages)) {
    return overloaded("start: waiting for storage");
  }
  const TierMatch* best = host_ && !device_only ? &match.any : &match.device;
  const std::uint64_t on_device = std::min(match.full_device_pages, best->at.pages);
  const bool only_full = !model_.has(ComponentKind::kSwa) && !model_.has(ComponentKind::kMamba);
  if (only_full && (best->at.pages - on_device) * page_size() < config_.load_back_threshold) best = &match.device;
  restore.pages = best->at.pages;
  restore.reason = best->reason;
  restore.component = best->component;
  restore.fork = std::min(device_only ? match.full_device_pages : match.full_any_pages, limit);
  if (restore.pages == 0) return restore;

  node = tree_.settle(best->at);
  tree_.locate(node, ComponentKind::kFull, 0, restore.pages, restore.full);
  const auto first_off =
      std::find_if(restore.full.begin(), restore.full.end(), [](const PageLocation& l) { return !l.device.valid(); });
  restore.device_pages = static_cast<std::uint64_t>(first_off - restore.full.begin());
  if (model_.has(ComponentKind::kSwa)) {
    restore.window_from = restore.pages - model_.window_pages_at(restore.pages);
    tree_.locate(node, ComponentKind::kSwa, restore.window_from, restore.pages, restore.window);
  }
  if (model_.has(ComponentKind::kMamba)) {
    std::vector<PageLocation> state;
    tree_.locate(node, ComponentKind::kMamba, 0, 0, state);
    if (!state.empty()) restore.state = state.front();
  }
  return restore;
}

// Tokens that are there, and a headroom for those to come, in pages.
std::uint64_t CacheImpl::pages_at_start(const Request& r) const {
  const std::uint64_t there = r.tokens.size();
  return pages_for(std::max(there, std::min(r.final_tokens(), there + config_.decode_headroom_tokens)));
}

ComponentCounts CacheImpl::slots_to_start(const Request& r, const Restore& restore) const {
  ComponentCounts counts{};
  const std::uint64_t total = pages_at_start(r);
  counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(total - restore.device_pages);
  counts[index_of(ComponentKind::kSwa)] = static_cast<std::uint32_t>(std::count_if(
      restore.window.begin(), restore.window.end(), [](const PageLocation& l) { return !l.device.valid(); }));
  counts[index_of(ComponentKind::kMamba)] = model_.has(ComponentKind::kMamba) ? 1 : 0;
  return counts;
}

// Full pages are taken as a request grows; when they are out, one is retracted. Window pages and states are taken step
// by step, too, but admitting by count keeps the sum of what running requests may lock within the device, so each of
// them always gets its next slot in the end and none waits for another in a circle.
Status CacheImpl::check_admission() const {
  if (running_ == 0) return Status::ok();
  const auto fits = [&](ComponentKind c, std::uint64_t each) {
    return !model_.has(c) || (running_ + 1) * each <= device_.slots(c).capacity();
  };
  if (!fits(ComponentKind::kSwa, model_.window_pages() + chunk_pages_ + 3)) {
    return overloaded("start: window pages of the device are promised to running requests");
  }
  if (!fits(ComponentKind::kMamba, 3)) {
    return overloaded("start: recurrent states of the device are promised to running requests");
  }
  return Status::ok();
}

Result<CachedTokens> CacheImpl::start(RequestId id) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("start: no such request");
  if (prefetcher_.is_waiting(id)) return overloaded("start: waiting for storage");
  if (r->phase != RequestPhase::kReady) return invalid_argument("start: the request has started already");
  if (!ops_.has_room(OpKind::kLoad, 2)) return overloaded("start: too many copies in flight");
  LARDER_RETURN_IF_ERROR(check_admission());
  NodeId node;
  Result<Restore> restore = choose_restore(*r, node);
  if (!restore.is_ok()) return restore.status();
  LARDER_RETURN_IF_ERROR(admit(*r, node, *restore));
  prefetcher_.start(id);
  account_start(*r, *restore);
  return r->cached;
}

Status CacheImpl::admit(Request& r, NodeId node, const Restore& restore) {
  LockHandle device_lock = tree_.lock(node, Tier::kDevice, LockParts{});
  LockHandle host_lock;
  if (restore.loads()) host_lock = tree_.lock(node, Tier::kHost, LockParts{});
  const ComponentCounts counts = slots_to_start(r, restore);
  std::array<std::vector<DeviceSlot>, kComponentCount> slots;
  Status room = make_device_room(r, counts);
  // One that was retracted comes back when those that run can each grow as well: else it would soon leave again.
  if (r.retracts > 0 && !could_make_room(ComponentKind::kFull, counts[index_of(ComponentKind::kFull)] + running_)) {
    room = overloaded("start: the device has no room yet for a request that was retracted");
  }
  if (room.is_ok() && !device_.reserve(counts, slots)) room = overloaded("start: the device is full");
  if (!room.is_ok()) {
    tree_.unlock(device_lock);
    tree_.unlock(host_lock);
    return room;
  }
  TransferRequest load;
  load.direction = CopyDirection::kHostToDevice;
  Op* op = restore.loads() ? &ops_.add(OpKind::kLoad) : nullptr;
  if (op) {
    load.id = op->id;
    op->request = r.id;
    op->host_lock = host_lock;
    const Status attached = attach_loads(*op, node, restore, slots, load);
    if (!attached.is_ok()) {
      (void)tree_.finish_op(op->id, false);
      tree_.unlock(op->host_lock);
      tree_.unlock(device_lock);
      for (const ComponentKind c : kAllComponents) return_device(c, slots[index_of(c)]);
      ops_.erase(op->id);
      return overloaded("start: " + attached.message());
    }
  }
  fill_table(r, restore, load, slots);
  copy_state(r, restore, op, load);
  ++running_;
  if (op) {
    op->pages = restore.pages - restore.device_pages;
    op->begun = clock_.now();
    load.gate = std::make_shared<LayerGate>(model_.layer_count());
    r.run.set_gate(load.gate);
    r.load = op->id;
    submit_transfer(*op, std::move(load));
  }
  // The checkpoint is leased by the copy that reads it. Locked, too, it would take one of the states that
  // check_admission() promised to the request.
  r.run.set_lock(tree_.lock(node, Tier::kDevice, LockParts{.full = true, .swa = true, .mamba = false}));
  tree_.unlock(device_lock);
  r.phase = r.state_copy.v != 0 && op ? RequestPhase::kLoading : RequestPhase::kRunning;
  return Status::ok();
}

// Hands the slots that will be loaded to the tree (unpublished) and lists the copies. Slots that were not attached stay
// in `slots`, so that the caller can give back exactly what is still its own.
Status CacheImpl::attach_loads(Op& op, NodeId node, const Restore& restore,
                               std::array<std::vector<DeviceSlot>, kComponentCount>& slots, TransferRequest& out) {
  auto& full = slots[index_of(ComponentKind::kFull)];
  const std::uint64_t load = restore.pages - restore.device_pages;
  if (load > 0) {
    const std::span<const DeviceSlot> head = std::span<const DeviceSlot>(full).first(load);
    LARDER_RETURN_IF_ERROR(tree_.attach_device(op.id, node, ComponentKind::kFull, restore.device_pages, head));
    for (std::uint64_t i = 0; i < load; ++i) {
      out.pairs[index_of(ComponentKind::kFull)].push_back({head[i], restore.full[restore.device_pages + i].host, {}});
    }
    full.erase(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(load));
  }
  auto& swa = slots[index_of(ComponentKind::kSwa)];
  for (std::uint64_t i = 0; i < restore.window.size();) {
    std::uint64_t end = i;  // a run of window pages that are on the host only
    while (end < restore.window.size() && !restore.window[end].device.valid()) ++end;
    if (end == i) {
      ++i;
      continue;
    }
    const std::span<const DeviceSlot> run = std::span<const DeviceSlot>(swa).first(end - i);
    LARDER_RETURN_IF_ERROR(tree_.attach_device(op.id, node, ComponentKind::kSwa, restore.window_from + i, run));
    for (std::uint64_t k = i; k < end; ++k) {
      out.pairs[index_of(ComponentKind::kSwa)].push_back({run[k - i], restore.window[k].host, {}});
    }
    swa.erase(swa.begin(), swa.begin() + static_cast<std::ptrdiff_t>(end - i));
    i = end;
  }
  return Status::ok();
}

void CacheImpl::fill_table(Request& r, const Restore& restore, const TransferRequest& load,
                           std::array<std::vector<DeviceSlot>, kComponentCount>& slots) {
  const std::uint64_t total = pages_at_start(r);
  PageTable table;
  table.full.reserve(total);
  for (std::uint64_t i = 0; i < restore.device_pages; ++i) table.full.push_back(restore.full[i].device);
  for (const SlotPair& pair : load.pairs[index_of(ComponentKind::kFull)]) table.full.push_back(pair.device);
  for (const DeviceSlot slot : slots[index_of(ComponentKind::kFull)]) table.full.push_back(slot);
  if (model_.has(ComponentKind::kSwa)) {
    table.swa.assign(total, DeviceSlot{});
    std::size_t next = 0;
    for (std::uint64_t i = 0; i < restore.window.size(); ++i) {
      const PageLocation& at = restore.window[i];
      table.swa[restore.window_from + i] =
          at.device.valid() ? at.device : load.pairs[index_of(ComponentKind::kSwa)][next++].device;
    }
  }
  std::vector<PlannedCheckpoint> plan;
  if (model_.has(ComponentKind::kMamba)) {
    table.state = slots[index_of(ComponentKind::kMamba)].front();
    plan = plan_checkpoints(r.tokens.size(), page_size(), restore.pages, restore.fork, config_.checkpoint_grid);
  }
  r.run.begin(r, std::move(table), restore.pages, std::move(plan));
}

// The request works on its own copy of the checkpoint. It comes with the load when there is one and the host has it,
// else straight from the tree's device slot.
void CacheImpl::copy_state(Request& r, const Restore& restore, Op* load_op, TransferRequest& load) {
  if (!model_.has(ComponentKind::kMamba) || restore.pages == 0) return;
  auto& pairs = load.pairs[index_of(ComponentKind::kMamba)];
  if (load_op && restore.state.host.valid()) {
    pairs.push_back({r.run.table().state, restore.state.host, {}});
    return;
  }
  Op& op = ops_.add(OpKind::kStateCopy);
  op.request = r.id;
  r.state_copy = op.id;
  TransferRequest copy;
  copy.id = op.id;
  copy.direction = CopyDirection::kDeviceToDevice;
  copy.pairs[index_of(ComponentKind::kMamba)].push_back({r.run.table().state, {}, restore.state.device});
  if (!load_op) {
    copy.gate = std::make_shared<LayerGate>(model_.layer_count());
    r.run.set_gate(copy.gate);
  }
  submit_transfer(op, std::move(copy));
}

void CacheImpl::submit_transfer(Op& op, TransferRequest request) {
  const OpId id = op.id;
  std::shared_ptr<LayerGate> gate = request.gate;
  auto complete = ops_.completion_for(id);
  Status submitted =
      transfer_ ? transfer_->submit(std::move(request), [complete](TransferDone done) { complete(std::move(done)); })
                : unsupported("this cache was made without a transfer engine");
  if (submitted.is_ok()) return;
  if (gate) gate->fail(submitted);
  complete(TransferDone{id, std::move(submitted), {}, {}});
}

// What a request found is told once: what it finds after retract() is its own.
void CacheImpl::account_start(Request& r, const Restore& restore) {
  if (r.retracts > 0) {
    if (restore.pages > 0) tree_.touch({r.run.lock().node, restore.pages}, false);
    return;
  }
  const Prefetcher::Fetched fetched = prefetcher_.fetched(r.id);
  const std::uint64_t from = std::max(restore.device_pages, fetched.from);
  const std::uint64_t to = std::min(restore.pages, fetched.to);
  const std::uint64_t storage = to > from ? to - from : 0;
  r.cached.device = restore.device_pages * page_size();
  r.cached.storage = storage * page_size();
  r.cached.host = (restore.pages - restore.device_pages - storage) * page_size();
  r.cached.reason = restore.reason;
  r.cached.component = restore.component;
  if (restore.reason == StopReason::kNone && fetched.known > restore.pages) r.cached.reason = StopReason::kNotFetched;
  if (restore.pages > 0) {
    tree_.touch({r.run.lock().node, restore.pages}, true);
    if (config_.write_policy == WritePolicy::kWriteThroughSelective) maybe_backup(r.run.lock().node, restore.pages);
  }
}

void CacheImpl::load_done(Op& op, bool ok) {
  (void)tree_.finish_op(op.id, ok);
  tree_.unlock(op.host_lock);
  if (ok) {
    counters_.loaded_back += op.pages;
    metrics_.loaded_back(clock_.now() - op.begun);
  }
  Request* r = find(op.request);
  if (!r || r->load != op.id) return;
  r->load = OpId{};
  // Also if its own copy came and that of another rank did not: the pages are gone.
  if (!ok) r->run.fail("the load-back failed");
}

void CacheImpl::state_copy_done(Op& op, bool ok) {
  Request* r = find(op.request);
  if (!r || r->state_copy != op.id) return;
  r->state_copy = OpId{};
  r->phase = RequestPhase::kRunning;
  if (!ok) r->run.fail("the checkpoint could not be copied on the device");
}

}  // namespace larder
