// SPDX-License-Identifier: Apache-2.0
// Where a tier's bytes live. A MemorySource hands out large regions once, at start; nothing allocates later.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace larder {

// One region; freed by the destructor. data() is at least 4 KiB aligned and pre-faulted.
class Memory {
 public:
  virtual ~Memory() = default;
  [[nodiscard]] virtual std::byte* data() const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
};

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Errors: kInvalidArgument (0 bytes), kOverloaded (the machine has not that much: says how much it has).
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) = 0;
};

// Anonymous host memory: mmap + MADV_HUGEPAGE where available + pre-fault (first touch runs at 0.3 GiB/s with 4 KiB
// pages, so it must not happen on the request path). The CPU device uses it too.
[[nodiscard]] MemorySource& host_memory_source();

}  // namespace larder
