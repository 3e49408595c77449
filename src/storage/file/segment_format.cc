// SPDX-License-Identifier: Apache-2.0
#include "storage/file/segment_format.h"

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t on the stack
#include <xxhash.h>
#include <algorithm>

#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "storage/file/segment_frame.h"

namespace larder::file_store {
namespace {

constexpr std::string_view kSegmentMagic = "LARDERSG", kClearedMagic = "LARDERCL";
constexpr std::size_t kVersionAt = 8, kFrameZerosAt = 10, kChecksumAt = 16;
constexpr std::size_t kStoreAt = 24, kSegmentAt = 40, kCreatedAt = 48, kFirstGenerationAt = 56, kHeaderZerosAt = 64;
constexpr std::size_t kClearedCountAt = 24, kClearedHeaderBytes = 32, kClearedEntryBytes = 40;
constexpr std::string_view kSegmentPrefix = "segment-", kSegmentSuffix = ".larder";
constexpr std::string_view kFormatTitle = "larder file store\n";

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  static constexpr std::uint64_t kZero = 0;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, bytes.data(), kChecksumAt);
  XXH3_64bits_update(&state, &kZero, sizeof kZero);
  XXH3_64bits_update(&state, bytes.data() + kFrameBytes, bytes.size() - kFrameBytes);
  return XXH3_64bits_digest(&state);
}

// The text between `before` and the end of its line; empty if it is not there.
std::string_view value_behind(std::string_view text, std::string_view before) {
  const std::size_t at = text.find(before);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + before.size());
  return rest.substr(0, rest.find('\n'));
}

constexpr std::size_t kMaxNotedDirectory = 200;  // 16 of them fit into a block

// What goes into a line of FORMAT. Doing it again changes nothing.
std::string noted_directory(std::string_view directory) {
  std::string out(directory.substr(0, kMaxNotedDirectory));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

std::string id_text(VolumeId id) {
  std::array<std::uint8_t, 8> big_endian{};
  for (std::size_t i = 0; i < 8; ++i) big_endian[i] = static_cast<std::uint8_t>(id >> (56 - 8 * i));
  return hex_encode(big_endian);
}

bool parse_id(std::string_view text, VolumeId& id) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_volume(std::string_view text, unsigned& volume) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), volume);
  return error == std::errc{} && end == text.data() + text.size() && volume < kMaxVolumes;
}

// "<number> <id> <directory>"
bool parse_member(std::string_view line, VolumeMember& member) {
  const std::size_t first = line.find(' ');
  if (first == std::string_view::npos) return false;
  const std::size_t second = line.find(' ', first + 1);
  if (second == std::string_view::npos) return false;
  member.directory = line.substr(second + 1);
  return parse_volume(line.substr(0, first), member.volume) &&
         parse_id(line.substr(first + 1, second - first - 1), member.id);
}

// The lines behind `volume`, as far as they make sense: the caller compares the whole text.
Status parse_volume_list(std::string_view text, VolumeFormat& format) {
  const Status bad = corrupt("FORMAT has no sound list of volumes");
  constexpr std::string_view kId = "\nvolume_id = ", kSet = "\nset = ", kMember = "\nmember = ";
  if (text.find(kId) != std::string_view::npos && !parse_id(value_behind(text, kId), format.id)) return bad;
  if (text.find(kSet) == std::string_view::npos) return Status::ok();
  const std::string_view version = value_behind(text, kSet);
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), format.set_version);
  if (error != std::errc{} || end != version.data() + version.size()) return bad;
  if (format.set_version == 0 || format.set_version > kMaxSetVersion) return bad;
  bool is_in = false;
  for (std::size_t at = text.find(kMember); at != std::string_view::npos; at = text.find(kMember, at + 1)) {
    VolumeMember member;
    if (!parse_member(value_behind(text.substr(at), kMember), member)) return bad;
    if (!format.members.empty() && member.volume <= format.members.back().volume) return bad;
    is_in = is_in || (member.volume == format.volume && member.id == format.id);
    format.members.push_back(std::move(member));
  }
  return is_in ? Status::ok() : bad;
}

// ".nfs000000000012d6870000000f": a file that was removed while somebody had it open.
bool is_nfs_name(std::string_view name) {
  constexpr std::string_view kPrefix = ".nfs", kDigits = "0123456789abcdefABCDEF";
  if (name.size() <= kPrefix.size() || !name.starts_with(kPrefix)) return false;
  return name.find_first_not_of(kDigits, kPrefix.size()) == std::string_view::npos;
}

}  // namespace

