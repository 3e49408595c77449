// What operators ask of a cache: flush, attach and detach, explain, counters, invariants.
#include <algorithm>

#include "controller/cache_impl.h"
#include "controller/joint.h"

namespace larder {

std::uint64_t CacheImpl::flush() {
  const std::uint64_t before = tree_.node_count();
  const std::uint64_t left = tree_.flush();
  return before - std::min(before, left);
}

Status CacheImpl::attach_storage(StorageBackend& backend) {
  if (!host_) return invalid_argument("storage needs the host tier: enable the hierarchical cache");
  if (storage_) return conflict("storage backend '" + storage_->info().name + "' is attached; detach it first");
  storage_ = &backend;
  ++storage_epoch_;          // what an earlier storage has says nothing about this one
  unstored_hint_ = true;     // prefixes cached before get their keys completed and are backed up
  pump_stores();
  return Status::ok();
}

void CacheImpl::detach_storage() {
  storage_ = nullptr;
  for (const OpId id : store_queue_) {
    (void)tree_.finish_op(id, true);
    ops_.erase(id.v);
  }
  store_queue_.clear();
}

bool CacheImpl::storage_idle() const {
  return std::none_of(ops_.begin(), ops_.end(), [](const auto& entry) {
    const OpKind kind = entry.second.kind;
    return kind == OpKind::kExists || kind == OpKind::kRead || kind == OpKind::kStore || kind == OpKind::kExplain;
  });
}

CacheCounters CacheImpl::counters() const {
  CacheCounters c = counters_;
  const TierCounts& host = tree_.counts(ComponentKind::kFull, Tier::kHost);
  c.host_resident = host.resident + host.pending;
  return c;
}

Status CacheImpl::check_invariants() const {
  LARDER_RETURN_IF_ERROR(tree_.check_invariants());
  if (host_) LARDER_RETURN_IF_ERROR(host_->check_invariants());
  if (counters_.internal_errors > 0) {
    return internal_error(std::to_string(counters_.internal_errors) + " refused slot operations");
  }
  ComponentCounts own{};   // device slots that requests hold beyond the tree
  for (const auto& [id, r] : requests_) {
    if (r.phase != RequestPhase::kLoading && r.phase != RequestPhase::kRunning) continue;
    own[0] += static_cast<std::uint32_t>(r.table.full.size() - r.committed);
    for (std::uint64_t i = r.committed; i < r.table.swa.size(); ++i) own[1] += r.table.swa[i].valid() ? 1 : 0;
    own[2] += (r.table.state.valid() ? 1 : 0) + static_cast<std::uint32_t>(r.taken.size());
    own[2] += r.tracked.slot.valid() ? 1 : 0;
    for (const StateSnapshotSlot& s : r.granted) own[2] += s.slot != r.tracked.slot ? 1 : 0;
  }
  for (const ComponentKind c : kAllComponents) {
    const std::uint32_t live = device_.slots(c).counts().live;
    const TierCounts& counts = tree_.counts(c, Tier::kDevice);
    const std::uint64_t tree = counts.resident + counts.pending;
    if (live != tree + own[index_of(c)]) {
      return internal_error("device slots of " + std::string(component_name(c)) + ": " + std::to_string(live) +
                            " live, but the tree holds " + std::to_string(tree) + " and requests " +
                            std::to_string(own[index_of(c)]));
    }
  }
  const CacheCounters c = counters();
  if (c.backed_up + c.prefetched != c.host_resident + c.host_evicted + c.host_lost) {
    return internal_error("host pages are not conserved: " + std::to_string(c.backed_up) + " backed up + " +
                          std::to_string(c.prefetched) + " prefetched != " + std::to_string(c.host_resident) +
                          " resident + " + std::to_string(c.host_evicted) + " evicted + " +
                          std::to_string(c.host_lost) + " lost");
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

void CacheImpl::explain(const BeginRequest& request, std::function<void(Explanation)> done) {
  Explanation report;
  report.prompt_tokens = request.tokens.size();
  report.prompt_pages = request.tokens.empty() ? 0 : (request.tokens.size() - 1) / page_size();
  const Result<NamespaceId> space = space_for(request.adapter, request.salt);
  if (!space.is_ok()) {
    report.storage_status = space.status();
    done(std::move(report));
    return;
  }
  const std::span<const TokenId> tokens = request.tokens.first(report.prompt_pages * page_size());
  const MatchResult match = tree_.match(*space, tokens);
  report.device_restore_pages = match.device.at.pages;
  report.host_restore_pages = report.storage_restore_pages = match.any.at.pages;
  report.device_reason = sentence(match.device, report.prompt_pages, page_size(), "on the device");
  report.host_reason = sentence(match.any, report.prompt_pages, page_size(), "on device or host");
  add_tier_lines(report, match.walked.node, match.walked.pages);
  if (!storage_ || report.prompt_pages == 0 || !has_room_for_op()) {
    if (!storage_) report.storage_reason = "no storage backend is attached";
    done(std::move(report));
    return;
  }
  Op& op = new_op(OpKind::kExplain);
  op.explain = std::make_unique<ExplainOp>();
  auto p = std::make_unique<Prefetch>();
  p->space = *space;
  p->tokens.assign(tokens.begin(), tokens.end());
  p->pages = report.prompt_pages;
  p->full_from = std::min(match.full_any_pages, p->pages);
  collect_keys(*p, match.walked);
  p->device_lock.node = position_at(match.walked.node, p->full_from).node;
  add_tree_presence(*p, p->device_lock.node);
  op.explain->presence = p->presence;
  op.explain->pages = p->pages;
  op.explain->report = std::move(report);
  op.explain->done = std::move(done);
  op.prefetch = std::move(p);
  submit_exists(op);
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
      for (std::size_t i = 0; i < pool.present.size() && i < have->present.size(); ++i) {
        if (!pool.present[i]) continue;
        ++line->storage_pages;
        have->present[i] = true;
      }
    }
    const RestorePoint joint = largest_restore_point(model_, e.presence, e.pages);
    report.storage_restore_pages = joint.pages;
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
