// SPDX-License-Identifier: Apache-2.0
#include "tree/insertion.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace larder::tree {
namespace {

constexpr std::uint64_t kPagesMax = std::numeric_limits<std::uint32_t>::max() / 2;  // of one insertion

template <class Slot>
std::span<const std::uint32_t> plain(std::span<const Slot> slots) {
  return {reinterpret_cast<const std::uint32_t*>(slots.data()), slots.size()};
}

template <class Slot>
bool all_valid(std::span<const Slot> slots) {
  return std::all_of(slots.begin(), slots.end(), [](Slot slot) { return slot.valid(); });
}

}  // namespace

Status Insertion::check_extend(const LockHandle& held, const ExtendRequest& request) const {
  const bool fits = held.held && held.tier == Tier::kDevice && held.parts.full && state_.nodes.exists(held.node.v);
  if (!fits) return invalid_argument("extend: needs a lock of full on the device");
  if (node(held.node.v).end() != request.from) {
    return invalid_argument("extend: the lock does not end where the pages begin");
  }
  const std::uint64_t pages = state_.pages_in(request.tokens);
  if (request.tokens.size() % state_.page_size != 0 || pages > kPagesMax) {
    return invalid_argument("extend: " + std::to_string(request.tokens.size()) + " tokens are not whole pages");
  }
  if (request.full.size() != pages || (!request.swa.empty() && request.swa.size() != pages)) {
    return invalid_argument("extend: full and swa need one slot per page");
  }
  if (!all_valid(request.full)) return invalid_argument("extend: invalid full slot");
  if (!request.swa.empty() && state_.window_pages == 0) return invalid_argument("extend: the model has no window");
  if (!request.checkpoints.empty() && !state_.config.has_mamba)
    return invalid_argument("extend: the model has no state");
  std::uint64_t last = request.from;
  for (const Checkpoint& checkpoint : request.checkpoints) {
    if (checkpoint.page <= last || checkpoint.page > request.from + pages || !checkpoint.slot.valid()) {
      return invalid_argument("extend: checkpoints must ascend within (from, from + pages]");
    }
    last = checkpoint.page;
  }
  return Status::ok();
}

// What the new pages were computed from must be there and verified: full of the path, the window before `from` and the
// state at it. While one of them is under way, the outcome of its copy decides whether the new pages are right, so the
// extension has to wait for it (rule 2). Full and window under way further on would leave the caller, whose slots would
// go back as duplicates, with pages that are not there yet.
//
// Above the window one node with full published is enough: all above it are published, too (I1).
Status Insertion::check_extend_path(const TreePosition& walked, std::uint64_t from) const {
  for (Id id = walked.node.v; !node(id).is_root(); id = node(id).parent) {
    const Node& n = node(id);
    const bool in_window = n.end() > state_.window_begin(from);
    if ((n.pending & kFullDevice) != 0 || (in_window && (n.pending & kSwaDevice) != 0) ||
        (n.end() == from && (n.pending & kMambaDevice) != 0)) {
      return conflict("extend: data on the path is under way, finish its operation first");
    }
    if (n.begin < from && !n.has(kFullDevice)) return internal_error("extend: pages before it are not on the device");
    if (!in_window && n.has(kFullDevice)) break;
  }
  return Status::ok();
}

Id Insertion::add_full_leaf(Id parent, Tier t, std::span<const TokenId> tokens, std::span<const std::uint32_t> slots,
                            std::int32_t priority, std::span<const PageKey> keys) {
  const Id id = structure_.add_leaf(parent, tokens);
  node(id).priority = priority;
  if (!keys.empty()) keys_.keep_keys(id, keys);
  residency_.set_slots(id, ComponentKind::kFull, t, SlotRun::copy_of(slots));
  residency_.add_published(id, ComponentKind::kFull, t);
  return id;
}

void Insertion::fill_full(Id id, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally) {
  const std::uint64_t to = from + slots.size();
  const Bits bit = bit_of(ComponentKind::kFull, t);
  SlotRun run;  // made when the first gap is met
  std::vector<Id> filled;
  for (; !node(id).is_root() && node(id).end() > from; id = node(id).parent) {
    const std::uint64_t low = std::max(from, node(id).begin), high = std::min(to, node(id).end());
    if (low >= high) continue;
    const auto given = slots.subspan(low - from, high - low);
    if ((node(id).present & bit) != 0) {
      const std::uint32_t* own = node(id).slot_data(ComponentKind::kFull, t) + (low - node(id).begin);
      residency_.give_back_duplicates(ComponentKind::kFull, t, given, own);
      tally.duplicate += given.size();
      continue;
    }
    if (node(id).begin < low) structure_.split(id, low);
    if (!run) run = SlotRun::copy_of(slots);
    residency_.set_slots(id, ComponentKind::kFull, t, run.share(low - from));
    if (t == Tier::kHost) {  // a parent above `from` stays as it is, and one whose backup is under way may yet lose it
      const Node& parent = node(node(id).parent);
      const bool is_settled = low == from || (parent.present & bit) != 0;
      node(id).host_gap = !parent.is_root() && is_settled && !parent.has(bit);
    }
    residency_.add_published(id, ComponentKind::kFull, t, false);
    filled.push_back(id);
    tally.recovered += given.size();
  }
  for (auto at = filled.rbegin(); at != filled.rend(); ++at) residency_.tell_came(*at, ComponentKind::kFull, t);
}

