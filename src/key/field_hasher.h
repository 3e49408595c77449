// SPDX-License-Identifier: Apache-2.0
// A digest over a list of fields, each with its length in front, so that no two lists give the same bytes.
//
//   field = length: u64 little-endian | that many bytes
//
// A text field holds its bytes, a number field 8 bytes (u64 little-endian), a digest field 32 bytes.
// Threads: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "key/sha256.h"

namespace larder {

class FieldHasher {
 public:
  void text(std::string_view value) { field(value.data(), value.size()); }
  void number(std::uint64_t value) {
    std::uint8_t bytes[8];
    store_le<std::uint64_t>(bytes, value);
    field(bytes, sizeof bytes);
  }
  void digest(const Digest256& value) { field(value.bytes.data(), value.bytes.size()); }
  [[nodiscard]] Digest256 finish() { return hash_.finish(); }

 private:
  void field(const void* bytes, std::size_t byte_count) {
    std::uint8_t length[8];
    store_le<std::uint64_t>(length, byte_count);
    hash_.update(length, sizeof length).update(bytes, byte_count);
  }

  Sha256 hash_;
};

}  // namespace larder
