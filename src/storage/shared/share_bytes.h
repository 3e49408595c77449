// SPDX-License-Identifier: Apache-2.0
// Writing and reading the pieces of share_wire.h.
//
// Threads: confined. Errors: base/wire_bytes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/wire_bytes.h"
#include "storage/shared/share_wire.h"

namespace larder::share {

class FrameWriter : public WireWriter {
 public:
  // Begins a frame; finish() fills in the length.
  FrameWriter(Kind kind, std::uint64_t operation, std::size_t body_bytes = 0) : WireWriter(kHeadBytes + body_bytes) {
    number<std::uint32_t>(0);
    number(static_cast<std::uint8_t>(kind));
    number<std::uint8_t>(0);
    number<std::uint16_t>(0);
    number(operation);
  }
  void pool(PoolName pool) { number(static_cast<std::uint8_t>(pool)); }
  void place(const Place& place) {
    number(place.offset);
    number(place.bytes);
  }
  void text(std::string_view text) { WireWriter::text(text, kMaxTextBytes); }
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
    set(0, static_cast<std::uint32_t>(size() - kHeadBytes));
    return take();
  }
};

class FrameReader : public WireReader {
 public:
  using WireReader::WireReader;

  PoolName pool() { return static_cast<PoolName>(number_up_to<std::uint8_t>(kPoolNumberCount - 1)); }
  Place place() {
    Place place;
    place.offset = number<std::uint64_t>();
    place.bytes = number<std::uint64_t>();
    return place;
  }
  std::string text() { return WireReader::text(kMaxTextBytes); }
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
  // Ok if all was read, and no more was there.
  [[nodiscard]] Status finish(std::string_view what) const {
    if (is_done()) return Status::ok();
    return corrupt("shared store: a message '" + std::string(what) + "' is broken");
  }
};

}  // namespace larder::share
