// SPDX-License-Identifier: Apache-2.0
// Writing and reading the pieces of metadata_wire.h.
//
// Threads and errors: base/wire_bytes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/wire_bytes.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

inline constexpr std::uint16_t kParentIsKeyBefore = 0xFFFF;
inline constexpr unsigned kFlagDurable = 1, kFlagRest = 2;  // of a confirmation
inline constexpr std::string_view kAskMagic = "LMDQ";
inline constexpr std::string_view kAnswerMagic = "LMDA";

class MessageWriter : public WireWriter {
 public:
  // Begins a message; finish() fills in the length.
  MessageWriter(std::string_view magic, std::uint8_t operation, std::uint8_t status, std::size_t bytes = 0)
      : WireWriter(bytes) {
    this->bytes(magic);
    number<std::uint16_t>(1);
    number(operation);
    number(status);
    number<std::uint64_t>(0);
  }
  void nanos(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
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
  [[nodiscard]] std::string finish() {
    set<std::uint32_t>(8, static_cast<std::uint32_t>(size() - 16));
    return take();
  }
};

class MessageReader : public WireReader {
 public:
  using WireReader::WireReader;

  std::int64_t nanos() { return static_cast<std::int64_t>(number<std::uint64_t>()); }
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
};

}  // namespace larder::metadata
