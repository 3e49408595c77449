// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch_adopter.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "tree/tree_backlog.h"

namespace larder {

FetchAdopter::Goal FetchAdopter::goal_of(const Fetch& f) const {
  Goal goal{f.adopted, 0};
  std::uint64_t after = f.adopted;
  for (std::size_t i = f.first; i < f.batches.size(); ++i) {
    const FetchBatch& batch = f.batches[i];
    if (batch.state != FetchBatch::State::kArrived) break;
    if (batch.is_stop) {
      const std::uint64_t reached = parts_.planner.restore_point_of(f, i, after);
      if (reached > after) goal = {reached, i};
      after = batch.end;
    }
    if (!batch.is_whole() && !defect(Defect::kBatchHoleIgnored)) break;
  }
  const bool is_last = goal.stop + 1 == f.batches.size();
  if (defect(Defect::kPartialFetchIsWhole) && goal.pages > f.adopted && is_last) goal.pages = f.target;
  return goal;
}

// The windows and states of the stops before the goal are not kept: who can use them can use the later one.
FetchAdopter::Given FetchAdopter::adopt(Fetch& f) {
  const Goal goal = goal_of(f);
  if (goal.pages == f.adopted) return {};
  // What came late, or follows what was adopted before, may have lost what it continues: no lock keeps it.
  const std::span<const TokenId> path = std::span<const TokenId>(f.tokens).first(f.full_to * parts_.model.page_size);
  const bool is_kept = f.device_lock.held && (f.full_to == f.full_from || f.adopted_lock.held);
  if (!is_kept && parts_.tree.match(f.space, path).full_any_pages != f.full_to) return {};
  // Batches of full that make a piece; each is a piece at most.
  std::size_t last = f.first;
  while (f.batches[last].end <= f.full_to && last < goal.stop) ++last;
  for (const std::uint64_t most = f.full_to + parts_.ops.budget().piece();
       last < goal.stop && f.batches[last + 1].end <= most;) {
    ++last;
  }
  const bool is_all = last == goal.stop;
  const std::uint64_t pages = is_all ? goal.pages : f.batches[last].end;
  if (!give(f, last, pages, is_all)) return {};
  f.full_to = std::max(f.full_to, pages);
  if (!is_all) return {pages, false};
  f.adopted = goal.pages;
  for (; f.first <= goal.stop; ++f.first) {
    f.bytes += f.batches[f.first].bytes;
    parts_.room.give_back(f.batches[f.first]);
    f.batches[f.first].state = FetchBatch::State::kOver;
  }
  return {pages, true};
}

bool FetchAdopter::give(Fetch& f, std::size_t last, std::uint64_t pages, bool is_stop) {
  FetchBatch& at = f.batches[last];
  const std::uint32_t page_size = parts_.model.page_size;
  const auto kept_of = [&](const FetchBatch& batch) {
    return pages > batch.begin ? std::min<std::uint64_t>(pages - batch.begin, batch.slots[0].size()) : 0;
  };
  std::vector<HostSlot> full;
  for (std::size_t i = f.first; i <= last; ++i) {
    const auto kept = static_cast<std::ptrdiff_t>(kept_of(f.batches[i]));
    full.insert(full.end(), f.batches[i].slots[0].begin(), f.batches[i].slots[0].begin() + kept);
  }
  std::vector<HostSlot>& swa = at.slots[index_of(ComponentKind::kSwa)];
  const std::uint64_t window = is_stop && pages > at.window_from ? pages - at.window_from : 0;
  const bool has_state = is_stop && at.reads_state && pages == at.end;
  HostInsertRequest insert;
  insert.space = f.space;
  insert.tokens = std::span<const TokenId>(f.tokens).first(pages * page_size);
  insert.from = std::min(f.full_to, pages);
  insert.full = full;
  insert.swa = std::span<const HostSlot>(swa).first(window);
  if (has_state) insert.state = at.slots[index_of(ComponentKind::kMamba)].front();
  insert.keys = std::span<const PageKey>(f.keys).subspan(insert.from - f.key_from, full.size());
  const std::uint64_t evicted = parts_.counters.host_evicted;
  const Result<InsertResult> inserted = parts_.tree.insert_host(insert);
  parts_.ops.budget().spend(full.size() + window + insert.from * page_size / 4096 + 1);
  if (!inserted.is_ok()) {
    ++parts_.counters.internal_errors;
    return false;
  }
  // Duplicates of what others brought meanwhile come back through the sink: not evictions.
  probe(Probe::kPrefetchAdopted);
  parts_.counters.prefetched += full.size() - (parts_.counters.host_evicted - evicted);
  parts_.counters.host_evicted = evicted;
  mark_stored(inserted->node, f, at, pages, is_stop);
  for (std::size_t i = f.first; i <= last; ++i) {
    std::vector<HostSlot>& slots = f.batches[i].slots[0];
    slots.erase(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(kept_of(f.batches[i])));
  }
  swa.erase(swa.begin(), swa.begin() + static_cast<std::ptrdiff_t>(window));
  if (has_state) at.slots[index_of(ComponentKind::kMamba)].clear();
  if (f.device_lock.held && (!is_stop || f.adopted_lock.held)) {
    parts_.tree.unlock(f.adopted_lock);
    f.adopted_lock = parts_.tree.lock(inserted->node, Tier::kHost, {.full = true, .swa = false, .mamba = false});
  }
  return true;
}

// What came from the storage that is attached need not be written there again.
void FetchAdopter::mark_stored(NodeId node, const Fetch& f, const FetchBatch& last, std::uint64_t pages, bool is_stop) {
  if (!is_attached_ || f.epoch != parts_.backlog.epoch()) return;
  RadixTree& tree = parts_.tree;
  const bool read_state = is_stop && last.reads_state && pages == last.end;
  const std::uint64_t window_from = is_stop ? last.window_from : pages;
  // The window may reach back over pages that were adopted before it.
  const std::uint64_t first = std::min(f.full_to, std::max(f.full_from, window_from));
  for (NodeView view = tree.view(node); view.end > 0 && view.begin >= first; view = tree.view(node)) {
    const bool has_window = !view.host[index_of(ComponentKind::kSwa)].empty();
    const bool has_state = !view.host[index_of(ComponentKind::kMamba)].empty();
    // What else the node has on the host was computed here, and storage may lack it.
    const bool all_read =
        (!has_window || view.begin >= window_from) && (!has_state || (read_state && view.end == pages));
    if (all_read) tree.backlog().set_stored(node, parts_.backlog.epoch());
    node = view.parent;
  }
}

// The tree may count on storage for what is read again.
void FetchAdopter::forget_lost(const Fetch& f, const FetchBatch& batch, const OutcomeBits& bits) {
  const std::size_t words = words_for(batch.slot_count());
  if (!f.device_lock.held || bits.size() <= 2 * words || bits[2 * words] == 0) return;
  const ComponentCounts needs = batch.needs();
  const auto is_lost = [&](std::uint64_t place, std::uint64_t count) {
    for (const std::uint64_t end = place + count; place < end; ++place) {
      if (!has_bit(bits, words * 64 + place)) return true;
    }
    return false;
  };
  const auto in_node = [&](const NodeView& view, std::uint64_t from, std::uint64_t place) {
    const std::uint64_t begin = std::max(view.begin, from), end = std::min(view.end, batch.end);
    return begin < end && is_lost(place + (begin - from), end - begin);
  };
  const std::uint64_t first = std::min({batch.begin, batch.window_from, batch.end - needs[2]});
  RadixTree& tree = parts_.tree;
  NodeId node = f.device_lock.node;
  for (NodeView view = tree.view(node); view.end > first; node = view.parent, view = tree.view(node)) {
    const bool has_state = needs[2] > 0 && view.end == batch.end;
    tree.backlog().set_lost(node, f.epoch,
                            {in_node(view, batch.begin, 0), in_node(view, batch.window_from, needs[0]),
                             has_state && is_lost(std::uint64_t{needs[0]} + needs[1], 1)});
  }
}

}  // namespace larder
