// SPDX-License-Identifier: Apache-2.0
// What every structure of a file store begins with (docs/formats.md section 5), for segment_format.cc and
// segment_record.cc:
//
//   0   8  magic
//   8   2  format version
//   10  6  zero
//   16  8  XXH3-64 of the structure with this field zero
//
// Threads: pure. Cost: XXH3 over the bytes (tens of GB/s).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace larder::file_store {

inline constexpr std::size_t kFrameBytes = 24;
// Segment header, record header, footer header and trailer have this length. (A record's is kRecordHeaderBytes.)
inline constexpr std::size_t kHeaderBytes = 128;

// Writes the frame; the last step of encoding. `magic` has 8 characters; bytes.size() >= kFrameBytes.
void seal_frame(std::span<std::byte> bytes, std::string_view magic);
// Does it begin with the magic? False if it is shorter.
[[nodiscard]] bool has_magic(std::span<const std::byte> bytes, std::string_view magic);
// Is the version this build's, and are the zeros of the frame there? bytes.size() >= kFrameBytes.
[[nodiscard]] bool has_known_version(std::span<const std::byte> bytes);
// The checksum covers all of `bytes`. kCorrupt: magic, checksum, zeros. kUnsupported: a whole one of another version
// (a flipped bit in the version is damage, not another version). `what` is named in the message.
[[nodiscard]] Status check_frame(std::span<const std::byte> bytes, std::string_view magic, std::string_view what);

// All bytes zero? Memory speed.
[[nodiscard]] bool is_zero(std::span<const std::byte> bytes);

inline void store_digest(std::byte* to, const Digest256& digest) {
  std::memcpy(to, digest.bytes.data(), digest.bytes.size());
}
inline void load_digest(const std::byte* from, Digest256& digest) {
  std::memcpy(digest.bytes.data(), from, digest.bytes.size());
}

}  // namespace larder::file_store
