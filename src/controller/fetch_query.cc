// SPDX-License-Identifier: Apache-2.0
#include "controller/fetch_query.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "tree/tree_backlog.h"

namespace larder {

void FetchQuery::begin(Fetch& f, const Op& first) {
  f.asked = f.key_from;
  f.scan = JointScan(f.key_from);
  f.reach = ReachScan(f.key_from);
  const std::uint64_t end = std::min(f.pages, f.key_from + parts_.ops.budget().piece());
  f.parts.push_back({.op = first.id, .begin = f.key_from, .end = end});
  f.asked = end;
  add_parts(f);
}

// One is always under way: it takes the place of the operation that ends now. The others leave places for requests that
// are still to come.
void FetchQuery::add_parts(Fetch& f) {
  while (f.asked < f.pages && f.parts.size() < kMostParts &&
         (f.parts.empty() || parts_.ops.places().has_room(OpKind::kExists, 1 + parts_.ops.places().spare_reads()))) {
    Op& op = parts_.ops.add(OpKind::kExists);
    op.fetch = f.id;
    const std::uint64_t end = std::min(f.pages, f.asked + parts_.ops.budget().piece());
    f.parts.push_back({.op = op.id, .begin = f.asked, .end = end});
    f.asked = end;
  }
}

bool FetchQuery::go_on(Fetch& f, std::uint64_t most) {
  for (QueryPart& part : f.parts) {
    if (part.is_submitted) continue;
    if (!hash(f, part.end, most)) return false;
    submit(f, part);
  }
  return true;
}

// Keys of the path in the tree come from there (hashed once per node), the rest continues its chain. The path is
// locked, but what it consists of may change between two pieces.
bool FetchQuery::hash(Fetch& f, std::uint64_t to, std::uint64_t& most) {
  const auto spend = [&](std::uint64_t pages) {
    most -= pages;
    parts_.ops.budget().spend(pages);
  };
  const NodeId path = f.device_lock.node;
  for (std::uint64_t hashed = ~std::uint64_t{0}; most > 0 && hashed > 0; spend(hashed)) {
    hashed = parts_.tree.keys().hash(path, most);
  }
  if (most == 0) return false;
  copy_keys_of_tree(f, std::min(to, f.tree_full));
  const std::uint64_t from = f.key_from + f.keys.size(), until = std::min(to, from + most);
  if (from >= until) return true;
  std::optional<PageKey> last = from == f.tree_full ? parts_.tree.keys().last(path) : f.keys.back();
  if (from == f.tree_full && defect(Defect::kPrefetchMisanchored)) last = std::nullopt;
  const std::uint32_t page_size = parts_.model.page_size;
  PageKeyChain rest(page_size, last);
  rest.append_pages(std::span<const TokenId>(f.tokens).subspan(from * page_size, (until - from) * page_size));
  f.keys.insert(f.keys.end(), rest.keys().begin(), rest.keys().end());
  spend(until - from);
  return until == to;
}

void FetchQuery::copy_keys_of_tree(Fetch& f, std::uint64_t to) {
  const std::uint64_t from = f.key_from + f.keys.size();
  if (from >= to) return;
  f.keys.resize(to - f.key_from);
  NodeView view = parts_.tree.view(f.device_lock.node);
  for (NodeId node = f.device_lock.node; view.end > from; node = view.parent, view = parts_.tree.view(node)) {
    if (view.begin >= to) continue;
    const std::span<const PageKey> keys = parts_.tree.keys().of_edge(node);
    for (std::uint64_t i = std::max(view.begin, from); i < std::min(view.end, to); ++i) {
      f.keys[i - f.key_from] = keys[i - view.begin];
    }
  }
}

void FetchQuery::submit(Fetch& f, QueryPart& part) {
  part.is_submitted = true;
  ExistsRequest request;
  request.scope = parts_.spaces.scope(f.space);
  const auto first = f.keys.begin() + static_cast<std::ptrdiff_t>(part.begin - f.key_from);
  request.keys.assign(first, first + static_cast<std::ptrdiff_t>(part.end - part.begin));
  for (const PoolSpec& pool : parts_.model.pools) request.pools.push_back(pool.name);
  request.terms = {f.urgency, f.deadline, f.cancel};
  auto complete = parts_.ops.completion_for(part.op);
  const Status submitted =
      storage_->submit_exists(std::move(request), [complete](ExistsResult done) { complete(std::move(done)); });
  if (!submitted.is_ok()) complete(ExistsResult{submitted, {}});
}

// They end like the others, by a completion: on other ranks, too.
void FetchQuery::close(Fetch& f) {
  f.asked = f.pages;
  for (QueryPart& part : f.parts) {
    if (std::exchange(part.is_submitted, true)) continue;
    parts_.ops.completion_for(part.op)(ExistsResult{cancelled("nobody waits for it any more"), {}});
  }
}

OutcomeBits FetchQuery::outcome_of(const Fetch& f, const Op& op) const {
  const auto part = std::find_if(f.parts.begin(), f.parts.end(), [&](const QueryPart& of) { return of.op == op.id; });
  const auto* done = std::get_if<ExistsResult>(&op.completion);
  if (part == f.parts.end() || done == nullptr || !done->status.is_ok()) return {};
  const std::size_t words = words_for(part->end - part->begin);
  OutcomeBits bits(words * parts_.model.pools.size());
  bits.push_back(1);  // this rank knows
  std::size_t first = 0;
  for (const PoolSpec& pool : parts_.model.pools) {
    const auto of = std::find_if(done->presence.begin(), done->presence.end(),
                                 [&](const PoolPresence& each) { return each.pool == pool.name; });
    const std::size_t known =
        of == done->presence.end() ? 0 : std::min<std::size_t>(of->present.size(), part->end - part->begin);
    for (std::size_t i = 0; i < known; ++i) bits[first + i / 64] |= std::uint64_t{of->present[i]} << (i % 64);
    first += words;
  }
  return bits;
}

// The tree may count on storage for what is not there any more. Where storage could not answer, nothing is known.
void FetchQuery::forget_lost(const Fetch& f, const QueryPart& part) const {
  const std::size_t words = words_for(part.end - part.begin), pools = parts_.model.pools.size();
  if (part.found.size() <= words * pools || part.found[words * pools] == 0) return;
  NodeId node = f.device_lock.node;
  for (NodeView view = parts_.tree.view(node); view.end > part.begin;
       node = view.parent, view = parts_.tree.view(node)) {
    const std::uint64_t end = std::min(view.end, part.end);
    std::array<bool, kComponentCount> lost{};
    for (std::size_t k = 0; k < pools; ++k) {
      const ComponentKind c = parts_.model.pools[k].component;
      // A state is at the end of its node.
      std::uint64_t page = std::max(view.begin, part.begin);
      if (c == ComponentKind::kMamba) page = view.end <= part.end ? view.end - 1 : end;
      for (; page < end; ++page) lost[index_of(c)] |= !has_bit(part.found, k * words * 64 + (page - part.begin));
    }
    parts_.tree.backlog().set_lost(node, f.epoch, lost);
  }
}

bool FetchQuery::answered(Fetch& f, const Op& op, const OutcomeBits& bits) {
  for (QueryPart& part : f.parts) {
    if (part.op != op.id) continue;
    part.found = bits;
    part.is_answered = true;
    forget_lost(f, part);
  }
  while (!f.parts.empty() && f.parts.front().is_answered && !f.scan.is_over()) {
    const QueryPart& part = f.parts.front();
    const std::vector<PoolPresence> presence = parts_.planner.presence_of(f, part);
    f.scan.add(parts_.model, presence, part.end - part.begin, f.candidates);
    if (!needs_full_alone(parts_.model)) f.reach.add(parts_.model, presence, part.end - part.begin);
    parts_.ops.budget().spend((part.end - part.begin) / 16 + 1);
    f.parts.pop_front();
  }
  if (f.scan.is_over()) close(f);
  add_parts(f);
  const bool is_known = f.scan.is_over() || f.scan.at() == f.pages;
  if (is_known) forget(f, op);
  return is_known;
}

void FetchQuery::forget(Fetch& f, const Op& op) const {
  std::erase_if(f.parts, [&](const QueryPart& part) { return part.op == op.id || part.is_answered; });
}

}  // namespace larder
