#include "controller/connector.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/cache_metrics.h"
#include "controller/host_room.h"
#include "controller/loads.h"
#include "controller/lookups.h"
#include "controller/op_table.h"
#include "controller/page_copy.h"
#include "controller/prefetcher.h"
#include "controller/saves.h"
#include "controller/space_opener.h"
#include "controller/space_table.h"
#include "controller/store_backlog.h"

namespace larder {

namespace {

constexpr std::uint32_t kMaxTableEntries = 1u << 24;
constexpr std::uint32_t kMaxPointsLimit = 1024;
// What is on its way from a storage that was detached is waited for so long, whatever the policy says.
constexpr Nanos kDetachedWait = std::chrono::seconds(1);

Status check_share(std::string_view field, double share) {
  if (share > 0 && share <= 1) return Status::ok();
  return invalid_argument("connector config: " + std::string(field) + " is " + std::to_string(share) +
                          ", must be above 0 and at most 1 (a share of the host blocks)");
}

Status check_count(std::string_view field, std::uint32_t value, std::uint32_t high) {
  if (value >= 1 && value <= high) return Status::ok();
  return invalid_argument("connector config: " + std::string(field) + " is " + std::to_string(value) +
                          ", must be 1 to " + std::to_string(high));
}

// The composition, and nothing else. Owned by the cache thread.
class ConnectorImpl final : public Connector, private SlotSink {
 public:
  ConnectorImpl(const ConnectorConfig& config, const ConnectorParts& parts);
  ~ConnectorImpl() override;

  Result<LookupId> lookup(const LookupRequest& request) override;
  Result<LookupResult> points(LookupId id) override;
  void release(LookupId id) override;
  Result<TransferId> load(const LoadRequest& request) override;
  Result<LoadResult> load_result(TransferId id) override { return loads_.take_result(id); }
  Result<TransferId> save(const SaveRequest& request) override;
  Result<SaveResult> save_result(TransferId id) override { return saves_.take_result(id); }
  bool poll(Nanos wait) override;
  void wake() override { ops_.wake(); }
  bool idle() const override { return ops_.has_timers_only() && lookups_.empty(); }
  std::size_t operations_in_flight() const override { return ops_.live(); }
  std::uint64_t flush() override;
  Status attach_storage(StorageBackend& backend) override;
  void detach_storage() override;
  bool storage_idle() const override;
  void storage_cleared() override;
  CacheCounters counters() const override;
  std::uint64_t leased_blocks() const override { return lookups_.leased_blocks(); }
  const RadixTree& tree() const override { return tree_; }
  Status check_invariants() const override;

 private:
  [[nodiscard]] Status check_transfers(std::string_view call) const;
  [[nodiscard]] OutcomeBits outcome_of(Op& op);
  void apply(OpId id, const OutcomeBits& bits);
  [[nodiscard]] std::uint64_t host_pages() const;
  // SlotSink: what the tree lets go. It has nothing on a device.
  void free_device(ComponentKind /*c*/, std::span<const DeviceSlot> /*slots*/) override {}
  void free_host(ComponentKind c, std::span<const HostSlot> slots) override { room_.let_go(c, slots); }

  const ConnectorConfig config_;
  const ModelSpec& model_;
  HostPools& host_;
  Clock& clock_;
  const NamespaceScope scope_;

