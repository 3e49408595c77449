// SPDX-License-Identifier: Apache-2.0
#include "controller/starts.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "controller/checkpoint_plan.h"
#include "controller/joint.h"

namespace larder {

Starts::Starts(const CacheConfig& config, const Parts& parts)
    : config_(config),
      model_(parts.model),
      device_(parts.device),
      has_host_(parts.has_host),
      tree_(parts.tree),
      ops_(parts.ops),
      prefetcher_(parts.prefetcher),
      room_(parts.room),
      backups_(parts.backups),
      copies_(parts.copies),
      requests_(parts.requests),
      losses_(parts.losses),
      reasons_(parts.reasons),
      clock_(parts.clock),
      counters_(parts.counters),
      metrics_(parts.metrics),
      chunk_pages_(parts.chunk_pages) {}

Result<CachedTokens> Starts::start(Request& r) {
  if (prefetcher_.waits_for(r.id) == Prefetcher::WaitsFor::kStorage) return overloaded("start: waiting for storage");
  if (r.phase != RequestPhase::kReady) return invalid_argument("start: the request has started already");
  LARDER_RETURN_IF_ERROR(check_places());
  LARDER_RETURN_IF_ERROR(check_admission());
  LARDER_ASSIGN_OR_RETURN(const Restore restore, choose(r));
  const LossLog::For room_for(losses_, r.id);
  LARDER_RETURN_IF_ERROR(admit(r, restore));
  account(r, restore, prefetcher_.start(r.id));
  return r.cached;
}

// For a load and a copy of the checkpoint.
Status Starts::check_places() const {
  return ops_.places().has_room(OpKind::kLoad, 2) ? Status::ok() : overloaded("start: too many copies in flight");
}

// ---- where it resumes

bool Starts::Restore::loads() const {
  const auto on_host_only = [](const PageLocation& l) { return !l.device.valid(); };
  return device_pages < pages || std::any_of(window.begin(), window.end(), on_host_only) ||
         (state.host.valid() && !state.device.valid());
}

Result<Starts::Restore> Starts::choose(Request& r) {
  Restore restore;
  restore.node = tree_.spaces().root(r.space);
  // Neither host nor device could give it its prefix intact: it computes all of it.
  if (r.restarts > 0) restore.miss.reason = MissReason::kLoadFailed;
  if (!config_.enabled || r.restarts > 1) return restore;
  const bool device_only = r.restarts > 0;
  const std::span<const TokenId> tokens = r.whole_pages(model_.page_size);
  prefetcher_.take_arrived(r.id);
  const MatchResult match = tree_.match(r.space, tokens);
  if (match.meets_load) return overloaded("start: this prefix is being loaded; wait for it");
  if (r.restarts == 0 && prefetcher_.asks_again(r.id, match.any.at.pages)) {
    return overloaded("start: waiting for storage");
  }
  const TierMatch* best = has_host_ && !device_only ? &match.any : &match.device;
  const std::uint64_t on_device = std::min(match.full_device_pages, best->at.pages);
  if (needs_full_alone(model_) && (best->at.pages - on_device) * model_.page_size < config_.load_back_threshold)
    best = &match.device;
  restore.pages = best->at.pages;
  restore.device_point = std::min(match.device.at.pages, best->at.pages);
  restore.reason = best->reason;
  restore.component = best->component;
  if (r.restarts == 0) {
    const bool is_any = best == &match.any;
    restore.miss =
        reasons_.explain({r.space, tokens, match, *best, is_any ? match.full_any_pages : match.full_device_pages,
                          prefetcher_.fetched(r.id)});
  }
  restore.fork =
      std::min(device_only ? match.full_device_pages : match.full_any_pages, tokens.size() / model_.page_size);
  if (restore.pages == 0) return restore;
  restore.node = tree_.settle(best->at);
  locate(restore);
  return restore;
}

void Starts::locate(Restore& restore) const {
  tree_.locate(restore.node, ComponentKind::kFull, 0, restore.pages, restore.full);
  const auto first_off =
      std::find_if(restore.full.begin(), restore.full.end(), [](const PageLocation& l) { return !l.device.valid(); });
  restore.device_pages = static_cast<std::uint64_t>(first_off - restore.full.begin());
  if (model_.has(ComponentKind::kSwa)) {
    restore.window_from = restore.pages - model_.window_pages_at(restore.pages);
    tree_.locate(restore.node, ComponentKind::kSwa, restore.window_from, restore.pages, restore.window);
  }
  if (model_.has(ComponentKind::kMamba)) {
    std::vector<PageLocation> state;
    tree_.locate(restore.node, ComponentKind::kMamba, 0, 0, state);
    if (!state.empty()) restore.state = state.front();
  }
}

// Tokens that are there, and a headroom for those to come, in pages.
std::uint64_t Starts::pages_at_start(const Request& r) const {
  const std::uint64_t there = r.tokens.size();
  const std::uint64_t most = std::min(r.final_tokens(), there + config_.decode_headroom_tokens);
  return (std::max(there, most) + model_.page_size - 1) / model_.page_size;
}

ComponentCounts Starts::slots_for(const Request& r, const Restore& restore) const {
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
Status Starts::check_admission() const {
  if (requests_.running() == 0) return Status::ok();
  const auto fits = [&](ComponentKind c, std::uint64_t each) {
    return !model_.has(c) || (requests_.running() + 1) * each <= device_.slots(c).capacity();
  };
  if (!fits(ComponentKind::kSwa, model_.window_pages() + chunk_pages_ + 3)) {
    return overloaded("start: window pages of the device are promised to running requests");
  }
  if (!fits(ComponentKind::kMamba, 3)) {
    return overloaded("start: recurrent states of the device are promised to running requests");
  }
  return Status::ok();
}

// ---- what it gets

Status Starts::take_slots(Request& r, const ComponentCounts& counts, Slots& out) {
  const bool others_run = requests_.running() > 0;
  LARDER_RETURN_IF_ERROR(room_.make_all(r.id, r.run.seeker(), counts, others_run));
  LARDER_RETURN_IF_ERROR(check_places());  // what leaves may have begun copies of its own
  // One that was retracted comes back when those that run can each grow as well: else it would soon leave again.
  const std::uint32_t full = counts[index_of(ComponentKind::kFull)];
  const EvictFor who{.tenant = r.run.seeker().tenant, .breaks_floors = !others_run};
  if (r.retracts > 0 && !room_.could_make(ComponentKind::kFull, full + requests_.running(), who)) {
    return overloaded("start: the device has no room yet for a request that was retracted");
  }
  return device_.reserve(counts, out) ? Status::ok() : overloaded("start: the device is full");
}

Status Starts::admit(Request& r, const Restore& restore) {
  LockHandle device_lock = tree_.lock(restore.node, Tier::kDevice, LockParts{});
  LockHandle host_lock;
  if (restore.loads()) host_lock = tree_.lock(restore.node, Tier::kHost, LockParts{});
  Slots slots;
  TransferRequest load;
  Op* op = nullptr;
  Status admitted = take_slots(r, slots_for(r, restore), slots);
  if (admitted.is_ok() && restore.loads()) {
    op = &ops_.add(OpKind::kLoad);
    admitted = attach(*op, restore, slots, load);
    if (!admitted.is_ok()) {
      (void)tree_.finish_op(op->id, false);
      for (const ComponentKind c : kAllComponents) room_.give_back_all(c, slots[index_of(c)]);
      ops_.erase(op->id);
      admitted = overloaded("start: " + admitted.message());
    }
  }
  if (!admitted.is_ok()) {
    tree_.unlock(device_lock);
    tree_.unlock(host_lock);
    return admitted;
  }
  fill_table(r, restore, load, slots);
  copy_state(r, restore, op != nullptr, load);
  if (op != nullptr) {
    op->request = r.id;
    op->host_lock = host_lock;
    op->pages = restore.pages - restore.device_pages;
    op->begun = clock_.now();
    r.load = op->id;
    load.direction = CopyDirection::kHostToDevice;
    load.gate = std::make_shared<LayerGate>(model_.layer_count());
    load.has_layer_order = config_.loads_by_layer;
    r.run.set_gate(load.gate);
    copies_.submit(*op, std::move(load));
  }
  // The checkpoint is leased by the copy that reads it. Locked, too, it would take one of the states that
  // check_admission() promised to the request.
  r.run.set_lock(tree_.lock(restore.node, Tier::kDevice, LockParts{.full = true, .swa = true, .mamba = false}));
  tree_.unlock(device_lock);
  requests_.run(r, r.state_copy.v != 0 && op != nullptr ? RequestPhase::kLoading : RequestPhase::kRunning);
  return Status::ok();
}

// Hands the slots that will be loaded to the tree (unpublished) and lists the copies. Slots that were not attached stay
// in `slots`, so that the caller can give back exactly what is still its own.
Status Starts::attach(const Op& op, const Restore& restore, Slots& slots, TransferRequest& load) {
  auto& full = slots[index_of(ComponentKind::kFull)];
  const std::uint64_t count = restore.pages - restore.device_pages;
  if (count > 0) {
    const std::span<const DeviceSlot> head = std::span<const DeviceSlot>(full).first(count);
    LARDER_RETURN_IF_ERROR(tree_.attach_device(op.id, restore.node, ComponentKind::kFull, restore.device_pages, head));
    std::vector<SlotPair>& pairs = load.pairs[index_of(ComponentKind::kFull)];
    pairs.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      pairs.push_back({head[i], restore.full[restore.device_pages + i].host, {}});
    }
    full.erase(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(count));
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
    LARDER_RETURN_IF_ERROR(tree_.attach_device(op.id, restore.node, ComponentKind::kSwa, restore.window_from + i, run));
    for (std::uint64_t k = i; k < end; ++k) {
      load.pairs[index_of(ComponentKind::kSwa)].push_back({run[k - i], restore.window[k].host, {}});
    }
    swa.erase(swa.begin(), swa.begin() + static_cast<std::ptrdiff_t>(end - i));
    i = end;
  }
  return Status::ok();
}

void Starts::fill_table(Request& r, const Restore& restore, const TransferRequest& load, const Slots& slots) {
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
    plan = plan_checkpoints(r.tokens.size(), model_.page_size, restore.pages, restore.fork, config_.checkpoint_grid);
    if (r.retracts == 0 && r.restarts == 0) recall(r, restore, plan);
  }
  r.run.begin(r, std::move(table), restore.pages, std::move(plan));
}

