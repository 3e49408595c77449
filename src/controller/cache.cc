#include <algorithm>
#include <span>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/cache_impl.h"

namespace larder {

namespace {

constexpr Nanos kShutdownLook = std::chrono::milliseconds(20);
constexpr int kShutdownLooks = 500;              // ten seconds
constexpr std::uint64_t kReservedOutput = 8192;  // tokens

Status check_parts(const CacheConfig& config, const CacheParts& parts) {
  if (!parts.model || !parts.device || !parts.clock)
    return invalid_argument("cache: model, device and clock are required");
  if (parts.host != nullptr && parts.transfer == nullptr) {
    return invalid_argument("cache: host pools need a transfer engine");
  }
  if (parts.transfer == nullptr && config.enabled && parts.model->has(ComponentKind::kMamba)) {
    return invalid_argument(
        "cache: recurrent checkpoints are copied on the device, which needs a transfer engine "
        "(one without host pools will do)");
  }
  LARDER_RETURN_IF_ERROR(validate_config(config));
  const ModelSpec& model = *parts.model;
  const std::uint32_t chunk = (config.chunked_prefill_tokens + model.page_size - 1) / model.page_size;
  if (model.has(ComponentKind::kSwa)) {
    const std::uint32_t least = 2 * model.window_pages() + chunk + 3;
    if (parts.device->slots(ComponentKind::kSwa).capacity() < least) {
      return invalid_argument("cache: the device needs at least " + std::to_string(least) + " window pages (" +
                              std::to_string(least * model.page_size) +
                              " tokens) for one request; give it more tokens " +
                              "(max-total-tokens, swa-full-tokens-ratio) or shorten chunked-prefill-size");
    }
  }
  if (model.has(ComponentKind::kMamba) && parts.device->slots(ComponentKind::kMamba).capacity() < 3) {
    return invalid_argument(
        "cache: the device needs at least 3 recurrent states for one request; "
        "raise max-mamba-cache-size");
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::create(const CacheConfig& config, const CacheParts& parts) {
  LARDER_RETURN_IF_ERROR(check_parts(config, parts));
  return std::unique_ptr<Cache>(std::make_unique<CacheImpl>(config, parts));
}

CacheImpl::CacheImpl(const CacheConfig& config, const CacheParts& parts)
    : config_(config),
      model_(*parts.model),
      device_(*parts.device),
      host_(parts.host),
      transfer_(parts.transfer),
      clock_(*parts.clock),
      scope_(parts.scope),
      chunk_pages_((config.chunked_prefill_tokens + parts.model->page_size - 1) / parts.model->page_size),
      tree_(tree_config_for(*parts.model, config.eviction_policy, config.write_policy == WritePolicy::kWriteBack),
            *this),
      ops_({.max_operations = config.max_operations,
            .rank_plan_wait = config.rank_plan_wait,
            .rank_plan_limit = config.rank_plan_limit},
           *parts.clock, parts.ranks, [this](Op& op) { return outcome_of(op); }),
      space_opener_(config.max_namespaces, {model_, scope_, tree_, spaces_, counters_}),
      metrics_(parts.metrics),
      backlog_(config_, {model_, host_, tree_, ops_, spaces_, clock_, counters_, metrics_}),
      host_room_({model_, host_, tree_, backlog_, counters_}),
      prefetcher_(config_, {model_, host_, tree_, ops_, spaces_, clock_, backlog_, counters_, metrics_, host_room_,
                            [this] { return running_ > 0; }}),
      running_parts_{model_, config_, device_, tree_, counters_, *this, in_limbo_, chunk_pages_} {}

// Only copies are waited for, in real time, and nothing new starts: no write, no read, no step of the rank group.
// Storage operations end in their backend; their buffers are the host pools', which outlive it.
CacheImpl::~CacheImpl() {
  storage_ = nullptr;
  for (auto& [id, op] : ops_.all()) {
    if (!op.explain || !op.explain->done) continue;
    op.explain->report.storage_status = cancelled("the cache is closing");
    op.explain->report.storage_reason = "storage did not answer: the cache is closing";
    op.explain->done(std::move(op.explain->report));
  }
  for (auto& [id, request] : requests_) {
    release(request);
    prefetcher_.leave(request.id);
  }
  requests_.clear();
  departed_.clear();
  for (int i = 0; i < kShutdownLooks && transfer_ && transfer_->in_flight() > 0; ++i) {
    ops_.drain(kShutdownLook, [this](Completion& completion) {
      if (const auto* done = std::get_if<TransferDone>(&completion)) drop_leases(*done);
    });
  }
}

Request* CacheImpl::find(RequestId id) {
  const auto it = requests_.find(id.v);
  return it == requests_.end() ? nullptr : &it->second;
}

const Request* CacheImpl::find(RequestId id) const {
  const auto it = requests_.find(id.v);
  return it == requests_.end() ? nullptr : &it->second;
}

Result<RequestId> CacheImpl::begin(const BeginRequest& request) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  if (request.tokens.empty()) return invalid_argument("the prompt is empty; send at least one token");
  if (requests_.size() + departed_.size() >= config_.max_requests) {
    return overloaded("cache: " + std::to_string(requests_.size()) + " requests are under way and " +
                      std::to_string(departed_.size()) + " that are over have open steps, which is the limit");
  }
  Request r(running_parts_);
  r.prompt = request.tokens.size();
  r.max_new = request.max_new_tokens;
  const std::uint32_t capacity = device_.slots(ComponentKind::kFull).capacity();
  const std::uint64_t room = std::uint64_t{capacity} * page_size();
  // Compared without their sum, final_tokens(), which may not fit into 64 bits before this.
  if (r.prompt > room || (r.max_new > 0 && r.max_new - 1 > room - r.prompt)) {
    return invalid_argument("prompt of " + std::to_string(r.prompt) + " + " + std::to_string(r.max_new) +
                            " new tokens needs more than the " + std::to_string(capacity) +
                            " pages of the device (raise max-total-tokens)");
  }
  Result<NamespaceId> space = space_opener_.open(request.adapter, request.salt);
  if (!space.is_ok()) return space.status();
  r.id = RequestId(next_request_++);
  r.space = *space;
  r.space_use = spaces_.use(*space);
  r.priority = request.priority;
  // The first tokens of the output must not move a long prompt.
  r.tokens.reserve(r.prompt + std::min(r.max_new, kReservedOutput));
  r.tokens.assign(request.tokens.begin(), request.tokens.end());
  r.cached.prompt = r.prompt;
  const auto [it, added] = requests_.emplace(r.id.v, std::move(r));
  (void)added;
  const Request& entered = it->second;
  prefetcher_.enter(entered.id, entered.space, reusable_tokens(entered));
  return entered.id;
}

RequestPhase CacheImpl::phase(RequestId id) const {
  const Request* r = find(id);
  if (!r) return RequestPhase::kReady;
  if (ops_.parted().is_ok()) return prefetcher_.is_waiting(id) ? RequestPhase::kPrefetching : r->phase;
  // Nothing that a request waits for will come: its next call says why.
  return r->phase <= RequestPhase::kReady ? RequestPhase::kReady : RequestPhase::kRunning;
}

std::uint64_t CacheImpl::computed_tokens(RequestId id) const {
  const Request* r = find(id);
  return r ? r->run.computed() : 0;
}

// Gives back everything the request holds.
void CacheImpl::release(Request& r) {
  if (r.phase != RequestPhase::kLoading && r.phase != RequestPhase::kRunning) return;
  if (host_) {
    (void)are_copied(handed_over_);
    note_copied_path(r.run.lock().node, handed_over_);
  }
  r.run.release(defect(Defect::kLoadedSlotsLeak) && r.restarts == 0);
  r.load = r.state_copy = OpId{};  // a late completion finds no one waiting
  --running_;
}

void CacheImpl::forget(Request& r) {
  const std::uint64_t id = r.id.v;
  release(r);
  if (r.run.ledger().has_open()) departed_.emplace(id, r.run.take_ledger());
  requests_.erase(id);
}

// Pages that are loading are not computed right yet, and after a loss of the other ranks nobody decides anything.
void CacheImpl::hand_over(Request& r) {
  if (r.phase == RequestPhase::kRunning && ops_.parted().is_ok()) r.run.hand_over(r);
}

void CacheImpl::finish(RequestId id) {
  Request* r = find(id);
  if (!r) return;
  hand_over(*r);
  prefetcher_.finish(id);
  forget(*r);
}

void CacheImpl::abort(RequestId id) {
  Request* r = find(id);
  if (!r) return;
  if (prefetcher_.is_waiting(id) || r->phase == RequestPhase::kLoading) probe(Probe::kAbortedInFlight);
  prefetcher_.leave(id);
  finish(id);
}

Result<StepGrant> CacheImpl::prepare_step(RequestId id, std::uint64_t until) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("prepare_step: no such request");
  if (r->phase == RequestPhase::kLoading) return overloaded("prepare_step: the checkpoint is still being copied");
  if (r->phase != RequestPhase::kRunning) return invalid_argument("prepare_step: the request has not started");
  Result<StepGrant> grant = r->run.prepare(*r, until);
  if (grant.is_ok()) grant->token.request = id;
  return grant;
}

Status CacheImpl::complete_step(StepToken step, std::span<const TokenId> tokens) {
  Request* r = find(step.request);
  if (!r) return end_departed(step, true);
  // Steps end whatever happens to the ranks: they hold slots.
  if (const Status parted = ops_.parted(); !parted.is_ok()) {
    (void)r->run.cancel(step.number);
    return parted;
  }
  return r->run.complete(*r, step.number, tokens);
}

Status CacheImpl::cancel_step(StepToken step) {
  Request* r = find(step.request);
  return r ? r->run.cancel(step.number) : end_departed(step, false);
}

Status CacheImpl::end_departed(StepToken step, bool completes) {
  const auto at = departed_.find(step.request.v);
  if (at == departed_.end() || at->second.find(step.number) == nullptr) {
    return not_found("step " + std::to_string(step.number) + " of request " + std::to_string(step.request.v) +
                     " has ended, or never was");
  }
  StepLedger& ledger = at->second;
  for (const GrantedState& s : ledger.take(step.number).states) give_back(ComponentKind::kMamba, s.slot);
  ledger.release([this](ComponentKind c, DeviceSlot slot) { give_back(c, slot); },
                 [this](LockHandle& lock) { tree_.unlock(lock); });
  if (!ledger.has_open()) departed_.erase(at);
  return completes ? conflict("complete_step: the tokens do not count: the request is over") : Status::ok();
}

bool CacheImpl::is_starved(RequestId id) const {
  const Request* r = find(id);
  return r != nullptr && r->run.is_starved();
}

// Slots of the request that the tree has no use for are still its own business while a step may touch them.
Result<InsertResult> CacheImpl::extend(LockHandle& held, const ExtendRequest& request, StepLedger* keeper) {
  keeper_ = keeper;
  Result<InsertResult> inserted = tree_.extend(held, request);
  keeper_ = nullptr;
  return inserted;
}

Status CacheImpl::retract(RequestId id) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("retract: no such request");
  if (r->phase != RequestPhase::kLoading && r->phase != RequestPhase::kRunning) {
    return invalid_argument("retract: the request has not started");
  }
  hand_over(*r);
  release(*r);
  ++r->retracts;
  ++counters_.retracted;
  r->phase = RequestPhase::kReady;
  prefetcher_.finish(id);
  prefetcher_.enter(id, r->space, reusable_tokens(*r));  // it queues again, with more tokens
  return Status::ok();
}

Status CacheImpl::restart(RequestId id) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  Request* r = find(id);
  if (!r) return not_found("restart: no such request");
  if (r->phase != RequestPhase::kLoading && r->phase != RequestPhase::kRunning) {
    return invalid_argument("restart: the request has not started");
  }
  probe(Probe::kLoadBackFailed);
  release(*r);
  if (r->given > 0) r->tokens.resize(r->given);
  ++r->restarts;
  r->phase = RequestPhase::kReady;
  return Status::ok();
}