  RadixTree tree_;
  SpaceTable spaces_;  // before those that use it to their end
  OpTable ops_;
  CacheCounters counters_;
  SpaceOpener space_opener_;
  CacheMetrics metrics_;
  StoreBacklog backlog_;
  HostRoom room_;
  Prefetcher prefetcher_;
  PageCopier copier_;
  Lookups lookups_;
  Loads loads_;
  Saves saves_;
  StorageBackend* storage_ = nullptr;
  std::uint64_t next_transfer_ = 1;
};

ConnectorImpl::ConnectorImpl(const ConnectorConfig& config, const ConnectorParts& parts)
    : config_(config),
      model_(*parts.model),
      host_(*parts.host),
      clock_(*parts.clock),
      scope_(parts.scope),
      tree_(tree_config_for(*parts.model, config.tiers.eviction_policy, false), *this),
      ops_({.max_operations = config.tiers.max_operations,
            .rank_plan_wait = config.tiers.rank_plan_wait,
            .rank_plan_limit = config.tiers.rank_plan_limit},
           *parts.clock, parts.ranks, [this](Op& op) { return outcome_of(op); }),
      space_opener_(config.tiers.max_namespaces, {model_, scope_, tree_, spaces_, counters_}),
      metrics_(parts.metrics),
      backlog_(config_.tiers, {model_, &host_, tree_, ops_, spaces_, clock_, counters_, metrics_}),
      room_({model_, &host_, tree_, backlog_, counters_}),
      prefetcher_(config_.tiers, {model_, &host_, tree_, ops_, spaces_, clock_, backlog_, counters_, metrics_, room_,
                                  [this] { return lookups_.leased_blocks() > 0 || saves_.blocks() > 0; }}),
      copier_(ops_, parts.executor),
      lookups_(config_, {model_, host_, tree_, spaces_, prefetcher_}),
      loads_({model_, host_, tree_, room_, ops_, copier_, clock_, counters_, metrics_}),
      saves_(config_, {model_, host_, tree_, spaces_, room_, ops_, copier_, counters_}) {}

// From here on the engine's memory is its own. Storage operations end in their backend; their buffers are the host
// pools', which outlive it.
ConnectorImpl::~ConnectorImpl() {
  storage_ = nullptr;
  copier_.close();
  lookups_.release_all();
}

Result<LookupId> ConnectorImpl::lookup(const LookupRequest& request) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  if (request.tokens.empty()) return invalid_argument("lookup: the prompt is empty; send at least one token");
  if (request.has.pages > request.tokens.size() / model_.page_size || request.has.window_pages > request.has.pages) {
    return invalid_argument("lookup: the engine cannot have " + std::to_string(request.has.pages) + " pages, and " +
                            std::to_string(request.has.window_pages) + " of the window, of " +
                            std::to_string(request.tokens.size()) + " tokens");
  }
  if (lookups_.size() >= config_.max_lookups) {
    return overloaded("lookup: " + std::to_string(lookups_.size()) + " are open, which is the limit: release some");
  }
  Result<NamespaceId> space = space_opener_.open(request.adapter, request.salt);
  if (!space.is_ok()) return space.status();
  return lookups_.begin(*space, request);
}

Result<LookupResult> ConnectorImpl::points(LookupId id) {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  const Lookups::Lookup* const lookup = lookups_.find(id);
  if (lookup == nullptr) return not_found("points: no such lookup");
  LARDER_RETURN_IF_ERROR(lookups_.lease(id));
  return lookup->result;
}

void ConnectorImpl::release(LookupId id) { lookups_.release(id); }

Status ConnectorImpl::check_transfers(std::string_view call) const {
  LARDER_RETURN_IF_ERROR(ops_.parted());
  const std::size_t open = loads_.size() + saves_.size();
  if (open < config_.max_transfers) return Status::ok();
  return overloaded(std::string(call) + ": " + std::to_string(open) +
                    " transfers are under way or have a result to take, which is the limit");
}

Result<TransferId> ConnectorImpl::load(const LoadRequest& request) {
  LARDER_RETURN_IF_ERROR(check_transfers("load"));
  const Result<LoadPoint> point = lookups_.point(request.lookup, request.pages);
  if (!point.is_ok()) return point.status();
  const TransferId id(next_transfer_);
  LARDER_RETURN_IF_ERROR(loads_.begin(id, *lookups_.find(request.lookup), *point, request));
  ++next_transfer_;
  return id;
}

Result<TransferId> ConnectorImpl::save(const SaveRequest& request) {
  LARDER_RETURN_IF_ERROR(check_transfers("save"));
  LARDER_RETURN_IF_ERROR(saves_.check(request));
  Result<NamespaceId> space = space_opener_.open(request.adapter, request.salt);
  if (!space.is_ok()) return space.status();
  const TransferId id(next_transfer_);
  LARDER_RETURN_IF_ERROR(saves_.begin(id, *space, request));
  ++next_transfer_;
  return id;
}

OutcomeBits ConnectorImpl::outcome_of(Op& op) {
  switch (op.kind) {
    case OpKind::kLoad:
    case OpKind::kBackup: {
      const auto* done = std::get_if<TransferDone>(&op.completion);
      return {done != nullptr && done->status.is_ok() ? 1u : 0u};
    }
    case OpKind::kExists:
    case OpKind::kRead: return prefetcher_.outcome_of(op);
    case OpKind::kStore: return backlog_.outcome_of(op);
    case OpKind::kTimer: return {1};
    case OpKind::kStateCopy:
    case OpKind::kExplain: break;
  }
  return {0};
}

void ConnectorImpl::apply(OpId id, const OutcomeBits& bits) {
  Op* const op = ops_.find(id);
  if (op == nullptr) return;
  const bool is_ok = !bits.empty() && (bits[0] & 1) != 0;
  switch (op->kind) {
    case OpKind::kLoad: loads_.done(*op, is_ok); break;
    case OpKind::kBackup: saves_.done(*op, is_ok); break;
    case OpKind::kExists: prefetcher_.exists_done(*op, bits); break;
    case OpKind::kRead: prefetcher_.read_done(*op, bits); break;
    case OpKind::kStore: backlog_.done(*op, bits); break;
    case OpKind::kTimer: op->id == backlog_.rest_timer() ? backlog_.rest_is_over() : prefetcher_.timer_done(*op); break;
    case OpKind::kStateCopy:
    case OpKind::kExplain: break;
  }
  ops_.erase(id);
}

bool ConnectorImpl::poll(Nanos wait) {
  const bool changed = ops_.collect(wait);
  ops_.agree();
  room_.count_refusal();
  const std::vector<AgreedEvent> events = ops_.take_ended();
  for (const AgreedEvent& event : events) apply(event.op, event.bits);
  if (ops_.parted().is_ok()) {
    prefetcher_.pump();
    backlog_.pump();
  }
  return changed || !events.empty();
}

std::uint64_t ConnectorImpl::host_pages() const {
  const TierCounts& host = tree_.counts(ComponentKind::kFull, Tier::kHost);
  return host.resident + host.pending;
}

std::uint64_t ConnectorImpl::flush() {
  const std::uint64_t before = host_pages();
  if (!ops_.empty()) probe(Probe::kFlushedInFlight);
  backlog_.unlock_abandoned();
  (void)tree_.flush();
  return before - host_pages();
}

Status ConnectorImpl::attach_storage(StorageBackend& backend) {
  if (storage_ != nullptr) {
    return conflict("storage backend '" + storage_->info().name + "' is attached; detach it first");
  }
  storage_ = &backend;
  ops_.begin_attachment();
  metrics_.set_storage(backend.info().name);
  prefetcher_.attach_storage(backend);
  backlog_.attach_storage(backend);
  if (ops_.parted().is_ok()) backlog_.pump();
  return Status::ok();
}

void ConnectorImpl::detach_storage() {
  if (!storage_idle()) probe(Probe::kDetachedInFlight);
  storage_ = nullptr;
  backlog_.detach_storage();
  prefetcher_.detach_storage(clock_.now() + kDetachedWait);
}

bool ConnectorImpl::storage_idle() const {
  return std::none_of(ops_.all().begin(), ops_.all().end(), [this](const auto& entry) {
    const OpKind kind = entry.second.kind;
    if (!ops_.is_of_this_attachment(entry.second)) return false;
    return kind == OpKind::kExists || kind == OpKind::kRead || kind == OpKind::kStore;
  });
}

void ConnectorImpl::storage_cleared() {
  if (storage_ == nullptr || defect(Defect::kClearForgotten)) return;
  backlog_.cleared();
  if (ops_.parted().is_ok()) backlog_.pump();
}

CacheCounters ConnectorImpl::counters() const {
  CacheCounters c = counters_;
  c.host_resident = host_pages();
  c.rank_timeouts = ops_.parted().is_ok() ? 0 : 1;
  return c;
}

Status ConnectorImpl::check_invariants() const {
  LARDER_RETURN_IF_ERROR(tree_.check_invariants());
  LARDER_RETURN_IF_ERROR(host_.check_invariants());
  const CacheCounters c = counters();
  if (c.internal_errors > 0) {
    return internal_error(std::to_string(c.internal_errors) + " refused slot operations");
  }
  const std::array<std::uint64_t, kComponentCount> saving = saves_.slots_held(), reading = prefetcher_.slots_held();
  for (const ComponentKind k : kAllComponents) {
    const TierCounts& counts = tree_.counts(k, Tier::kHost);
    const std::uint64_t tree = counts.resident + counts.pending;
    if (host_.counts(k).live == tree + saving[index_of(k)] + reading[index_of(k)]) continue;
    return internal_error("host slots of " + std::string(component_name(k)) + ": " +
                          std::to_string(host_.counts(k).live) + " live, but the tree holds " + std::to_string(tree) +
                          ", saves " + std::to_string(saving[index_of(k)]) + " and fetches " +
                          std::to_string(reading[index_of(k)]));
  }
  if (c.backed_up + c.prefetched != c.host_resident + c.host_evicted + c.host_lost) {
    return internal_error("host pages are not conserved: " + std::to_string(c.backed_up) + " saved + " +
                          std::to_string(c.prefetched) + " prefetched != " + std::to_string(c.host_resident) +
                          " resident + " + std::to_string(c.host_evicted) + " evicted");
  }
  return Status::ok();
}

}  // namespace

