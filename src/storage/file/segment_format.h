// SPDX-License-Identifier: Apache-2.0
// The bytes of the file store: segment header, records, footer, trailer, file names, FORMAT, CLEARED.
//
// docs/formats.md section 5 has every byte; tests/golden/file_store_v2 has golden ones. All numbers little-endian.
//
//   segment file:  header (4096) | record | record | ... | [footer | trailer (4096)]
//   record:        head | payloads | zeros to the next block
//
// Payloads of kBlockPayload bytes or more start at a block, so that direct I/O moves them straight from and to the
// caller's memory; smaller ones are packed at multiples of kPayloadAlignment.
//
// Every decode function takes any bytes: it refuses what the encoder would not write, allocates no more than the bytes
// given warrant, and encoding what it returned gives the same bytes again. Bytes behind the structure are let be (but
// for CLEARED and FORMAT, which are whole files).
// Threads: pure. Cost: no allocation and no lookup per page; a footer is decoded at more than 1 GB/s.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "storage/envelope.h"
#include "storage/file/page_index.h"

namespace larder::file_store {

inline constexpr std::uint16_t kStoreFormatVersion = 2;
inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kBlockPayload = 16384;
inline constexpr std::size_t kRecordHeaderBytes = 128;  // of a record and of a footer
inline constexpr std::size_t kIdentityBytes = 80;
inline constexpr std::size_t kPageBytes = 128;
inline constexpr std::size_t kMaxRecordPages = 65'536;
// Groups that are written together share a record up to so many bytes of payload: few heads, but many records in
// flight.
inline constexpr std::uint64_t kRecordTarget = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 30;
inline constexpr std::size_t kMaxCleared = 4096;
inline constexpr std::size_t kMaxClearedBytes = 32 + 40 * kMaxCleared;
inline constexpr unsigned kMaxVolumes = 16;
inline constexpr std::uint64_t kMaxSetVersion = std::uint64_t{1} << 62;  // nobody gets there by counting

inline constexpr std::string_view kFormatName = "FORMAT";
inline constexpr std::string_view kLockName = "LOCK";
inline constexpr std::string_view kClearedName = "CLEARED";
inline constexpr std::string_view kTemporarySuffix = ".tmp";

using StoreId = std::array<std::uint8_t, 16>;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

struct SegmentHeader {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t created_unix_seconds = 0;
  std::uint64_t first_generation = 0;
};
// One block.
[[nodiscard]] std::vector<std::byte> encode_segment_header(const SegmentHeader& header);
// From the first 128 bytes. kCorrupt: magic, checksum, or fields that cannot be. kUnsupported: another version.
[[nodiscard]] Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes);

// Where things go: fills location.offset of each page for a record that starts at `start`, and says how long its head
// and the record are. Reads identity (to count the distinct ones) and location.payload_bytes.
// Precondition: 1 to kMaxRecordPages pages, `start` at a block. A record whose record_bytes come out at kMaxRecordBytes
// or more, or with an offset behind kMaxPayloadOffset, must not be written: no reader would take it.
struct RecordLayout {
  std::uint64_t head_bytes = 0;
  std::uint64_t record_bytes = 0;
};
[[nodiscard]] RecordLayout lay_out_record(std::span<ListedPage> pages, std::uint64_t start);

struct RecordHead {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t start = 0;  // offset of the record in the segment
  std::uint64_t record_bytes = 0;
  std::uint64_t synced_bytes = 0;  // [0, this) of the file is on disk; at most `start`
  std::vector<ListedPage> pages;
};
// head_bytes long, as lay_out_record() said. Takes offsets, groups and record_bytes as they are.
[[nodiscard]] std::vector<std::byte> encode_record_head(const RecordHead& head);
// Does the block begin with the magic of a record? Needs 8 bytes.
[[nodiscard]] bool is_record_magic(std::span<const std::byte> bytes);
// Bytes of the whole head (below 14 MiB), from its first kRecordHeaderBytes bytes. kCorrupt: not a record of this
// version, or impossible counts, sizes or places. The checksum is not looked at.
[[nodiscard]] Result<std::uint64_t> record_head_bytes(std::span<const std::byte> header);
// kCorrupt: magic, version, checksum, counts, or pages that do not lie as lay_out_record() would lay them. Sets
// location.segment from the head's.
[[nodiscard]] Result<RecordHead> decode_record_head(std::span<const std::byte> bytes);

