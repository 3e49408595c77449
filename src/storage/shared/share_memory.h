// SPDX-License-Identifier: Apache-2.0
// Memory that a client and its host have both mapped: the arena.
//
// Purpose: what the sessions need to know of it. The real one is a sealed memfd (real_share_socket.h); tests use a
// vector. Whoever holds the pointer keeps the mapping, so bytes of an operation in flight stay mapped when the
// connection is gone.
// Threads: the pointer and the size are constant; who may touch which bytes follows from the messages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace larder::share {

class ShareMemory {
 public:
  virtual ~ShareMemory() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
};

}  // namespace larder::share
