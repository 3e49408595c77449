// SPDX-License-Identifier: Apache-2.0
#include "controller/forks.h"

#include <algorithm>
#include <utility>

namespace larder {

Status Forks::check(const Request& from) const {
  if (from.phase == RequestPhase::kLoading) return overloaded("fork: the checkpoint is still being copied");
  if (from.phase != RequestPhase::kRunning) return invalid_argument("fork: the request has not started");
  // Before its state, of which this rank may know more than the others while copies are under way.
  if (from.load.v != 0 || from.state_copy.v != 0) return overloaded("fork: the request is still being loaded");
  if (from.run.state() != RunState::kRunning) return invalid_argument("fork: its load-back failed; restart it first");
  if (from.run.ledger().has_counting()) return invalid_argument("fork: a step of the request is open; end it first");
  // A void step may still write the working state, which is copied now; its pages are beyond what is copied.
  if (parts_.model.has(ComponentKind::kMamba) && from.run.ledger().has_open()) {
    return overloaded("fork: a step of the request that counts for nothing may still write its state; end it first");
  }
  LARDER_RETURN_IF_ERROR(check_place());
  LARDER_RETURN_IF_ERROR(parts_.requests.check_count());
  return parts_.starts.check_admission();
}

Status Forks::check_place() const {
  return parts_.ops.places().has_room(OpKind::kStateCopy) ? Status::ok()
                                                          : overloaded("fork: too many copies in flight");
}

std::uint64_t Forks::computed_pages(const Request& from) const {
  return (from.run.computed() + parts_.model.page_size - 1) / parts_.model.page_size;
}

// What the fork needs beyond the pages that are the tree's.
ComponentCounts Forks::slots_for(const Request& from, const PageTable& table) const {
  ComponentCounts counts{};
  const std::uint64_t committed = from.run.committed();
  counts[index_of(ComponentKind::kFull)] = static_cast<std::uint32_t>(table.full.size() - committed);
  const std::vector<DeviceSlot>& window = from.run.table().swa;
  for (std::uint64_t i = committed; i < computed_pages(from) && i < window.size(); ++i) {
    counts[index_of(ComponentKind::kSwa)] += window[i].valid() ? 1 : 0;
  }
  counts[index_of(ComponentKind::kMamba)] = parts_.model.has(ComponentKind::kMamba) ? 1 : 0;
  return counts;
}

// Fills what is missing in the table, and lists the copies of what has been computed.
void Forks::list_copies(const Request& from, PageTable& table, const Slots& slots, TransferRequest& copy) const {
  const PageTable& source = from.run.table();
  const std::uint64_t committed = from.run.committed(), computed = computed_pages(from);
  const auto add = [&](ComponentKind c, DeviceSlot to, DeviceSlot of) {
    copy.pairs[index_of(c)].push_back({to, HostSlot{}, of});
  };
  for (std::uint64_t i = committed; i < table.full.size(); ++i) {
    table.full[i] = slots[index_of(ComponentKind::kFull)][i - committed];
    if (i < computed) add(ComponentKind::kFull, table.full[i], source.full[i]);
  }
  std::size_t next = 0;
  for (std::uint64_t i = committed; i < computed && i < source.swa.size(); ++i) {
    if (!source.swa[i].valid()) continue;
    table.swa[i] = slots[index_of(ComponentKind::kSwa)][next++];
    add(ComponentKind::kSwa, table.swa[i], source.swa[i]);
  }
  if (!parts_.model.has(ComponentKind::kMamba)) return;
  table.state = slots[index_of(ComponentKind::kMamba)].front();
  if (from.run.computed() > 0) add(ComponentKind::kMamba, table.state, source.state);
}

Result<RequestId> Forks::fork(Request& from) {
  LARDER_RETURN_IF_ERROR(check(from));
  parts_.requests.hand_over(from);
  PageTable table = from.run.fork_table(parts_.starts.pages_at_start(from));
  const ComponentCounts counts = slots_for(from, table);
  // What the two will share is locked by the one that is there: no room is made of it.
  const bool others_run = parts_.requests.running() > 1;
  LARDER_RETURN_IF_ERROR(parts_.room.make_all(from.id, from.run.seeker(), counts, others_run));
  // What was handed over, and what leaves, may have begun copies of its own: asked again, before anything is held.
  LARDER_RETURN_IF_ERROR(check_place());
  Slots slots;
  if (!parts_.device.reserve(counts, slots)) return overloaded("fork: the device is full");
  TransferRequest copy;
  list_copies(from, table, slots, copy);
  const bool copies = std::any_of(copy.pairs.begin(), copy.pairs.end(), [](const auto& v) { return !v.empty(); });
  if (copies && !parts_.has_transfer) {
    for (const ComponentKind c : kAllComponents) parts_.room.give_back_all(c, slots[index_of(c)]);
    return unsupported("fork: pages are copied on the device, which needs a transfer engine");
  }
  Request& fork = parts_.requests.add_fork(from);
  fork.run.begin_fork(fork, from.run, std::move(table));
  const LockParts shared{.full = true, .swa = true, .mamba = false};
  fork.run.set_lock(parts_.tree.lock(from.run.lock().node, Tier::kDevice, shared));
  parts_.requests.run(fork, copies ? RequestPhase::kLoading : RequestPhase::kRunning);
  if (!copies) return fork.id;
  Op& op = parts_.ops.add(OpKind::kStateCopy);
  op.request = fork.id;
  op.source = from.id;
  ++from.forks;
  fork.state_copy = op.id;
  copy.direction = CopyDirection::kDeviceToDevice;
  parts_.copies.submit(op, std::move(copy));
  return fork.id;
}

}  // namespace larder
