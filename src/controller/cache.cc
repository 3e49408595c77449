// SPDX-License-Identifier: Apache-2.0
#include "controller/cache.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "base/probe.h"
#include "controller/backups.h"
#include "controller/device_copies.h"
#include "controller/device_room.h"
#include "controller/explainer.h"
#include "controller/forks.h"
#include "controller/lower_tiers.h"
#include "controller/requests.h"
#include "controller/starts.h"

namespace larder {

namespace {

std::uint32_t chunk_pages(const CacheConfig& config, const ModelSpec& model) {
  return (config.chunked_prefill_tokens + model.page_size - 1) / model.page_size;
}

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
  LARDER_RETURN_IF_ERROR(validate_scope(parts.scope));
  // The layout is a part of the identity of every page (rule 4).
  if (parts.host != nullptr &&
      (parts.host->layout() != parts.scope.layout || parts.host->model().pools != parts.model->pools)) {
    return invalid_argument("cache: the host pools are of another model, or have another layout than the scope");
  }
  if (parts.transfer != nullptr && !parts.transfer->serves(*parts.device, parts.host)) {
    return invalid_argument(
        "cache: the transfer engine was created with other device pools or host pools, or without the host pools: "
        "create it with those of the cache");
  }
  LARDER_RETURN_IF_ERROR(validate_config(config));
  LARDER_RETURN_IF_ERROR(check_tenant_limits(config.tenant_limits, *parts.model, parts.device, parts.host));
  // Each operation may be a copy, and one that is refused counts as one that failed.
  if (parts.transfer != nullptr && parts.transfer->max_in_flight() < config.max_operations) {
    return invalid_argument("cache: max_operations is " + std::to_string(config.max_operations) +
                            ", but the transfer engine's max_in_flight is " +
                            std::to_string(parts.transfer->max_in_flight()) +
                            "; create it with room for as many transfers, or lower max_operations");
  }
  const ModelSpec& model = *parts.model;
  if (model.has(ComponentKind::kSwa)) {
    const std::uint32_t least = 2 * model.window_pages() + chunk_pages(config, model) + 3;
    if (parts.device->slots(ComponentKind::kSwa).capacity() < least) {
      return invalid_argument("cache: the device needs at least " + std::to_string(least) + " window pages (" +
                              std::to_string(least * model.page_size) +
                              " tokens) for one request; give it more, or make chunked_prefill_tokens smaller");
    }
  }
  if (model.has(ComponentKind::kMamba) && parts.device->slots(ComponentKind::kMamba).capacity() < 3) {
    return invalid_argument("cache: the device needs at least 3 recurrent states for one request; give it more");
  }
  return Status::ok();
}

// The composition, and nothing else. Owned by the cache thread.
class CacheImpl final : public Cache {
 public:
  CacheImpl(const CacheConfig& config, const CacheParts& parts);
  ~CacheImpl() override;

  Result<RequestId> begin(const BeginRequest& request) override;
  bool would_fetch(const BeginRequest& request) const override;
  RequestPhase phase(RequestId id) const override;
  bool waits_for_storage(RequestId id) const override {
    return tiers_.prefetcher().waits_for(id) != Prefetcher::WaitsFor::kNothing;
  }
  Result<CachedTokens> start(RequestId id) override;
  std::uint64_t computed_tokens(RequestId id) const override;
  Result<StepGrant> prepare_step(RequestId id, std::uint64_t until) override {
    const LossLog::For room_for(tiers_.losses(), id);
    return requests_.prepare_step(id, until);
  }
  Status complete_step(StepToken step, std::span<const TokenId> tokens, std::shared_ptr<DeviceEvent> over) override {
    return requests_.complete_step(step, tokens, std::move(over));
  }
  Status cancel_step(StepToken step, std::shared_ptr<DeviceEvent> over) override {
    return requests_.cancel_step(step, std::move(over));
  }
  bool is_starved(RequestId id) const override;
  Status retract(RequestId id) override;
  Result<RequestId> fork(RequestId id) override;
  Status restart(RequestId id) override;
  void finish(RequestId id) override;
  void abort(RequestId id) override;
  bool poll(Nanos wait) override { return tiers_.poll(wait); }
  void wake() override { tiers_.ops().wake(); }
  bool idle() const override { return tiers_.idle() && requests_.empty(); }
  std::size_t operations_in_flight() const override { return tiers_.ops().places().live(); }
  std::uint64_t flush() override { return tiers_.flush(); }
  Status attach_storage(StorageBackend& backend) override { return tiers_.attach_storage(backend); }
  void detach_storage() override;
  bool storage_idle() const override { return tiers_.storage_idle(); }
  void storage_cleared() override { tiers_.storage_cleared(); }
  void set_policies(PrefetchPolicy prefetch, WritePolicy write) override;
  void explain(const BeginRequest& request, std::function<void(Explanation)> done) override {
    if (!done) return;  // nobody wants to know
    explainer_.explain(request, tiers_.storage(), std::move(done));
  }
  const RadixTree& tree() const override { return tiers_.tree(); }
  CacheCounters counters() const override { return tiers_.counters(); }
  Status check_invariants() const override;

