// SPDX-License-Identifier: Apache-2.0
#include "controller/space_table.h"

namespace larder {

std::optional<NamespaceId> SpaceTable::find(const Name& name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? std::nullopt : std::optional(it->second);
}

void SpaceTable::add(const Name& name, NamespaceId id, std::shared_ptr<const StoreScope> scope) {
  names_.emplace(name, id);
  spaces_.emplace(id.v, Space{name, std::move(scope), idle_.insert(idle_.end(), id)});
}

void SpaceTable::erase(NamespaceId id) {
  const auto it = spaces_.find(id.v);
  if (it == spaces_.end() || it->second.uses != 0) return;
  line_of(it->second).erase(it->second.place);
  if (!it->second.is_retired) names_.erase(it->second.name);
  spaces_.erase(it);
}

void SpaceTable::retire(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  if (space.is_retired) return;
  names_.erase(space.name);
  std::list<NamespaceId>& before = line_of(space);
  space.is_retired = true;
  std::list<NamespaceId>& line = line_of(space);
  line.splice(line.end(), before, space.place);
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
