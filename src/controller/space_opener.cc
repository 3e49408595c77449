// SPDX-License-Identifier: Apache-2.0
#include "controller/space_opener.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/defect.h"
#include "storage/backend.h"

namespace larder {

namespace {
// Idle namespaces that are looked at to find one to close: of those that may go, and of all.
constexpr std::size_t kClosableLookedAt = 16;
constexpr std::size_t kIdleLookedAt = 4096;
constexpr std::size_t kLongestName = 4096;  // bytes: names are kept, hashed, and told
}  // namespace

SpaceOpener::SpaceOpener(std::uint32_t max_namespaces, const Parts& parts)
    : max_namespaces_(max_namespaces),
      model_(parts.model),
      scope_(parts.scope),
      tree_(parts.tree),
      table_(parts.table),
      tenants_(parts.tenants),
      counters_(parts.counters),
      has_group_(parts.has_group) {}

Result<NamespaceId> SpaceOpener::open(const std::string& adapter, const std::string& salt) {
  if (std::max(adapter.size(), salt.size()) > kLongestName) {
    return invalid_argument("cache: adapter and salt have " + std::to_string(adapter.size()) + " and " +
                            std::to_string(salt.size()) + " bytes; each may have " + std::to_string(kLongestName));
  }
  const SpaceTable::Name name(adapter, salt);
  if (const std::optional<NamespaceId> known = table_.find(name)) return *known;
  // The longest name of all finds a place, too.
  const std::size_t places = std::min<std::size_t>(SpaceTable::places_of(name), max_namespaces_);
  for (std::size_t i = 0; i < places && table_.places() + places > max_namespaces_; ++i) {
    if (!close_idle()) break;
  }
  if (table_.places() + places > max_namespaces_) {
    return overloaded("cache: adapters and salts in use take " + std::to_string(table_.places()) + " of " +
                      std::to_string(max_namespaces_) + " places, and this one needs " + std::to_string(places));
  }
  NamespaceScope scope = scope_;
  scope.adapter = adapter;
  scope.salt = salt;
  const std::string path_salt = defect(Defect::kRankInPaths) ? salt + std::to_string(scope.tp_rank) : salt;
  const NamespaceId id = tree_.spaces().open(namespace_digest(model_, scope), tenants_.enter(salt),
                                             PathHash::of_space(adapter, path_salt));
  StoreScope store = make_store_scope(model_, scope);
  if (!has_group_) store.ranks = 1;
  table_.add(name, id, std::make_shared<const StoreScope>(std::move(store)));
  return id;
}

// One without pages is only a name, so it goes before those with pages; of these, the one that idles for the longest
// time. Idle ones may still have operations in flight (backups and writes, loads of requests that were aborted): they
// go to the end of the line, so that the next look finds others first. What a tenant with a floor has goes only if
// none that was looked at is without one.
std::optional<NamespaceId> SpaceOpener::next_to_close() {
  std::optional<NamespaceId> oldest, oldest_with_floor;
  std::size_t closable = 0;
  std::size_t left = std::min(table_.idle().size(), kIdleLookedAt);
  for (auto it = table_.idle().begin(); left > 0 && closable < kClosableLookedAt; --left) {
    const NamespaceId id = *it++;
    if (tree_.spaces().is_claimed(id)) {
      table_.put_last(id);
      continue;
    }
    if (!tree_.view(tree_.spaces().root(id)).has_children) return id;
    const bool has_floor = tenants_.has_floor(tree_.spaces().tenant_of(id));
    closable += has_floor ? 0 : 1;
    std::optional<NamespaceId>& first = has_floor ? oldest_with_floor : oldest;
    if (!first) first = id;
  }
  return oldest ? oldest : oldest_with_floor;
}

// What a tenant that idles has cached must not keep one out that is there now: it costs a miss, no more.
bool SpaceOpener::close_idle() {
  const std::optional<NamespaceId> id = next_to_close();
  if (id) close(*id);
  return id.has_value();
}

void SpaceOpener::close(NamespaceId id) {
  (void)tree_.spaces().flush(id);
  if (!tree_.spaces().close(id).is_ok()) {
    ++counters_.internal_errors;
    return;
  }
  tenants_.leave(table_.name(id).second);
  table_.erase(id);
}

void SpaceOpener::retire() {
  std::vector<NamespaceId> in_use;
  for (const auto& [name, id] : table_.names()) {
    const bool has_pages = tree_.view(tree_.spaces().root(id)).has_children;
    if (has_pages || table_.is_used(id) || tree_.spaces().is_claimed(id)) in_use.push_back(id);
  }
  for (const NamespaceId id : in_use) {
    tree_.spaces().retire(id);
    table_.retire(id);
  }
}

void SpaceOpener::close_retired() {
  const std::vector<NamespaceId> unused(table_.retired().begin(), table_.retired().end());
  for (const NamespaceId id : unused) {
    if (!tree_.spaces().is_claimed(id)) close(id);
  }
}

}  // namespace larder
