// SPDX-License-Identifier: Apache-2.0
#include "controller/connector.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "controller/loads.h"
#include "controller/lookups.h"
#include "controller/lower_tiers.h"
#include "controller/page_copy.h"
#include "controller/saves.h"

namespace larder {

namespace {

constexpr std::uint32_t kMostEntries = 1u << 24;
constexpr std::uint32_t kMaxPointsLimit = 1024;
// A fetch that waits for storage to make room looks once per poll, for a few polls: so often, where nothing rings.
constexpr Nanos kLook = std::chrono::milliseconds(20);

Status check_share(std::string_view field, double share) {
  if (share > 0 && share <= 1) return Status::ok();
  return invalid_argument("connector config: " + std::string(field) + " is " + std::to_string(share) +
                          ", must be above 0 and at most 1 (a share of the host blocks)");
}

Status check_entries(std::string_view field, std::uint32_t value, std::uint32_t high) {
  if (value >= 1 && value <= high) return Status::ok();
  return invalid_argument("connector config: " + std::string(field) + " is " + std::to_string(value) +
                          ", must be 1 to " + std::to_string(high));
}

// The composition, and nothing else. Owned by the cache thread.
class ConnectorImpl final : public Connector {
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
  std::optional<Nanos> until_due() override;
  void wake() override { tiers_.ops().wake(); }
  std::size_t take_events(std::span<ConnectorEvent> out) override;
  bool idle() const override { return has_failed() ? operations_in_flight() == 0 : tiers_.idle() && lookups_.empty(); }
  std::size_t operations_in_flight() const override {
    return has_failed() ? tiers_.ops().owed() : tiers_.ops().places().live();
  }
  bool has_failed() const override { return tiers_.ops().is_broken(); }
  std::uint64_t flush() override;
  Status attach_storage(StorageBackend& backend) override {
    return change([&] { return tiers_.attach_storage(backend); });
  }
  void detach_storage() override {
    change([&] { tiers_.detach_storage(); });
  }
  bool storage_idle() const override { return has_failed() ? operations_in_flight() == 0 : tiers_.storage_idle(); }
  void storage_cleared() override {
    change([&] { tiers_.storage_cleared(); });
  }
  CacheCounters counters() const override { return tiers_.counters(); }
  std::uint64_t leased_blocks() const override { return lookups_.leased_blocks(); }
  const RadixTree& tree() const override { return tiers_.tree(); }
  Status check_invariants() const override { return tiers_.check_invariants(saves_.slots_held()); }

 private:
  // What changes something is called so. Without memory it ends anywhere, and that leaves nothing to go on with.
  template <class Call>
  auto change(Call call) -> decltype(call()) {
    using Answer = decltype(call());
    try {
      if (!has_failed()) return call();
    } catch (const std::bad_alloc&) {
      tiers_.ops().break_off(std::move(no_memory_));
    }
    if constexpr (std::is_convertible_v<const Status&, Answer>) {
      return tiers_.parted();
    } else {
      return Answer();
    }
  }
  [[nodiscard]] Result<LookupId> begin_lookup(const LookupRequest& request);
  [[nodiscard]] Result<LookupResult> lease_points(LookupId id);
  [[nodiscard]] Result<TransferId> begin_load(const LoadRequest& request);
  [[nodiscard]] Result<TransferId> begin_save(const SaveRequest& request);
  [[nodiscard]] Status check_transfers(std::string_view call) const;
  void transfer_done(Op& op, bool is_ok);
  [[nodiscard]] bool note_answers();

