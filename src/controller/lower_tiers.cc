// SPDX-License-Identifier: Apache-2.0
#include "controller/lower_tiers.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/defect.h"
#include "base/probe.h"

namespace larder {

namespace {
// What is on its way from a storage that was detached is waited for so long, whatever the policy says.
constexpr Nanos kDetachedWait = std::chrono::seconds(1);

// Has the tree hash pages when they come, and tells nobody.
class HashesAlike final : public PageObserver {
 public:
  void came(const PageChange& /*change*/) override {}
  void went(const PageChange& /*change*/) override {}
};

// What goes while it lives was to go: no sign of a small host.
class Flushing {
 public:
  Flushing(CacheCounters& counters, LossLog& losses)
      : counters_(counters), evicted_(counters.host_evicted), nobody_(LossLog::For::flush(losses)) {}
  ~Flushing() { counters_.host_flushed += std::exchange(counters_.host_evicted, evicted_) - evicted_; }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  CacheCounters& counters_;
  const std::uint64_t evicted_;
  const LossLog::For nobody_;
};

TreeConfig tree_config(const CacheConfig& config, const LowerTiers::Parts& parts) {
  TreeConfig tree = tree_config_for(parts.model, config.eviction_policy, parts.allows_host_gaps, config.eviction_order);
  tree.is_exclusive = config.exclusive_tiers;
  for (const ComponentKind c : kAllComponents) {
    tree.host_keeps[index_of(c)] = parts.host != nullptr && keeps_on_host(config, c);
    if (parts.host != nullptr) tree.host_blocks[index_of(c)] = parts.host->blocks_per_slot(c);
  }
  return tree;
}
}  // namespace

LowerTiers::LowerTiers(const CacheConfig& config, Parts parts)
    : parts_(std::move(parts)),
      losses_(parts_.clock),
      tree_(tree_config(config, parts_), *this),
      ops_({.max_operations = config.max_operations,
            .rank_plan_wait = config.rank_plan_wait,
            .rank_plan_limit = config.rank_plan_limit,
            .poll_budget = config.poll_budget},
           parts_.clock, parts_.ranks, [this](Op& op) { return outcome_of(op); }),
      tenants_(config.tenant_limits, {parts_.model, parts_.device, parts_.host, tree_, parts_.clock, parts_.metrics}),
      space_opener_(config.max_namespaces,
                    {parts_.model, parts_.scope, tree_, spaces_, tenants_, counters_, parts_.ranks != nullptr}),
      metrics_(parts_.metrics),
      backlog_(config, {parts_.model, parts_.host, tree_, ops_, spaces_, parts_.clock, counters_, metrics_}),
      host_room_({parts_.model, parts_.host, tree_, backlog_, counters_}),
      prefetcher_(config, {parts_.model, parts_.host, tree_, ops_, spaces_, parts_.clock, backlog_, counters_, metrics_,
                           host_room_, losses_, parts_.is_engine_busy}),
      reasons_({parts_.model, tree_, spaces_, backlog_, losses_, parts_.clock}) {
  tree_.observers().set_losses(&losses_);
  if (parts_.events != nullptr) {
    events_.emplace(tree_, spaces_, *parts_.events, parts_.clock);
  } else if (parts_.ranks != nullptr) {
    // Who is told of pages has them hashed when they come, and the tree splits and merges nodes by that: so all ranks.
    static HashesAlike as_others;
    tree_.observers().set_pages(&as_others);
  }
}

OutcomeBits LowerTiers::outcome_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kLoad:
    case OpKind::kStateCopy:
    case OpKind::kBackup: {
      const auto* const done = std::get_if<TransferDone>(&op.completion);
      return {done != nullptr && done->status.is_ok() ? 1u : 0u};
    }
    case OpKind::kExists:
    case OpKind::kRead: return prefetcher_.outcome_of(op);
    case OpKind::kStore: return backlog_.outcome_of(op);
    case OpKind::kTimer:
    case OpKind::kExplain: return {1};
  }
  return {0};
}

void LowerTiers::apply(const AgreedEvent& event) {
  Op* const op = ops_.find(event.op);
  if (op == nullptr) return;
  switch (op->kind) {
    case OpKind::kLoad:
    case OpKind::kStateCopy:
    case OpKind::kBackup:
    case OpKind::kExplain: parts_.own_done(*op, !event.bits.empty() && (event.bits[0] & 1) != 0); break;
    case OpKind::kExists: prefetcher_.exists_done(*op, event.bits); break;
    case OpKind::kRead: prefetcher_.read_done(*op, event.bits); break;
    case OpKind::kStore: backlog_.done(*op, event.bits); break;
    case OpKind::kTimer: op->id == backlog_.rest_timer() ? backlog_.rest_is_over() : prefetcher_.timer_done(*op); break;
  }
  ops_.erase(event.op);
}

bool LowerTiers::poll(Nanos wait) {
  if (events_) events_->hand_over();  // what calls have changed since the last poll, before a wait
  const bool changed = ops_.collect(wait);
  ops_.agree();
  host_room_.count_refusal();
  bool has_events = false;
  while (const std::optional<AgreedEvent> event = ops_.next_ended()) {
    apply(*event);
    has_events = true;
  }
  if (ops_.parted().is_ok()) {
    prefetcher_.pump();
    backlog_.pump();
  }
  if (!spaces_.retired().empty()) {
    const Flushing flushing(counters_, losses_);
    space_opener_.close_retired();
  }
  tenants_.note_uses();
  ops_.budget().end_poll();
  if (events_) events_->hand_over();
  return changed || has_events || ops_.budget().is_short();
}

