// SPDX-License-Identifier: Apache-2.0
#include "tree/locks.h"

#include <cassert>

namespace larder::tree {

void Locks::add_lock(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  ++state_.claims_of(n);
  if (n.locks[index_of(c)][index_of(t)]++ != 0) return;
  if (n.has(bit_of(c, t)) && !n.is_covered()) state_.tally(n, c, t, {.locked = n.units(c)});
  if (n.heap_at[0] != kNotInHeap || n.heap_at[1] != kNotInHeap)
    victims_.refresh_leaf(id);  // a lock only ever removes leaves
  if (c != ComponentKind::kFull) victims_.refresh_aux(id, c, t);
  victims_.refresh_held(id, c, t);
}

void Locks::drop_lock(Id id, ComponentKind c, Tier t) {
  Node& n = node(id);
  std::uint32_t& count = n.locks[index_of(c)][index_of(t)];
  assert(count > 0);
  if (count == 0) return;
  --state_.claims_of(n);
  if (--count != 0) return;
  if (n.has(bit_of(c, t)) && !n.is_covered()) state_.tally(n, c, t, {.locked = -std::int64_t{n.units(c)}});
  if (n.full_children[0] == 0 || n.full_children[1] == 0 || state_.config.is_exclusive) victims_.refresh_leaf(id);
  if (c != ComponentKind::kFull) victims_.refresh_aux(id, c, t);
  victims_.refresh_held(id, c, t);
}

LockHandle Locks::lock(Id id, Tier t, LockParts parts) {
  LockHandle handle{NodeId(id), t, parts, 0, false};
  if (!state_.nodes.exists(id)) return handle;
  handle.parts.swa = parts.swa && state_.window_pages != 0;
  handle.parts.mamba = parts.mamba && state_.config.has_mamba;
  handle.parts.own_pages = parts.own_pages && t == Tier::kHost;
  handle.window_from = handle.parts.own_pages ? node(id).begin : state_.window_begin(node(id).end());
  handle.held = true;
  if (handle.parts.swa) lock_window(id, t, handle.window_from);
  if (handle.parts.full) {
    for (Id at = id; !node(at).is_root(); at = node(at).parent) {
      add_lock(at, ComponentKind::kFull, t);
      if (handle.parts.own_pages) ++node(at).own_locks;
      if (t == Tier::kHost) break;
    }
  }
  if (handle.parts.mamba && !node(id).is_root()) add_lock(id, ComponentKind::kMamba, t);
  return handle;
}

void Locks::lock_window(Id id, Tier t, std::uint64_t from) {
  for (Id at = id; node(at).end() > from; at = node(at).parent) {
    if (node(at).begin < from) structure_.split(at, from);
    add_lock(at, ComponentKind::kSwa, t);
  }
}

// What the path up to the old node has is held all along; the new window is locked before the old one is let go.
void Locks::move_lock(LockHandle& handle, Id to) {
  const Id old = handle.node.v;
  const std::uint64_t old_from = handle.window_from;
  const Tier t = handle.tier;
  handle.node = NodeId(to);
  handle.window_from = state_.window_begin(node(to).end());
  for (Id at = to; at != old; at = node(at).parent) add_lock(at, ComponentKind::kFull, t);
  if (handle.parts.swa) {
    lock_window(to, t, handle.window_from);
    for (Id at = old; node(at).end() > old_from; at = node(at).parent) drop_lock(at, ComponentKind::kSwa, t);
  }
  if (!handle.parts.mamba || to == old) return;
  add_lock(to, ComponentKind::kMamba, t);
  if (!node(old).is_root()) drop_lock(old, ComponentKind::kMamba, t);
}

void Locks::unlock(LockHandle& handle) {
  if (!handle.held) return;
  handle.held = false;
  const Id id = handle.node.v;
  const Tier t = handle.tier;
  if (!state_.nodes.exists(id)) return;  // cannot happen to a handle that lock() made
  if (handle.parts.swa) {
    for (Id at = id; node(at).end() > handle.window_from; at = node(at).parent) drop_lock(at, ComponentKind::kSwa, t);
  }
  if (handle.parts.full && handle.parts.own_pages) {
    for (Id at = id; node(at).end() > handle.window_from; at = node(at).parent) {
      --node(at).own_locks;
      drop_lock(at, ComponentKind::kFull, t);
    }
  } else if (handle.parts.full) {
    for (Id at = id; !node(at).is_root(); at = node(at).parent) {
      drop_lock(at, ComponentKind::kFull, t);
      if (t == Tier::kHost) break;
    }
  }
  if (handle.parts.mamba && !node(id).is_root()) drop_lock(id, ComponentKind::kMamba, t);
}

}  // namespace larder::tree
