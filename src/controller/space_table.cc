// SPDX-License-Identifier: Apache-2.0
#include "controller/space_table.h"

#include <utility>

namespace larder {

std::optional<NamespaceId> SpaceTable::find(const Name& name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? std::nullopt : std::optional(it->second);
}

void SpaceTable::add(const Name& name, NamespaceId id, std::shared_ptr<const StoreScope> scope) {
  // All that takes memory comes first: who finds it finds all of it.
  std::list<NamespaceId> place{id};
  Names named;
  const auto at = named.emplace(name, id).first;
  spaces_.emplace(id.v, Space{&at->first, std::move(scope), place.begin()});
  idle_.splice(idle_.end(), place);
  names_.insert(named.extract(at));
  places_ += places_of(name);
}

void SpaceTable::erase(NamespaceId id) {
  const auto it = spaces_.find(id.v);
  if (it == spaces_.end() || it->second.uses != 0) return;
  line_of(it->second).erase(it->second.place);
  if (!it->second.is_retired()) (void)take_name(*it->second.open_name);
  spaces_.erase(it);
}

void SpaceTable::retire(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  if (space.is_retired()) return;
  std::list<NamespaceId>& before = line_of(space);
  space.retired_name = take_name(*space.open_name);
  std::list<NamespaceId>& line = line_of(space);
  line.splice(line.end(), before, space.place);
}

SpaceTable::Names::node_type SpaceTable::take_name(const Name& name) {
  places_ -= places_of(name);
  return names_.extract(names_.find(name));
}

SpaceTable::Use SpaceTable::use(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  std::list<NamespaceId>& before = line_of(space);
  ++space.uses;
  used_.splice(used_.end(), before, space.place);
  return {*this, id};
}

void SpaceTable::drop_use(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  if (--space.uses > 0) return;
  std::list<NamespaceId>& line = line_of(space);
  line.splice(line.end(), used_, space.place);
}

}  // namespace larder