void Starts::recall(Request& r, const Restore& restore, std::vector<PlannedCheckpoint>& plan) {
  std::vector<std::uint64_t> pages;
  std::vector<CheckpointOrigin*> origins;
  for (PlannedCheckpoint& planned : plan) {
    pages.push_back(planned.page);
    origins.push_back(&planned.origin);
  }
  const auto rest = std::span<const TokenId>(r.tokens).subspan(restore.pages * model_.page_size);
  r.turn.is_later = tree_.recall({restore.node, restore.pages}, rest, pages, origins);
}

// The request works on its own copy of the checkpoint. It comes with the load when there is one and the host has it,
// else straight from the tree's device slot.
void Starts::copy_state(Request& r, const Restore& restore, bool loads, TransferRequest& load) {
  if (!model_.has(ComponentKind::kMamba) || restore.pages == 0) return;
  auto& pairs = load.pairs[index_of(ComponentKind::kMamba)];
  if (loads && restore.state.host.valid()) {
    pairs.push_back({r.run.table().state, restore.state.host, {}});
    return;
  }
  Op& op = ops_.add(OpKind::kStateCopy);
  op.request = r.id;
  r.state_copy = op.id;
  TransferRequest copy;
  copy.direction = CopyDirection::kDeviceToDevice;
  copy.pairs[index_of(ComponentKind::kMamba)].push_back({r.run.table().state, {}, restore.state.device});
  if (!loads) {
    copy.gate = std::make_shared<LayerGate>(model_.layer_count());
    r.run.set_gate(copy.gate);
  }
  copies_.submit(op, std::move(copy));
}

