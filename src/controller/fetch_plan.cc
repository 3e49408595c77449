#include "controller/fetch_plan.h"

#include <algorithm>

#include "controller/joint.h"

namespace larder {

namespace {
bool is_there(const PageLocation& at) { return at.device.valid() || at.host.valid(); }
}  // namespace

TreePosition FetchPlanner::position_at(NodeId node, std::uint64_t pages) const {
  while (pages > 0 && tree.view(node).begin >= pages) node = tree.view(node).parent;
  return {node, pages};
}

std::uint64_t FetchPlanner::bytes_of(ComponentKind c) const {
  std::uint64_t bytes = 0;
  for (const PoolSpec& pool : model.pools) bytes += pool.component == c ? pool.page_bytes() : 0;
  return bytes;
}

// The tree's own pages count, too: a state may be in storage while its KV is on the host.
void FetchPlanner::add_tree(NodeId node, std::uint64_t tree_full, std::uint64_t pages,
                            std::vector<PoolPresence>& presence) const {
  std::array<std::vector<std::size_t>, kComponentCount> of;  // entries of each component
  for (const PoolSpec& pool : model.pools) {
    auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& x) { return x.pool == pool.name; });
    if (it == presence.end()) it = presence.insert(it, PoolPresence{pool.name, {}});
    it->present.resize(pages, false);
    of[index_of(pool.component)].push_back(static_cast<std::size_t>(it - presence.begin()));
  }
  const auto set = [&](ComponentKind c, std::uint64_t from, std::uint64_t to) {
    to = std::min(to, pages);
    for (const std::size_t entry : of[index_of(c)]) {
      for (std::uint64_t i = from; i < to; ++i) presence[entry].present[i] = true;
    }
  };
  set(ComponentKind::kFull, 0, tree_full);
  for (NodeView view = tree.view(node); view.end > 0; view = tree.view(view.parent)) {
    const auto published = [&](ComponentKind c) {
      const std::size_t i = index_of(c);
      return (!view.device[i].empty() && !view.device_pending[i]) || (!view.host[i].empty() && !view.host_pending[i]);
    };
    if (published(ComponentKind::kMamba)) set(ComponentKind::kMamba, view.end - 1, view.end);
    if (published(ComponentKind::kSwa)) set(ComponentKind::kSwa, view.begin, view.end);
  }
}

// A window or a state of storage's can be added to a page only where the host has full of that page, or storage does.
void FetchPlanner::drop_what_cannot_stand(const Fetch& f, std::vector<PoolPresence>& presence) const {
  const std::uint64_t end = std::min(f.tree_full, f.pages);
  if (f.key_from >= end) return;
  std::vector<PageLocation> full;
  tree.locate(f.device_lock.node, ComponentKind::kFull, f.key_from, end, full);
  const auto is_full = [&](const PoolPresence& of) {
    const PoolSpec* pool = model.find_pool(of.pool);
    return pool != nullptr && pool->component == ComponentKind::kFull;
  };
  for (std::uint64_t page = f.key_from; page < end; ++page) {
    if (full[page - f.key_from].host.valid()) continue;
    const bool comes = std::all_of(presence.begin(), presence.end(),
                                   [&](const PoolPresence& of) { return !is_full(of) || of.present[page]; });
    if (comes) continue;
    for (PoolPresence& of : presence) {
      if (!is_full(of)) of.present[page] = false;
    }
  }
}

OutcomeBits FetchPlanner::candidates(const Fetch& f, const ExistsResult& found) const {
  std::vector<PoolPresence> presence;
  for (const PoolPresence& pool : found.presence) {
    PoolPresence absolute{pool.pool, Presence(f.pages, false)};
    for (std::size_t i = 0; i < pool.present.size() && f.key_from + i < f.pages; ++i) {
      absolute.present[f.key_from + i] = pool.present[i];
    }
    presence.push_back(std::move(absolute));
  }
  drop_what_cannot_stand(f, presence);
  add_tree(f.device_lock.node, f.tree_full, f.pages, presence);
  return restore_candidates(model, presence, f.base, f.pages);
}