Status validate_config(const ConnectorConfig& config) {
  LARDER_RETURN_IF_ERROR(validate_config(config.tiers));
  LARDER_RETURN_IF_ERROR(check_count("max_lookups", config.max_lookups, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("max_transfers", config.max_transfers, kMaxTableEntries));
  LARDER_RETURN_IF_ERROR(check_count("max_points", config.max_points, kMaxPointsLimit));
  LARDER_RETURN_IF_ERROR(check_share("lease_share", config.lease_share));
  return check_share("save_share", config.save_share);
}

std::string_view save_stop_name(SaveStop stop) {
  switch (stop) {
    case SaveStop::kNone: return "none";
    case SaveStop::kNoRoom: return "no_room";
    case SaveStop::kParentMissing: return "parent_missing";
    case SaveStop::kCopyFailed: return "copy_failed";
  }
  return "?";
}

Result<std::unique_ptr<Connector>> Connector::create(const ConnectorConfig& config, const ConnectorParts& parts) {
  if (parts.model == nullptr || parts.host == nullptr || parts.clock == nullptr) {
    return invalid_argument("connector: model, host and clock are required");
  }
  LARDER_RETURN_IF_ERROR(validate_config(config));
  // The layout is a part of the identity of every page (rule 4).
  if (parts.host->layout() != parts.scope.layout || parts.host->model().pools != parts.model->pools) {
    return invalid_argument("connector: the host pools are of another model, or have another layout than the scope");
  }
  return std::unique_ptr<Connector>(std::make_unique<ConnectorImpl>(config, parts));
}

}  // namespace larder
