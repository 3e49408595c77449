// What operators ask of a cache: flush, attach and detach, explain, counters, invariants.
#include <algorithm>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/cache_impl.h"
#include "controller/joint.h"

namespace larder {

namespace {
// What is on its way from a storage that was detached is waited for so long, whatever the policy says.
constexpr Nanos kDetachedWait = std::chrono::seconds(1);
}  // namespace

std::uint64_t CacheImpl::flush() {
  const auto resident = [&] {
    return tree_.counts(ComponentKind::kFull, Tier::kDevice).resident +
           tree_.counts(ComponentKind::kFull, Tier::kHost).resident;
  };
  const std::uint64_t before = resident();
  if (!ops_.empty()) probe(Probe::kFlushedInFlight);
  backlog_.unlock_abandoned();
  (void)tree_.flush();
  return before - resident();
}

Status CacheImpl::attach_storage(StorageBackend& backend) {
  if (!host_) return invalid_argument("storage needs the host tier: enable the hierarchical cache");
  if (storage_) return conflict("storage backend '" + storage_->info().name + "' is attached; detach it first");
  storage_ = &backend;
  ops_.begin_attachment();
  metrics_.set_storage(backend.info().name);
  backlog_.attach_storage(backend);
  prefetcher_.attach_storage(backend);
  if (ops_.parted().is_ok()) backlog_.pump();
  return Status::ok();
}

void CacheImpl::storage_cleared() {
  if (!storage_ || defect(Defect::kClearForgotten)) return;
  backlog_.cleared();
  if (ops_.parted().is_ok()) backlog_.pump();
}

void CacheImpl::set_policies(PrefetchPolicy prefetch, WritePolicy write) {
  if (write == WritePolicy::kWriteBack) tree_.allow_host_gaps();
  config_.prefetch_policy = prefetch;
  config_.write_policy = write;
}

void CacheImpl::detach_storage() {
  if (!storage_idle()) probe(Probe::kDetachedInFlight);
  storage_ = nullptr;
  backlog_.detach_storage();
  prefetcher_.detach_storage(clock_.now() + kDetachedWait);
  for (auto& [id, op] : ops_.all()) {
    if (op.kind == OpKind::kExplain) (void)ops_.abandon(op);
  }
}

bool CacheImpl::storage_idle() const {
  return std::none_of(ops_.all().begin(), ops_.all().end(), [this](const auto& entry) {
    const OpKind kind = entry.second.kind;
    if (!ops_.is_of_this_attachment(entry.second)) return false;
    return kind == OpKind::kExists || kind == OpKind::kRead || kind == OpKind::kStore || kind == OpKind::kExplain;
  });
}

CacheCounters CacheImpl::counters() const {
  CacheCounters c = counters_;
  const TierCounts& host = tree_.counts(ComponentKind::kFull, Tier::kHost);
  c.host_resident = host.resident + host.pending;
  c.rank_timeouts = ops_.parted().is_ok() ? 0 : 1;
  return c;
}

Status CacheImpl::check_invariants() const {
  LARDER_RETURN_IF_ERROR(tree_.check_invariants());
  if (counters_.internal_errors > 0) {
    return internal_error(std::to_string(counters_.internal_errors) + " refused slot operations");
  }
  LARDER_RETURN_IF_ERROR(check_device_slots());
  if (host_) LARDER_RETURN_IF_ERROR(check_host_slots());
  const CacheCounters c = counters();
  if (c.backed_up + c.prefetched != c.host_resident + c.host_evicted + c.host_lost) {
    return internal_error("host pages are not conserved: " + std::to_string(c.backed_up) + " backed up + " +
                          std::to_string(c.prefetched) + " prefetched != " + std::to_string(c.host_resident) +
                          " resident + " + std::to_string(c.host_evicted) + " evicted + " +
                          std::to_string(c.host_lost) + " lost");
  }
  return Status::ok();
}

Status CacheImpl::check_host_slots() const {
  LARDER_RETURN_IF_ERROR(host_->check_invariants());
  const std::array<std::uint64_t, kComponentCount> reading = prefetcher_.slots_held();
  for (const ComponentKind c : kAllComponents) {
    const TierCounts& counts = tree_.counts(c, Tier::kHost);
    const std::uint64_t tree = counts.resident + counts.pending;
    if (host_->counts(c).live == tree + reading[index_of(c)]) continue;
    return internal_error("host slots of " + std::string(component_name(c)) + ": " +
                          std::to_string(host_->counts(c).live) + " live, but the tree holds " + std::to_string(tree) +
                          " and prefetches " + std::to_string(reading[index_of(c)]));
  }
  return Status::ok();
}

Status CacheImpl::check_device_slots() const {
  ComponentCounts own{};  // device slots that requests and open steps hold beyond the tree
  ComponentCounts limbo{};
  const auto add = [](ComponentCounts& sum, const ComponentCounts& more) {
    for (std::size_t i = 0; i < kComponentCount; ++i) sum[i] += more[i];
  };
  for (const auto& [id, r] : requests_) add(own, r.run.slots()), add(limbo, r.run.ledger().in_limbo());
  for (const auto& [id, ledger] : departed_) add(own, ledger.slots()), add(limbo, ledger.in_limbo());
  if (limbo != in_limbo_) return internal_error("device slots in limbo are miscounted");
  for (const ComponentKind c : kAllComponents) {
    const std::uint32_t live = device_.slots(c).counts().live;
    const TierCounts& counts = tree_.counts(c, Tier::kDevice);
    const std::uint64_t tree = counts.resident + counts.pending;
    if (live != tree + own[index_of(c)]) {
      return internal_error("device slots of " + std::string(component_name(c)) + ": " + std::to_string(live) +
                            " live, but the tree holds " + std::to_string(tree) + " and requests and open steps " +
                            std::to_string(own[index_of(c)]));
    }
  }
  return Status::ok();
}

namespace {

std::string sentence(const TierMatch& match, std::uint64_t pages, std::uint32_t page_size, std::string_view where) {
  if (match.at.pages >= pages) return "the whole reusable prompt is a restore point " + std::string(where);
  const std::string at = std::to_string(match.at.pages * page_size);
  switch (match.reason) {
    case StopReason::kNone: return "the cached path ends at token " + at + " " + std::string(where);
    case StopReason::kFullMissing: return "attention pages beyond token " + at + " are not " + std::string(where);
    case StopReason::kSidecarMissing: return "sidecar pages beyond token " + at + " are not " + std::string(where);
    case StopReason::kWindowMissing: return "no later position has its whole sliding window " + std::string(where);
    case StopReason::kStateMissing: return "no later position has its recurrent checkpoint " + std::string(where);
    case StopReason::kNotFetched: break;  // of a request, not of a tier
  }
  return "";
}

}  // namespace

void CacheImpl::add_tier_lines(Explanation& report, NodeId node, std::uint64_t pages) const {
  for (const PoolSpec& pool : model_.pools) {
    ExplainLine line;
    line.component = component_name(pool.component);
    line.pool = pool_name(pool.name);
    for (NodeId at = node; tree_.view(at).end > 0; at = tree_.view(at).parent) {
      const NodeView view = tree_.view(at);
      const std::size_t i = index_of(pool.component);
      const std::uint64_t end = std::min(view.end, pages);
      const std::uint64_t count = pool.component == ComponentKind::kMamba ? (view.end <= pages ? 1 : 0)
                                                                          : (end > view.begin ? end - view.begin : 0);
      if (!view.device[i].empty() && !view.device_pending[i]) line.device_pages += count;
      if (!view.host[i].empty() && !view.host_pending[i]) line.host_pages += count;
    }
    report.pools.push_back(std::move(line));
  }
}

// The best restore point if one pool alone counted.
void CacheImpl::explain_pools(Explanation& report, const std::vector<PoolPresence>& presence,
                              std::uint64_t pages) const {
  for (ExplainLine& line : report.pools) {
    const auto have = std::find_if(presence.begin(), presence.end(),
                                   [&](const PoolPresence& x) { return pool_name(x.pool) == line.pool; });
    if (have == presence.end()) continue;
    ModelSpec alone = model_;
    std::erase_if(alone.pools, [&](const PoolSpec& pool) { return pool.name != have->pool; });
    line.restore_pages = largest_candidate(restore_candidates(alone, presence, 0, pages), 0, pages);
  }
}

// Touches nothing that another rank would have to do alike: an operator asks one of them. So the namespace is not
// opened, the keys are not the tree's (hashed edges are merged differently), and the operation has an id and a place of
// its own.
void CacheImpl::explain(const BeginRequest& request, std::function<void(Explanation)> done) {
  Explanation report;
  report.prompt_tokens = request.tokens.size();
  report.prompt_pages = request.tokens.empty() ? 0 : (request.tokens.size() - 1) / page_size();
  const std::span<const TokenId> tokens = request.tokens.first(report.prompt_pages * page_size());
  NamespaceScope scope = scope_;
  scope.adapter = request.adapter;
  scope.salt = request.salt;
  MatchResult match;
  if (const std::optional<NamespaceId> space = spaces_.find({request.adapter, request.salt})) {
    match = tree_.match(*space, tokens);
  }
  const std::uint64_t pages = report.prompt_pages, tree_full = std::min(match.full_any_pages, pages);
  report.device_restore_pages = match.device.at.pages;
  report.host_restore_pages = report.storage_restore_pages = match.any.at.pages;
  report.device_reason = sentence(match.device, pages, page_size(), "on the device");
  report.host_reason = sentence(match.any, pages, page_size(), "on device or host");
  add_tier_lines(report, match.walked.node, match.walked.pages);
  std::vector<PoolPresence> presence;
  const FetchPlanner planner{model_, tree_, host_};
  planner.add_tree(planner.position_at(match.walked.node, tree_full).node, tree_full, pages, presence);
  explain_pools(report, presence, pages);
  const bool is_busy = !ops_.has_room(OpKind::kExplain);
  if (!storage_ || pages == 0 || is_busy) {
    report.storage_reason = !storage_    ? "no storage backend is attached"
                            : pages == 0 ? "the prompt has no whole page to reuse"
                                         : "too many explanations wait for storage: ask again";
    done(std::move(report));
    return;
  }
  Op& op = ops_.add(OpKind::kExplain);
  op.explain = std::make_unique<ExplainOp>(ExplainOp{std::move(done), std::move(report), std::move(presence), pages});
  PageKeyChain chain(page_size(), namespace_digest(model_, scope));
  chain.append_pages(tokens);
  ExistsRequest query;
  query.scope = std::make_shared<const StoreScope>(make_store_scope(model_, scope));
  query.keys.assign(chain.keys().begin(), chain.keys().end());
  for (const PoolSpec& pool : model_.pools) query.pools.push_back(pool.name);
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage_->submit_exists(std::move(query), [complete](ExistsResult found) { complete(std::move(found)); });
  if (!submitted.is_ok()) complete(ExistsResult{submitted, {}});
}

void CacheImpl::explain_done(Op& op) {
  ExplainOp& e = *op.explain;
  Explanation& report = e.report;
  const auto* found = std::get_if<ExistsResult>(&op.completion);
  report.storage_status = found ? found->status : internal_error("no answer");
  if (found && found->status.is_ok()) {
    for (const PoolPresence& pool : found->presence) {
      const auto line = std::find_if(report.pools.begin(), report.pools.end(),
                                     [&](const ExplainLine& l) { return l.pool == pool_name(pool.pool); });
      const auto have = std::find_if(e.presence.begin(), e.presence.end(),
                                     [&](const PoolPresence& x) { return x.pool == pool.pool; });
      if (line == report.pools.end() || have == e.presence.end()) continue;  // not asked for
      for (std::size_t i = 0; i < pool.present.size() && i < have->present.size(); ++i) {
        if (!pool.present[i]) continue;
        ++line->storage_pages;
        have->present[i] = true;
      }
    }
    const RestorePoint joint = largest_restore_point(model_, e.presence, e.pages);
    report.storage_restore_pages = joint.pages;
    explain_pools(report, e.presence, e.pages);
    TierMatch view;
    view.at.pages = joint.pages;
    view.reason = joint.reason;
    report.storage_reason = sentence(view, e.pages, page_size(), "in any tier");
  } else {
    report.storage_reason = "storage did not answer: " + report.storage_status.to_string();
  }
  e.done(std::move(report));
}

}  // namespace larder
