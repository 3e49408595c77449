// SPDX-License-Identifier: Apache-2.0
// The messages between the ranks of one model (docs/formats.md, section 10), as bytes.
//
// Purpose: what a leader and its followers say, without sockets: both ends use these functions, and tests break the
// bytes. A frame is a head of 16 bytes, a body, and a code of 16 bytes over both (rank_link.h). Little-endian numbers.
//   body bytes u32 | kind u8 | 0 u8 | 0 u16 | number u64
// The frames of each direction of a connection are numbered from 0. The bodies are listed beside their structs, in the
// order of the bytes. Nothing follows the last field of a body.
//
// Limits: kMaxBodyBytes in a body, kMaxGreetingBytes until both ends know each other; the rest beside the structs.
// Threads: pure functions and values.
// Texts are read without control characters: '?' stands for each.
// Errors: kCorrupt for any bytes that are no such message. Decoding never looks behind its bytes, and allocates no more
// than the bytes account for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "controller/rank_group.h"

namespace larder::ranks {

inline constexpr std::uint64_t kMagic = 0x475252454452414cull;  // "LARDERRG"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeadBytes = 16, kCodeBytes = 16;
inline constexpr std::size_t kMaxBodyBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxGreetingBytes = std::size_t{32} << 10;
inline constexpr std::size_t kMaxWords = std::size_t{1} << 16;  // of 64 bits, in one outcome: 4 Mi pages
inline constexpr std::size_t kMaxFacts = 64;
inline constexpr std::size_t kMaxFactNameBytes = 64, kMaxFactValueBytes = 256;
inline constexpr std::size_t kMaxTextBytes = 500;  // of a status; the rest is cut off
inline constexpr std::uint32_t kMaxRanks = 1024;

enum class Kind : std::uint8_t {
  kChallenge = 1,  // leader, to whoever has connected
  kHello,          // follower
  kWelcome,        // leader: from now on the rank belongs to the group, or is refused in words
  kReports,        // follower: outcomes, and how far it is
  kPlans,          // leader
  kAlive,          // either: nothing else was to say for a while; a follower says how far it is
  kFarewell,       // either: the group is over, and why
  kFormed,         // leader: all ranks are there; no body
};
inline constexpr std::size_t kKindCount = 9;  // with the 0 that is none
[[nodiscard]] std::string_view kind_name(Kind kind);

struct Head {
  std::uint32_t body_bytes = 0;
  Kind kind{};
  std::uint64_t number = 0;
};
[[nodiscard]] std::string encode_head(const Head& head);
// `bytes`: at least kHeadBytes. kCorrupt: an unknown kind, a body that is too long, bits that must be zero.
[[nodiscard]] Result<Head> decode_head(std::string_view bytes);

// magic u64 | version u16 | nonce 32
struct Challenge {
  std::uint16_t version = kVersion;
  Digest256 nonce;
};
// What must be alike on all ranks, by name: the model, its pages, the limits that decide.
struct Fact {
  std::string name;
  std::string value;
  friend bool operator==(const Fact&, const Fact&) = default;
};
// magic u64 | version u16 | nonce 32 | rank u32 | ranks u32 | facts u16: {name u16 text, value u16 text}
struct Hello {
  std::uint16_t version = kVersion;
  Digest256 nonce;
  std::uint32_t rank = 0, ranks = 0;
  std::vector<Fact> facts;
};
// code u8 | text u16 text: of a Status. Not ok: the rank is refused, or the group is over.
struct Words {
  Status status;
};
// applied u64 | next step u64
struct Progress {
  std::uint64_t applied = 0;    // agreed events that the follower has taken, since the group began
  std::uint64_t next_step = 0;  // plans for steps below it are of no use to it any more
};
// progress | outcomes u32: {op u64, words u32: {u64}}
struct Reports {
  Progress progress;
  std::vector<AgreedEvent> outcomes;
};
// events u32: {op u64, words u32: {u64}} | plans u32: {step u64, events u64}
struct Plans {
  struct Plan {
    std::uint64_t step = 0;
    std::uint64_t events = 0;  // to have been applied before it, since the group began
    friend bool operator==(const Plan&, const Plan&) = default;
  };
  std::vector<AgreedEvent> events;  // those that follow the ones sent before; a long list is cut anywhere
  std::vector<Plan> plans;
};

// What no text that is read has.
[[nodiscard]] inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Bodies. Precondition: within the limits; texts are cut.
[[nodiscard]] std::string encode(const Challenge& challenge);
[[nodiscard]] std::string encode(const Hello& hello);
[[nodiscard]] std::string encode(const Words& words);
[[nodiscard]] std::string encode(const Progress& progress);
[[nodiscard]] std::string encode(const Reports& reports);
[[nodiscard]] std::string encode(const Plans& plans);
// Bytes that an outcome takes in a body.
[[nodiscard]] inline std::size_t encoded_bytes(const AgreedEvent& event) { return 12 + 8 * event.bits.size(); }

[[nodiscard]] Result<Challenge> decode_challenge(std::string_view body);
[[nodiscard]] Result<Hello> decode_hello(std::string_view body);
[[nodiscard]] Result<Words> decode_words(std::string_view body);
[[nodiscard]] Result<Progress> decode_progress(std::string_view body);
[[nodiscard]] Result<Reports> decode_reports(std::string_view body);
[[nodiscard]] Result<Plans> decode_plans(std::string_view body);

}  // namespace larder::ranks
