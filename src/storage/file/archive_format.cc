// SPDX-License-Identifier: Apache-2.0
// The bytes of an archive: docs/formats.md section 6.
#include <xxhash.h>

#include <cstring>
#include <string>

#include "storage/file/segment_frame.h"
#include "storage/file/store_archive.h"

namespace larder::file_store {
namespace {

constexpr std::string_view kHeaderMagic = "LARDERAR";
constexpr std::string_view kGroupMagic = "LARDERAG";
constexpr std::string_view kEndMagic = "LARDERAE";
constexpr std::size_t kMagicBytes = 8, kVersionAt = 8, kChecksumAt = 16, kFieldsAt = 24;
// file header
constexpr std::size_t kStoreAt = kFieldsAt, kCreatedAt = 40;
// group
constexpr std::size_t kNamespaceAt = kFieldsAt, kNumberAt = 56, kCountAt = 64;
// page
constexpr std::size_t kKeyAt = 0, kParentAt = 32, kFingerprintAt = 64, kLowAt = 96, kHighAt = 104, kBytesAt = 112,
                      kPoolAt = 116;
// end
constexpr std::size_t kGroupsAt = kFieldsAt, kPagesAt = 32, kPayloadAt = 40, kHeadsAt = 48;

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  store_le<std::uint64_t>(copy.data() + kChecksumAt, 0);
  return XXH3_64bits(copy.data(), copy.size());
}

void begin(std::span<std::byte> bytes, std::string_view magic) {
  std::memcpy(bytes.data(), magic.data(), kMagicBytes);
  store_le<std::uint16_t>(bytes.data() + kVersionAt, kArchiveVersion);
}
void seal(std::span<std::byte> bytes) { store_le<std::uint64_t>(bytes.data() + kChecksumAt, checksum_of(bytes)); }

Status check(std::span<const std::byte> bytes, std::string_view magic, const char* what) {
  if (bytes.size() < kArchiveHeaderBytes || !has_magic(bytes, magic)) {
    return corrupt(std::string("archive: no ") + what + " where one must be");
  }
  if (load_le<std::uint64_t>(bytes.data() + kChecksumAt) != checksum_of(bytes)) {
    return corrupt(std::string("archive: the checksum of the ") + what + " differs");
  }
  const auto version = load_le<std::uint16_t>(bytes.data() + kVersionAt);  // all versions have these fields there
  if (version != kArchiveVersion) {
    return unsupported("archive: version " + std::to_string(version) + "; this build reads version " +
                       std::to_string(kArchiveVersion));
  }
  return Status::ok();
}

}  // namespace

std::array<std::byte, kArchiveHeaderBytes> encode_archive_header(const ArchiveHeader& header) {
  std::array<std::byte, kArchiveHeaderBytes> out{};
  begin(out, kHeaderMagic);
  std::memcpy(out.data() + kStoreAt, header.store.data(), header.store.size());
  store_le<std::uint64_t>(out.data() + kCreatedAt, header.created_unix_seconds);
  seal(out);
  return out;
}

Result<ArchiveHeader> decode_archive_header(std::span<const std::byte> bytes) {
  LARDER_RETURN_IF_ERROR(check(bytes, kHeaderMagic, "header"));
  ArchiveHeader header;
  std::memcpy(header.store.data(), bytes.data() + kStoreAt, header.store.size());
  header.created_unix_seconds = load_le<std::uint64_t>(bytes.data() + kCreatedAt);
  return header;
}