void seal_frame(std::span<std::byte> bytes, std::string_view magic) {
  std::memcpy(bytes.data(), magic.data(), magic.size());
  store_le<std::uint16_t>(bytes.data() + kVersionAt, kStoreFormatVersion);
  store_le<std::uint64_t>(bytes.data() + kChecksumAt, checksum_of(bytes));
}

bool has_magic(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

bool has_known_version(std::span<const std::byte> bytes) {
  return load_le<std::uint16_t>(bytes.data() + kVersionAt) == kStoreFormatVersion &&
         is_zero(bytes.subspan(kFrameZerosAt, kChecksumAt - kFrameZerosAt));
}

Status check_frame(std::span<const std::byte> bytes, std::string_view magic, std::string_view what) {
  if (bytes.size() < kFrameBytes || !has_magic(bytes, magic)) return corrupt(std::string(what) + ": no magic");
  if (load_le<std::uint64_t>(bytes.data() + kChecksumAt) != checksum_of(bytes)) {
    return corrupt(std::string(what) + ": checksum differs");
  }
  const auto version = load_le<std::uint16_t>(bytes.data() + kVersionAt);
  if (version != kStoreFormatVersion) {
    return unsupported(std::string(what) + ": format version " + std::to_string(version) + ", this build reads " +
                       std::to_string(kStoreFormatVersion));
  }
  return has_known_version(bytes) ? Status::ok() : corrupt(std::string(what) + ": bytes that must be zero are not");
}

bool is_zero(std::span<const std::byte> bytes) {
  // Each byte equals the one before it, and the first is zero: the C library compares at memory speed.
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

std::vector<std::byte> encode_segment_header(const SegmentHeader& header) {
  std::vector<std::byte> out(kBlockBytes);
  std::memcpy(out.data() + kStoreAt, header.store.data(), header.store.size());
  store_le<std::uint64_t>(out.data() + kSegmentAt, header.segment);
  store_le<std::uint64_t>(out.data() + kCreatedAt, header.created_unix_seconds);
  store_le<std::uint64_t>(out.data() + kFirstGenerationAt, header.first_generation);
  seal_frame(std::span(out).first(kHeaderBytes), kSegmentMagic);
  return out;
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt("segment header: shorter than 128 bytes");
  bytes = bytes.first(kHeaderBytes);
  LARDER_RETURN_IF_ERROR(check_frame(bytes, kSegmentMagic, "segment header"));
  const auto segment = load_le<std::uint64_t>(bytes.data() + kSegmentAt);
  if (segment == 0 || segment > std::numeric_limits<SegmentId>::max()) {
    return corrupt("segment header: " + std::to_string(segment) + " is no segment number");
  }
  if (!is_zero(bytes.subspan(kHeaderZerosAt))) return corrupt("segment header: bytes that must be zero are not");
  SegmentHeader header;
  std::memcpy(header.store.data(), bytes.data() + kStoreAt, header.store.size());
  header.segment = static_cast<SegmentId>(segment);
  header.created_unix_seconds = load_le<std::uint64_t>(bytes.data() + kCreatedAt);
  header.first_generation = load_le<std::uint64_t>(bytes.data() + kFirstGenerationAt);
  return header;
}

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
  if (name == "lost+found" || name == kLockName || parse_segment_name(name) || is_nfs_name(name)) return true;
  if (name.ends_with(kTemporarySuffix)) name.remove_suffix(kTemporarySuffix.size());
  return name == kFormatName || name == kClearedName;
}

std::string format_text(const VolumeFormat& format) {
  std::string out = std::string(kFormatTitle) + "format_version = " + std::to_string(kStoreFormatVersion) +
                    "\nstore_id = " + hex_encode(format.store) + "\nvolume = " + std::to_string(format.volume) + "\n";
  if (format.id != 0) out += "volume_id = " + id_text(format.id) + "\n";
  if (format.set_version == 0) return out;
  out += "set = " + std::to_string(format.set_version) + "\n";
  for (const VolumeMember& member : format.members) {
    out += "member = " + std::to_string(member.volume) + " " + id_text(member.id) + " " +
           noted_directory(member.directory) + "\n";
  }
  return out;
}

Result<VolumeFormat> parse_format_text(std::string_view text) {
  if (!text.starts_with(kFormatTitle)) return corrupt("FORMAT is not that of a Larder file store");
  const std::string_view version = value_behind(text, "\nformat_version = ");
  if (version.empty()) return corrupt("FORMAT names no format_version");
  if (version != std::to_string(kStoreFormatVersion)) {
    return unsupported("FORMAT names format_version " + std::string(version.substr(0, 20)) + ", this build reads " +
                       std::to_string(kStoreFormatVersion));
  }
  VolumeFormat format;
  if (!hex_decode(value_behind(text, "\nstore_id = "), format.store).is_ok()) {
    return corrupt("FORMAT names no store_id of 32 hex digits");
  }
  if (!parse_volume(value_behind(text, "\nvolume = "), format.volume)) {
    return corrupt("FORMAT names no volume of 0 to " + std::to_string(kMaxVolumes - 1));
  }
  LARDER_RETURN_IF_ERROR(parse_volume_list(text, format));
  if (text != format_text(format)) return corrupt("FORMAT has other lines than a file store writes");
  return format;
}

bool is_in(std::span<const Cleared> list, const Digest256& namespace_digest, std::uint64_t generation) {
  return std::any_of(list.begin(), list.end(), [&](const Cleared& cleared) {
    return generation < cleared.generation &&
           (cleared.namespace_digest.is_zero() || cleared.namespace_digest == namespace_digest);
  });
}

std::vector<std::byte> encode_cleared(std::span<const Cleared> list) {
  std::vector<std::byte> out(kClearedHeaderBytes + list.size() * kClearedEntryBytes);
  store_le<std::uint64_t>(out.data() + kClearedCountAt, list.size());
  std::byte* at = out.data() + kClearedHeaderBytes;
  for (const Cleared& cleared : list) {
    store_digest(at, cleared.namespace_digest);
    store_le<std::uint64_t>(at + 32, cleared.generation);
    at += kClearedEntryBytes;
  }
  seal_frame(out, kClearedMagic);
  return out;
}

Result<std::vector<Cleared>> decode_cleared(std::span<const std::byte> bytes) {
  if (bytes.size() < kClearedHeaderBytes) return corrupt("CLEARED: shorter than 32 bytes");
  LARDER_RETURN_IF_ERROR(check_frame(bytes, kClearedMagic, "CLEARED"));
  const auto count = load_le<std::uint64_t>(bytes.data() + kClearedCountAt);
  if (count > kMaxCleared || bytes.size() != kClearedHeaderBytes + count * kClearedEntryBytes) {
    return corrupt("CLEARED: its length does not fit its count");
  }
  std::vector<Cleared> list(static_cast<std::size_t>(count));
  const std::byte* at = bytes.data() + kClearedHeaderBytes;
  for (Cleared& cleared : list) {
    load_digest(at, cleared.namespace_digest);
    cleared.generation = load_le<std::uint64_t>(at + 32);
    at += kClearedEntryBytes;
  }
  return list;
}

JoinedClears join_cleared(std::span<const Result<std::vector<Cleared>>> files) {
  JoinedClears out;
  std::vector<Cleared>& list = out.list;
  bool is_any_whole = false;
  for (const auto& file : files) {
    (file.is_ok() ? is_any_whole : out.is_damaged) = true;
    if (file.is_ok()) list.insert(list.end(), file->begin(), file->end());
  }
  if (is_any_whole) out.is_damaged = false;
  std::sort(list.begin(), list.end(), [](const Cleared& a, const Cleared& b) {
    return std::pair(a.namespace_digest, b.generation) < std::pair(b.namespace_digest, a.generation);
  });
  const auto same = [](const Cleared& a, const Cleared& b) { return a.namespace_digest == b.namespace_digest; };
  list.erase(std::unique(list.begin(), list.end(), same), list.end());  // the highest generation of each
  if (list.size() <= kMaxCleared) return out;
  const auto older = [](const Cleared& a, const Cleared& b) { return a.generation < b.generation; };
  const auto last = list.begin() + static_cast<std::ptrdiff_t>(list.size() - kMaxCleared);  // of those that become one
  std::nth_element(list.begin(), last, list.end(), older);
  *last = {Digest256{}, last->generation};
  list.erase(list.begin(), last);
  return out;
}

}  // namespace larder::file_store
