// SPDX-License-Identifier: Apache-2.0
// Writing and reading the fields of a message: little-endian numbers, bytes, short texts, digests.
//
// Purpose: what the project's own protocols have in common (storage/shared/share_wire.h, controller/ranks/rank_wire.h,
// metadata/metadata_wire.h).
// What a field means and how long a message may be is the protocol's.
// Threads: confined. Errors: a reader never looks behind its bytes; its first failure stays, and what it gives then is
// zero or empty. Cost: a reader copies nothing but what it gives as a std::string.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"

namespace larder {

class WireWriter {
 public:
  WireWriter() = default;
  // For about that many bytes.
  explicit WireWriter(std::size_t bytes) { out_.reserve(bytes); }

  template <std::unsigned_integral T>
  void number(T value) {
    char bytes[sizeof(T)];
    store_le(bytes, value);
    out_.append(bytes, sizeof bytes);
  }
  void bytes(std::string_view bytes) { out_.append(bytes); }
  void digest(const Digest256& digest) {
    out_.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  }
  // Its length (u16), and what of it fits into `most` bytes.
  void text(std::string_view text, std::size_t most) {
    std::size_t length = std::min(text.size(), most);
    // A cut inside a UTF-8 character takes the whole character.
    while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0u) == 0x80u) --length;
    number(static_cast<std::uint16_t>(length));
    out_.append(text.substr(0, length));
  }
  // Overwrites a number that was written at byte `at`.
  template <std::unsigned_integral T>
  void set(std::size_t at, T value) {
    store_le(out_.data() + at, value);
  }
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const std::string_view taken = bytes(sizeof(T));
    return taken.empty() ? T{0} : load_le<T>(taken.data());
  }
  // A number that is at most `most`; else the bytes are broken.
  template <std::unsigned_integral T>
  T number_up_to(T most) {
    const T value = number<T>();
    if (value > most) fail();
    return ok_ ? value : T{0};
  }
  std::string_view bytes(std::size_t size) {
    if (left_.size() < size) fail();
    if (!ok_) return {};
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  bool flag() { return number_up_to<std::uint8_t>(1) != 0; }
  Digest256 digest() {
    Digest256 digest;
    const std::string_view taken = bytes(digest.bytes.size());
    if (ok_) std::memcpy(digest.bytes.data(), taken.data(), taken.size());
    return digest;
  }
  std::string text(std::uint16_t most) { return std::string(bytes(number_up_to<std::uint16_t>(most))); }
  // A count of things of at least `least` bytes each: broken if there are more than `most`, or so many cannot follow.
  template <std::unsigned_integral T>
  std::size_t count(std::size_t least, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    const std::size_t n = number<T>();
    if (n > most || n > left_.size() / least) fail();
    return ok_ ? n : 0;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return left_.size(); }
  // All was read, and nothing was broken.
  [[nodiscard]] bool is_done() const { return ok_ && left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace larder