std::vector<std::byte> encode_archive_group(const ArchiveGroup& group) {
  std::vector<std::byte> out(kArchiveHeaderBytes + group.pages.size() * kArchivePageBytes);
  begin(out, kGroupMagic);
  store_digest(out.data() + kNamespaceAt, group.namespace_digest);
  store_le<std::uint64_t>(out.data() + kNumberAt, group.number);
  store_le<std::uint32_t>(out.data() + kCountAt, static_cast<std::uint32_t>(group.pages.size()));
  std::byte* at = out.data() + kArchiveHeaderBytes;
  for (const ArchivePage& page : group.pages) {
    store_digest(at + kKeyAt, page.key);
    store_digest(at + kParentAt, page.parent);
    store_digest(at + kFingerprintAt, page.layout_fingerprint);
    store_le<std::uint64_t>(at + kLowAt, page.checksum.low);
    store_le<std::uint64_t>(at + kHighAt, page.checksum.high);
    store_le<std::uint32_t>(at + kBytesAt, page.payload_bytes);
    store_le<std::uint8_t>(at + kPoolAt, static_cast<std::uint8_t>(page.pool));
    at += kArchivePageBytes;
  }
  seal(out);
  return out;
}

Result<std::uint64_t> archive_group_bytes(std::span<const std::byte> start) {
  if (start.size() < kArchiveHeaderBytes) return corrupt("archive: cut off");
  if (has_magic(start, kEndMagic)) return std::uint64_t{0};
  if (!has_magic(start, kGroupMagic)) return corrupt("archive: neither a group nor the end where one must be");
  const auto count = load_le<std::uint32_t>(start.data() + kCountAt);
  if (count == 0 || count > kMaxArchiveGroupPages) {
    return corrupt("archive: a group of " + std::to_string(count) + " pages");
  }
  return kArchiveHeaderBytes + count * std::uint64_t{kArchivePageBytes};
}

Result<ArchiveGroup> decode_archive_group(std::span<const std::byte> bytes) {
  LARDER_RETURN_IF_ERROR(check(bytes, kGroupMagic, "group"));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t length, archive_group_bytes(bytes));
  if (length != bytes.size()) return corrupt("archive: a group whose head has another length");
  ArchiveGroup group;
  load_digest(bytes.data() + kNamespaceAt, group.namespace_digest);
  group.number = load_le<std::uint64_t>(bytes.data() + kNumberAt);
  group.pages.resize(load_le<std::uint32_t>(bytes.data() + kCountAt));
  const std::byte* at = bytes.data() + kArchiveHeaderBytes;
  for (ArchivePage& page : group.pages) {
    load_digest(at + kKeyAt, page.key);
    load_digest(at + kParentAt, page.parent);
    load_digest(at + kFingerprintAt, page.layout_fingerprint);
    page.checksum = {load_le<std::uint64_t>(at + kLowAt), load_le<std::uint64_t>(at + kHighAt)};
    page.payload_bytes = load_le<std::uint32_t>(at + kBytesAt);
    const auto pool = load_le<std::uint8_t>(at + kPoolAt);
    if (pool >= kPoolNumberCount) return corrupt("archive: unknown pool " + std::to_string(pool));
    page.pool = static_cast<PoolName>(pool);
    at += kArchivePageBytes;
  }
  return group;
}

std::array<std::byte, kArchiveHeaderBytes> encode_archive_end(const ArchiveEnd& end) {
  std::array<std::byte, kArchiveHeaderBytes> out{};
  begin(out, kEndMagic);
  store_le<std::uint64_t>(out.data() + kGroupsAt, end.groups);
  store_le<std::uint64_t>(out.data() + kPagesAt, end.pages);
  store_le<std::uint64_t>(out.data() + kPayloadAt, end.payload_bytes);
  store_le<std::uint64_t>(out.data() + kHeadsAt, end.heads_checksum);
  seal(out);
  return out;
}

Result<ArchiveEnd> decode_archive_end(std::span<const std::byte> bytes) {
  LARDER_RETURN_IF_ERROR(check(bytes, kEndMagic, "end"));
  ArchiveEnd end;
  end.groups = load_le<std::uint64_t>(bytes.data() + kGroupsAt);
  end.pages = load_le<std::uint64_t>(bytes.data() + kPagesAt);
  end.payload_bytes = load_le<std::uint64_t>(bytes.data() + kPayloadAt);
  end.heads_checksum = load_le<std::uint64_t>(bytes.data() + kHeadsAt);
  return end;
}

}  // namespace larder::file_store