std::uint64_t LowerTiers::flush() {
  const auto resident = [&] {
    return tree_.counts(ComponentKind::kFull, Tier::kDevice).resident +
           tree_.counts(ComponentKind::kFull, Tier::kHost).resident;
  };
  const std::uint64_t before = resident();
  if (!ops_.empty()) probe(Probe::kFlushedInFlight);
  backlog_.unlock_abandoned();
  const Flushing flushing(counters_, losses_);
  (void)tree_.flush();
  return before - resident();
}

std::uint64_t LowerTiers::renew() {
  const std::uint64_t found = tree_.counts(ComponentKind::kFull, Tier::kHost).resident -
                              tree_.spaces().retired_pages(ComponentKind::kFull, Tier::kHost);
  (void)flush();
  const Flushing flushing(counters_, losses_);
  space_opener_.retire();
  return found;
}

Status LowerTiers::attach_storage(StorageBackend& backend) {
  if (parts_.host == nullptr) return invalid_argument("storage needs the host tier: enable the hierarchical cache");
  if (storage_ != nullptr) {
    return conflict("storage backend '" + storage_->info().name + "' is attached; detach it first");
  }
  storage_ = &backend;
  ops_.begin_attachment();
  metrics_.set_storage(backend.info().name);
  backlog_.attach_storage(backend);
  prefetcher_.attach_storage(backend);
  reasons_.attach_storage(true);
  ops_.budget().fall_short();  // the next poll offers it what the host has, and does not wait
  return Status::ok();
}

void LowerTiers::detach_storage() {
  if (!storage_idle()) probe(Probe::kDetachedInFlight);
  storage_ = nullptr;
  backlog_.detach_storage();
  reasons_.attach_storage(false);
  prefetcher_.detach_storage(parts_.clock.now() + kDetachedWait);
}

bool LowerTiers::storage_idle() const {
  return std::none_of(ops_.all().begin(), ops_.all().end(), [this](const auto& entry) {
    const OpKind kind = entry.second.kind;
    if (!ops_.is_of_this_attachment(entry.second)) return false;
    return kind == OpKind::kExists || kind == OpKind::kRead || kind == OpKind::kStore || kind == OpKind::kExplain;
  });
}

void LowerTiers::storage_cleared() {
  if (storage_ == nullptr || defect(Defect::kClearForgotten)) return;
  backlog_.cleared();
  ops_.budget().fall_short();
}

CacheCounters LowerTiers::counters() const {
  CacheCounters c = counters_;
  const TierCounts& host = tree_.counts(ComponentKind::kFull, Tier::kHost);
  c.host_resident = host.resident + host.pending;
  c.most_poll_work = ops_.budget().most();
  c.rank_timeouts = ops_.parted().is_ok() ? 0 : 1;
  return c;
}

Status LowerTiers::check_invariants(const std::array<std::uint64_t, kComponentCount>& host_slots) const {
  LARDER_RETURN_IF_ERROR(tree_.check_invariants());
  const CacheCounters c = counters();
  if (c.internal_errors > 0) {
    return internal_error(std::to_string(c.internal_errors) + " refused slot operations");
  }
  if (parts_.host != nullptr) LARDER_RETURN_IF_ERROR(check_host_slots(host_slots));
  if (c.backed_up + c.prefetched != c.host_resident + c.host_evicted + c.host_flushed + c.host_lost) {
    return internal_error("host pages are not conserved: " + std::to_string(c.backed_up) + " backed up + " +
                          std::to_string(c.prefetched) + " prefetched != " + std::to_string(c.host_resident) +
                          " resident + " + std::to_string(c.host_evicted) + " evicted + " +
                          std::to_string(c.host_flushed) + " flushed + " + std::to_string(c.host_lost) + " lost");
  }
  return Status::ok();
}

Status LowerTiers::check_host_slots(const std::array<std::uint64_t, kComponentCount>& own) const {
  LARDER_RETURN_IF_ERROR(parts_.host->check_invariants());
  const std::array<std::uint64_t, kComponentCount> reading = prefetcher_.slots_held();
  for (const ComponentKind c : kAllComponents) {
    const std::size_t i = index_of(c);
    const TierCounts& counts = tree_.counts(c, Tier::kHost);
    const std::uint64_t tree = counts.resident + counts.pending, live = parts_.host->counts(c).live;
    if (live == tree + own[i] + reading[i]) continue;
    return internal_error("host slots of " + std::string(component_name(c)) + ": " + std::to_string(live) +
                          " live, but the tree holds " + std::to_string(tree) + ", prefetches " +
                          std::to_string(reading[i]) + " and saves " + std::to_string(own[i]));
  }
  return Status::ok();
}

void LowerTiers::free_device(ComponentKind c, std::span<const DeviceSlot> slots) {
  if (parts_.free_device) parts_.free_device(c, slots);
}

}  // namespace larder
