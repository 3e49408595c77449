// SPDX-License-Identifier: Apache-2.0
#include "tree/matcher.h"

#include <algorithm>
#include <cstring>

namespace larder::tree {
namespace {

constexpr std::size_t kCompareBlock = 4096;  // bytes; memcmp at full speed, then one block searched for the difference

// Leading equal bytes of two ranges.
std::size_t equal_bytes(const std::byte* a, const std::byte* b, std::size_t size) {
  std::size_t at = 0;
  while (at < size) {
    const std::size_t block = std::min(kCompareBlock, size - at);
    if (std::memcmp(a + at, b + at, block) != 0) break;
    at += block;
  }
  const std::size_t stop = std::min(size, at + kCompareBlock);
  while (at + 64 <= stop && std::memcmp(a + at, b + at, 64) == 0) at += 64;
  while (at < stop && a[at] == b[at]) ++at;
  return at;
}

// What one view of the tiers (device, or device and host) has seen so far on a walk.
struct View {
  TreePosition best;              // largest joint restore point
  std::uint64_t full_pages = 0;   // full is there from 0
  std::uint64_t window_run = 0;   // pages with swa up to here, without a gap
  std::uint64_t window_best = 0;  // largest position whose window is there, state or not
  bool ended = false;             // a page of full was missing: nothing further right can be a restore point
};

struct Presence3 {
  bool full, swa, mamba;
};

Presence3 presence_in(Bits published, bool host_too) {
  const Bits bits = host_too ? static_cast<Bits>(published | (published >> kComponentCount)) : published;
  return {(bits & kFullDevice) != 0, (bits & kSwaDevice) != 0, (bits & kMambaDevice) != 0};
}

// Extends a view by the pages of one edge up to position `to`; `whole`: the node's end was reached.
// Checking only the last page of the stretch is enough: inside an edge the window run grows as fast as the position, so
// if the window is short at the end, it is short everywhere before, and checkpoints stand only at ends.
void add_edge(View& view, Presence3 has, TreePosition to, std::uint64_t pages, bool whole, std::uint64_t window_pages,
              bool has_mamba) {
  if (view.ended) return;
  if (!has.full) {
    view.ended = true;
    return;
  }
  view.full_pages = to.pages;
  if (window_pages != 0) {
    view.window_run = has.swa ? view.window_run + pages : 0;
    if (view.window_run < std::min(to.pages, window_pages)) return;
  }
  view.window_best = to.pages;
  if (has_mamba && !(whole && has.mamba)) return;
  view.best = to;
}

TierMatch summarize(const View& view, std::uint64_t walked) {
  TierMatch match{view.best};
  if (view.best.pages == walked) return match;
  if (view.best.pages == view.full_pages) {
    match.reason = StopReason::kFullMissing;
  } else if (view.window_best > view.best.pages) {  // the window would have allowed more
    match.reason = StopReason::kStateMissing;
    match.component = ComponentKind::kMamba;
  } else {
    match.reason = StopReason::kWindowMissing;
    match.component = ComponentKind::kSwa;
  }
  return match;
}

}  // namespace

Id Matcher::find_child(Id parent, const TokenId* page) const {
  const std::size_t page_bytes = state_.page_size * sizeof(TokenId);
  return state_.table.find(edge_hash(parent, page, state_.page_size), [&](Id id) {
    const Node& child = node(id);
    return child.parent == parent && std::memcmp(child.tokens.data(), page, page_bytes) == 0;
  });
}

Id Matcher::descend(Id parent, std::span<const TokenId> rest, std::uint64_t& hash) const {
  std::uint64_t next = 0;
  const Id found = state_.table.find(hash, [&](Id id) {
    const Node& child = node(id);
    if (child.parent != parent) return false;
    const std::size_t edge = std::size_t{child.pages} * state_.page_size;
    if (edge + state_.page_size <= rest.size()) {
      next = edge_hash(id, rest.data() + edge, state_.page_size);
      state_.table.prefetch(next);
    }
    return std::memcmp(child.tokens.data(), rest.data(), state_.page_size * sizeof(TokenId)) == 0;
  });
  hash = next;
  return found;
}

std::uint64_t Matcher::first_hash(Id start, std::span<const TokenId> tokens) const {
  return tokens.size() < state_.page_size ? 0 : edge_hash(start, tokens.data(), state_.page_size);
}

// Pages of the edge that equal `tokens` (of which there are `pages`); the first is known to be equal.
std::uint64_t Matcher::matched_pages(const Node& edge, const TokenId* tokens, std::uint64_t pages) const {
  const std::uint64_t limit = std::min<std::uint64_t>(edge.pages, pages);
  const std::size_t page_bytes = state_.page_size * sizeof(TokenId);
  const auto* own = reinterpret_cast<const std::byte*>(edge.tokens.data() + state_.page_size);
  const auto* given = reinterpret_cast<const std::byte*>(tokens + state_.page_size);
  return 1 + equal_bytes(own, given, (limit - 1) * page_bytes) / page_bytes;
}

MatchResult Matcher::match(NamespaceId space, std::span<const TokenId> tokens) const {
  MatchResult result;
  Id at = state_.root_of(space);
  if (at == kNoNode) return result;
  const std::uint64_t total = state_.pages_in(tokens);
  View device{{NodeId(at), 0}}, any{{NodeId(at), 0}};
  TreePosition to{NodeId(at), 0};
  std::uint64_t hash = first_hash(at, tokens);
  while (to.pages < total) {
    const std::span<const TokenId> rest = tokens.subspan(to.pages * state_.page_size);
    const Id child = descend(at, rest, hash);
    if (child == kNoNode) break;
    const Node& edge = node(child);
    const std::uint64_t pages = matched_pages(edge, rest.data(), total - to.pages);
    const bool whole = pages == edge.pages;
    to = {NodeId(child), to.pages + pages};
    const Bits published = edge.published();
    add_edge(device, presence_in(published, false), to, pages, whole, state_.window_pages, state_.config.has_mamba);
    add_edge(any, presence_in(published, true), to, pages, whole, state_.window_pages, state_.config.has_mamba);
    const Bits loading = edge.pending & (kFullDevice | kSwaDevice | kMambaDevice);
    result.meets_load |= (whole ? loading : clear_bits(loading, kMambaBits)) != 0;
    at = child;
    if (!whole) break;
  }
  result.walked = to;
  result.device = summarize(device, to.pages);
  result.any = summarize(any, to.pages);
  result.full_device_pages = device.full_pages;
  result.full_any_pages = any.full_pages;
  return result;
}

TreePosition Matcher::walk(Id start, std::span<const TokenId> tokens) const {
  const std::uint64_t first = node(start).end(), total = first + state_.pages_in(tokens);
  TreePosition to{NodeId(start), first};
  std::uint64_t hash = first_hash(start, tokens);
  while (to.pages < total) {
    const std::span<const TokenId> rest = tokens.subspan((to.pages - first) * state_.page_size);
    const Id child = descend(to.node.v, rest, hash);
    if (child == kNoNode) break;
    const std::uint64_t pages = matched_pages(node(child), rest.data(), total - to.pages);
    to = {NodeId(child), to.pages + pages};
    if (pages != node(child).pages) break;
  }
  return to;
}

RadixTree::WaysOn Matcher::ways_on(const TreePosition& at, std::span<const TokenId> rest) const {
  RadixTree::WaysOn result;
  const Id id = at.node.v;
  if (!state_.nodes.exists(id)) return result;
  const auto look = [&](const TokenId* way, std::uint64_t pages) {
    result.any = true;
    const std::size_t most = std::min<std::size_t>(rest.size(), pages * state_.page_size);
    const auto end = std::mismatch(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(most), way).first;
    result.equal = std::max(result.equal, static_cast<std::uint64_t>(end - rest.begin()));
  };
  const Node& n = node(id);
  if (at.pages < n.end()) {
    const std::uint64_t before = at.pages - n.begin;
    look(n.tokens.data() + before * state_.page_size, n.pages - before);
    return result;
  }
  std::size_t left = RadixTree::kMostWaysOn;
  for (Id child = n.first_child; child != kNoNode && left > 0; child = node(child).next_sibling, --left) {
    look(node(child).tokens.data(), node(child).pages);
  }
  return result;
}

void Matcher::locate(Id id, ComponentKind c, std::uint64_t from, std::uint64_t to,
                     std::vector<PageLocation>& out) const {
  if (!state_.nodes.exists(id)) return;
  if (c == ComponentKind::kMamba) {
    const Node& n = node(id);
    PageLocation location;
    if (n.has(kMambaDevice)) location.device = DeviceSlot(n.state[0]);
    if (n.has(kMambaHost)) location.host = HostSlot(n.state[1]);
    out.push_back(location);
    return;
  }
  to = std::min(to, node(id).end());
  if (from >= to) return;
  const std::size_t base = out.size();
  out.resize(base + (to - from));
  for (; !node(id).is_root() && node(id).end() > from; id = node(id).parent) {
    const Node& n = node(id);
    const bool on_device = n.has(bit_of(c, Tier::kDevice)), on_host = n.has(bit_of(c, Tier::kHost));
    const std::uint64_t low = std::max(from, n.begin), high = std::min(to, n.end());
    for (std::uint64_t page = low; page < high; ++page) {
      PageLocation& location = out[base + (page - from)];
      if (on_device) location.device = DeviceSlot(n.slot_data(c, Tier::kDevice)[page - n.begin]);
      if (on_host) location.host = HostSlot(n.slot_data(c, Tier::kHost)[page - n.begin]);
    }
  }
}

}  // namespace larder::tree