Id Insertion::fill_window(Id id, Tier t, std::uint64_t from, std::span<const std::uint32_t> slots, InsertTally& tally) {
  SlotRun run;  // made when the first tombstone is met
  while (!node(id).is_root() && node(id).end() > from) {
    const std::uint64_t low = std::max(from, node(id).begin), high = std::min(from + slots.size(), node(id).end());
    if (low < high) id = fill_window_edge(id, t, low, high, slots.subspan(low - from, high - low), run, slots, tally);
    if (node(id).begin < from) break;  // the next stretch may begin in this very edge
    id = node(id).parent;
  }
  return id;
}

// One edge of fill_window(): pages [low, high) of it get `given`, a part of `all`, of which `run` is the tree's copy.
// Returns the node that has them.
Id Insertion::fill_window_edge(Id id, Tier t, std::uint64_t low, std::uint64_t high,
                               std::span<const std::uint32_t> given, SlotRun& run, std::span<const std::uint32_t> all,
                               InsertTally& tally) {
  const Node& n = node(id);
  if ((n.present & bit_of(ComponentKind::kSwa, t)) != 0) {
    residency_.give_back_duplicates(ComponentKind::kSwa, t, given,
                                    n.slot_data(ComponentKind::kSwa, t) + (low - n.begin));
    return id;
  }
  if (!n.has(bit_of(ComponentKind::kFull, t))) {  // a window stands on full of its tier
    residency_.give_back(ComponentKind::kSwa, t, given);
    return id;
  }
  if (high < n.end()) id = structure_.split(id, high);
  if (low > node(id).begin) structure_.split(id, low);
  if (!run) run = SlotRun::copy_of(all);
  residency_.set_slots(id, ComponentKind::kSwa, t, run.share(static_cast<std::size_t>(given.data() - all.data())));
  residency_.add_published(id, ComponentKind::kSwa, t);
  tally.recovered += std::min(high, tally.known_pages) - std::min(low, tally.known_pages);
  return id;
}

// Fills each stretch of valid slots; invalid entries are out of the window and leave what is there.
void Insertion::fill_windows(Id id, std::uint64_t from, std::span<const DeviceSlot> slots, InsertTally& tally) {
  std::size_t high = slots.size();
  while (high > 0) {
    if (!slots[high - 1].valid()) {
      --high;
      continue;
    }
    std::size_t low = high - 1;
    while (low > 0 && slots[low - 1].valid()) --low;
    id = fill_window(id, Tier::kDevice, from + low, plain(slots.subspan(low, high - low)), tally);
    high = low;
  }
}

// Puts a checkpoint at `page`, on the path above `cursor`, which moves up to it. False: there is one, or nothing to
// stand on; the slot went back.
bool Insertion::add_checkpoint(Id& cursor, Tier t, const NewCheckpoint& checkpoint) {
  const std::uint32_t slot = checkpoint.slot;
  cursor = structure_.settle({NodeId(cursor), checkpoint.page});
  const Node& n = node(cursor);
  if ((n.present & bit_of(ComponentKind::kMamba, t)) != 0) {
    residency_.give_back_duplicates(ComponentKind::kMamba, t, {&slot, 1}, n.slot_data(ComponentKind::kMamba, t));
    return false;
  }
  if (!n.has(bit_of(ComponentKind::kFull, t))) {
    residency_.give_back(ComponentKind::kMamba, t, {&slot, 1});
    return false;
  }
  Node& at = node(cursor);
  if ((at.present & kMambaBits) == 0) {  // in the other tier: it is known already
    at.kind = checkpoint.origin.kind;
    at.uses = checkpoint.origin.uses;
    if (checkpoint.origin.path) at.path_hash = checkpoint.origin.path;
    at.uses_at = static_cast<std::uint32_t>(state_.tick / kTicksOfUse);
    if (state_.weighs) state_.stats.came(checkpoint.origin.kind);
  }
  at.state[index_of(t)] = slot;
  residency_.add_published(cursor, ComponentKind::kMamba, t);
  return true;
}

std::uint32_t Insertion::add_checkpoints(Id end, std::span<const Checkpoint> checkpoints) {
  std::uint32_t kept = 0;
  Id cursor = end;
  for (std::size_t i = checkpoints.size(); i-- > 0;) {
    const Checkpoint& c = checkpoints[i];
    if (add_checkpoint(cursor, Tier::kDevice, {c.page, c.slot.v, c.origin})) ++kept;
  }
  return kept;
}

