// SPDX-License-Identifier: Apache-2.0
// Large buffers that are used again: memory that the process touches for the first time costs more than a copy.
//
// Threads: any. Lifetime: a buffer goes back when its last user lets it go, and may outlive the pool.
// Limits: keeps `most_kept` free buffers of `most_bytes` together, the largest ones that fit; as many more as are in
// use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ranked_mutex.h"

namespace larder::llama {

class ByteBuffers {
 public:
  explicit ByteBuffers(std::size_t most_kept, std::size_t most_bytes = SIZE_MAX)
      : shelf_(std::make_shared<Shelf>(most_kept, most_bytes)) {}

  class Buffer {
   public:
    [[nodiscard]] std::span<std::byte> bytes() { return {memory_.get(), size_}; }
    [[nodiscard]] std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }

   private:
    friend class ByteBuffers;
    std::unique_ptr<std::byte[]> memory_;
    std::size_t size_ = 0, capacity_ = 0;
  };
  // Of `size` bytes of any content.
  [[nodiscard]] std::shared_ptr<Buffer> take(std::size_t size);
  // Of all free buffers.
  [[nodiscard]] std::size_t kept_bytes() const;

 private:
  struct Shelf {
    Shelf(std::size_t buffers, std::size_t bytes) : most_kept(buffers), most_bytes(bytes) {}
    void put(std::unique_ptr<Buffer> buffer) LARDER_EXCLUDES(mutex);
    [[nodiscard]] std::size_t bytes() const LARDER_REQUIRES(mutex);
    const std::size_t most_kept, most_bytes;
    mutable RankedMutex mutex{LockRank::kPool};
    std::vector<std::unique_ptr<Buffer>> free LARDER_GUARDED_BY(mutex);  // by capacity, ascending
  };
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace larder::llama
