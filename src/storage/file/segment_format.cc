#include "storage/file/segment_format.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace larder::file_store {
namespace {

constexpr char kSegmentMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'S', 'G'};
constexpr char kCommitMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'G', 'C'};
constexpr char kClearedMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'C', 'L'};
constexpr std::size_t kChecksumAt = 12;  // in all three
constexpr std::size_t kClearedHeaderBytes = 32, kClearedEntryBytes = 40;
constexpr std::string_view kSegmentPrefix = "segment-", kSegmentSuffix = ".larder";
constexpr std::string_view kFormatTitle = "larder file store\n";

// Low half of XXH3-64 over the bytes, as if the checksum field were zero.
std::uint32_t checksum_of(std::span<const std::byte> bytes) {
  static constexpr std::uint32_t kZero = 0;
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, bytes.data(), kChecksumAt);
  XXH3_64bits_update(state, &kZero, sizeof kZero);
  XXH3_64bits_update(state, bytes.data() + kChecksumAt + 4, bytes.size() - kChecksumAt - 4);
  const auto digest = static_cast<std::uint32_t>(XXH3_64bits_digest(state));
  XXH3_freeState(state);
  return digest;
}

void store_head(std::byte* to, const char (&magic)[8]) {
  std::memcpy(to, magic, sizeof magic);
  store_le<std::uint16_t>(to + 8, kStoreFormatVersion);
}

// Magic and version; the checksum is the caller's, who knows the length.
Status check_head(std::span<const std::byte> bytes, const char (&magic)[8], std::size_t least, const char* what) {
  if (bytes.size() < least || std::memcmp(bytes.data(), magic, sizeof magic) != 0) {
    return corrupt(std::string(what) + ": no magic");
  }
  const auto version = load_le<std::uint16_t>(bytes.data() + 8);
  if (version != kStoreFormatVersion) {
    return unsupported(std::string(what) + ": format version " + std::to_string(version));
  }
  return Status::ok();
}

bool is_checksum_right(std::span<const std::byte> bytes) {
  return load_le<std::uint32_t>(bytes.data() + kChecksumAt) == checksum_of(bytes);
}

}  // namespace

std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentHeader& header) {
  std::array<std::byte, kSegmentHeaderBytes> out{};
  store_head(out.data(), kSegmentMagic);
  std::memcpy(out.data() + 16, header.store.data(), header.store.size());
  store_le<std::uint32_t>(out.data() + 32, header.segment);
  store_le<std::uint32_t>(out.data() + 36, static_cast<std::uint32_t>(kRecordAlignment));
  store_le<std::uint64_t>(out.data() + 40, header.created_unix_seconds);
  store_le<std::uint64_t>(out.data() + 48, header.first_generation);
  store_le<std::uint32_t>(out.data() + kChecksumAt, checksum_of(out));
  return out;
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes) {
  // The checksum comes before the version: a flipped bit there is damage, not another version.
  const bool is_long_enough = bytes.size() >= kSegmentHeaderBytes;
  if (!is_long_enough || !is_checksum_right(bytes.first(kSegmentHeaderBytes))) {
    return corrupt("segment header: checksum differs");
  }
  LARDER_RETURN_IF_ERROR(check_head(bytes, kSegmentMagic, kSegmentHeaderBytes, "segment header"));
  if (load_le<std::uint32_t>(bytes.data() + 36) != kRecordAlignment) return unsupported("segment header: alignment");
  SegmentHeader header;
  std::memcpy(header.store.data(), bytes.data() + 16, header.store.size());
  header.segment = load_le<std::uint32_t>(bytes.data() + 32);
  header.created_unix_seconds = load_le<std::uint64_t>(bytes.data() + 40);
  header.first_generation = load_le<std::uint64_t>(bytes.data() + 48);
  return header;
}