  const ConnectorConfig config_;
  const ModelSpec& model_;
  Clock& clock_;
  Status no_memory_ = internal_error(
      "connector: a call found no memory, and what it left half-way cannot be used: close this one, and open another");
  LowerTiers tiers_;  // before the rooms, which work with its own
  PageCopier copier_;
  Lookups lookups_;
  Loads loads_;
  Saves saves_;
  std::array<Counter*, kMissReasons> misses_{};  // lookups by why they have no later point; null: without metrics
  std::uint64_t next_transfer_ = 1;
  bool may_have_more_ = false;  // take_events() had no room for more
};

ConnectorImpl::ConnectorImpl(const ConnectorConfig& config, const ConnectorParts& parts)
    : config_(config),
      model_(*parts.model),
      clock_(*parts.clock),
      tiers_(config_.tiers, {.model = model_,
                             .host = parts.host,
                             .clock = *parts.clock,
                             .metrics = parts.metrics,
                             .ranks = parts.ranks,
                             .scope = parts.scope,
                             .own_done = [this](Op& op, bool is_ok) { transfer_done(op, is_ok); },
                             .is_engine_busy = [this] { return lookups_.leased_blocks() > 0 || saves_.blocks() > 0; },
                             .free_device = {},
                             .events = parts.events}),
      copier_(tiers_.ops(), parts.executor),
      lookups_(config_,
               {model_, *parts.host, tiers_.tree(), tiers_.spaces(), tiers_.prefetcher(), tiers_.miss_reasons()}),
      loads_({model_, *parts.host, tiers_.tree(), tiers_.host_room(), tiers_.ops(), copier_, *parts.clock,
              tiers_.counts(), tiers_.metrics()}),
      saves_(config_, {model_, *parts.host, tiers_.tree(), tiers_.spaces(), tiers_.host_room(), tiers_.ops(), copier_,
                       tiers_.counts()}) {
  tiers_.ops().set_bell(parts.bell);
  for (std::size_t i = 0; parts.metrics != nullptr && i < misses_.size(); ++i) {
    misses_[i] = &parts.metrics->counter("larder_misses_total",
                                         "Lookups by why they allow no more (none: all that may be reused)",
                                         {{"reason", std::string(miss_reason_name(static_cast<MissReason>(i)))}});
  }
}

// From here on the engine's memory is its own.
ConnectorImpl::~ConnectorImpl() {
  copier_.close();
  if (has_failed()) return;
  lookups_.release_all();
  (void)tiers_.flush();  // the pools may be the next one's, where no operation is in flight
}

Result<LookupId> ConnectorImpl::lookup(const LookupRequest& request) {
  return change([&] { return begin_lookup(request); });
}

Result<LookupResult> ConnectorImpl::points(LookupId id) {
  return change([&] { return lease_points(id); });
}

void ConnectorImpl::release(LookupId id) {
  change([&] { lookups_.release(id); });
}

Result<TransferId> ConnectorImpl::load(const LoadRequest& request) {
  return change([&] { return begin_load(request); });
}

Result<TransferId> ConnectorImpl::save(const SaveRequest& request) {
  return change([&] { return begin_save(request); });
}

Result<LookupId> ConnectorImpl::begin_lookup(const LookupRequest& request) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  if (request.tokens.empty()) return invalid_argument("lookup: the prompt is empty; send at least one token");
  if (request.has.pages > request.tokens.size() / model_.page_size || request.has.window_pages > request.has.pages) {
    return invalid_argument("lookup: the engine cannot have " + std::to_string(request.has.pages) + " pages, and " +
                            std::to_string(request.has.window_pages) + " of the window, of a prompt of " +
                            std::to_string(request.tokens.size() / model_.page_size) + " whole pages (" +
                            std::to_string(request.tokens.size()) + " tokens)");
  }
  if (lookups_.size() >= config_.max_lookups) {
    return overloaded("lookup: " + std::to_string(lookups_.size()) + " are open, which is the limit: release some");
  }
  LARDER_ASSIGN_OR_RETURN(NamespaceId space, tiers_.open_space(request.adapter, request.salt));
  return lookups_.begin(space, request);
}

Result<LookupResult> ConnectorImpl::lease_points(LookupId id) {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  const Lookups::Lookup* const lookup = lookups_.find(id);
  if (lookup == nullptr) return not_found("points: no such lookup");
  if (!lookup->is_leased) {
    LARDER_RETURN_IF_ERROR(lookups_.lease(id));
    if (Counter* const of = misses_[static_cast<std::size_t>(lookup->result.miss.reason)]) of->increment();
  }
  return lookup->result;
}

Status ConnectorImpl::check_transfers(std::string_view call) const {
  LARDER_RETURN_IF_ERROR(tiers_.parted());
  const std::size_t open = loads_.size() + saves_.size();
  if (open < config_.max_transfers) return Status::ok();
  return overloaded(std::string(call) + ": " + std::to_string(open) +
                    " transfers are under way or have a result to take, which is the limit");
}

Result<TransferId> ConnectorImpl::begin_load(const LoadRequest& request) {
  LARDER_RETURN_IF_ERROR(check_transfers("load"));
  LARDER_ASSIGN_OR_RETURN(const LoadPoint point, lookups_.point(request.lookup, request.pages));
  const TransferId id(next_transfer_++);  // a callback may begin another
  LARDER_RETURN_IF_ERROR(loads_.begin(id, *lookups_.find(request.lookup), point, request));
  return id;
}

Result<TransferId> ConnectorImpl::begin_save(const SaveRequest& request) {
  LARDER_RETURN_IF_ERROR(check_transfers("save"));
  LARDER_RETURN_IF_ERROR(saves_.check(request));
  LARDER_ASSIGN_OR_RETURN(NamespaceId space, tiers_.open_space(request.adapter, request.salt));
  const TransferId id(next_transfer_++);  // as above
  LARDER_RETURN_IF_ERROR(saves_.begin(id, space, request));
  return id;
}

// What lookups and saves answer at once, and what a release makes room for, comes with no completion.
bool ConnectorImpl::poll(Nanos wait) {
  const bool has_answers = note_answers();
  const Nanos most = has_answers ? Nanos{0} : wait;
  const bool is_changed = has_failed() ? tiers_.ops().collect(most) : change([&] { return tiers_.poll(most); });
  return note_answers() || is_changed || has_answers;
}

std::optional<Nanos> ConnectorImpl::until_due() {
  may_have_more_ = note_answers();  // they are the next poll's to tell
  if (may_have_more_) return Nanos{0};
  if (has_failed()) return std::nullopt;
  std::optional<TimePoint> due = tiers_.ops().next_due();
  if (const auto retry = tiers_.backlog().next_retry()) due = std::min(due.value_or(*retry), *retry);
  const TimePoint now = clock_.now();
  if (tiers_.prefetcher().has_steps()) due = std::min(due.value_or(now + kLook), now + kLook);
  if (!due) return std::nullopt;
  return *due <= now ? Nanos{0} : *due - now;
}

// Answers that nobody has been told of. Each ends one wait, whether the engine asks for events or not.
bool ConnectorImpl::note_answers() {
  bool has_new = std::exchange(may_have_more_, false);
  has_new |= lookups_.note_ready(!tiers_.parted().is_ok());
  has_new |= loads_.note_ended();
  has_new |= saves_.note_ended();
  return has_new;
}

std::size_t ConnectorImpl::take_events(std::span<ConnectorEvent> out) {
  std::size_t count = lookups_.take_ready(out, !tiers_.parted().is_ok());
  count += loads_.take_ended(out.subspan(count));
  count += saves_.take_ended(out.subspan(count));
  may_have_more_ = count == out.size();
  return count;
}

std::uint64_t ConnectorImpl::flush() {
  return change([&] {
    const std::uint64_t pages = tiers_.renew();
    lookups_.renew([this](const SpaceTable::Name& name) { return tiers_.open_space(name.first, name.second); });
    return pages;
  });
}

void ConnectorImpl::transfer_done(Op& op, bool is_ok) {
  op.kind == OpKind::kLoad ? loads_.done(op, is_ok) : saves_.done(op, is_ok);
}

}  // namespace

Status validate_config(const ConnectorConfig& config) {
  LARDER_RETURN_IF_ERROR(validate_config(config.tiers));
  LARDER_RETURN_IF_ERROR(check_entries("max_lookups", config.max_lookups, kMostEntries));
  LARDER_RETURN_IF_ERROR(check_entries("max_transfers", config.max_transfers, kMostEntries));
  LARDER_RETURN_IF_ERROR(check_entries("max_points", config.max_points, kMaxPointsLimit));
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
  LARDER_RETURN_IF_ERROR(validate_scope(parts.scope));
  if (parts.bell && parts.ranks)
    return invalid_argument("connector: a bell does not ring for what other ranks answer: with ranks, poll instead");
  // The layout is a part of the identity of every page (rule 4).
  if (parts.host->layout() != parts.scope.layout || parts.host->model().pools != parts.model->pools) {
    return invalid_argument("connector: the host pools are of another model, or have another layout than the scope");
  }
  LARDER_RETURN_IF_ERROR(check_tenant_limits(config.tiers.tenant_limits, *parts.model, nullptr, parts.host));
  return std::unique_ptr<Connector>(std::make_unique<ConnectorImpl>(config, parts));
}

}  // namespace larder
