// SPDX-License-Identifier: Apache-2.0
// Archives (storage/file/store_archive.h): the structures, and reading a whole file.
//
// Fed: a structure of any bytes, as it is or with a right checksum; or an archive of some groups with single bytes
// changed and an end cut off; or a whole file of any bytes.
// Checked: refusals are kCorrupt or kUnsupported and say why. What decodes is encoded to the same bytes again. Reading
// a damaged archive gives groups as they were written, in order, whole or marked damaged, and never comes to a good end
// unless nothing was touched; an import in which nothing is written counts the same.
#include <xxhash.h>

#include "fuzz/fuzz_input.h"
#include "sim/sim_file_system.h"
#include "storage/file/store_archive.h"

namespace larder::fuzz {
namespace {

using namespace larder::file_store;

constexpr std::size_t kChecksumAt = 16;

void check_refusal(const Status& status) {
  fuzz_check(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
             "refused with " + status.to_string());
  check_explains(status, "archive");
}

std::uint64_t seal(std::span<std::byte> bytes) {
  store_le<std::uint64_t>(bytes.data() + kChecksumAt, 0);
  const std::uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  store_le<std::uint64_t>(bytes.data() + kChecksumAt, checksum);
  return checksum;
}

// Magic and version of the real thing in front, and a checksum over all.
void seal_like(std::span<std::byte> bytes, std::span<const std::byte> like) {
  std::copy_n(like.begin(), 10, bytes.begin());
  seal(bytes);
}

// Fields that nobody reads yet come back as zeros, so the first round may give other bytes; the second must not.
template <class Decode, class Encode>
auto check_again(std::span<const std::byte> bytes, Decode decode, Encode encode) {
  auto decoded = decode(bytes);
  if (!decoded.is_ok()) {
    check_refusal(decoded.status());
    return decoded;
  }
  const auto again = encode(*decoded);
  fuzz_check(again.size() == bytes.size(), "another length again");
  const auto second = decode(again);
  fuzz_check(second.is_ok() && are_equal(encode(*second), again), "other bytes again");
  return decoded;
}

void check_structure(FuzzInput& input) {
  const std::uint64_t structure = input.below(3);
  const bool sealed = input.flag();
  std::vector<std::byte> bytes = copy_of(input.rest());
  if (structure != 1) bytes.resize(kArchiveHeaderBytes);
  if (bytes.size() < kArchiveHeaderBytes) return check_refusal(decode_archive_group(bytes).status());
  if (structure == 0) {
    if (sealed) seal_like(bytes, encode_archive_header({}));
    (void)check_again(bytes, decode_archive_header, encode_archive_header);
    return;
  }
  if (structure == 2) {
    if (sealed) seal_like(bytes, encode_archive_end({}));
    (void)check_again(bytes, decode_archive_end, encode_archive_end);
    return;
  }
  ArchiveGroup any;
  any.pages.resize(1);
  if (sealed) seal_like(bytes, encode_archive_group(any));
  const Result<ArchiveGroup> group = check_again(bytes, decode_archive_group, encode_archive_group);
  if (!group.is_ok()) return;
  const Result<std::uint64_t> length = archive_group_bytes(bytes);
  fuzz_check(length.is_ok() && *length == bytes.size(), "a group of another length than its start says");
  fuzz_check(!group->pages.empty() && group->pages.size() <= kMaxArchiveGroupPages, "an impossible group");
}

Digest256 digest_of(std::uint64_t number) {
  Digest256 digest;
  store_le<std::uint64_t>(digest.bytes.data(), number + 1);
  return digest;
}

struct Written {
  std::vector<ArchiveGroup> groups;
  std::vector<std::vector<std::vector<std::byte>>> payloads;
  std::vector<std::byte> bytes;
  bool is_touched = false;
};

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void add_group(Written& archive, FuzzInput& input, ArchiveEnd& end, std::vector<std::uint64_t>& checksums) {
  ArchiveGroup group;
  group.number = end.groups++;
  group.namespace_digest = digest_of(input.below(2));
  auto& payloads = archive.payloads.emplace_back();
  const std::uint64_t pages = 1 + input.below(4);
  for (std::uint64_t i = 0; i < pages; ++i) {
    std::vector<std::byte>& payload = payloads.emplace_back(static_cast<std::size_t>(input.below(200)));
    for (std::byte& byte : payload) byte = static_cast<std::byte>(group.number * 16 + i);
    const Segment piece{payload.data(), payload.size()};
    ArchivePage page;
    page.pool = static_cast<PoolName>(i);
    page.layout_fingerprint = digest_of(7);
    page.key = digest_of(100 + group.number);
    if (group.number > 0) page.parent = digest_of(99 + group.number);
    page.payload_bytes = static_cast<std::uint32_t>(payload.size());
    page.checksum = payload_checksum({&piece, 1});
    group.pages.push_back(page);
    end.payload_bytes += payload.size();
    ++end.pages;
  }
  const std::vector<std::byte> head = encode_archive_group(group);
  checksums.push_back(load_le<std::uint64_t>(head.data() + kChecksumAt));
  append(archive.bytes, head);
  for (const auto& payload : payloads) append(archive.bytes, payload);
  archive.groups.push_back(std::move(group));
}

Written make_archive(FuzzInput& input) {
  Written archive;
  append(archive.bytes, encode_archive_header({{1, 2}, 5}));
  ArchiveEnd end;
  std::vector<std::uint64_t> checksums;
  for (std::uint64_t left = input.below(5); left > 0; --left) add_group(archive, input, end, checksums);
  end.heads_checksum = XXH3_64bits(checksums.data(), checksums.size() * sizeof(std::uint64_t));
  append(archive.bytes, encode_archive_end(end));
  const std::size_t whole = archive.bytes.size();
  if (input.below(4) == 0) archive.bytes.resize(static_cast<std::size_t>(input.below(whole + 1)));
  archive.is_touched = archive.bytes.size() != whole;
  for (std::uint64_t left = input.below(4); left > 0 && !archive.bytes.empty(); --left) {
    const std::size_t at = input.number<std::uint32_t>() % archive.bytes.size();
    archive.bytes[at] ^= static_cast<std::byte>(1 + input.below(255));
    archive.is_touched = true;
  }
  return archive;
}

void check_group(const Written& archive, std::size_t number, const ArchiveReader::Group& group) {
  fuzz_check(number < archive.groups.size(), "a group that was not written");
  const std::vector<std::byte> written = encode_archive_group(archive.groups[number]);
  fuzz_check(are_equal(encode_archive_group(group.head), written), "a group's head is another");
  fuzz_check(!group.status.is_ok() || group.payloads == archive.payloads[number], "a payload is another");
  fuzz_check(group.status.is_ok() || archive.is_touched, "an untouched group is damaged");
}

// Groups read until the end; `archive` null: any file.
void check_reading(std::span<const std::byte> bytes, const Written* archive) {
  sim::SimFileSystem files(1);
  auto file = files.open("/archive", {.write = true, .create = true});
  fuzz_check(file.is_ok() && write_fully(**file, bytes, 0).is_ok(), "the simulated disk refuses");
  Result<ArchiveReader> reader = ArchiveReader::open(**file);
  const Result<ImportResult> imported = import_archive(**file, nullptr, {{}, true, {}});
  fuzz_check(reader.is_ok() == imported.is_ok(), "an archive opens for the one and not for the other");
  if (!reader.is_ok()) {
    fuzz_check(archive == nullptr || archive->is_touched, "an untouched archive is refused");
    return check_refusal(reader.status());
  }
  std::uint64_t groups = 0, damaged = 0;
  bool is_complete = false;
  for (;;) {
    const Result<std::optional<ArchiveReader::Group>> group = reader->next();
    if (!group.is_ok()) {
      check_refusal(group.status());
      break;
    }
    is_complete = !group->has_value();
    if (is_complete) break;
    if (archive != nullptr) check_group(*archive, static_cast<std::size_t>(groups), **group);
    ++groups;
    if (!(*group)->status.is_ok()) ++damaged;
    fuzz_check(reader->position() <= reader->file_bytes(), "a group behind the file");
  }
  fuzz_check(imported->end.is_ok() == is_complete, "an import ends otherwise");
  fuzz_check(imported->groups == groups - damaged && imported->damaged_groups == damaged, "an import counts otherwise");
  if (archive == nullptr) return;
  if (!archive->is_touched) fuzz_check(is_complete && groups == archive->groups.size(), "groups are missing");
  if (is_complete) fuzz_check(groups == archive->groups.size(), "a good end before the end");
}

void run(FuzzInput input) {
  switch (input.below(3)) {
    case 0: return check_structure(input);
    case 1: return check_reading(input.rest(), nullptr);
    default: break;
  }
  const Written archive = make_archive(input);
  check_reading(archive.bytes, &archive);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