// What a request found is told until it computes with it: what it finds after a retract() from then on is its own.
void Starts::account(Request& r, const Restore& restore, const Prefetcher::Fetched& fetched) {
  const bool is_first = r.retracts == 0 && r.restarts == 0;
  if (is_first) tree_.note_prompt(r.space, r.whole_pages(model_.page_size));
  if (restore.pages > 0) tree_.touch({r.run.lock().node, restore.pages}, is_first);
  if (r.is_told) return;
  // Each tier counts with what it adds to the restore point of those above it. What a start brought before a retract
  // counts where it came from, though it is above by now.
  r.brought.add(restore.device_point, restore.pages);
  r.from_storage.add(std::max(restore.device_point, fetched.from), std::min(restore.pages, fetched.to));
  const std::uint64_t device = restore.device_point - r.brought.before(restore.device_point);
  const std::uint64_t storage = r.from_storage.before(restore.pages);
  r.cached.device = device * model_.page_size;
  r.cached.storage = storage * model_.page_size;
  r.cached.host = (restore.pages - device - storage) * model_.page_size;
  r.cached.reason = restore.reason;
  r.cached.component = restore.component;
  r.cached.miss = restore.miss;
  r.cached.request = r.id;
  if (restore.reason == StopReason::kNone && fetched.known > restore.pages) r.cached.reason = StopReason::kNotFetched;
  if (restore.pages > 0 && config_.write_policy == WritePolicy::kWriteThroughSelective) {
    backups_.by_policy(r.run.lock().node, restore.pages);
  }
}

void Starts::load_done(Op& op, bool is_ok) {
  (void)tree_.finish_op(op.id, is_ok);
  tree_.unlock(op.host_lock);
  if (is_ok) {
    counters_.loaded_back += op.pages;
    metrics_.loaded_back(clock_.now() - op.begun);
  }
  Request* const r = requests_.find(op.request);
  if (r == nullptr || r->load != op.id) return;
  r->load = OpId{};
  // Also if its own copy came and that of another rank did not: the pages are gone.
  r->run.loaded(is_ok ? Status::ok() : unavailable("the load-back failed"));
}

void Starts::state_copy_done(const Op& op, bool is_ok) {
  if (Request* const source = requests_.find(op.source)) --source->forks;
  Request* const r = requests_.find(op.request);
  if (r == nullptr || r->state_copy != op.id) return;
  r->state_copy = OpId{};
  r->phase = RequestPhase::kRunning;
  if (!is_ok) return r->run.loaded(unavailable("the checkpoint could not be copied on the device"));
  if (r->load.v == 0) r->run.loaded(Status::ok());  // else the gate is of the load
}

}  // namespace larder
