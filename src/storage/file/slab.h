// SPDX-License-Identifier: Apache-2.0
// Records with numbers from 0 up that never move; freed numbers are used first.
//
// T has free_link(), a std::uint32_t& that is free to use while the record is. Threads: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace larder::file_store {

inline constexpr std::uint32_t kNoNumber = 0xffffffffu;

template <class T>
class Slab {
 public:
  [[nodiscard]] T& operator[](std::uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
  [[nodiscard]] const T& operator[](std::uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }
  // The record is as it was left by give(), or new.
  [[nodiscard]] std::uint32_t take() {
    const std::uint32_t number = free_;
    if (number != kNoNumber) {
      free_ = (*this)[number].free_link();
      return number;
    }
    if (made_ % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
    return made_++;
  }
  void give(std::uint32_t number) {
    (*this)[number].free_link() = free_;
    free_ = number;
  }
  [[nodiscard]] std::uint32_t made() const { return made_; }  // numbers below this exist, some of them free
  [[nodiscard]] std::size_t memory_bytes() const { return chunks_.size() * kChunk * sizeof(T); }
  void reserve(std::uint64_t records) { chunks_.reserve(static_cast<std::size_t>(records / kChunk + 1)); }

 private:
  static constexpr std::size_t kChunk = 4096;  // records allocated together
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::uint32_t free_ = kNoNumber;
  std::uint32_t made_ = 0;
};

}  // namespace larder::file_store