Result<InsertResult> Insertion::extend(LockHandle& held, const ExtendRequest& request) {
  LARDER_RETURN_IF_ERROR(check_extend(held, request));
  const std::uint64_t from = request.from, last = from + state_.pages_in(request.tokens);
  const TreePosition walked = matcher_.walk(held.node.v, request.tokens);
  LARDER_RETURN_IF_ERROR(check_extend_path(walked, from));

  state_.tick += std::max<std::uint64_t>(request.tokens.size(), 1);
  InsertTally tally{walked.pages};
  const auto slots = plain(request.full);
  const std::uint64_t known = walked.pages - from;
  Id end = structure_.settle(walked);
  if (known > 0) fill_full(end, Tier::kDevice, from, slots.first(known), tally);
  if (walked.pages < last) {
    const auto tokens = request.tokens.subspan(known * state_.page_size);
    end = add_full_leaf(end, Tier::kDevice, tokens, slots.subspan(known), request.priority);
    tally.fresh = last - walked.pages;
  }
  if (!request.swa.empty()) fill_windows(end, from, request.swa, tally);
  InsertResult result{NodeId(end), tally.fresh, tally.duplicate, tally.recovered, 0};
  result.checkpoints_kept = add_checkpoints(end, request.checkpoints);
  uses_.touch_window(end, false);
  uses_.touch_state(end);
  locks_.move_lock(held, end);
  uses_.touch_own_path(end, request.priority);
  return result;
}

Status Insertion::check_insert_host(const HostInsertRequest& request) const {
  const std::uint64_t pages = state_.pages_in(request.tokens);
  if (state_.root_of(request.space) == kNoNode) return invalid_argument("insert_host: unknown namespace");
  if (request.tokens.size() % state_.page_size != 0 || pages > kPagesMax) {
    return invalid_argument("insert_host: " + std::to_string(request.tokens.size()) + " tokens are not whole pages");
  }
  if (request.from > pages || request.full.size() != pages - request.from || request.swa.size() > pages) {
    return invalid_argument("insert_host: full needs one slot per page from `from`, swa at most one per page");
  }
  if (!request.keys.empty() && request.keys.size() != request.full.size()) {
    return invalid_argument("insert_host: keys need one for each page of full");
  }
  if (!all_valid(request.full) || !all_valid(request.swa)) return invalid_argument("insert_host: invalid slot");
  if (!request.swa.empty() && state_.window_pages == 0) return invalid_argument("insert_host: the model has no window");
  if (request.state.valid() && (!state_.config.has_mamba || pages == 0)) {
    return invalid_argument("insert_host: no place for a checkpoint");
  }
  return Status::ok();
}

Result<InsertResult> Insertion::insert_host(const HostInsertRequest& request) {
  LARDER_RETURN_IF_ERROR(check_insert_host(request));
  const std::uint64_t pages = state_.pages_in(request.tokens), from = request.from;
  const TreePosition walked = matcher_.walk(state_.root_of(request.space), request.tokens);
  if (walked.pages < from) return internal_error("insert_host: the tree does not have the pages before `from`");

  state_.tick += std::max<std::uint64_t>(request.full.size() * state_.page_size, 1);
  InsertTally tally{walked.pages};
  const auto slots = plain(request.full);
  Id end = structure_.settle(walked);
  if (walked.pages > from) fill_full(end, Tier::kHost, from, slots.first(walked.pages - from), tally);
  if (walked.pages < pages) {
    const Id parent = end;
    end = add_full_leaf(parent, Tier::kHost, request.tokens.subspan(walked.pages * state_.page_size),
                        slots.subspan(walked.pages - from), 0,
                        request.keys.empty() ? request.keys : request.keys.subspan(walked.pages - from));
    node(end).host_gap = !node(parent).is_root() && !node(parent).has(kFullHost);
    tally.fresh = pages - walked.pages;
  }
  if (!request.swa.empty()) {
    (void)fill_window(end, Tier::kHost, pages - request.swa.size(), plain(request.swa), tally);
  }
  InsertResult result{NodeId(end), tally.fresh, tally.duplicate, tally.recovered, 0};
  if (request.state.valid()) {
    Id cursor = end;
    NewCheckpoint fetched{pages, request.state.v, {.kind = CheckpointKind::kFetched}};
    if (state_.weighs) fetched.origin.uses = state_.stats.uses_of(keys_.hash_at_end(end), state_.tick);
    if (add_checkpoint(cursor, Tier::kHost, fetched)) result.checkpoints_kept = 1;
  }
  uses_.touch_window(end, false);
  uses_.touch_state(end);
  uses_.touch_path(end, 0);
  return result;
}

}  // namespace larder::tree