struct Footer {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t start = 0;           // where the footer starts
  std::uint64_t max_generation = 0;  // no page listed has a higher one
  std::uint64_t records = 0;
  std::vector<ListedPage> pages;
  bool is_synced = false;  // all that it lists was on disk before it was written
};
// Footer, padding and trailer: a multiple of kBlockBytes.
[[nodiscard]] std::vector<std::byte> encode_footer(const Footer& footer);
struct Trailer {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t footer_start = 0;
  std::uint64_t footer_bytes = 0;  // without padding
};
// From the first 128 bytes of the last block. kCorrupt, kUnsupported: as for the segment header.
[[nodiscard]] Result<Trailer> decode_trailer(std::span<const std::byte> bytes);
// As above; kCorrupt also for pages that do not lie between header and footer, or are not aligned. Pages come in the
// order in which they were given to encode_footer(); whether they overlap is not checked.
[[nodiscard]] Result<Footer> decode_footer(std::span<const std::byte> bytes);

// "segment-000000000000002a.larder", and back.
[[nodiscard]] std::string segment_name(SegmentId segment);
[[nodiscard]] std::optional<SegmentId> parse_segment_name(std::string_view name);
// Is this a name that a file store makes (or a mount point's lost+found, or what NFS makes of a removed file that
// somebody has open)?
[[nodiscard]] bool is_store_name(std::string_view name);

// Tells volumes apart that had one number one after the other. 0: one that was there when its store was made.
using VolumeId = std::uint64_t;

// One line of the list of a store's volumes.
struct VolumeMember {
  unsigned volume = 0;
  VolumeId id = 0;
  std::string directory;  // where it was last, for people: at most 200 bytes of it, without control characters
};
struct VolumeFormat {
  StoreId store{};
  unsigned volume = 0;
  VolumeId id = 0;
  // The store's volumes, this one among them, by number; grows with each change of the list. 0: no list.
  std::uint64_t set_version = 0;
  std::vector<VolumeMember> members = {};
};
// At most 4096 bytes.
[[nodiscard]] std::string format_text(const VolumeFormat& format);
// kCorrupt: no FORMAT of a file store. kUnsupported: a version this build cannot read.
[[nodiscard]] Result<VolumeFormat> parse_format_text(std::string_view text);

// Namespaces cleared while older segments still hold their pages: pages of the namespace with a generation below
// `generation` do not exist. All-zero digest: every namespace.
struct Cleared {
  Digest256 namespace_digest;
  std::uint64_t generation = 0;
};
// Is a page of that namespace and generation cleared by one of them?
[[nodiscard]] bool is_in(std::span<const Cleared> list, const Digest256& namespace_digest, std::uint64_t generation);
// Precondition: at most kMaxCleared entries.
[[nodiscard]] std::vector<std::byte> encode_cleared(std::span<const Cleared> list);
// The whole file. kCorrupt, kUnsupported: as for the segment header.
[[nodiscard]] Result<std::vector<Cleared>> decode_cleared(std::span<const std::byte> bytes);

struct JoinedClears {
  std::vector<Cleared> list;  // fits into a file: of more than that, the oldest have become one of every namespace
  bool is_damaged = false;    // some file is, and none is whole: all pages written so far must be taken as cleared
};
// What the volumes' files say together. `files`: those that are there; one with an error is damaged.
[[nodiscard]] JoinedClears join_cleared(std::span<const Result<std::vector<Cleared>>> files);

}  // namespace larder::file_store