 private:
  [[nodiscard]] LowerTiers::Parts tier_parts(const CacheParts& parts);
  // The request `id` that has started; `call` names who asks.
  [[nodiscard]] Result<Request*> started(RequestId id, const std::string& call);
  void operation_done(Op& op, bool is_ok);

  CacheConfig config_;  // const after create, but the policies
  StepEvents events_;
  LowerTiers tiers_;  // before the rooms, which work with its own
  DeviceCopies copies_;
  Backups backups_;
  DeviceRoom room_;
  Requests requests_;
  Starts starts_;
  Forks forks_;
  Explainer explainer_;
};

CacheImpl::CacheImpl(const CacheConfig& config, const CacheParts& parts)
    : config_(config),
      events_(*parts.device),
      tiers_(config_, tier_parts(parts)),
      copies_({parts.transfer, *parts.device, tiers_.host_room(), tiers_.ops(), events_}),
      backups_(config_, {parts.host, tiers_.tree(), tiers_.ops(), tiers_.host_room(), copies_, tiers_.counts()}),
      room_(config_, {.model = *parts.model,
                      .device = *parts.device,
                      .host = parts.host,
                      .tree = tiers_.tree(),
                      .ops = tiers_.ops(),
                      .backlog = tiers_.backlog(),
                      .host_room = tiers_.host_room(),
                      .prefetcher = tiers_.prefetcher(),
                      .backups = backups_,
                      .events = events_,
                      .clock = *parts.clock,
                      .counters = tiers_.counts(),
                      .metrics = tiers_.metrics()}),
      requests_(config_, {.model = *parts.model,
                          .device = *parts.device,
                          .tree = tiers_.tree(),
                          .spaces = tiers_.spaces(),
                          .ops = tiers_.ops(),
                          .room = room_,
                          .events = events_,
                          .counters = tiers_.counts(),
                          .chunk_pages = chunk_pages(config, *parts.model),
                          .has_ranks = parts.ranks != nullptr}),
      starts_(config_, {.model = *parts.model,
                        .device = *parts.device,
                        .has_host = parts.host != nullptr,
                        .tree = tiers_.tree(),
                        .ops = tiers_.ops(),
                        .prefetcher = tiers_.prefetcher(),
                        .room = room_,
                        .backups = backups_,
                        .copies = copies_,
                        .requests = requests_,
                        .losses = tiers_.losses(),
                        .reasons = tiers_.miss_reasons(),
                        .clock = *parts.clock,
                        .counters = tiers_.counts(),
                        .metrics = tiers_.metrics(),
                        .chunk_pages = chunk_pages(config, *parts.model)}),
      forks_({.model = *parts.model,
              .device = *parts.device,
              .has_transfer = parts.transfer != nullptr,
              .tree = tiers_.tree(),
              .ops = tiers_.ops(),
              .room = room_,
              .copies = copies_,
              .requests = requests_,
              .starts = starts_}),
      explainer_({*parts.model, parts.host, parts.scope, tiers_.tree(), tiers_.spaces(), tiers_.ops(),
                  config.prefetch_threshold}) {}

LowerTiers::Parts CacheImpl::tier_parts(const CacheParts& parts) {
  return {.model = *parts.model,
          .host = parts.host,
          .clock = *parts.clock,
          .metrics = parts.metrics,
          .ranks = parts.ranks,
          .device = parts.device,
          .scope = parts.scope,
          .allows_host_gaps = config_.write_policy == WritePolicy::kWriteBack,
          .own_done = [this](Op& op, bool is_ok) { operation_done(op, is_ok); },
          .is_engine_busy = [this] { return requests_.running() > 0; },
          .free_device = [this](ComponentKind c, std::span<const DeviceSlot> slots) { room_.let_go(c, slots); },
          .events = parts.events};
}

// Only copies are waited for, in real time, and nothing new starts: no write, no read, no step of the rank group.
CacheImpl::~CacheImpl() {
  explainer_.cancel_all("the cache is closing");
  requests_.close([this](RequestId id) { tiers_.prefetcher().leave(id); });
  copies_.finish();
  // The pools may be the next cache's, which knows nothing of kernels that may still touch them.
  if (events_.before_reading() == nullptr) (void)tiers_.flush();
}

Result<RequestId> CacheImpl::begin(const BeginRequest& request) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  LARDER_RETURN_IF_ERROR(requests_.check(request));
  LARDER_ASSIGN_OR_RETURN(const NamespaceId space, tiers_.open_space(request.adapter, request.salt));
  const Request& r = requests_.add(space, request);
  tiers_.prefetcher().enter(r.id, r.space, r.whole_pages(tiers_.page_size()));
  return r.id;
}

