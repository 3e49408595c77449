// SPDX-License-Identifier: Apache-2.0
// What every fuzz target needs: bytes turned into choices, and a check that ends the process.
//
// Purpose: a structured target (a sequence of calls, a segment file with damage) reads its choices from the input's
// front. An input that is too short gives zeros, so every input means something and a cut one means nearly the same.
// Threads: confined. Lifetime: the input outlives the FuzzInput and what it gives.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace larder::fuzz {

// A property that must hold for every input. Prints the text and aborts, which libFuzzer and the replay both report
// with the input.
inline void fuzz_check(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz check failed: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// An error always says something: the caller shows it to a person.
inline void check_explains(const Status& status, std::string_view what) {
  if (!status.is_ok() && status.message().empty()) fuzz_check(false, std::string(what) + ": an error without a text");
}

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  [[nodiscard]] bool empty() const { return left_.empty(); }
  [[nodiscard]] std::size_t size() const { return left_.size(); }
  // Little-endian; zeros where the input ends.
  template <std::unsigned_integral T>
  [[nodiscard]] T number() {
    T value = 0;
    const std::span<const std::byte> bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // In [0, n); reads as few bytes as n needs. Precondition: n > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t n) {
    if (n <= 0x100) return number<std::uint8_t>() % n;
    if (n <= 0x10000) return number<std::uint16_t>() % n;
    return number<std::uint64_t>() % n;
  }
  [[nodiscard]] bool flag() { return (number<std::uint8_t>() & 1) != 0; }
  // The next n bytes, or what is left.
  [[nodiscard]] std::span<const std::byte> take(std::size_t n) {
    const std::span<const std::byte> bytes = left_.first(std::min(n, left_.size()));
    left_ = left_.subspan(bytes.size());
    return bytes;
  }
  // An input of its own: choices that mutations of what follows leave alone.
  [[nodiscard]] FuzzInput part(std::size_t n) {
    const std::span<const std::byte> bytes = take(n);
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::span<const std::byte> rest() { return take(left_.size()); }
  [[nodiscard]] std::string_view text(std::size_t n) {
    const std::span<const std::byte> bytes = take(n);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::string_view rest_text() { return text(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

[[nodiscard]] inline std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}
[[nodiscard]] inline bool are_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace larder::fuzz