std::vector<std::byte> encode_commit(const CommitRecord& record) {
  const std::size_t length = kCommitHeaderBytes + record.entries.size() * kCommitEntryBytes;
  std::vector<std::byte> out(static_cast<std::size_t>(align_record(length)));
  std::byte* const to = out.data();
  store_head(to, kCommitMagic);
  store_le<std::uint64_t>(to + 16, record.group);
  store_le<std::uint64_t>(to + 24, record.group_start);
  store_le<std::uint64_t>(to + 32, record.offset);
  store_le<std::uint64_t>(to + 40, record.synced_bytes);
  store_le<std::uint32_t>(to + 48, record.segment);
  store_le<std::uint32_t>(to + 52, static_cast<std::uint32_t>(record.entries.size()));
  store_le<std::uint64_t>(to + 56, record.store_low);
  std::byte* at = to + kCommitHeaderBytes;
  for (const CommitEntry& entry : record.entries) {
    store_le<std::uint64_t>(at, entry.offset);
    store_le<std::uint64_t>(at + 8, entry.payload_bytes);
    store_le<std::uint64_t>(at + 16, entry.generation);
    store_le<std::uint32_t>(at + 24, entry.envelope_checksum);
    store_le<std::uint8_t>(at + 28, static_cast<std::uint8_t>(entry.pool));
    at += kCommitEntryBytes;
  }
  store_le<std::uint32_t>(to + kChecksumAt, checksum_of(std::span(out).first(length)));
  return out;
}

bool is_commit_magic(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof kCommitMagic && std::memcmp(bytes.data(), kCommitMagic, sizeof kCommitMagic) == 0;
}

Result<std::uint64_t> commit_length(std::span<const std::byte> header) {
  LARDER_RETURN_IF_ERROR(check_head(header, kCommitMagic, kCommitHeaderBytes, "commit record"));
  const auto count = load_le<std::uint32_t>(header.data() + 52);
  if (count > kMaxGroupRecords) return corrupt("commit record: too many entries");
  return commit_bytes(count);
}

Result<CommitRecord> decode_commit(std::span<const std::byte> bytes) {
  const Result<std::uint64_t> length = commit_length(bytes);
  if (!length.is_ok()) return length.status();
  const auto count = load_le<std::uint32_t>(bytes.data() + 52);
  const std::size_t exact = kCommitHeaderBytes + count * kCommitEntryBytes;
  if (bytes.size() < exact || !is_checksum_right(bytes.first(exact))) return corrupt("commit record: checksum differs");
  CommitRecord record;
  record.group = load_le<std::uint64_t>(bytes.data() + 16);
  record.group_start = load_le<std::uint64_t>(bytes.data() + 24);
  record.offset = load_le<std::uint64_t>(bytes.data() + 32);
  record.synced_bytes = load_le<std::uint64_t>(bytes.data() + 40);
  record.segment = load_le<std::uint32_t>(bytes.data() + 48);
  record.store_low = load_le<std::uint64_t>(bytes.data() + 56);
  std::uint64_t expected_offset = record.group_start;
  record.entries.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::byte* const at = bytes.data() + kCommitHeaderBytes + i * kCommitEntryBytes;
    CommitEntry entry;
    entry.offset = load_le<std::uint64_t>(at);
    entry.payload_bytes = load_le<std::uint64_t>(at + 8);
    entry.generation = load_le<std::uint64_t>(at + 16);
    entry.envelope_checksum = load_le<std::uint32_t>(at + 24);
    const auto pool = load_le<std::uint8_t>(at + 28);
    if (pool >= kPoolNameCount || entry.payload_bytes > 0xffffffffu || entry.offset != expected_offset) {
      return corrupt("commit record: entry " + std::to_string(i) + " is out of place");
    }
    entry.pool = static_cast<PoolName>(pool);
    expected_offset += record_bytes(entry.payload_bytes);
    record.entries.push_back(entry);
  }
  if (expected_offset != record.offset) return corrupt("commit record: does not follow its records");
  return record;
}

std::uint64_t store_low(const StoreId& store) { return load_le<std::uint64_t>(store.data()); }

std::string segment_name(SegmentId segment) {
  std::array<std::uint8_t, 8> big_endian{};
  for (std::size_t i = 0; i < 4; ++i) big_endian[4 + i] = static_cast<std::uint8_t>(segment >> (24 - 8 * i));
  return std::string(kSegmentPrefix) + hex_encode(big_endian) + std::string(kSegmentSuffix);
}