OutcomeBits CacheImpl::outcome_of(Op& op) {
  switch (op.kind) {
    case OpKind::kLoad:
    case OpKind::kStateCopy:
    case OpKind::kBackup: {
      const auto* done = std::get_if<TransferDone>(&op.completion);
      return {done && done->status.is_ok() ? 1u : 0u};
    }
    case OpKind::kExists:
    case OpKind::kRead: return prefetcher_.outcome_of(op);
    case OpKind::kStore: return backlog_.outcome_of(op);
    case OpKind::kTimer:
    case OpKind::kExplain: return {1};
  }
  return {0};
}

void CacheImpl::apply(OpId id, const OutcomeBits& bits) {
  Op* const found = ops_.find(id);
  if (found == nullptr) return;
  Op& op = *found;
  const bool ok = !bits.empty() && (bits[0] & 1);
  // Leases end when the event counts, not when it arrived here: which slots are free must be the same on every rank.
  if (const auto* done = std::get_if<TransferDone>(&op.completion)) drop_leases(*done);
  switch (op.kind) {
    case OpKind::kLoad: load_done(op, ok); break;
    case OpKind::kStateCopy: state_copy_done(op, ok); break;
    case OpKind::kBackup: backup_done(op, ok); break;
    case OpKind::kExists: prefetcher_.exists_done(op, bits); break;
    case OpKind::kRead: prefetcher_.read_done(op, bits); break;
    case OpKind::kStore: backlog_.done(op, bits); break;
    case OpKind::kTimer: op.id == backlog_.rest_timer() ? backlog_.rest_is_over() : prefetcher_.timer_done(op); break;
    case OpKind::kExplain: explain_done(op); break;
  }
  ops_.erase(id);
}

