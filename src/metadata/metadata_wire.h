// SPDX-License-Identifier: Apache-2.0
// MetadataService's calls as bytes: what POST /v1/metadata carries between HttpMetadata and the server.
//
// Purpose: one call in one message, with every method of the port in batches. No HTTP here: both ends use these
// functions, and tests break the bytes.
//
// All numbers are little-endian. A message is a head of 16 bytes and a payload:
//   magic 4 ("LMDQ" asks, "LMDA" answers) | version u16 | operation u8 | status u8 (0 when asking) |
//   payload bytes u32 | 0 u32
// Pieces:  name: rank i64, length u8, bytes.   key: length u16, bytes.   item: name's index u16, key, page u64,
//          generation u64.   items: count u32, then each.   session: u64 process[2], u64 operation.
//   1 initialize  asks: name, pages u64.  Answers: pages u64.
//   2 find        asks: lease ns i64, groups u32: {name, keys u32: {key}}.
//                 Answers, per key: found u8, then for a found one page u64, generation u64.
//   3 reserve     asks: session, ttl ns i64, groups u32: {name, keys u32: {key, parent}}. The parent is as a key; with
//                 length 65535 it has no bytes and is the key before in the same group.
//                 Answers, per key: outcome u8, then for reserved and stored ones page u64, generation u64.
//   4 confirm     asks: session, flags u8 (1 durable, 2 released_rest), names u16: {name}, groups u32: {items},
//                 releases: items.
//                 Answers, per group: code u8, text length u16, text.
//   5 remove      asks: names u16: {name}, items.  Answers: count u64.
//   6 clear       asks: name, prefix as a key.  Answers: count u64.
//   7 stats       asks nothing.  Answers: names u32: {name, 9 numbers u64 in the order of NamespaceStats}.
// An answer with another status than 0 has a text as its payload. Nothing follows the payload.
//
// Limits: kMaxWireItems groups, keys and names together in a message, kMaxWireBytes in all.
// Threads: pure, but for answer_wire_request, which calls the service.
// Errors: broken or oversized messages are kInvalidArgument (asking) and kCorrupt (answering); another version is
// kUnsupported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::metadata {

inline constexpr std::uint16_t kWireVersion = 1;
inline constexpr std::size_t kWireHeadBytes = 16;
inline constexpr std::uint64_t kMaxWireItems = std::uint64_t{1} << 20;
inline constexpr std::size_t kMaxWireBytes = std::size_t{64} << 20;

enum class WireOperation : std::uint8_t { kInitialize = 1, kFind, kReserve, kConfirm, kRemove, kClear, kStats };

// --- the asking side. kInvalidArgument: a name or key is too long for the port, or there are too many.

[[nodiscard]] Result<std::string> encode_initialize(const MetadataNamespace& name_space, std::uint64_t pages);
[[nodiscard]] Result<std::string> encode_find(std::span<const MetadataKeys> wanted, Nanos lease);
[[nodiscard]] Result<std::string> encode_reserve(const MetadataSession& session, std::span<const ReserveItems> wanted,
                                                 Nanos ttl);
[[nodiscard]] Result<std::string> encode_confirm(const ConfirmRequest& request);
[[nodiscard]] Result<std::string> encode_remove(std::span<const ConfirmItem> items);
[[nodiscard]] Result<std::string> encode_clear(const MetadataNamespace& name_space, std::string_view prefix);
[[nodiscard]] std::string encode_stats();

// The payload of an answer to `operation`, a view into `answer`; or the error that it carries.
[[nodiscard]] Result<std::string_view> open_answer(WireOperation operation, std::string_view answer);
// Do these bytes begin as an answer does?
[[nodiscard]] bool is_wire_answer(std::string_view bytes);

[[nodiscard]] Result<std::uint64_t> decode_count(std::string_view payload);  // initialize, remove, clear
[[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> decode_find(
    std::string_view payload, std::span<const MetadataKeys> wanted);
[[nodiscard]] Result<std::vector<std::vector<Reserved>>> decode_reserve(std::string_view payload,
                                                                        std::span<const ReserveItems> wanted);
[[nodiscard]] Result<std::vector<Status>> decode_confirm(std::string_view payload, std::size_t groups);
[[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> decode_stats(std::string_view payload);

// --- the answering side

// What a message asks for, as far as its head tells.
struct WireGlance {
  std::optional<WireOperation> operation;  // none: the head is broken
  bool may_wait = false;                   // for a disk, or it looks at every page: not for an I/O thread
  bool changes = false;                    // something; with a journal it waits for that
};
[[nodiscard]] WireGlance glance_at(std::string_view message);

struct WireAnswer {
  StatusCode code = StatusCode::kOk;  // of the call; the same is in the bytes
  std::uint64_t keys = 0;             // items that were asked for
  std::string bytes;
};
// Decodes, calls, encodes. Any bytes are input.
[[nodiscard]] WireAnswer answer_wire_request(MetadataService& service, std::string_view message);

}  // namespace larder::metadata
