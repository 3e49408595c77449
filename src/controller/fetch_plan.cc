// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch_plan.h"

#include <algorithm>

#include "base/defect.h"
#include "controller/host_presence.h"

namespace larder {

namespace {
bool is_there(const PageLocation& at) { return at.device.valid() || at.host.valid(); }
}  // namespace

std::uint64_t FetchPlanner::bytes_of(ComponentKind c) const {
  std::uint64_t bytes = 0;
  for (const PoolSpec& pool : model.pools) bytes += pool.component == c ? pool.page_bytes() : 0;
  return bytes;
}

// The tree's own pages count, too: a state may be in storage while its KV is on the host.
void FetchPlanner::add_tree(NodeId node, std::uint64_t tree_full, std::uint64_t pages,
                            std::vector<PoolPresence>& presence, std::uint64_t begin) const {
  std::array<std::vector<std::size_t>, kComponentCount> of;  // entries of each component
  for (const PoolSpec& pool : model.pools) {
    auto it = std::find_if(presence.begin(), presence.end(), [&](const auto& x) { return x.pool == pool.name; });
    if (it == presence.end()) it = presence.insert(it, PoolPresence{pool.name, {}});
    it->present.resize(pages - begin, false);
    of[index_of(pool.component)].push_back(static_cast<std::size_t>(it - presence.begin()));
  }
  const auto set = [&](ComponentKind c, std::uint64_t from, std::uint64_t to) {
    from = std::max(from, begin), to = std::min(to, pages);
    if (from >= to) return;
    for (const std::size_t entry : of[index_of(c)]) {
      const auto first = presence[entry].present.begin();
      std::fill(first + static_cast<std::ptrdiff_t>(from - begin), first + static_cast<std::ptrdiff_t>(to - begin),
                true);
    }
  };
  set(ComponentKind::kFull, 0, tree_full);
  // The path may end inside its node: what follows there, and the state at its end, are another prompt's.
  for (NodeView view = tree.view(node); view.end > begin; view = tree.view(view.parent)) {
    const auto published = [&](ComponentKind c) {
      const std::size_t i = index_of(c);
      return (!view.device[i].empty() && !view.device_pending[i]) || (!view.host[i].empty() && !view.host_pending[i]);
    };
    const bool has_end = view.end <= tree_full;
    if (has_end && published(ComponentKind::kMamba)) set(ComponentKind::kMamba, view.end - 1, view.end);
    if (published(ComponentKind::kSwa)) set(ComponentKind::kSwa, view.begin, std::min(view.end, tree_full));
  }
}

// A window or a state of storage's can be added to a page only where the host has full of that page, or storage does.
void FetchPlanner::drop_what_cannot_stand(const Fetch& f, const QueryPart& part,
                                          std::vector<PoolPresence>& presence) const {
  const std::uint64_t end = std::min(f.tree_full, part.end);
  if (part.begin >= end) return;
  std::vector<PageLocation> full;
  tree.locate(f.device_lock.node, ComponentKind::kFull, part.begin, end, full);
  const auto is_full = [&](const PoolPresence& of) {
    const PoolSpec* pool = model.find_pool(of.pool);
    return pool != nullptr && pool->component == ComponentKind::kFull;
  };
  for (std::uint64_t i = 0; i < full.size(); ++i) {
    if (full[i].host.valid()) continue;
    const bool comes = std::all_of(presence.begin(), presence.end(),
                                   [&](const PoolPresence& of) { return !is_full(of) || of.present[i]; });
    if (comes) continue;
    for (PoolPresence& of : presence) {
      if (!is_full(of)) of.present[i] = false;
    }
  }
}

std::vector<PoolPresence> FetchPlanner::presence_of(const Fetch& f, const QueryPart& part) const {
  const std::uint64_t pages = part.end - part.begin;
  const std::size_t words = words_for(pages);
  std::vector<PoolPresence> presence;
  for (const PoolSpec& pool : model.pools) {
    const std::size_t first = presence.size() * words * 64;
    Presence present(pages, false);
    for (std::uint64_t i = 0; i < pages; ++i) present[i] = has_bit(part.found, first + i);
    presence.push_back({pool.name, std::move(present)});
  }
  drop_what_cannot_stand(f, part, presence);
  add_tree(f.device_lock.node, f.tree_full, part.end, presence, part.begin);
  return presence;
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
      const NodeView view = tree.view(position_on_path(tree, f.device_lock.node, stop.end).node);
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
ComponentCounts FetchPlanner::plan(Fetch& f, std::uint64_t batch_bytes, std::uint64_t batch_pages,
                                   std::uint64_t share) const {
  const std::uint64_t page_bytes = std::max<std::uint64_t>(1, bytes_of(ComponentKind::kFull));
  const std::uint64_t most = std::clamp<std::uint64_t>(batch_bytes / page_bytes, 1, batch_pages);
  const std::uint64_t window = model.window_pages();
  const std::uint64_t stop_bytes = window * bytes_of(ComponentKind::kSwa) + bytes_of(ComponentKind::kMamba);
  const std::uint64_t gap = std::max({most, window, (stop_bytes * share + page_bytes - 1) / page_bytes});
  const std::uint64_t tree_end = std::min(f.tree_full, f.target);
  f.cut = {.stops = choose_stops(f.candidates, tree_end, f.target, gap), .most = most};
  ComponentCounts counts{};
  std::uint64_t full_from = std::min(f.tree_full, f.cut.stops.front());
  for (std::size_t i = 0; i < f.cut.stops.size(); ++i) {
    FetchBatch stop;
    stop.end = f.cut.stops[i];
    plan_stop(f, stop, full_from);
    if (i == 0) f.full_from = f.cut.from = full_from;
    counts[index_of(ComponentKind::kSwa)] += static_cast<std::uint32_t>(stop.end - stop.window_from);
    counts[index_of(ComponentKind::kMamba)] += stop.reads_state ? 1 : 0;
  }
  counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(f.target - f.full_from);
  return counts;
}

FetchBatch FetchPlanner::next_batch(Fetch& f) const {
  FetchBatch batch = f.cut.cut();
  std::uint64_t full_from = f.full_from;
  if (batch.is_stop) plan_stop(f, batch, full_from);
  return batch;
}

// Windows and states are known at the stop alone: before it, a page is a restore point only where its window begins no
// earlier than the stop's does, and where no state is needed.
std::uint64_t FetchPlanner::restore_point_of(const Fetch& f, std::size_t stop, std::uint64_t after) const {
  const FetchBatch& at = f.batches[stop];
  std::uint64_t full = f.full_to;  // pages of it that are there without a gap
  for (std::size_t i = f.first; i <= stop; ++i) {
    const FetchBatch& batch = f.batches[i];
    // Of a batch before the first, a part may have been adopted and the rest not have come.
    if (batch.begin > full && !defect(Defect::kBatchHoleIgnored)) break;
    full = std::max(full, batch.begin + batch.run());
    if (!batch.is_whole() && !defect(Defect::kBatchHoleIgnored)) break;
  }
  std::uint64_t best = std::min(full, at.end);
  if (model.has(ComponentKind::kMamba)) {
    const bool has_state = !at.reads_state || at.has(ComponentKind::kMamba, 0);
    if (best < at.end || !has_state) return after;
  }
  if (!model.has(ComponentKind::kSwa)) return std::max(best, after);
  std::uint64_t run = 0, found = after;  // run: window pages without a gap
  for (std::uint64_t p = at.window_begin; p < best; ++p) {
    run = p < at.window_from || at.has(ComponentKind::kSwa, p - at.window_from) ? run + 1 : 0;
    if (p + 1 > after && run >= model.window_pages_at(p + 1)) found = p + 1;
  }
  return model.has(ComponentKind::kMamba) && found != at.end ? after : found;
}

HostSpace FetchPlanner::held_space(const Fetch& f) const {
  std::uint64_t pages = 0;
  NodeView view = tree.view(f.host_lock.node);
  for (; view.end > 0; view = tree.view(view.parent)) pages += view.host[index_of(ComponentKind::kFull)].size();
  return host->space_of(ComponentKind::kFull, pages);
}

}  // namespace larder
