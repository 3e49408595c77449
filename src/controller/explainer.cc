// SPDX-License-Identifier: Apache-2.0
#include "controller/explainer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "controller/fetch_plan.h"
#include "controller/host_presence.h"
#include "controller/joint.h"
#include "key/page_key.h"

namespace larder {

namespace {

constexpr const char* kNoPage = "the prompt has no whole page to reuse";

std::string sentence(const TierMatch& match, std::uint64_t pages, std::uint32_t page_size, std::string_view where) {
  if (pages == 0) return kNoPage;
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

Explainer::Explainer(const Parts& parts)
    : model_(parts.model),
      host_(parts.host),
      scope_(parts.scope),
      tree_(parts.tree),
      spaces_(parts.spaces),
      ops_(parts.ops),
      prefetch_threshold_(parts.prefetch_threshold) {}

void Explainer::add_tier_lines(Explanation& report, NodeId node, std::uint64_t pages) const {
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
void Explainer::add_restore_points(Explanation& report, const std::vector<PoolPresence>& presence,
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

Explanation Explainer::explain_memory(const BeginRequest& request, std::vector<PoolPresence>& presence) const {
  Explanation report;
  report.prompt_tokens = request.tokens.size();
  report.prompt_pages = request.tokens.empty() ? 0 : (request.tokens.size() - 1) / model_.page_size;
  const std::uint64_t pages = report.prompt_pages;
  MatchResult match;
  if (const std::optional<NamespaceId> space = spaces_.find({request.adapter, request.salt})) {
    match = tree_.match(*space, request.tokens.first(pages * model_.page_size));
  }
  const std::uint64_t tree_full = std::min(match.full_any_pages, pages);
  report.device_restore_pages = match.device.at.pages;
  report.host_restore_pages = report.storage_restore_pages = match.any.at.pages;
  report.device_reason = sentence(match.device, pages, model_.page_size, "on the device");
  report.host_reason = sentence(match.any, pages, model_.page_size, "on device or host");
  add_tier_lines(report, match.walked.node, match.walked.pages);
  const FetchPlanner planner{model_, tree_, host_};
  planner.add_tree(position_on_path(tree_, match.walked.node, tree_full).node, tree_full, pages, presence);
  add_restore_points(report, presence, pages);
  return report;
}

// The keys are not the tree's: hashed edges are merged differently, and another rank would not have them hashed.
ExistsRequest Explainer::query_for(const BeginRequest& request, std::uint64_t pages) const {
  NamespaceScope scope = scope_;
  scope.adapter = request.adapter;
  scope.salt = request.salt;
  PageKeyChain chain(model_.page_size, namespace_digest(model_, scope));
  chain.append_pages(request.tokens.first(pages * model_.page_size));
  ExistsRequest query;
  query.scope = std::make_shared<const StoreScope>(make_store_scope(model_, scope));
  query.keys.assign(chain.keys().begin(), chain.keys().end());
  for (const PoolSpec& pool : model_.pools) query.pools.push_back(pool.name);
  return query;
}

void Explainer::explain(const BeginRequest& request, StorageBackend* storage, Done done) {
  std::vector<PoolPresence> presence;
  Explanation report = explain_memory(request, presence);
  const std::uint64_t pages = report.prompt_pages;
  const bool is_busy = !ops_.places().has_room(OpKind::kExplain);
  if (storage == nullptr || pages == 0 || is_busy) {
    report.storage_reason = pages == 0           ? kNoPage
                            : storage == nullptr ? "no storage backend is attached"
                                                 : "too many explanations wait for storage: ask again";
    done(std::move(report));
    return;
  }
  Op& op = ops_.add(OpKind::kExplain);
  op.explain = std::make_unique<ExplainOp>(ExplainOp{std::move(done), std::move(report), std::move(presence), pages});
  auto complete = ops_.completion_for(op.id);
  const Status submitted =
      storage->submit_exists(query_for(request, pages), [complete](ExistsResult found) { complete(std::move(found)); });
  if (!submitted.is_ok()) complete(ExistsResult{submitted, {}});
}

void Explainer::cancel_all(const std::string& why) {
  std::vector<std::unique_ptr<ExplainOp>> waiting;  // told when nothing here is looked at any more
  for (auto& [id, op] : ops_.all()) {
    if (!op.explain) continue;
    (void)ops_.abandon(op);
    waiting.push_back(std::move(op.explain));
  }
  for (const std::unique_ptr<ExplainOp>& e : waiting) {
    e->report.storage_status = cancelled(why);
    e->report.storage_reason = "storage did not answer: " + why;
    e->done(std::move(e->report));
  }
}

void Explainer::add_presence(ExplainOp& e, const ExistsResult& found) {
  for (const PoolPresence& pool : found.presence) {
    const auto line = std::find_if(e.report.pools.begin(), e.report.pools.end(),
                                   [&](const ExplainLine& l) { return l.pool == pool_name(pool.pool); });
    const auto have =
        std::find_if(e.presence.begin(), e.presence.end(), [&](const PoolPresence& x) { return x.pool == pool.pool; });
    if (line == e.report.pools.end() || have == e.presence.end()) continue;  // not asked for
    for (std::size_t i = 0; i < pool.present.size() && i < have->present.size(); ++i) {
      if (!pool.present[i]) continue;
      ++line->storage_pages;
      have->present[i] = true;
    }
  }
}

void Explainer::add_storage(ExplainOp& e) const {
  Explanation& report = e.report;
  const RestorePoint joint = largest_restore_point(model_, e.presence, e.pages);
  report.has_storage_answer = true;
  const std::uint64_t memory = report.host_restore_pages;
  const std::uint64_t gain = joint.pages > memory ? (joint.pages - memory) * model_.page_size : 0;
  if (gain > 0 && gain < prefetch_threshold_) {
    report.storage_reason = "storage has " + std::to_string(gain) +
                            " tokens more, which are too few to fetch (prefetch_threshold is " +
                            std::to_string(prefetch_threshold_) + ")";
    return;
  }
  report.storage_restore_pages = joint.pages;
  TierMatch view;
  view.at.pages = joint.pages;
  view.reason = joint.reason;
  report.storage_reason = sentence(view, e.pages, model_.page_size, "in any tier");
}

// Whoever is told may call the cache, and end what waits: this one is over.
void Explainer::done(Op& op) {
  const std::unique_ptr<ExplainOp> over = std::move(op.explain);
  if (!over) return;
  ExplainOp& e = *over;
  Explanation& report = e.report;
  const auto* found = std::get_if<ExistsResult>(&op.completion);
  report.storage_status = found ? found->status : internal_error("no answer");
  if (found && found->status.is_ok()) {
    add_presence(e, *found);
    add_storage(e);
    add_restore_points(report, e.presence, e.pages);
  } else {
    report.storage_reason = "storage did not answer: " + report.storage_status.to_string();
  }
  e.done(std::move(report));
}

}  // namespace larder
