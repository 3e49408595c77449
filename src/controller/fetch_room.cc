// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch_room.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"
#include "controller/host_presence.h"

namespace larder {

// What comes is added to the host's copy of the pages before it, and counts on the window and the state that are there
// already: these must not go while room is made for it. (On the device they may: what running requests need there was
// promised to them.)
void FetchRoom::hold_host_path(Fetch& f, const ComponentCounts& counts) {
  const NodeId held = parts_.tree.settle(position_on_path(parts_.tree, f.device_lock.node, f.full_from));
  const bool has_state = f.full_from == f.target && counts[index_of(ComponentKind::kMamba)] == 0;
  parts_.tree.unlock(f.host_lock);
  f.host_lock = parts_.tree.lock(held, Tier::kHost,
                                 LockParts{.full = true,
                                           .swa = parts_.model.has(ComponentKind::kSwa),
                                           .mamba = has_state && parts_.model.has(ComponentKind::kMamba)});
}

// False: there can be no room for it. If its slots are taken in pieces, that should be known before others are evicted.
bool FetchRoom::plan(Fetch& f) {
  WorkBudget& budget = parts_.ops.budget();
  const ComponentCounts counts = parts_.planner.plan(f, parts_.config.prefetch_batch_bytes, budget.piece(), kStopShare);
  budget.spend(f.cut.stops.size() / 16 + (f.pages - f.base) / 4096 + 1);
  hold_host_path(f, counts);
  f.room_needed = parts_.host->space_of(counts);
  if (!f.room_needed.fits_in(parts_.host->total())) return false;
  const TenantId who = parts_.tree.spaces().tenant_of(f.space);
  HostSpace reach = parts_.room.in_reach(who);
  if (parts_.backlog.may_wait()) reach += parts_.backlog.kept();
  if (counts[0] + counts[1] > budget.piece() && !f.room_needed.fits_in(reach)) return false;
  f.blocks = f.room_needed.blocks;
  parts_.queue.add_blocks(f.blocks);
  f.batches.reserve((f.target - f.full_from) / f.cut.most + f.cut.stops.size());
  return true;
}

HostAnswer FetchRoom::take_piece(Fetch& f) {
  WorkBudget& budget = parts_.ops.budget();
  const std::size_t first = f.with_slots;  // those behind it waited for storage
  ComponentCounts counts{};
  const auto add = [&counts](const FetchBatch& batch) {
    for (std::size_t i = 0; i < kComponentCount; ++i) counts[i] += batch.needs()[i];
  };
  std::for_each(f.batches.begin() + static_cast<std::ptrdiff_t>(first), f.batches.end(), add);
  while (!f.cut.is_over() && counts[0] + counts[1] + (f.batches.size() - first) < budget.piece()) {
    f.batches.push_back(parts_.planner.next_batch(f));
    add(f.batches.back());
  }
  budget.spend((counts[0] + counts[1] + counts[2]) / 4 + (f.batches.size() - first) + 1);
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  const TenantId who = parts_.tree.spaces().tenant_of(f.space);
  const HostEffort effort = f.store_waits < kMostStoreWaits ? HostEffort::kGently : HostEffort::kAll;
  const HostAnswer answer = parts_.room.take(counts, effort, slots, who);
  if (answer != HostAnswer::kThere) return answer;
  std::array<std::size_t, kComponentCount> given{};
  for (std::size_t k = first; k < f.batches.size(); ++k) {
    const ComponentCounts needs = f.batches[k].needs();
    for (std::size_t i = 0; i < kComponentCount; ++i) {
      const auto from = slots[i].begin() + static_cast<std::ptrdiff_t>(given[i]);
      f.batches[k].slots[i].assign(from, from + static_cast<std::ptrdiff_t>(needs[i]));
      given[i] += needs[i];
    }
  }
  f.with_slots = f.batches.size();
  return HostAnswer::kThere;
}

FetchRoom::Answer FetchRoom::go_on(Fetch& f) {
  for (; f.tries < kTries; ++f.tries) {
    if (!parts_.ops.budget().has_left()) return Answer::kNotYet;
    bool fits = true;
    if (f.cut.stops.empty()) {
      f.target = largest_candidate(f.candidates, f.base, f.upto);
      if (f.target < f.base + parts_.queue.least_gain()) break;
      fits = plan(f);
    }
    while (fits && !(f.cut.is_over() && f.with_slots == f.batches.size())) {
      if (!parts_.ops.budget().has_left()) return Answer::kNotYet;
      const HostAnswer answer = take_piece(f);
      if (answer == HostAnswer::kWaitsForStores) {
        ++f.store_waits;
        return Answer::kWaitsForStores;
      }
      fits = answer == HostAnswer::kThere;
    }
    if (fits) {
      f.cut = FetchCut{};
      f.full_to = f.full_from;
      if (f.full_from < std::min(f.tree_full, f.target)) probe(Probe::kFullReadAgain);
      return Answer::kTaken;
    }
    (void)drop_batches(f, 0);
    f.cut = FetchCut{};
    parts_.queue.drop_blocks(std::exchange(f.blocks, 0));
    // A request that waits for all of its prefetch also waits for the host pages that running requests will give back,
    // rather than fetch a shorter prefix now. (Where all of it can never fit, it takes what fits.)
    const bool room_will_come =
        parts_.config.prefetch_policy == PrefetchPolicy::kWaitComplete && parts_.is_engine_busy();
    const HostSpace needed = f.room_needed + parts_.planner.held_space(f) + parts_.backlog.kept_by_abandoned();
    f.waits_for_room = f.tries == 0 && room_will_come && needed.fits_in(parts_.host->total());
    if (f.waits_for_room) break;
    f.upto = f.base + (f.target - f.base) / 2;
  }
  f.target = 0;
  return Answer::kNone;
}

void FetchRoom::unlock(Fetch& f) {
  for (LockHandle* lock : {&f.device_lock, &f.host_lock, &f.adopted_lock}) parts_.tree.unlock(*lock);
}

std::uint64_t FetchRoom::drop_batches(Fetch& f, std::size_t from) {
  std::uint64_t blocks = 0, slots = 0;
  for (std::size_t i = from; i < f.batches.size(); ++i) {
    for (const ComponentKind c : kAllComponents) {
      const std::uint64_t count = f.batches[i].slots[index_of(c)].size();
      blocks += parts_.host->space_of(c, count).blocks;
      slots += count;
    }
    give_back(f.batches[i]);
  }
  parts_.ops.budget().spend((slots + f.batches.size() - from) / 16 + 1);
  f.batches.resize(from);
  f.with_slots = std::min(f.with_slots, from);
  return blocks;
}

void FetchRoom::give_back(FetchBatch& batch) {
  for (const ComponentKind c : kAllComponents) {
    std::vector<HostSlot> slots = std::exchange(batch.slots[index_of(c)], {});
    if (!defect(Defect::kPrefetchLeaks)) parts_.room.give_back(c, slots);
  }
}

}  // namespace larder
