// SPDX-License-Identifier: Apache-2.0
// Writing and reading the pieces of metadata_wire.h.
//
// Threads: confined. A reader never looks behind its bytes; its first failure stays, and what it gives then is zero.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

inline constexpr std::uint16_t kParentIsKeyBefore = 0xFFFF;
inline constexpr std::string_view kAskMagic = "LMDQ";
inline constexpr std::string_view kAnswerMagic = "LMDA";

class WireWriter {
 public:
  // Begins a message; finish() fills in the length.
  WireWriter(std::string_view magic, std::uint8_t operation, std::uint8_t status) {
    out_.append(magic);
    number<std::uint16_t>(1);
    number(operation);
    number(status);
    number<std::uint64_t>(0);
  }
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  template <std::unsigned_integral T>
  void number(T value) {
    char bytes[sizeof(T)];
    store_le(bytes, value);
    out_.append(bytes, sizeof bytes);
  }
  void nanos(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void bytes(std::string_view text) { out_.append(text); }
  void key(std::string_view text) {
    number(static_cast<std::uint16_t>(text.size()));
    bytes(text);
  }
  void name(const MetadataNamespace& name_space) {
    nanos(name_space.rank);
    number(static_cast<std::uint8_t>(name_space.name.size()));
    bytes(name_space.name);
  }
  void session(const MetadataSession& session) {
    number(session.process[0]);
    number(session.process[1]);
    number(session.operation);
  }
  void ref(const PageRef& ref) {
    number(ref.page);
    number(ref.generation);
  }
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  [[nodiscard]] std::string finish() {
    store_le(out_.data() + 8, static_cast<std::uint32_t>(out_.size() - 16));
    return std::move(out_);
  }

 private:
  std::string out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    if (left_.size() < sizeof(T)) {
      fail();
      return 0;
    }
    const T value = load_le<T>(left_.data());
    left_.remove_prefix(sizeof(T));
    return value;
  }
  std::int64_t nanos() { return static_cast<std::int64_t>(number<std::uint64_t>()); }
  std::string_view bytes(std::size_t size) {
    if (left_.size() < size) {
      fail();
      return {};
    }
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  std::string_view key() { return bytes(number<std::uint16_t>()); }
  MetadataNamespace name() {
    MetadataNamespace name_space;
    name_space.rank = nanos();
    name_space.name = std::string(bytes(number<std::uint8_t>()));
    return name_space;
  }
  MetadataSession session() {
    MetadataSession session;
    session.process[0] = number<std::uint64_t>();
    session.process[1] = number<std::uint64_t>();
    session.operation = number<std::uint64_t>();
    return session;
  }
  PageRef ref() {
    PageRef ref;
    ref.page = number<std::uint64_t>();
    ref.generation = number<std::uint64_t>();
    return ref;
  }
  // A count of things of at least `least` bytes each; fails if so many cannot follow.
  template <std::unsigned_integral T>
  std::size_t count(std::size_t least) {
    const std::size_t n = number<T>();
    if (n * least > left_.size()) fail();
    return ok_ ? n : 0;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool is_done() const { return ok_ && left_.empty(); }
  [[nodiscard]] std::size_t left() const { return left_.size(); }
  [[nodiscard]] const char* position() const { return left_.data(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace larder::metadata