bool CacheImpl::poll(Nanos wait) {
  const bool changed = ops_.collect(wait);
  ops_.agree();
  host_room_.count_refusal();
  const std::vector<AgreedEvent> events = ops_.take_ended();
  for (const AgreedEvent& event : events) apply(event.op, event.bits);
  if (ops_.parted().is_ok()) {
    prefetcher_.pump();
    backlog_.pump();
  }
  return changed || !events.empty();
}

void CacheImpl::drop_leases(const TransferDone& done) {
  for (const LeasedSlot& l : done.device_leases) {
    (void)device_.drop_lease(l.component, DeviceSlot(l.slot), l.generation);
  }
  host_room_.drop_leases(done.host_leases);
}

void CacheImpl::return_device(ComponentKind c, std::span<const DeviceSlot> slots) {
  for (const DeviceSlot slot : slots) {
    if (!device_.free(c, slot).is_ok()) ++counters_.internal_errors;
  }
}

void CacheImpl::free_device(ComponentKind c, std::span<const DeviceSlot> slots) {
  if (keeper_ == nullptr) return return_device(c, slots);
  for (const DeviceSlot slot : slots) keeper_->keep(c, slot);
}

void CacheImpl::free_host(ComponentKind c, std::span<const HostSlot> slots) { host_room_.let_go(c, slots); }

}  // namespace larder
