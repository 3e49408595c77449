// SPDX-License-Identifier: Apache-2.0
#include "sim/sparse_bytes.h"

#include <algorithm>
#include <cstring>

namespace larder::sim {

SparseBytes::Block& SparseBytes::own(std::uint64_t index) {
  std::shared_ptr<Block>& block = blocks_[index];
  if (!block) {
    block = std::make_shared<Block>();  // zeros
  } else if (block.use_count() > 1) {
    block = std::make_shared<Block>(*block);
  }
  return *block;
}

void SparseBytes::resize(std::uint64_t size_bytes) {
  if (size_bytes < size_) {
    blocks_.erase(blocks_.lower_bound((size_bytes + kBlockBytes - 1) / kBlockBytes), blocks_.end());
    const std::uint64_t last = size_bytes / kBlockBytes;
    if (blocks_.contains(last)) {
      Block& block = own(last);
      std::fill(block.begin() + static_cast<std::ptrdiff_t>(size_bytes % kBlockBytes), block.end(), std::byte{0});
    }
  }
  size_ = size_bytes;
}

void SparseBytes::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const auto start = static_cast<std::size_t>(offset % kBlockBytes);
    const std::size_t length = std::min(kBlockBytes - start, into.size());
    const auto found = blocks_.find(offset / kBlockBytes);
    if (found == blocks_.end()) {
      std::memset(into.data(), 0, length);
    } else {
      std::memcpy(into.data(), found->second->data() + start, length);
    }
    offset += length;
    into = into.subspan(length);
  }
}

void SparseBytes::write(std::uint64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const auto start = static_cast<std::size_t>(offset % kBlockBytes);
    const std::size_t length = std::min(kBlockBytes - start, from.size());
    std::memcpy(own(offset / kBlockBytes).data() + start, from.data(), length);
    offset += length;
    from = from.subspan(length);
    size_ = std::max(size_, offset);
  }
}

}  // namespace larder::sim
