// SPDX-License-Identifier: Apache-2.0
// What a simulated file holds. Blocks that nobody has written are zeros and take no memory, so that a segment of 256
// MiB costs what was written of it; copies share their blocks until one of them is written.
//
// Threads: one at a time, for all that were copied from each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

namespace larder::sim {

class SparseBytes {
 public:
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // What is added is zeros.
  void resize(std::uint64_t size_bytes);
  // Precondition: [offset, offset + into.size()) lies within size().
  void read(std::uint64_t offset, std::span<std::byte> into) const;
  // Grows to the end of what is written.
  void write(std::uint64_t offset, std::span<const std::byte> from);

 private:
  static constexpr std::size_t kBlockBytes = 16'384;
  using Block = std::array<std::byte, kBlockBytes>;

  // The block for writing: made, or unshared.
  [[nodiscard]] Block& own(std::uint64_t index);

  std::uint64_t size_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Block>> blocks_;  // by offset / kBlockBytes; bytes behind size_ are zeros
};

}  // namespace larder::sim