std::optional<SegmentId> parse_segment_name(std::string_view name) {
  if (!name.starts_with(kSegmentPrefix) || !name.ends_with(kSegmentSuffix)) return std::nullopt;
  if (name.size() != kSegmentPrefix.size() + 16 + kSegmentSuffix.size()) return std::nullopt;
  const std::string_view digits = name.substr(kSegmentPrefix.size(), 16);
  SegmentId segment = 0;  // the parse fails on more than 32 bits
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), segment, 16);
  if (error != std::errc{} || end != digits.data() + digits.size() || segment == 0) return std::nullopt;
  if (segment_name(segment) != name) return std::nullopt;  // upper-case digits are not ours
  return segment;
}

bool is_store_name(std::string_view name) {
  if (name == "lost+found") return true;
  if (name.ends_with(kTemporarySuffix)) name.remove_suffix(kTemporarySuffix.size());
  return name == kFormatName || name == kLockName || name == kClearedName || parse_segment_name(name).has_value();
}

std::string format_text(const StoreId& store) {
  return std::string(kFormatTitle) + "format_version = " + std::to_string(kStoreFormatVersion) +
         "\nstore_id = " + hex_encode(store) + "\n";
}

Result<StoreId> parse_format_text(std::string_view text) {
  if (!text.starts_with(kFormatTitle)) return corrupt("FORMAT is not that of a Larder file store");
  const auto value_of = [text](std::string_view name) -> std::string_view {
    const std::string key = std::string(name) + " = ";
    const std::size_t at = text.find(key);
    if (at == std::string_view::npos) return {};
    const std::string_view rest = text.substr(at + key.size());
    return rest.substr(0, std::min(rest.find('\n'), rest.size()));
  };
  const std::string_view version = value_of("format_version");
  if (version.empty()) return corrupt("FORMAT names no format_version");
  if (version != std::to_string(kStoreFormatVersion)) {
    return unsupported("FORMAT names format_version " + std::string(version.substr(0, 20)) + ", this build reads " +
                       std::to_string(kStoreFormatVersion));
  }
  StoreId store{};
  if (!hex_decode(value_of("store_id"), store).is_ok()) return corrupt("FORMAT names no store_id of 32 hex digits");
  return store;
}

std::vector<std::byte> encode_cleared(std::span<const Cleared> list) {
  std::vector<std::byte> out(kClearedHeaderBytes + list.size() * kClearedEntryBytes);
  store_head(out.data(), kClearedMagic);
  store_le<std::uint64_t>(out.data() + 16, list.size());
  std::byte* at = out.data() + kClearedHeaderBytes;
  for (const Cleared& cleared : list) {
    std::memcpy(at, cleared.namespace_digest.bytes.data(), 32);
    store_le<std::uint64_t>(at + 32, cleared.generation);
    at += kClearedEntryBytes;
  }
  store_le<std::uint32_t>(out.data() + kChecksumAt, checksum_of(out));
  return out;
}

Result<std::vector<Cleared>> decode_cleared(std::span<const std::byte> bytes) {
  LARDER_RETURN_IF_ERROR(check_head(bytes, kClearedMagic, kClearedHeaderBytes, "CLEARED"));
  const auto count = load_le<std::uint64_t>(bytes.data() + 16);
  if ((bytes.size() - kClearedHeaderBytes) % kClearedEntryBytes != 0 ||
      count != (bytes.size() - kClearedHeaderBytes) / kClearedEntryBytes || !is_checksum_right(bytes)) {
    return corrupt("CLEARED: length or checksum differs");
  }
  std::vector<Cleared> list(static_cast<std::size_t>(count));
  const std::byte* at = bytes.data() + kClearedHeaderBytes;
  for (Cleared& cleared : list) {
    std::memcpy(cleared.namespace_digest.bytes.data(), at, 32);
    cleared.generation = load_le<std::uint64_t>(at + 32);
    at += kClearedEntryBytes;
  }
  return list;
}

}  // namespace larder::file_store
