// SPDX-License-Identifier: Apache-2.0
// The messages between the processes that share a store (docs/formats.md, section 9), as bytes.
//
// Purpose: what a client asks and what the host answers, without sockets and without memory that they share: both ends
// use these functions, and tests break the bytes. Payloads of pages do not travel here: a message says where in the
// client's arena they lie.
//
// A frame is a head of 16 bytes and a body. All numbers are little-endian.
//   body bytes u32 | kind u8 | 0 u8 | 0 u16 | operation u64
// The bodies are listed beside their structs, in the order of the bytes. Nothing follows the last field of a body.
//
// Limits: kMaxFrameBytes in all, kMaxItems keys, items or groups in one message, kMaxScopes scopes in a connection.
// Threads: pure functions and values.
// Errors: kCorrupt for any bytes that are no such message. Decoding never looks behind its bytes, and allocates no more
// than the bytes account for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "storage/backend.h"

namespace larder::share {

inline constexpr std::uint64_t kMagic = 0x485352454452414cull;  // "LARDERSH"
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::size_t kHeadBytes = 16;
inline constexpr std::size_t kMaxFrameBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxItems = 8192;
inline constexpr std::size_t kMaxPools = kPoolNumberCount;
inline constexpr std::size_t kMaxScopes = 256;
inline constexpr std::uint16_t kNoScope = 0xffff;  // clear: the whole store
inline constexpr std::size_t kMaxTextBytes = 200;  // of a status; the rest is cut off
inline constexpr std::int64_t kNoDeadline = 0x7fffffffffffffff;

enum class Kind : std::uint8_t {
  kHello = 1,  // with the arena's descriptor; operation 0
  kScope,      // operation 0, no answer
  kExists,
  kRead,
  kWrite,
  kClear,
  kAskStats,
  kWelcome = 0x81,  // operation 0
  kPresence,
  kStatuses,  // to reads, writes and clears
  kStats,     // of its own accord, too, with operation 0
};

struct Head {
  std::uint32_t body_bytes = 0;
  Kind kind{};
  std::uint64_t operation = 0;
};
// `bytes`: at least kHeadBytes. kCorrupt: an unknown kind, a body that is too long, bits that must be zero.
[[nodiscard]] Result<Head> decode_head(std::string_view bytes);

// magic u64 | version u16 | arena bytes u64 | store 32
struct Hello {
  std::uint16_t version = kVersion;
  std::uint64_t arena_bytes = 0;
  Digest256 store{};  // SharedStoreOptions::store
};
// magic u64 | version u16 | code u8 | text u16, bytes | name u16, bytes | flags u8 | alignment u64 | stats |
// clears' store u64
struct Welcome {
  std::uint16_t version = kVersion;
  Status status;  // not ok: the host does not take this client, and ends the connection
  BackendInfo info;
  BackendStats stats;
  std::uint64_t clears_store = 0;  // ClearMark::store; the counts lie behind the client's arena
};
// slot u16 | namespace digest 32 | rank u32 | ranks u32 | pools u8: {number u8, replicated u8, fingerprint 32}
struct ScopeEntry {
  std::uint16_t slot = 0;  // below kMaxScopes; takes the place of what was there
  StoreScope scope;
};
// scope u16 | urgency u8 | nanoseconds left i64: the head of an operation
struct Terms {
  std::uint16_t scope = 0;
  Urgency urgency = Urgency::kWaiting;
  std::int64_t left_ns = kNoDeadline;
};
// Where in the arena a payload lies, in one piece. No bytes: nowhere, at 0.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Place&, const Place&) = default;
};
// terms | pools u8: {number u8} | keys u32: {32}
struct ExistsAsk {
  Terms terms;
  std::vector<PoolName> pools;
  std::vector<PageKey> keys;
};
// terms | items u32: {pool u8, key 32, offset u64, bytes u64}
struct ReadAsk {
  struct Item {
    PoolName pool{};
    PageKey key;
    Place place;
  };
  Terms terms;
  std::vector<Item> items;
};
// terms | durable u8 | groups u32: {items u32: {pool u8, key 32, parent 32, offset u64, bytes u64}} |
// clears' store u64, count u64
struct WriteAsk {
  struct Item {
    PoolName pool{};
    PageKey key;
    PageKey parent;
    Place place;
  };
  Terms terms;
  bool durable = false;
  std::vector<std::vector<Item>> groups;
  ClearMark as_of{};  // WriteRequest::as_of
};

// Each gives a whole frame. Precondition: within the limits.
[[nodiscard]] std::string encode_hello(const Hello& hello);
[[nodiscard]] std::string encode_welcome(const Welcome& welcome);
[[nodiscard]] std::string encode_scope(const ScopeEntry& entry);
[[nodiscard]] std::string encode_exists(std::uint64_t operation, const ExistsAsk& ask);
[[nodiscard]] std::string encode_read(std::uint64_t operation, const ReadAsk& ask);
[[nodiscard]] std::string encode_write(std::uint64_t operation, const WriteAsk& ask);
[[nodiscard]] std::string encode_clear(std::uint64_t operation, std::uint16_t scope);  // body: scope u16
[[nodiscard]] std::string encode_ask_stats();                                          // no body
// code u8 | text u16, bytes | pools u8: {number u8, keys u32, bits}; no pools if the code is not 0
[[nodiscard]] std::string encode_presence(std::uint64_t operation, const ExistsResult& presence);
// count u32: {code u8, text u16, bytes}
[[nodiscard]] std::string encode_statuses(std::uint64_t operation, const std::vector<Status>& statuses);
// count u8, numbers u64 in the order of BackendStats; a decoder takes fewer, and more
[[nodiscard]] std::string encode_stats(const BackendStats& stats);

// Of the body of a frame whose head said so.
[[nodiscard]] Result<Hello> decode_hello(std::string_view body);
[[nodiscard]] Result<Welcome> decode_welcome(std::string_view body);
[[nodiscard]] Result<ScopeEntry> decode_scope(std::string_view body);
[[nodiscard]] Result<ExistsAsk> decode_exists(std::string_view body);
[[nodiscard]] Result<ReadAsk> decode_read(std::string_view body);
[[nodiscard]] Result<WriteAsk> decode_write(std::string_view body);
[[nodiscard]] Result<std::uint16_t> decode_clear(std::string_view body);
[[nodiscard]] Result<ExistsResult> decode_presence(std::string_view body);
[[nodiscard]] Result<std::vector<Status>> decode_statuses(std::string_view body);
[[nodiscard]] Result<BackendStats> decode_stats(std::string_view body);

}  // namespace larder::share
