// SPDX-License-Identifier: Apache-2.0
// Writing and reading the pieces of share_wire.h.
//
// Threads: confined. A reader never looks behind its bytes; its first failure stays, and what it gives then is zero.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "storage/shared/share_wire.h"

namespace larder::share {

class FrameWriter {
 public:
  // Begins a frame; finish() fills in the length.
  FrameWriter(Kind kind, std::uint64_t operation, std::size_t body_bytes = 0) {
    out_.reserve(kHeadBytes + body_bytes);
    number<std::uint32_t>(0);
    number(static_cast<std::uint8_t>(kind));
    number<std::uint8_t>(0);
    number<std::uint16_t>(0);
    number(operation);
  }
  template <std::unsigned_integral T>
  void number(T value) {
    char bytes[sizeof(T)];
    store_le(bytes, value);
    out_.append(bytes, sizeof bytes);
  }
  void digest(const Digest256& digest) {
    out_.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  }
  void pool(PoolName pool) { number(static_cast<std::uint8_t>(pool)); }
  void place(const Place& place) {
    number(place.offset);
    number(place.bytes);
  }
  void text(std::string_view text) {
    std::size_t length = std::min<std::size_t>(text.size(), kMaxTextBytes);
    // A cut inside a UTF-8 character takes the whole character.
    while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0u) == 0x80u) --length;
    const std::string_view cut = text.substr(0, length);
    number(static_cast<std::uint16_t>(cut.size()));
    out_.append(cut);
  }
  void status(const Status& status) {
    number(static_cast<std::uint8_t>(status.code()));
    text(status.message());
  }
  void terms(const Terms& terms) {
    number(terms.scope);
    number(static_cast<std::uint8_t>(terms.urgency));
    number(static_cast<std::uint64_t>(terms.left_ns));
  }
  [[nodiscard]] std::string finish() {
    store_le(out_.data(), static_cast<std::uint32_t>(out_.size() - kHeadBytes));
    return std::move(out_);
  }

 private:
  std::string out_;
};

class FrameReader {
 public:
  explicit FrameReader(std::string_view body) : left_(body) {}

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
  PoolName pool() { return static_cast<PoolName>(number_up_to<std::uint8_t>(kPoolNumberCount - 1)); }
  Place place() {
    Place place;
    place.offset = number<std::uint64_t>();
    place.bytes = number<std::uint64_t>();
    return place;
  }
  std::string text() { return std::string(bytes(number_up_to<std::uint16_t>(kMaxTextBytes))); }
  Status status() {
    const auto code = number_up_to(static_cast<std::uint8_t>(StatusCode::kInternal));
    std::string words = text();
    return {static_cast<StatusCode>(code), std::move(words)};
  }
  Terms terms() {
    Terms terms;
    terms.scope = number_up_to<std::uint16_t>(kMaxScopes - 1);
    terms.urgency = static_cast<Urgency>(number_up_to<std::uint8_t>(kUrgencyCount - 1));
    const std::uint64_t left = number_up_to<std::uint64_t>(kNoDeadline);
    terms.left_ns = static_cast<std::int64_t>(left);
    return terms;
  }
  // A count of things of at least `least` bytes each: broken if there are more than `most`, or so many cannot follow.
  template <std::unsigned_integral T>
  std::size_t count(std::size_t least, std::size_t most) {
    const std::size_t n = number<T>();
    if (n > most || n * least > left_.size()) fail();
    return ok_ ? n : 0;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  // Ok if all was read, and no more was there.
  [[nodiscard]] Status finish(std::string_view what) const {
    if (ok_ && left_.empty()) return Status::ok();
    return corrupt("shared store: a message '" + std::string(what) + "' is broken");
  }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace larder::share