// The window comes in one run, from its first page that the tree lacks to its end. On the host, windows and states
// stand on full (I3 of the tree): from the first page where one is to be added and the host has none, full comes too.
void FetchPlanner::plan_stop(const Fetch& f, FetchBatch& stop, std::uint64_t& full_from) const {
  const std::uint64_t end = std::min(f.tree_full, stop.end);
  std::vector<PageLocation> swa, full;
  stop.window_begin = stop.end - model.window_pages_at(stop.end);
  stop.window_from = stop.end;
  if (model.has(ComponentKind::kSwa)) {
    if (stop.window_begin < end) {
      tree.locate(f.device_lock.node, ComponentKind::kSwa, stop.window_begin, end, swa);
    }
    const auto gap = std::find_if_not(swa.begin(), swa.end(), is_there);
    stop.window_from = stop.window_begin + static_cast<std::uint64_t>(gap - swa.begin());
  }
  if (model.has(ComponentKind::kMamba)) {
    bool has_state = false;
    if (stop.end <= f.tree_full) {
      const NodeView view = tree.view(position_at(f.device_lock.node, stop.end).node);
      const std::size_t m = index_of(ComponentKind::kMamba);
      has_state = view.end == stop.end && (!view.device[m].empty() || !view.host[m].empty());
    }
    stop.reads_state = !has_state;
  }
  const std::uint64_t first = std::min(stop.window_from, stop.end - (stop.reads_state ? 1 : 0));
  if (first < end) tree.locate(f.device_lock.node, ComponentKind::kFull, first, end, full);
  for (std::uint64_t page = first; page < end && page < full_from; ++page) {
    const bool adds_window = page >= stop.window_from && !is_there(swa[page - stop.window_begin]);
    const bool adds_state = page + 1 == stop.end && stop.reads_state;
    if ((adds_window || adds_state) && !full[page - first].host.valid()) full_from = page;
  }
}

// Windows of two stops never overlap, and only the first stop's can lie in what the tree has.
ComponentCounts FetchPlanner::plan(Fetch& f, const OutcomeBits& candidates, std::uint64_t batch_bytes,
                                   std::uint64_t share) const {
  const std::uint64_t page_bytes = std::max<std::uint64_t>(1, bytes_of(ComponentKind::kFull));
  const std::uint64_t most = std::max<std::uint64_t>(1, batch_bytes / page_bytes);
  const std::uint64_t window = model.window_pages();
  const std::uint64_t stop_bytes = window * bytes_of(ComponentKind::kSwa) + bytes_of(ComponentKind::kMamba);
  const std::uint64_t gap = std::max({most, window, (stop_bytes * share + page_bytes - 1) / page_bytes});
  const std::uint64_t tree_end = std::min(f.tree_full, f.target);
  const std::vector<std::uint64_t> stops = choose_stops(candidates, tree_end, f.target, gap);
  FetchBatch first;
  first.end = stops.front();
  f.full_from = std::min(f.tree_full, first.end);
  plan_stop(f, first, f.full_from);
  f.batches = cut_batches(f.full_from, stops, most);
  ComponentCounts counts{};
  counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(f.target - f.full_from);
  for (FetchBatch& batch : f.batches) {
    if (!batch.is_stop) continue;
    std::uint64_t full_from = f.full_from;
    plan_stop(f, batch, full_from);
    counts[index_of(ComponentKind::kSwa)] += static_cast<std::uint32_t>(batch.end - batch.window_from);
    counts[index_of(ComponentKind::kMamba)] += batch.reads_state ? 1 : 0;
  }
  return counts;
}

std::uint64_t FetchPlanner::held_blocks(const Fetch& f) const {
  std::uint64_t pages = 0;
  NodeView view = tree.view(f.host_lock.node);
  for (; view.end > 0; view = tree.view(view.parent)) pages += view.host[index_of(ComponentKind::kFull)].size();
  return pages * host->blocks_per_slot(ComponentKind::kFull);
}

}  // namespace larder
