// SPDX-License-Identifier: Apache-2.0
// The store that a connector of the C interface is attached to. It counts the connector, so that larder_store_close()
// refuses while it is in use; and it is asked for clears, whoever made them, in whichever process that shares the
// store.
//
// A store that was detached does not: the close of a store waits for what it has under way, buffers of the connector
// included, and the connector gives it nothing more.
//
// Threads: the connector's. Lifetime: a store outlives its attachment.
#pragma once

#include <functional>

#include "base/status.h"
#include "storage/backend.h"

struct larder_store;

namespace larder::c {

class AttachedStore {
 public:
  AttachedStore() = default;
  AttachedStore(const AttachedStore&) = delete;
  AttachedStore& operator=(const AttachedStore&) = delete;
  ~AttachedStore() { detached(); }

  // attach: gives the store to the engine. If that fails, all is as before. If it throws, the engine may have the
  // store: it counts as attached. kConflict: there is one; the engine is not asked.
  Status attach(larder_store& store, const std::function<Status()>& attach);
  [[nodiscard]] bool is_attached() const { return store_ != nullptr; }
  // Whether all of the store was cleared since it was attached, or since this was asked last.
  [[nodiscard]] bool was_cleared();
  // The engine has none now; operations of the last one may be under way.
  void detached();

 private:
  larder_store* store_ = nullptr;
  ClearMark emptied_;  // of it, that is known
};

}  // namespace larder::c
