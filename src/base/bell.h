// SPDX-License-Identifier: Apache-2.0
// Rung when something has arrived, for who waits in an event loop of its own and not in the call that takes it.
//
// Threads: ring(): any, also when who waited is gone: whoever may ring holds a shared_ptr. silence(): who waits, before
// it takes what has arrived; so what arrives later rings again.
#pragma once

namespace larder {

class Bell {
 public:
  virtual ~Bell() = default;
  virtual void ring() noexcept = 0;
  virtual void silence() noexcept = 0;
};

}  // namespace larder
