#include "controller/fetch_room.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "base/probe.h"

namespace larder {

// What comes is added to the host's copy of the pages before it, and counts on the window and the state that are there
// already: these must not go while room is made for it. (On the device they may: what running requests need there was
// promised to them.)
void FetchRoom::hold_host_path(Fetch& f) {
  const NodeId held = parts_.tree.settle(parts_.planner.position_at(f.device_lock.node, f.full_from));
  const bool has_state = f.full_from == f.target && !f.batches.back().reads_state;
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
  budget.spend(f.batches.size() + (f.pages - f.base) / 4096 + 1);
  hold_host_path(f);
  f.room_needed = parts_.room.blocks_of(counts);
  if (f.room_needed > parts_.host->total_blocks()) return false;
  if (counts[0] + counts[1] > budget.piece() && f.room_needed > parts_.room.blocks_in_reach()) return false;
  f.blocks = f.room_needed;
  parts_.queue.add_blocks(f.blocks);
  return true;
}

bool FetchRoom::take_piece(Fetch& f) {
  const std::size_t first = f.next;
  ComponentCounts counts{};
  for (; f.next < f.batches.size() && counts[0] + counts[1] < parts_.ops.budget().piece(); ++f.next) {
    for (std::size_t i = 0; i < kComponentCount; ++i) counts[i] += f.batches[f.next].needs()[i];
  }
  std::array<std::vector<HostSlot>, kComponentCount> slots;
  if (parts_.room.take(counts, false, slots) != HostAnswer::kThere) return false;
  parts_.ops.budget().spend((counts[0] + counts[1] + counts[2]) / 4 + 1);
  std::array<std::size_t, kComponentCount> given{};
  for (std::size_t k = first; k < f.next; ++k) {
    const ComponentCounts needs = f.batches[k].needs();
    for (std::size_t i = 0; i < kComponentCount; ++i) {
      const auto from = slots[i].begin() + static_cast<std::ptrdiff_t>(given[i]);
      f.batches[k].slots[i].assign(from, from + static_cast<std::ptrdiff_t>(needs[i]));
      given[i] += needs[i];
    }
  }
  return true;
}

FetchRoom::Answer FetchRoom::go_on(Fetch& f) {
  for (; f.tries < kTries; ++f.tries) {
    bool fits = true;
    if (f.batches.empty()) {
      f.target = largest_candidate(f.candidates, f.base, f.upto);
      if (f.target < f.base + parts_.queue.least_gain()) break;
      fits = plan(f);
    }
    while (fits && f.next < f.batches.size()) {
      if (f.next > 0 && !parts_.ops.budget().has_left()) return Answer::kNotYet;
      fits = take_piece(f);
    }
    if (fits) {
      f.next = 0;
      f.full_to = f.full_from;
      if (f.full_from < std::min(f.tree_full, f.target)) probe(Probe::kFullReadAgain);
      return Answer::kTaken;
    }
    for (FetchBatch& batch : f.batches) give_back(batch);
    f.batches.clear();
    f.next = 0;
    parts_.queue.drop_blocks(std::exchange(f.blocks, 0));
    // A request that waits for all of its prefetch also waits for the host pages that running requests will give back,
    // rather than fetch a shorter prefix now. (Where all of it can never fit, it takes what fits.)
    const bool room_will_come =
        parts_.config.prefetch_policy == PrefetchPolicy::kWaitComplete && parts_.is_engine_busy();
    f.waits_for_room = f.tries == 0 && room_will_come &&
                       f.room_needed + parts_.planner.held_blocks(f) + parts_.backlog.kept_by_abandoned() <=
                           parts_.host->total_blocks();
    if (f.waits_for_room) break;
    f.upto = f.base + (f.target - f.base) / 2;
  }
  f.target = 0;
  return Answer::kNone;
}

void FetchRoom::unlock(Fetch& f) {
  for (LockHandle* lock : {&f.device_lock, &f.host_lock, &f.adopted_lock}) parts_.tree.unlock(*lock);
}

void FetchRoom::give_back(FetchBatch& batch) {
  for (const ComponentKind c : kAllComponents) {
    std::vector<HostSlot> slots = std::exchange(batch.slots[index_of(c)], {});
    if (!defect(Defect::kPrefetchLeaks)) parts_.room.give_back(c, slots);
  }
}

}  // namespace larder
