// SPDX-License-Identifier: Apache-2.0
#include "server/llama/byte_buffers.h"

#include <algorithm>
#include <utility>

namespace larder::llama {

std::shared_ptr<ByteBuffers::Buffer> ByteBuffers::take(std::size_t size) {
  std::unique_ptr<Buffer> buffer;
  {
    LockGuard guard(shelf_->mutex);
    const auto it = std::ranges::find_if(shelf_->free, [&](const auto& one) { return one->capacity_ >= size; });
    if (it != shelf_->free.end()) {
      buffer = std::move(*it);
      shelf_->free.erase(it);
    }
  }
  if (!buffer) {
    buffer = std::make_unique<Buffer>();
    buffer->capacity_ = size + size / 4;  // the next one of this conversation is longer
    buffer->memory_ = std::make_unique_for_overwrite<std::byte[]>(buffer->capacity_);
  }
  buffer->size_ = size;
  return {buffer.release(), [shelf = shelf_](Buffer* done) { shelf->put(std::unique_ptr<Buffer>(done)); }};
}

std::size_t ByteBuffers::kept_bytes() const {
  LockGuard guard(shelf_->mutex);
  return shelf_->bytes();
}

std::size_t ByteBuffers::Shelf::bytes() const {
  std::size_t sum = 0;
  for (const auto& one : free) sum += one->capacity_;
  return sum;
}

void ByteBuffers::Shelf::put(std::unique_ptr<Buffer> buffer) {
  if (buffer->capacity_ > most_bytes) return;
  std::vector<std::unique_ptr<Buffer>> spare;  // die without the lock
  LockGuard guard(mutex);
  const auto at = std::ranges::upper_bound(free, buffer->capacity_, {}, [](const auto& one) { return one->capacity_; });
  free.insert(at, std::move(buffer));
  while (free.size() > most_kept || bytes() > most_bytes) {
    spare.push_back(std::move(free.front()));
    free.erase(free.begin());
  }
}

}  // namespace larder::llama
