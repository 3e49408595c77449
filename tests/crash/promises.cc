// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/promises.h"

#include <algorithm>
#include <utility>

namespace larder::crash {

void Promises::write_begun(std::uint64_t write, const std::vector<GroupId>& groups, bool is_durable) {
  Write& out = writes_[write];
  out = {groups, is_durable, false};
  for (const GroupId& id : groups) {
    Group& group = groups_[id];
    ++group.in_flight;
    group.is_touched = true;
    group.known = std::max(group.known, Known::kMaybe);
    out.overlaps_clear = out.overlaps_clear || is_clearing(id.scope);
  }
}

void Promises::group_done(std::uint64_t write, std::size_t index, bool is_ok) {
  const auto found = writes_.find(write);
  if (found == writes_.end()) return;
  const Write& of = found->second;
  Group& group = groups_[of.groups.at(index)];
  --group.in_flight;
  if (!is_ok) return;
  ++acknowledged_;
  if (!of.overlaps_clear) group.known = std::max(group.known, of.is_durable ? Known::kDurable : Known::kThere);
}

void Promises::clear_begun(std::uint64_t scope) {
  clears_.insert(scope);
  for (auto& [id, group] : groups_) {
    if (scope != 0 && id.scope != scope) continue;
    group.known = std::min(group.known, Known::kMaybe);
    group.is_touched = group.in_flight > 0;
  }
  for (auto& [number, write] : writes_) {
    for (const GroupId& id : write.groups) write.overlaps_clear |= scope == 0 || id.scope == scope;
  }
}

void Promises::clear_done(std::uint64_t scope, bool is_ok) {
  clears_.erase(scope);
  if (!is_ok) return;
  for (auto& [id, group] : groups_) {
    if ((scope == 0 || id.scope == scope) && !group.is_touched) group.known = Known::kAbsent;
  }
}

void Promises::ended(Ending ending) {
  writes_.clear();
  clears_.clear();
  for (auto& [id, group] : groups_) {
    group.in_flight = 0;
    if (ending == Ending::kPowerCut && group.known == Known::kThere) group.known = Known::kMaybe;
  }
}

std::vector<GroupId> Promises::groups() const {
  std::vector<GroupId> out;
  for (const auto& [id, group] : groups_) out.push_back(id);
  return out;
}

Expectation Promises::expected(const GroupId& group) const {
  const auto found = groups_.find(group);
  const Known known = found == groups_.end() ? Known::kAbsent : found->second.known;
  if (known == Known::kAbsent) return Expectation::kAbsent;
  return known == Known::kMaybe || may_evict_ ? Expectation::kEither : Expectation::kWhole;
}

void Promises::found(const GroupId& group, bool is_there) {
  Group& known = groups_[group];
  if (is_there) {
    known.known = Known::kDurable;
  } else if (!may_evict_) {
    known.known = Known::kAbsent;
  }
}

}  // namespace larder::crash
