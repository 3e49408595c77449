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
  // Errors: kInvalidArgument (0 bytes), kOverloaded (the machine has not that much: says how much it has, and what of
  // it has to stay free).
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(std::size_t bytes) = 0;
};

// May so many bytes be taken of what is available? What else runs on the machine (the engine, page tables, the page
// cache) keeps a sixteenth of it, at most 10 GiB, so that a tier that is as large as the machine is refused at the
// start and not killed later. Errors: kOverloaded. Source: SGLang keeps 10 GiB.
[[nodiscard]] Status check_memory(std::size_t bytes, std::size_t available);

// Anonymous host memory: mmap + MADV_HUGEPAGE where available + pre-fault (first touch runs at 0.3 GiB/s with 4 KiB
// pages, so it must not happen on the request path). The CPU device uses it too.
[[nodiscard]] MemorySource& host_memory_source();

}  // namespace larder
