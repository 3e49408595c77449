// SPDX-License-Identifier: Apache-2.0
#include "controller/loads.h"

#include <algorithm>
#include <utility>

#include "base/defect.h"
#include "controller/host_presence.h"

namespace larder {

Loads::Loads(const Parts& parts)
    : model_(parts.model),
      host_(parts.host),
      tree_(parts.tree),
      room_(parts.room),
      ops_(parts.ops),
      copier_(parts.copier),
      clock_(parts.clock),
      counters_(parts.counters),
      metrics_(parts.metrics),
      loads_("load", parts.ops) {}

Result<Loads::Slots> Loads::find_slots(const Lookups::Lookup& lookup, const LoadPoint& point) const {
  const Status lost = internal_error("load: the host does not have what the lease should have kept");
  if (!tree_.exists(lookup.end) || tree_.view(lookup.end).end < point.pages) return lost;
  const NodeId node = position_on_path(tree_, lookup.end, point.pages).node;
  Slots slots;
  slots.first = {point.full_from, point.window_from, point.pages - 1};
  const auto locate = [&](ComponentKind c, std::uint64_t from) {
    if (from < point.pages) tree_.locate(node, c, from, point.pages, slots.of[index_of(c)]);
  };
  locate(ComponentKind::kFull, point.full_from);
  locate(ComponentKind::kSwa, point.window_from);
  if (point.has_state) {
    if (tree_.view(node).end != point.pages) return lost;
    locate(ComponentKind::kMamba, point.pages - 1);
    if (slots.of[index_of(ComponentKind::kMamba)].empty()) return lost;
  }
  for (const auto& of : slots.of) {
    if (!std::all_of(of.begin(), of.end(), [](const PageLocation& at) { return at.host.valid(); })) return lost;
  }
  return slots;
}

Status Loads::lease(Load& load, const Slots& slots) {
  for (const ComponentKind c : kAllComponents) {
    for (const PageLocation& at : slots.of[index_of(c)]) {
      if (defect(Defect::kLoadWithoutLease)) continue;
      const Result<Generation> generation = host_.add_lease(c, at.host);
      if (!generation) {
        room_.drop_leases(std::exchange(load.leases, {}));
        return overloaded("load: " + generation.status().message());
      }
      load.leases.push_back({c, at.host.v, *generation});
    }
  }
  return Status::ok();
}

Result<std::shared_ptr<PageCopy>> Loads::make_copy(const LoadPoint& point, const Slots& slots,
                                                   const LoadRequest& request) const {
  PageNeeds needs{point.full_from, point.window_from, point.pages, {}};
  if (point.has_state) needs.states.push_back(point.pages);
  Result<PlaceTable> places = PlaceTable{};
  if (!request.writer) places = PlaceTable::create(model_, needs, request.places);
  if (!places.is_ok()) return invalid_argument("load: " + places.status().message());
  if (request.writer && !request.places.empty())
    return invalid_argument("load: give places or a callback for pages, not both");
  auto copy = std::make_shared<PageCopy>();
  copy->set_writer(request.writer);
  std::vector<Segment> bytes;  // of one page
  for (const PoolSpec& pool : model_.pools) {
    const std::size_t c = index_of(pool.component);
    for (std::size_t i = 0; i < slots.of[c].size() && pool.page_bytes() > 0; ++i) {
      bytes.clear();
      host_.append_page(pool.name, slots.of[c][i].host, bytes);
      const std::uint64_t page = slots.first[c] + i;
      if (request.writer) {
        copy->add_page(pool.name, page, std::exchange(bytes, {}));
      } else {
        copy->add(bytes, places->at(pool, page));
      }
    }
  }
  return copy;
}

Status Loads::begin(TransferId id, const Lookups::Lookup& lookup, const LoadPoint& point, const LoadRequest& request) {
  LARDER_ASSIGN_OR_RETURN(Slots slots, find_slots(lookup, point));
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<PageCopy> copy, make_copy(point, slots, request));
  if (!ops_.places().has_room(OpKind::kLoad)) return overloaded("load: too many operations are in flight");
  Load load;
  LARDER_RETURN_IF_ERROR(lease(load, slots));
  load.result.pages = point.pages;
  load.result.bytes = copy->bytes();
  load.new_pages = point.pages - point.full_from;
  load.begun = clock_.now();
  Op& op = ops_.add(OpKind::kLoad);
  op.transfer = id.v;
  load.op = op.id;
  loads_.add(id, std::move(load));
  tree_.touch(position_on_path(tree_, lookup.end, point.pages), true);
  copier_.submit(op.id, std::move(copy));
  return Status::ok();
}

void Loads::done(Op& op, bool is_ok) {
  copier_.forget(op.id);
  Load* const found = loads_.find(op.transfer);
  if (found == nullptr) return;
  Load& load = *found;
  room_.drop_leases(std::exchange(load.leases, {}));
  load.is_over = true;
  if (is_ok) {
    counters_.loaded_back += load.new_pages;
    metrics_.loaded_back(clock_.now() - load.begun);
    return;
  }
  load.result.status = loads_.failure_of(op);
}

}  // namespace larder
