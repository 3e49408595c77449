// SPDX-License-Identifier: Apache-2.0
// Walks bytes of a foreign file from front to back; nothing is read behind the end.
//
// The first failure stays: whatever is read after it is zero or empty, and status() tells what was wrong and where.
// Threads: confined. Lifetime: points into the bytes.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace larder::llama {

class BlobReader {
 public:
  explicit BlobReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool ok() const { return status_.is_ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // The failure is that the bytes end too early.
  [[nodiscard]] bool ran_out() const { return ran_out_; }
  [[nodiscard]] std::size_t offset() const { return at_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }
  [[nodiscard]] const std::byte* here() const { return bytes_.data() + at_; }

  template <std::unsigned_integral T>
  [[nodiscard]] T number(std::string_view what) {
    const std::span<const std::byte> from = take(sizeof(T), what);
    return from.empty() ? T{0} : load_le<T>(from.data());
  }
  [[nodiscard]] std::int32_t number_i32(std::string_view what) {
    return static_cast<std::int32_t>(number<std::uint32_t>(what));
  }
  // Empty if fewer bytes are left.
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (!ok()) return {};
    if (count > left()) {
      ran_out_ = true;
      fail(corrupt(fmt::format("{} at byte {} needs {} bytes, and {} are left", what, at_, count, left())));
      return {};
    }
    const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += taken.size();
    return taken;
  }
  void fail(Status status) {
    if (ok()) status_ = std::move(status);
  }

 private:
  const std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool ran_out_ = false;
  Status status_;
};

}  // namespace larder::llama
