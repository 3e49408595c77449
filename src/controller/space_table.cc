// SPDX-License-Identifier: Apache-2.0
#include "controller/space_table.h"

namespace larder {

std::optional<NamespaceId> SpaceTable::find(const Name& name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? std::nullopt : std::optional(it->second);
}

void SpaceTable::add(const Name& name, NamespaceId id, std::shared_ptr<const StoreScope> scope) {
  names_.emplace(name, id);
  spaces_.emplace(id.v, Space{name, std::move(scope), 0, idle_.insert(idle_.end(), id)});
}

void SpaceTable::erase(NamespaceId id) {
  const auto it = spaces_.find(id.v);
  if (it == spaces_.end() || it->second.uses != 0) return;
  idle_.erase(it->second.place);
  names_.erase(it->second.name);
  spaces_.erase(it);
}

SpaceTable::Use SpaceTable::use(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  if (space.uses++ == 0) used_.splice(used_.end(), idle_, space.place);
  return {*this, id};
}

void SpaceTable::drop_use(NamespaceId id) {
  Space& space = spaces_.at(id.v);
  if (--space.uses == 0) idle_.splice(idle_.end(), used_, space.place);
}

}  // namespace larder
