// SPDX-License-Identifier: Apache-2.0
#include "door/attached_stores.h"

#include <algorithm>
#include <utility>

#include "door/c_call.h"

namespace larder::c {

AttachedStores::~AttachedStores() {
  for (larder_store* const store : stores_) --store->connectors;
}

Status AttachedStores::attach(larder_store& store, const std::function<Status()>& attach) {
  const bool is_new = std::find(stores_.begin(), stores_.end(), &store) == stores_.end();
  if (is_new) {
    stores_.push_back(&store);
    ++store.connectors;
  }
  larder_store* const before = std::exchange(attached_, &store);
  Status attached = attach();
  if (attached.is_ok()) return attached;
  attached_ = before;
  if (is_new) {
    stores_.pop_back();
    --store.connectors;
  }
  return attached;
}

}  // namespace larder::c
