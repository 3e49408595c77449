// SPDX-License-Identifier: Apache-2.0
// The stores that a connector of the C interface was attached to. Each counts it as long as it may have buffers there,
// so that larder_store_close() refuses.
//
// Threads: the connector's. Lifetime: the stores outlive this; it outlives the connector's engine.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"

struct larder_store;

namespace larder::c {

class AttachedStores {
 public:
  AttachedStores() = default;
  AttachedStores(const AttachedStores&) = delete;
  AttachedStores& operator=(const AttachedStores&) = delete;
  ~AttachedStores();  // no store counts it any more

  // attach: gives the store to the engine. If that fails, all is as before. If it throws, the engine may have the
  // store: it counts as attached.
  Status attach(larder_store& store, const std::function<Status()>& attach);
  [[nodiscard]] bool is_attached() const { return attached_ != nullptr; }
  // The engine has none now; operations of the last one may be under way.
  void detached() { attached_ = nullptr; }

 private:
  larder_store* attached_ = nullptr;
  std::vector<larder_store*> stores_;  // that count it, each once
};

}  // namespace larder::c
