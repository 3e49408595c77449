// The bytes of the file store that are not page envelopes: segment header, commit record, file names, FORMAT, CLEARED.
//
// docs/formats.md has every byte; segment_format_test.cc has golden ones. All numbers little-endian.
//
//   segment file:  header (64) | group | group | ...
//   group:         record | record | ... | commit record         each starts at a multiple of kRecordAlignment
//   record:        envelope (160) | payload | zero padding
//   commit record: header (64) | 32 bytes per record of the group | zero padding
//
// A commit record without records is a *sync mark*: it says only how much of the file was on disk when it was written.
// Threads: pure.
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

inline constexpr std::uint16_t kStoreFormatVersion = 1;
inline constexpr std::size_t kSegmentHeaderBytes = 64;
inline constexpr std::size_t kCommitHeaderBytes = 64;
inline constexpr std::size_t kCommitEntryBytes = 32;
inline constexpr std::size_t kMaxGroupRecords = 65'536;

inline constexpr std::string_view kFormatName = "FORMAT";
inline constexpr std::string_view kLockName = "LOCK";
inline constexpr std::string_view kClearedName = "CLEARED";
inline constexpr std::string_view kTemporarySuffix = ".tmp";

using StoreId = std::array<std::uint8_t, 16>;

[[nodiscard]] constexpr std::uint64_t align_record(std::uint64_t n) {
  return (n + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
// Bytes of a record on disk.
[[nodiscard]] constexpr std::uint64_t record_bytes(std::uint64_t payload_bytes) {
  return align_record(kEnvelopeBytes + payload_bytes);
}
[[nodiscard]] constexpr std::uint64_t commit_bytes(std::size_t records) {
  return align_record(kCommitHeaderBytes + records * kCommitEntryBytes);
}

struct SegmentHeader {
  StoreId store{};
  SegmentId segment = 0;
  std::uint64_t created_unix_seconds = 0;
  std::uint64_t first_generation = 0;  // no page of the segment has a lower one
};
[[nodiscard]] std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentHeader& header);
// kCorrupt: magic, checksum. kUnsupported: another version.
[[nodiscard]] Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes);

struct CommitEntry {
  std::uint64_t offset = 0;  // of the envelope in the segment
  std::uint64_t payload_bytes = 0;
  std::uint64_t generation = 0;
  std::uint32_t envelope_checksum = 0;  // the envelope's own header checksum
  PoolName pool = PoolName::kKv;
};
struct CommitRecord {
  std::uint64_t store_low = 0;  // first 8 bytes of the store id
  SegmentId segment = 0;
  std::uint64_t group = 0;
  std::uint64_t group_start = 0;   // offset of the first record; its own offset when there is none
  std::uint64_t offset = 0;        // of this record
  std::uint64_t synced_bytes = 0;  // [0, synced_bytes) of the file was on disk when this was written
  std::vector<CommitEntry> entries;
};
// Padded to kRecordAlignment.
[[nodiscard]] std::vector<std::byte> encode_commit(const CommitRecord& record);
// Do these bytes begin with the magic of a commit record? Needs 8 bytes.
[[nodiscard]] bool is_commit_magic(std::span<const std::byte> bytes);
// Whole length on disk that a commit header announces, from its first 64 bytes; kCorrupt: not a commit header.
[[nodiscard]] Result<std::uint64_t> commit_length(std::span<const std::byte> header);
// kCorrupt: magic, version, checksum, or entries that do not lie one after the other between group_start and offset.
[[nodiscard]] Result<CommitRecord> decode_commit(std::span<const std::byte> bytes);

[[nodiscard]] std::uint64_t store_low(const StoreId& store);

// "segment-000000000000002a.larder", and back.
[[nodiscard]] std::string segment_name(SegmentId segment);
[[nodiscard]] std::optional<SegmentId> parse_segment_name(std::string_view name);
// Is this a name that a file store makes (or a mount point's lost+found)?
[[nodiscard]] bool is_store_name(std::string_view name);

[[nodiscard]] std::string format_text(const StoreId& store);
// kCorrupt: no FORMAT of a file store. kUnsupported: a version this build cannot read.
[[nodiscard]] Result<StoreId> parse_format_text(std::string_view text);

// Namespaces cleared while older segments still hold their pages: pages of the namespace with a generation below
// `generation` do not exist. All-zero digest: every namespace.
struct Cleared {
  Digest256 namespace_digest;
  std::uint64_t generation = 0;
};
[[nodiscard]] std::vector<std::byte> encode_cleared(std::span<const Cleared> list);
[[nodiscard]] Result<std::vector<Cleared>> decode_cleared(std::span<const std::byte> bytes);

}  // namespace larder::file_store