bool CacheImpl::would_fetch(const BeginRequest& request) const {
  if (request.tokens.empty() || !tiers_.parted().is_ok()) return false;
  const std::uint64_t pages = (request.tokens.size() - 1) / tiers_.page_size();
  return tiers_.prefetcher().would_fetch(tiers_.spaces().find({request.adapter, request.salt}),
                                         request.tokens.first(pages * tiers_.page_size()));
}

RequestPhase CacheImpl::phase(RequestId id) const {
  const Request* const r = requests_.find(id);
  if (r == nullptr) return RequestPhase::kReady;
  if (tiers_.parted().is_ok())
    return tiers_.prefetcher().waits_for(id) == Prefetcher::WaitsFor::kStorage ? RequestPhase::kPrefetching : r->phase;
  // Nothing that a request waits for will come: its next call says why.
  return r->has_started() ? RequestPhase::kRunning : RequestPhase::kReady;
}

Result<CachedTokens> CacheImpl::start(RequestId id) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  Request* const r = requests_.find(id);
  if (r == nullptr) return not_found("start: no such request");
  return starts_.start(*r);
}

std::uint64_t CacheImpl::computed_tokens(RequestId id) const {
  const Request* const r = requests_.find(id);
  return r != nullptr ? r->run.computed() : 0;
}

bool CacheImpl::is_starved(RequestId id) const {
  const Request* const r = requests_.find(id);
  return r != nullptr && r->is_starved;
}

Result<Request*> CacheImpl::started(RequestId id, const std::string& call) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  Request* const r = requests_.find(id);
  if (r == nullptr) return not_found(call + ": no such request");
  if (!r->has_started()) return invalid_argument(call + ": the request has not started");
  return r;
}

Status CacheImpl::retract(RequestId id) {
  LARDER_ASSIGN_OR_RETURN(Request* const r, started(id, "retract"));
  requests_.hand_over(*r);
  requests_.release(*r);
  ++r->retracts;
  r->is_told = r->is_told || r->has_computed;
  r->restarts = 0;  // what failed to come is gone from the tree, and may be asked for again
  ++tiers_.counts().retracted;
  tiers_.prefetcher().finish(id);
  tiers_.prefetcher().enter(id, r->space, r->whole_pages(tiers_.page_size()));  // again, with more tokens
  return Status::ok();
}

Result<RequestId> CacheImpl::fork(RequestId id) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  Request* const r = requests_.find(id);
  if (r == nullptr) return not_found("fork: no such request");
  return forks_.fork(*r);
}

Status CacheImpl::restart(RequestId id) {
  LARDER_ASSIGN_OR_RETURN(Request* const r, started(id, "restart"));
  probe(Probe::kLoadBackFailed);
  requests_.release(*r);
  if (r->given > 0) r->tokens.resize(r->given);
  ++r->restarts;
  r->brought = r->from_storage = {};  // the copy failed: nothing came
  return Status::ok();
}

void CacheImpl::finish(RequestId id) {
  Request* const r = requests_.find(id);
  if (r == nullptr) return;
  requests_.hand_over(*r);
  tiers_.prefetcher().finish(id);
  requests_.forget(*r);
}

void CacheImpl::abort(RequestId id) {
  const Request* const r = requests_.find(id);
  if (r == nullptr) return;
  if (tiers_.prefetcher().waits_for(id) == Prefetcher::WaitsFor::kStorage || r->phase == RequestPhase::kLoading)
    probe(Probe::kAbortedInFlight);
  tiers_.prefetcher().leave(id);
  finish(id);
}

void CacheImpl::detach_storage() {
  tiers_.detach_storage();
  explainer_.cancel_all("it was detached");
}

void CacheImpl::set_policies(PrefetchPolicy prefetch, WritePolicy write) {
  if (write == WritePolicy::kWriteBack) tiers_.tree().allow_host_gaps();
  config_.prefetch_policy = prefetch;
  config_.write_policy = write;
}

Status CacheImpl::check_invariants() const {
  LARDER_RETURN_IF_ERROR(tiers_.check_invariants({}));
  return requests_.check_slots();
}

void CacheImpl::operation_done(Op& op, bool is_ok) {
  if (const auto* done = std::get_if<TransferDone>(&op.completion)) copies_.drop_leases(*done);
  switch (op.kind) {
    case OpKind::kLoad: starts_.load_done(op, is_ok); break;
    case OpKind::kStateCopy: starts_.state_copy_done(op, is_ok); break;
    case OpKind::kBackup: backups_.done(op, is_ok); break;
    case OpKind::kExplain: explainer_.done(op); break;
    default: break;  // the tiers' own
  }
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::create(const CacheConfig& config, const CacheParts& parts) {
  LARDER_RETURN_IF_ERROR(check_parts(config, parts));
  return std::unique_ptr<Cache>(std::make_unique<CacheImpl>(config, parts));
}

}  // namespace larder
