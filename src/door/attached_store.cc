// SPDX-License-Identifier: Apache-2.0
#include "door/attached_store.h"

#include <utility>

#include "door/c_call.h"

namespace larder::c {

Status AttachedStore::attach(larder_store& store, const std::function<Status()>& attach) {
  if (store_ != nullptr) return conflict("a store is attached to the connector: larder_connector_detach() it first");
  store_ = &store;
  emptied_ = store.store->emptied_mark();
  ++store.connectors;
  Status attached = attach();
  if (!attached.is_ok()) detached();
  return attached;
}

bool AttachedStore::was_cleared() {
  if (store_ == nullptr) return false;
  const ClearMark emptied = store_->store->emptied_mark();
  return std::exchange(emptied_, emptied) != emptied;
}

void AttachedStore::detached() {
  if (larder_store* const store = std::exchange(store_, nullptr)) --store->connectors;
}

}  // namespace larder::c
